"""Files copied into the spool and out of it: blocks are shared where the file system can, else the kernel copies; holes are kept.

What is no regular file is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from wherry.checksum import BLOCK_BYTES, PIECE_BYTES, crc32c
from wherry.errors import ConfigError, SourceChangedError

#: ioctl_ficlone(2): share the blocks of another file, copy on write.
_FICLONE = 0x40049409
#: linkat(2), rename(2), FICLONE and sendfile(2) say these where they cannot do it on this pair of files; then the next way is
#: taken.
CANNOT = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.ETXTBSY}
CANNOT.add(errno.ENOTSOCK)  # sendfile(2) of other systems than Linux
#: What one call of the kernel copies, without heed of Ctrl-C. Each call waits for the interpreter once, for 5 ms where another
#: thread computes in Python: of smaller calls there would be more.
_CALL_BYTES = 64 * 2**20
#: What st_blocks counts in (stat(2)).
STATBLOCK_BYTES = 512


def require_regular(path: Path, found: os.stat_result) -> None:
    """Raise ConfigError for a folder, FIFO, socket or device; none of them is opened, for that may block."""
    if not stat.S_ISREG(found.st_mode):
        names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        kind = names.get(stat.S_IFMT(found.st_mode), "a device")
        raise ConfigError(f"{path} is {kind}: only regular files can be uploaded")


def reflink(source: int, target: int) -> bool:
    """Make the open, empty file `target` share the blocks of `source`. False where that cannot be."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in CANNOT:
            return False
        raise
    return True


def _ignore(n_bytes: int) -> None:
    """Tell nobody how far a copy is."""


def copy_data(source: int, target: int, size_bytes: int, advance: Callable[[int], object] = _ignore) -> None:
    """Copy the first `size_bytes` of an open file to the open, empty file `target`, inside the kernel where it can.

    Holes stay holes, so a sparse file takes no more room than it had. Raises SourceChangedError when the file is shorter; whoever
    needs to know of other changes compares the file's size and time before and after. `advance` is told of each 64 MiB.
    """
    at = 0
    for start, end in _extents(source, size_bytes):
        if start > at:
            advance(start - at)
        at = start
        while at < end:
            n_bytes = min(_CALL_BYTES, end - at)
            _copy_range(source, target, at, at + n_bytes)
            at += n_bytes
            advance(n_bytes)
    if at < size_bytes:
        advance(size_bytes - at)
        os.ftruncate(target, size_bytes)


def _copy_range(source: int, target: int, at: int, end: int) -> None:
    """Copy [at, end) to the same offsets.

    Not by copy_file_range(2): it is no faster where FICLONE has been refused, conda's builds of Python lack it, and kernels
    before 5.19 copied nothing, or too little, between some pairs of file systems without saying so.
    """
    os.lseek(target, at, os.SEEK_SET)
    in_kernel = True
    while at < end:
        try:
            copied = os.sendfile(target, source, at, end - at) if in_kernel else _copy_block(source, target, at, end)
        except OSError as error:
            if not in_kernel or error.errno not in CANNOT:
                raise
            copied = 0
        if not copied and not in_kernel:
            raise SourceChangedError(f"the file shrank while it was being copied: it ends at byte {at}")
        in_kernel = in_kernel and copied > 0
        at += copied


def _copy_block(source: int, target: int, at: int, end: int) -> int:
    block = os.pread(source, min(BLOCK_BYTES, end - at), at)
    return os.pwrite(target, block, at) if block else 0


def _extents(source: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Where in its first `size_bytes` a file has bytes of its own; all of it, if the file system does not tell."""
    if os.fstat(source).st_blocks * STATBLOCK_BYTES >= size_bytes:
        yield 0, size_bytes
        return
    at = 0
    while at < size_bytes:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            end = min(os.lseek(source, start, os.SEEK_HOLE), size_bytes)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                return
            if error.errno != errno.EINVAL:
                raise
            start, end = at, size_bytes
        if start >= size_bytes:
            return
        yield start, end
        at = end


def copy_and_sum(source: int, target: int, size_bytes: int, advance: Callable[[int], object] = _ignore) -> tuple[int, ...]:
    """Copy by blocks that stay in the processor's cache while they are summed: (the CRC32C of each piece of PIECE_BYTES).

    The checksum covers everything that happens to the bytes from here on. `advance` is told of each piece.
    """
    pieces: list[int] = []
    left = size_bytes
    while left:
        crc, in_piece = 0, min(PIECE_BYTES, left)
        left -= in_piece
        while in_piece:
            block = os.read(source, min(BLOCK_BYTES, in_piece))
            if not block:
                there = size_bytes - left - in_piece
                raise SourceChangedError(f"the file shrank while it was being copied: {there} of {size_bytes} bytes were there")
            crc = crc32c(block, crc)
            in_piece -= len(block)
            while block:
                block = block[os.write(target, block) :]
        pieces.append(crc)
        advance(min(PIECE_BYTES, size_bytes - PIECE_BYTES * (len(pieces) - 1)))
    return tuple(pieces)


def copy_out(staged: int, target: int) -> None:
    """Copy an open staged file into the open, empty file `target`: reflink where possible."""
    if not reflink(staged, target):
        copy_data(staged, target, os.fstat(staged).st_size)
