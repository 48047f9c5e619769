"""What a forked child does with what its parent has open.

A child of os.fork() that ends by sys.exit(), or falls off its end, finalises copies of all objects of its parent: a copied
``with`` block closes its file, a copied buffer is flushed, a copied temporary folder is removed. Only the parent may do that.
And a lock that another thread of the parent held at the fork is never released in the child, which has no such thread.
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

_locks: weakref.WeakSet[ChildLock] = weakref.WeakSet()
#: In the order of the calls of call_in_children().
_handlers: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()
_parents_objects: list[object] = []


class ChildLock:
    """A re-entrant lock that is free in a forked child, also when another thread of the parent held it at the fork.

    With a plain lock a DataLoader's worker that logs would wait forever, and the training for that worker.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """In a forked child. The thread that forked may hold the lock itself, and goes on to release it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


def call_in_children(owner: _T, handler: Callable[[_T], object]) -> None:
    """Have `handler(owner)` called in every forked child, before any other code of it, while `owner` lives. One handler an owner.

    Keeps no reference to `owner`; pass the plain function (``Logger._start_anew``), as a bound method would be such a reference.
    In a grandchild it is called again. Locks (ChildLock) are free by then.
    """
    _handlers[owner] = handler


def leave_to_parent(owned: object) -> None:
    """In a forked child: have an object never finalised here.

    That could wait for a lock that a thread of the parent held at the fork, as in the connection pools of HTTP libraries.
    """
    if owned is not None:
        _parents_objects.append(owned)


@contextmanager
def temporary_folder(prefix: str = "wherry-", parent: Path | None = None) -> Iterator[Path]:
    """A new empty folder, removed at the end of the block by the process that made it.

    tempfile.TemporaryDirectory() registers a removal at exit, which a child that was forked meanwhile carries out as well.
    """
    pid = os.getpid()
    import tempfile  # late: it loads compression libraries

    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        if os.getpid() == pid:
            shutil.rmtree(folder)


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock.renew()
    with ExitStack() as stack:  # an error of one handler, which Python reports, does not keep the others from running
        for owner, handler in reversed(list(_handlers.items())):
            stack.callback(handler, owner)


os.register_at_fork(after_in_child=_after_fork_in_child)
