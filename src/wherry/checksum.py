"""CRC32C (Castagnoli), the one checksum used everywhere, by a native library; parts are combined, never read again.

The combination follows M. Adler's crc32_combine in zlib (https://github.com/madler/zlib), with Castagnoli's
polynomial: a CRC is moved over n zero bytes by a multiplication with x^(8n) modulo the polynomial.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import google_crc32c

#: x^32 + ... of CRC-32C (RFC 3720 B.4), with the bits reversed.
_POLYNOMIAL = 0x82F63B78
#: One block fits the processor's second-level cache, so that its bytes are still there when they are summed. It must stay below
#: malloc's threshold for fresh mappings (128 KiB, mallopt(3)): page faults on each block take ten times as long as the copy.
BLOCK_BYTES = 96 * 1024
#: What is only read and summed goes in larger blocks: at each the threads that sum take turns with Python's lock, and eight
#: threads with blocks of 96 KiB take 1.5 times the processor time. Freed at once, the block's memory is used again.
_READ_BYTES = 2**19


#: A large file is summed in pieces of this size, each for itself, so that no part is read again for its sum.
PIECE_BYTES = 8 * 2**20

#: An object's metadata has the sums of at most so many of its ranges: 1,366 characters, of the 2 KB that S3 has room for in all.
MOST_RANGE_SUMS = 256
_CRC32C = re.compile("[0-9a-fA-F]{8}")
_RANGE_SUMS = re.compile(r"([1-9][0-9]{0,14}):([A-Za-z0-9_-]+)")


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """The CRC32C of `data`, going on from `crc`."""
    return int(google_crc32c.extend(crc, bytes(data)))  # it takes no memoryview; bytes() of bytes is no copy


def crc32c_of_file(path: Path, start: int = 0, end: int | None = None, *, stop: Callable[[], None] | None = None) -> int:
    """The CRC32C of bytes [start, end) of a file; up to its end if `end` is None. `stop` is called between blocks.

    Raises EOFError when the file is shorter than `end`.
    """
    crc = 0
    with open(path, "rb", buffering=0) as file:
        left = (os.fstat(file.fileno()).st_size if end is None else end) - start
        file.seek(start)
        while left > 0:
            block = file.read(min(_READ_BYTES, left))
            if not block:
                raise EOFError(f"{path} ends {left} bytes before byte {start + left}")
            crc = google_crc32c.extend(crc, block)
            left -= len(block)
            if stop is not None:
                stop()
    return int(crc)


def crc32cs_of_file(path: Path, start: int, end: int, piece_bytes: int) -> list[int]:
    """The CRC32C of each piece of bytes [start, end) of a file, all but the last of `piece_bytes`."""
    return [crc32c_of_file(path, at, min(at + piece_bytes, end)) for at in range(start, end, piece_bytes)]


def sha256_and_crc32cs_of_file(path: Path) -> tuple[str, list[int]]:
    """The SHA-256 of a file in hex, and the CRC32C of each piece of PIECE_BYTES, all in one pass over it."""
    sha256 = hashlib.sha256()
    pieces: list[int] = []
    with open(path, "rb", buffering=0) as file:
        left, crc = PIECE_BYTES, 0
        while block := file.read(min(BLOCK_BYTES, left)):
            sha256.update(block)
            crc = google_crc32c.extend(crc, block)
            left -= len(block)
            if not left:
                pieces.append(int(crc))
                left, crc = PIECE_BYTES, 0
    if left < PIECE_BYTES:
        pieces.append(int(crc))
    return sha256.hexdigest(), pieces


def combine_crc32c(first: int, second: int, second_size_bytes: int) -> int:
    """The CRC32C of two byte strings in a row, from each one's own CRC32C and the size of the second."""
    return _multiply(_shift_by(second_size_bytes), first) ^ second


def join_crc32c(pieces: Sequence[int], piece_bytes: int, size_bytes: int) -> int:
    """The CRC32C of `size_bytes` bytes from those of their pieces, all but the last of `piece_bytes`."""
    if len(pieces) == 1:
        return pieces[0]
    crc = 0
    for number, piece in enumerate(pieces):
        crc = combine_crc32c(crc, piece, min(piece_bytes, size_bytes - number * piece_bytes))
    return crc


def regroup_crc32c(pieces: Sequence[int], piece_bytes: int, group_bytes: int, size_bytes: int) -> list[int]:
    """The CRC32C of each `group_bytes` of `size_bytes` bytes from those of their pieces, of which whole ones make a group."""
    n_joined = group_bytes // piece_bytes
    return [
        join_crc32c(pieces[at : at + n_joined], piece_bytes, min(group_bytes, size_bytes - at * piece_bytes))
        for at in range(0, len(pieces), n_joined)
    ]


def range_sums(pieces: Sequence[int], piece_bytes: int, size_bytes: int, least_bytes: int) -> str | None:
    """The CRC32C of each range of an object, from those of its pieces, as RANGES_METADATA has them. None: it has one range only.

    A range has `least_bytes`, made up to whole pieces and doubled until MOST_RANGE_SUMS of them suffice.
    """
    range_bytes = -(-least_bytes // piece_bytes) * piece_bytes
    while range_bytes * MOST_RANGE_SUMS < size_bytes:
        range_bytes *= 2
    if not pieces or size_bytes <= range_bytes:
        return None
    sums = regroup_crc32c(pieces, piece_bytes, range_bytes, size_bytes)
    packed = base64.urlsafe_b64encode(struct.pack(f">{len(sums)}I", *sums))
    return f"{range_bytes}:{packed.decode().rstrip('=')}"


def parse_range_sums(text: str, size_bytes: int) -> tuple[int, tuple[int, ...]] | None:
    """Read what range_sums() wrote: (bytes of a range, their sums). None for anything else, or sums of another size of object."""
    found = _RANGE_SUMS.fullmatch(text)
    if found is None:
        return None
    range_bytes, n_sums = int(found[1]), -(-size_bytes // int(found[1]))
    try:
        packed = base64.urlsafe_b64decode(found[2] + "=" * (-len(found[2]) % 4))
    except ValueError:
        return None
    return (range_bytes, struct.unpack(f">{n_sums}I", packed)) if len(packed) == 4 * n_sums else None


def format_crc32c(crc: int) -> str:
    """As 8 lower-case hex digits, the form kept in metadata."""
    return f"{crc:08x}"


def parse_crc32c(text: str) -> int | None:
    """Read what format_crc32c() wrote; None for anything else."""
    return int(text, 16) if _CRC32C.fullmatch(text) else None


def _multiply(a: int, b: int) -> int:
    """A * b modulo the polynomial; bit 31 stands for x^0."""
    product = 0
    bit = 1 << 31
    while bit:
        if a & bit:
            product ^= b
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
        bit >>= 1
    return product


@lru_cache(maxsize=64)
def _shift_by(n_bytes: int) -> int:
    """x^(8 * n_bytes) modulo the polynomial, by squaring."""
    result = 1 << 31  # x^0
    square = 1 << 23  # x^8
    while n_bytes:
        if n_bytes & 1:
            result = _multiply(square, result)
        square = _multiply(square, square)
        n_bytes >>= 1
    return result
