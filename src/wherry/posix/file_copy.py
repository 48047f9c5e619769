"""Files copied into the spool and out of it, by reflink where the file system can; what is no regular file is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

from wherry.checksum import BLOCK_BYTES, PIECE_BYTES, crc32c
from wherry.errors import ConfigError, SourceChangedError

#: ioctl_ficlone(2): share the blocks of another file, copy on write.
_FICLONE = 0x40049409
#: linkat(2), rename(2) and FICLONE say these where they cannot do it on this pair of files; then the next way is taken.
CANNOT = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.ETXTBSY}


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


def copy_and_sum(
    source: int, target: int, size_bytes: int, advance: Callable[[int], object] = lambda n_bytes: None
) -> tuple[int, ...]:
    """Copy by blocks that stay in the processor's cache while they are summed: (the CRC32C of each piece of PIECE_BYTES).

    That is as fast as a copy inside the kernel, which the sum would have to read again, and
    the checksum covers everything that happens to the bytes from here on. `advance` is told of each piece.
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
    """Copy an open staged file, from its start, into the open, empty file `target`: reflink where possible."""
    if not reflink(staged, target):
        copy_and_sum(staged, target, os.fstat(staged).st_size)
