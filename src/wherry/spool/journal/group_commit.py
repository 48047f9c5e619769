"""Writes of several threads in one transaction: while one waits for the disk, the next ones gather, and are made together."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Any, TypeVar

from wherry.errors import WherryError

_T = TypeVar("_T")


@dataclass(eq=False)
class _Write:
    """What one thread wants written, and what came of it."""

    work: Callable[[Connection], Any]
    is_done: bool = False
    result: Any = None
    error: WherryError | None = None

    def make(self, db: Connection) -> None:
        """Make it within the transaction of several. What it raises of ours undoes it alone."""
        db.execute("SAVEPOINT one")
        try:
            self.result = self.work(db)
        except WherryError as error:
            self.error = error
            db.execute("ROLLBACK TO one")
        db.execute("RELEASE one")


@dataclass
class _Gathering:
    """The writes of one process. `turn` is held by the thread that makes those that have gathered."""

    pid: int = field(default_factory=os.getpid)
    turn: threading.Lock = field(default_factory=threading.Lock)
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: list[_Write] = field(default_factory=list)


class GroupCommit:
    """Makes writes in `transaction()`, those of threads that wait at the same time in one. It can be used after a fork."""

    def __init__(self, transaction: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._transaction = transaction
        self._gathering = _Gathering()

    def write(self, work: Callable[[Connection], _T]) -> _T:
        """Call `work` in a transaction, and return what it returns when that is committed. Raises what it raises.

        A transaction that fails as a whole does so for one thread; the others try theirs again. When this ends by an exception,
        `work` has been undone or never called, unless the exception came from outside (Ctrl-C): then it may have been committed.
        It will not be later.
        """
        if self._gathering.pid != os.getpid():  # its locks may be held by threads that are not here
            self._gathering = _Gathering()
        here, own = self._gathering, _Write(work)
        with here.lock:
            here.waiting.append(own)
        try:
            with here.turn:
                if not own.is_done:
                    with here.lock:
                        group, here.waiting = here.waiting, []
                    self._make(here, group, own)
        except BaseException:
            with here.lock:
                is_taken = own not in here.waiting
                here.waiting = [one for one in here.waiting if one is not own]
            if is_taken:
                with here.turn:  # whoever makes it is done with it when this is free
                    pass
            raise
        if own.error is not None:
            raise own.error
        result: _T = own.result
        return result

    def _make(self, here: _Gathering, group: list[_Write], own: _Write) -> None:
        is_committed = False
        try:
            with self._transaction() as db:
                try:
                    if len(group) == 1:
                        own.result = own.work(db)
                    else:
                        for one in group:
                            one.make(db)
                    db.execute("COMMIT")
                    is_committed = True
                except BaseException as error:  # Ctrl-C may come after the commit: the others' writes must not be made twice
                    is_committed = is_committed or not (isinstance(error, sqlite3.Error) or db.in_transaction)
                    raise
        except BaseException:
            if not is_committed:
                with here.lock:
                    here.waiting[:0] = [one for one in group if one is not own]
                for one in group:
                    one.result = one.error = None
            raise
        finally:
            for one in group if is_committed else ():
                one.is_done = True
