"""Calls side by side that wait for an answer and move no bytes; and a count that several threads keep."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

_AT_ONCE = 16


class Tally:
    """A number that several threads count up."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self, **_: object) -> None:
        """One more. What a library's event tells along is not looked at."""
        with self._lock:
            self.value += 1


def each_at_once(call: Callable[[_T], _R], arguments: Iterable[_T], *, all_of_them: bool = False) -> list[_R]:
    """Call with each argument, several at once; the first error is raised when all that was begun has ended.

    After an error nothing more is begun, unless `all_of_them` are wanted all the same, as where they clean up.
    One after another at the interpreter's end, when no thread can be started any more: a mirror joins files then.
    """
    results: list[_R] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = deque(_begun(pool, call, argument) for argument in arguments)
        try:
            # No name for one: an error keeps this frame, which through it would keep the error, and a closed store's connections.
            while futures:
                results.append(futures.popleft().result())
        finally:
            while futures:
                future = futures.pop()
                if not all_of_them:
                    future.cancel()
    return results


def _begun(pool: ThreadPoolExecutor, call: Callable[[_T], _R], argument: _T) -> Future[_R]:
    try:
        return pool.submit(call, argument)
    except RuntimeError:
        done: Future[_R] = Future()
        try:
            done.set_result(call(argument))
        except Exception as error:  # it is raised where the result is taken
            done.set_exception(error)
        return done
