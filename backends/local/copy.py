"""Bytes from one local file to another: shared where the file system can, else copied inside the kernel; holes stay holes."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator

import google_crc32c

from wherry.backends.local_file import write_all

_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int), make a file share another's blocks
_FICLONERANGE = 0x4020940D  # _IOW(0x94, 13, struct file_clone_range)
BLOCK_BYTES = 2**20
_SUMMED_BYTES = 2**18
_CLONE_BYTES = 2**28
#: What st_blocks counts in (stat(2)).
_STATBLOCK_BYTES = 512
_NO_COPY_IN_KERNEL = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


def clone(source: int, target: int) -> bool:
    """Make the file share all blocks of another, at once; False where that cannot be (most file systems)."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def clone_range(source: int, target: int, start: int, end: int) -> bool:
    """Make a file share the blocks of a range of another, at the same place; False where that cannot be."""
    if start == end:
        return False  # for the call, no length means all
    try:
        fcntl.ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, start, end - start, start))
    except OSError:
        return False
    return True


def copy_and_sum(source: int, target: int, start: int, end: int) -> tuple[int, int]:
    """Copy [start, end) to the same offsets; return how many bytes there were, and their CRC32C.

    Each block is summed between its read and its write, while it is in the processor's cache: that costs a few per cent of the
    copy, and reading the bytes again after a copy inside the kernel a quarter.
    """
    at, crc = start, 0
    while at < end and (block := os.pread(source, min(_SUMMED_BYTES, end - at), at)):
        crc = google_crc32c.extend(crc, block)
        write_all(target, block, at)
        at += len(block)
    return at - start, int(crc)


def sum_of(file: int, size: int) -> int:
    """The CRC32C of the first `size` bytes."""
    at, crc = 0, 0
    while at < size and (block := os.pread(file, min(_SUMMED_BYTES, size - at), at)):
        crc, at = google_crc32c.extend(crc, block), at + len(block)
    return int(crc)


def copy_range(source: int, target: int, start: int, end: int) -> int:
    """Copy [start, end) to the same offsets; return how many bytes there were.

    Holes are not filled, so that a hole at the end does not make the target longer.
    """
    at = start
    for data_start, data_end in _extents(source, start, end):
        _clear(target, at, data_start)
        at = data_start + _copy(source, target, data_start, data_end)
        if at < data_end:
            return at - start
    if (size := os.fstat(source).st_size) < end:  # a hole has no end of its own
        return max(at, size) - start
    _clear(target, at, end)
    return end - start


def _copy(source: int, target: int, start: int, end: int) -> int:
    """Copy [start, end), inside the kernel where it can; return how many bytes there were."""
    at = start
    try:
        while at < end and (copied := os.copy_file_range(source, target, min(end - at, _CLONE_BYTES), at, at)):
            at += copied
    except OSError as error:
        if error.errno not in _NO_COPY_IN_KERNEL:
            raise
    while at < end and (block := os.pread(source, min(BLOCK_BYTES, end - at), at)):
        write_all(target, block, at)
        at += len(block)
    return at - start


def _extents(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where in [start, end) the file has bytes of its own; all of it, if the file system does not tell."""
    status = os.fstat(fd)
    if status.st_blocks * _STATBLOCK_BYTES >= status.st_size:
        yield start, end
        return
    at = start
    while at < end:
        try:
            data_start = os.lseek(fd, at, os.SEEK_DATA)
            data_end = os.lseek(fd, data_start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: nothing follows
                yield at, end
            return
        if data_start >= end:
            return
        yield data_start, min(data_end, end)
        at = data_end


def _clear(fd: int, start: int, end: int) -> None:
    """Fill [start, end) with zeros, writing only where other bytes are."""
    end = min(end, os.fstat(fd).st_size)
    if start >= end:
        return
    for data_start, data_end in _extents(fd, start, end):
        for at in range(data_start, data_end, BLOCK_BYTES):
            write_all(fd, bytes(min(BLOCK_BYTES, data_end - at)), at)
