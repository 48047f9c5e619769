"""One segment, from the growing file to a small file of its own: cut, copied, summed, compressed.

The growing file is read only. It is trusted for nothing: what stands before the segment must still be what was sent.
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wherry.checksum import BLOCK_BYTES, crc32c
from wherry.mirror.format.layout import sum_of
from wherry.mirror.format.record_boundaries import cut_events, cut_lines, is_event_file
from wherry.mirror.writer.state_db import Record

#: So many bytes before the end of what was sent are compared again before more is sent.
TAIL_BYTES = 4096
#: Two changes within a tick of the kernel's clock, at most 10 ms (HZ=100), may have one time of modification.
_TICKS_NS = 20_000_000


class PrefixChanged(Exception):
    """The file does not begin with what was sent any more: it was truncated, rewritten or replaced."""


@dataclass(frozen=True)
class Cut:
    """A segment's bytes [start, end) of a file. `crc32c` is that of the uncompressed bytes."""

    start: int
    end: int
    crc32c: int
    tail: str
    boundary: int
    mtime_ns: int


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _NoCompression:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def compressor(name: str | None) -> _Compressor:
    """A fresh one: what it makes is a whole gzip member or zstd frame. ImportError if zstandard is not installed."""
    if name == "gzip":
        return zlib.compressobj(level=6, wbits=31)  # gzip's header and trailer (zlib's manual, deflateInit2)
    if name == "zstd":
        from zstandard import ZstdCompressor  # only who chose it needs it

        return ZstdCompressor().compressobj()
    return _NoCompression()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor to read a file of the folder by. OSError for a link."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield file
    finally:
        os.close(file)


def tail_of(file: int, end: int) -> str:
    """A hash of the bytes before `end`, at most TAIL_BYTES."""
    start = max(0, end - TAIL_BYTES)
    return hashlib.blake2b(os.pread(file, end - start, start), digest_size=16).hexdigest()


def check_prefix(file: int, record: Record) -> os.stat_result:
    """Raise PrefixChanged if the open file is another one, or does not begin with the bytes that were sent.

    Only the last of these bytes are compared.
    """
    status = os.fstat(file)
    if (status.st_dev, status.st_ino) != (record.device, record.inode):
        raise PrefixChanged("another file has its name")
    if status.st_size < record.acked:
        raise PrefixChanged(f"it has {status.st_size} bytes, {record.acked} were sent: it was truncated")
    if record.acked and tail_of(file, record.acked) != record.tail:
        raise PrefixChanged("it was rewritten")
    return status


def is_just_modified(status: os.stat_result) -> bool:
    """Whether it was written to so lately that another change might have the same time."""
    return time.time_ns() - status.st_mtime_ns < _TICKS_NS


def cut_segment(
    source: Path, record: Record, scratch: Path, *, max_bytes: int, compression: str | None, all_of_it: bool
) -> Cut | None:
    """Copy the next segment of a file into `scratch`; None if there is no whole record to send.

    `all_of_it`: also what is no whole record. Raises PrefixChanged, FileNotFoundError (it is gone), OSError (ENOSPC).
    """
    with opened(source) as file:
        status = check_prefix(file, record)
        start, size = record.acked, status.st_size
        if is_event_file(record.path):
            end, boundary = cut_events(file, record.boundary, start, size, max_bytes)
        else:
            end = boundary = cut_lines(file, start, size, max_bytes)
        if end == start and all_of_it:
            end = min(size, start + max_bytes)
        if end == start:
            return None
        crc = _copy(file, start, end, scratch, compressor(compression))
        after = check_prefix(file, record)  # what was copied meanwhile belongs behind what was sent
        may_differ = after.st_mtime_ns != status.st_mtime_ns or is_just_modified(after)
        if may_differ and sum_of(_blocks(file, start, end))[1] != crc:  # truncated and filled again in this moment
            raise PrefixChanged("it changed while it was read")
        return Cut(start, end, crc, tail_of(file, end), min(boundary, end), status.st_mtime_ns)


def _blocks(file: int, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        block = os.pread(file, min(BLOCK_BYTES, end - start), start)
        if not block:
            raise PrefixChanged(f"it ended at byte {start} while it was read: it was truncated")
        yield block
        start += len(block)


def _copy(file: int, start: int, end: int, target: Path, packer: _Compressor) -> int:
    crc = 0
    with open(target, "wb") as out:
        for block in _blocks(file, start, end):
            crc = crc32c(block, crc)
            out.write(packer.compress(block))
        out.write(packer.flush())
    return crc
