"""ChildLock: for objects that a forked child goes on to use, where no thread is left that could release it."""

from __future__ import annotations

import os
import threading
import weakref


class ChildLock:
    """A re-entrant lock that is free in a forked child, also when another thread of the parent held it at the fork.

    A DataLoader's worker that logs would wait for it for ever, and the training for the worker.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def start_afresh(self) -> None:
        """In a forked child. The thread that forked may hold the lock itself, and goes on to release it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_all: weakref.WeakSet[ChildLock] = weakref.WeakSet()


def _start_all_afresh() -> None:
    for lock in list(_all):
        lock.start_afresh()


os.register_at_fork(after_in_child=_start_all_afresh)
