"""The reserve: room on the spool's disk that staging may not use, so that accepted uploads can be finished on a full disk.

Finishing an upload writes to the journal; its staged file is removed only after that. So a disk that is full of staged files
would stay full for ever. The reserve is a file with allocated blocks. It is made before the first file is staged, and no file
is staged while it is too small. It is emptied when the journal finds no room to write.

The journal's log is then moved into the database, which makes the log short again. If a reader prevents that, the log grows, but
the room that the database needs for the log stays in the reserve: otherwise neither could ever be written again.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from wherry.spool.folder import SpoolFolder

_MIB = 2**20
#: SQLite moves its log into the database when it has 1,000 pages (4 KiB each); until then each write makes it longer.
_LOG_BYTES = 4 * _MIB
#: What finishing adds to the rows and their indexes (receipt, time, state), as a share of the database.
_GROWTH_SHARE = 4
_BLOCK_BYTES = 512  # what st_blocks counts in (stat(2))


class Reserve:
    """The reserve of one spool. Safe from several processes."""

    def __init__(self, folder: SpoolFolder) -> None:
        self._folder = folder
        #: The size of the journal's file after the log was moved into it, as far as this process knows.
        self._journal_bytes = 0
        self._wanted_bytes = self._compute()

    def missing_bytes(self) -> int:
        """By how many bytes the reserve is too small."""
        return max(0, self._wanted_bytes - self._allocated_bytes())

    def fill(self, journal_bytes: int = 0) -> None:
        """Allocate what is missing. OSError (ENOSPC, EDQUOT) if the disk has no room for it; then nothing has changed.

        `journal_bytes`: the size of the journal's file after the log was moved into it, if the caller knows it.
        """
        if journal_bytes:
            self._journal_bytes = max(self._journal_bytes, journal_bytes)
            self._wanted_bytes = self._compute()
        self._take(self._wanted_bytes)

    def _take(self, wanted: int) -> None:
        if self._allocated_bytes() >= wanted:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "r+b", buffering=0):
            before = os.fstat(descriptor).st_size
            try:
                _allocate(descriptor, wanted)
            except OSError:
                os.ftruncate(descriptor, before)
                raise

    def release(self) -> int:
        """Free the reserve for the journal. Returns how many bytes it had."""
        if size_bytes := self._allocated_bytes():
            os.truncate(self._path, 0)
        return size_bytes

    def keep_for_database(self, journal_bytes: int) -> int:
        """Allocate what the database needs to take in its log, or as much of it as there is. Returns the reserve's size in bytes.

        `journal_bytes`: the size of the journal's file after the log was moved into it.
        """
        self._journal_bytes = max(self._journal_bytes, journal_bytes)
        there = os.statvfs(self._path.parent)
        room_bytes = there.f_bavail * there.f_frsize + self._allocated_bytes()
        with suppress(OSError):  # another process took the room: the next call tries again
            self._take(min(self._compute() - _LOG_BYTES, room_bytes))
        return self._allocated_bytes()

    def exists(self) -> bool:
        """Whether the reserve has a file, of whatever size."""
        return self._path.exists()

    def remove(self) -> None:
        """Remove it, as no upload is left to finish. It is made again before the next file is staged."""
        self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return self._folder.inside("reserve")

    def _allocated_bytes(self) -> int:
        try:
            return os.stat("reserve", dir_fd=self._folder.descriptor()).st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            return 0

    def _compute(self) -> int:
        """Room for the log, for the pages of the log that are new to the database, and for the growth of the rows."""
        there = size_bytes_of(self._folder.inside("journal.db"))
        will_be = max(there, self._journal_bytes)
        wanted = _LOG_BYTES + will_be - there + will_be // _GROWTH_SHARE
        return -(-wanted // _MIB) * _MIB


def _allocate(descriptor: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
        else:
            return
    for at in range(0, size_bytes, _MIB):
        os.pwrite(descriptor, bytes(_MIB), at)


def size_bytes_of(path: Path) -> int:
    """The size of a file; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
