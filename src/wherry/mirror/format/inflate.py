"""The bytes of a file that a segment has: as they are stored, or decompressed up to a limit.

Any user of the bucket may have made a segment: 49 kB of zstd can become 1.6 GB, and a frame can ask for gigabytes of memory
before its first byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import IO

from wherry.errors import IntegrityError, PermanentError

#: A compressed segment has at most so many bytes of its file, or so many for each stored one. Writers cut at 8 MiB, unless told
#: otherwise, or after one event, which protobuf limits to 2 GiB; text comes to a hundredth.
MOST_INFLATED_BYTES = 2**28
_MOST_RATIO = 1000
#: The memory that a decompressor needs for any frame (RFC 8878, 3.1.1.1.2); our writers' frames ask for a quarter.
_MOST_WINDOW_BYTES = 8 * 2**20
_BLOCK_BYTES = 2**20


def inflated(
    stored: IO[bytes], compression: str | None, length_bytes: int | None, stored_bytes: int, *, uri: str
) -> Iterator[bytes]:
    """Yield the bytes of the file that a segment has, in blocks of at most 1 MiB.

    `length_bytes`: so many it must have, None: that is not known. It ends with IntegrityError as soon as there are more, or more
    than any segment may have, and for what is no gzip member or zstd frame.
    """
    most = stored_bytes if compression is None else max(MOST_INFLATED_BYTES, _MOST_RATIO * stored_bytes)
    most = min(most, length_bytes if length_bytes is not None else most)
    read, left = _READERS[compression](stored, uri) if compression else stored.read, most
    while block := read(min(_BLOCK_BYTES, left + 1)):
        left -= len(block)
        if left < 0:
            raise IntegrityError(f"its {stored_bytes} bytes stand for more than the {most} that it may have", **_read(uri))
        yield block


def _read(uri: str) -> dict[str, str]:
    return {"operation": "read", "uri": uri}


def _unzstd(stored: IO[bytes], uri: str) -> Callable[[int], bytes]:
    try:
        from zstandard import ZstdDecompressor, ZstdError  # only who chose it needs it
    except ImportError as error:
        words = "it is compressed with zstd, and Python's zstandard is not installed: pip install 'wherry[mirror]'"
        raise PermanentError(words, **_read(uri)) from error
    stream = ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES).stream_reader(stored, read_across_frames=True)

    def read(size: int) -> bytes:
        try:
            return stream.read(size)
        except ZstdError as error:
            raise IntegrityError(f"it is no zstd frame of a mirror: {error}", **_read(uri)) from error

    return read


def _gunzip(stored: IO[bytes], uri: str) -> Callable[[int], bytes]:
    inflater = zlib.decompressobj(wbits=31)  # gzip's header and trailer (zlib's manual, inflateInit2)

    def read(size: int) -> bytes:
        nonlocal inflater
        while True:
            data = inflater.unconsumed_tail or inflater.unused_data or stored.read(_BLOCK_BYTES)
            if inflater.eof and data:
                inflater = zlib.decompressobj(wbits=31)
            if not data:
                if not inflater.eof:
                    raise IntegrityError("the gzip member is cut off", **_read(uri))
                return b""
            try:
                out = inflater.decompress(data, size)
            except zlib.error as error:
                raise IntegrityError(f"it is no gzip member: {error}", **_read(uri)) from error
            if out:
                return out

    return read


#: Compression -> what makes a read(n) of the decompressed bytes.
_READERS: dict[str, Callable[[IO[bytes], str], Callable[[int], bytes]]] = {"gzip": _gunzip, "zstd": _unzstd}
