"""Locks on files (flock(2)): the kernel releases them when the process that holds them ends, in whatever way.

A forked child shares its parent's lock as long as it has the descriptor open. These locks, not the package filelock's: ours are
shared with forked workers, say who holds them, and tell whether a process of another program still lives.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock(descriptor: int) -> bool:
    """Lock an open file without waiting. False: another process, or another descriptor, has it locked.

    OSError where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file, waiting for whoever has it."""
    fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def unlock(descriptor: int) -> None:
    """Release the lock also for a child that was forked meanwhile and has the same file open."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_and_sign(descriptor: int, text: str) -> str | None:
    """Lock an open file and write into it who holds it. None: locked; otherwise what its holder wrote. OSError as try_lock()."""
    if not try_lock(descriptor):
        return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
    return None


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock of the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)
