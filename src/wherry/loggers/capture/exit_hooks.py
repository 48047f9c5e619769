"""Functions that are called before the program ends, and before an exception that ends it is printed."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

_T = TypeVar("_T")
_Call = Callable[[BaseException], object]

#: The functions of before_traceback().
_calls: list[_Call] = []
_lock = threading.RLock()

#: multiprocessing calls the finalizers with the highest number first. A `Mirror` has 10, and has to come later.
_PRIORITY = 20


def before_exit(call: Callable[[BaseException | None], object]) -> Callable[[], object]:
    """Have `call` called when this process ends, with the exception that ends it, or None. Returns a function that undoes this.

    The function that was registered last is called first, also among the functions of atexit. An error in it is printed, and the
    others are called. It is called in a child of multiprocessing that registered it, but not in a forked child of the process
    that did, nor after a signal that kills or ``os._exit``.

    From Python 3.13 on, a child of multiprocessing has printed the exception that ends it and forgotten it by then: `call` gets
    None there.
    """
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:
            call(_error_at_the_end())

    # Children of multiprocessing call the functions of atexit only from Python 3.13 on, and before multiprocessing's own.
    if sys.version_info < (3, 13) and "multiprocessing.process" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            return util.Finalize(None, end, exitpriority=_PRIORITY).cancel
    atexit.register(end)
    return lambda: atexit.unregister(end)


def before_exit_while_alive(owner: _T, call: Callable[[_T, BaseException | None], object]) -> Callable[[], object]:
    """before_exit() with ``call(owner, error)``. Keeps no reference to `owner`: nothing is called once it is gone."""
    alive = weakref.ref(owner)

    def end(error: BaseException | None) -> None:
        if (found := alive()) is not None:
            call(found, error)

    forget = before_exit(end)
    weakref.finalize(owner, forget).atexit = False
    return forget


def _error_at_the_end() -> BaseException | None:
    """The exception that nobody caught: in a child of multiprocessing the current one, else the one that was printed."""
    if (error := sys.exc_info()[1]) is not None:
        return error
    if hasattr(sys, "ps1"):  # at an interactive prompt the session goes on after an exception
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # the first one is of Python 3.12


def before_traceback(call: _Call) -> Callable[[], None]:
    """Have `call` called with an exception that nobody caught, before ``sys.excepthook`` prints it. Returns a function that
    undoes this.

    The function that was registered last is called first. An error in it is printed, and the others are called. It is not called
    for exceptions of other threads and at an interactive prompt, after which the program goes on, nor in a forked child. The
    previous ``sys.excepthook`` is called last, and is restored when no function is registered any more.
    """
    with _lock:
        if not _calls:
            if sys.excepthook is not _hook:
                _hook.before, sys.excepthook = sys.excepthook, _hook
            _hook.pid = os.getpid()
        _calls.append(call)

    def undo() -> None:
        with _lock:
            if call in _calls:
                _calls.remove(call)
                if not _calls and sys.excepthook is _hook:  # otherwise another hook calls ours, which calls the previous
                    sys.excepthook = _hook.before

    return undo


class _Hook:
    """The ``sys.excepthook`` that calls the registered functions."""

    def __init__(self) -> None:
        self.before = sys.excepthook
        self.pid = 0

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self.pid == os.getpid() and not hasattr(sys, "ps1"):
            for call in reversed(_calls.copy()):
                try:
                    call(error)
                except Exception as trouble:  # noqa: PERF203  one must not stop the next
                    self.before(type(trouble), trouble, trouble.__traceback__)
        self.before(kind, error, trace)


_hook = _Hook()
