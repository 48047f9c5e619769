"""The caller's own files: those to send and those to fill. Their errors do not name the call yet: see `about`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wherry.checksum import crc32c
from wherry.errors import PermanentError


@contextmanager
def opened_source(path: Path) -> Iterator[int]:
    """Open the file to send. A missing file is a PermanentError, as NotFoundError means a missing object."""
    with _opened(path, os.O_RDONLY, f"the file to send, {path}, cannot be read") as fd:
        yield fd


@contextmanager
def opened_target(path: Path) -> Iterator[int]:
    """Open the file to fill, which must be there."""
    hint = "get_file() fills a file that is there: make it first"
    with _opened(path, os.O_WRONLY, f"the file to write to, {path}, cannot be opened", hint) as fd:
        yield fd


@contextmanager
def _opened(path: Path, flags: int, words: str, hint: str = "") -> Iterator[int]:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not keep us waiting
    except OSError as error:
        raise PermanentError(f"{words}: {error.strerror}", hint=hint) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PermanentError(f"{path} is no regular file")
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, block: bytes | memoryview, at: int) -> None:
    """Write all of a block at its offset."""
    view = memoryview(block)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def write(fd: int, path: Path, block: bytes | memoryview, at: int) -> None:
    """The same; an error of the file system is a PermanentError."""
    try:
        write_all(fd, block, at)
    except OSError as error:
        raise PermanentError(f"the file {path} cannot be written: {error.strerror}") from error


class Summed:
    """An open file to fill, and the CRC32C of all that was taken for it, in the order in which it came."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path
        self.crc32c = 0

    def take(self, block: bytes | memoryview, at: int) -> None:
        """Write a block at its offset; PermanentError if the file system does not let us."""
        self.crc32c = crc32c(block, self.crc32c)  # while the block is in the processor's cache
        write(self._fd, self._path, block, at)
