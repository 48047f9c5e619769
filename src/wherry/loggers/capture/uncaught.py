"""What has to be done when an exception is about to end the program, before Python prints it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

_Call = Callable[[BaseException], object]

_calls: list[_Call] = []
_lock = threading.RLock()


def before_traceback(call: _Call) -> Callable[[], None]:
    """Have `call` called with an exception that nobody caught, before ``sys.excepthook`` shows it. Returns what undoes this.

    The last one that was registered comes first. An error in `call` is shown, and stops nothing. Not for exceptions of other
    threads, after which the program goes on; not in a forked child; and not at an interactive prompt, for the same reason.
    The hook that was there before is called last, and is put back when nothing is registered any more.
    """
    with _lock:
        if not _calls:
            _hook.install()
        _calls.append(call)

    def undo() -> None:
        with _lock:
            if call in _calls:
                _calls.remove(call)
                if not _calls:
                    _hook.remove()

    return undo


class _Hook:
    """Our place in the chain of ``sys.excepthook``."""

    def __init__(self) -> None:
        self._before = sys.excepthook
        self._pid = 0

    def install(self) -> None:
        if sys.excepthook is not self:
            self._before = sys.excepthook
            sys.excepthook = self
        self._pid = os.getpid()

    def remove(self) -> None:
        if sys.excepthook is self:  # else somebody's hook leads to us, and we lead on
            sys.excepthook = self._before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._pid == os.getpid() and not hasattr(sys, "ps1"):
            for call in reversed(_calls.copy()):
                try:
                    call(error)
                except Exception as trouble:  # noqa: PERF203  one must not stop the next
                    self._before(type(trouble), trouble, trouble.__traceback__)
        self._before(kind, error, trace)


_hook = _Hook()
