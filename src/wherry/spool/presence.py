"""Which processes use a spool: a locked file for each session, and the agent's lock.

The kernel frees the lock of a process that dies.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from wherry.posix.locks import is_free, lock
from wherry.spool.spool import Spool


def register(spool: Spool, session: str) -> int:
    """Announce a living session and return the descriptor whose lock says so; closing it signs off."""
    path = spool.inside("clients", session)
    while True:
        with spool.explained("its mark of a living session"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        lock(descriptor, shared=True)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # somebody looked before the lock was there, and took the session for a dead one


def forget(spool: Spool, session: str) -> None:
    """Remove what register() and the session's socket left."""
    spool.inside("clients", session).unlink(missing_ok=True)
    spool.inside("clients", f"{session}.bell").unlink(missing_ok=True)


def living_sessions(spool: Spool) -> set[str]:
    """The sessions whose process lives."""
    return _sessions(spool, are_dead=False)


def dead_sessions(spool: Spool) -> set[str]:
    """The sessions whose process is gone without having signed off, until forget()."""
    return _sessions(spool, are_dead=True)


def _sessions(spool: Spool, *, are_dead: bool) -> set[str]:
    found = set()
    for entry in os.scandir(spool.inside("clients")):
        with suppress(FileNotFoundError):  # it signed off while we looked
            if not entry.name.endswith(".bell") and is_free(Path(entry.path)) is are_dead:
                found.add(entry.name)
    return found


def pid_of_agent(spool: Spool) -> int | None:
    """The process id of the agent of this spool, or None if there is none."""
    lock_file = spool.inside("agent.lock")
    try:
        if is_free(lock_file):
            return None
        return int(lock_file.read_text() or 0) or None
    except (FileNotFoundError, ValueError):
        return None
