"""A function whose value is computed late, and at most once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Lazy(Generic[_T]):
    """A function that is called once, at the first call; later calls give the same value, or raise the same error.

    `report` gets that error, so that it is said once, however many sinks meet it. Safe from several threads: one computes, the
    others wait for it.
    """

    def __init__(self, function: Callable[[], _T], report: Callable[[Exception], None] | None = None) -> None:
        self._function: Callable[[], _T] | None = function
        self._report = report
        self.reports_itself = report is not None  # so sinks need not report the error
        self._value: _T
        self._error: Exception | None = None
        self._lock = threading.RLock()

    def __call__(self) -> _T:
        """Its value."""
        with self._lock:
            if self._function is not None:
                try:
                    self._value = self._function()
                except Exception as error:  # of the user; every caller is told
                    self._error = error
                    if self._report is not None:
                        self._report(error)
                self._function = None  # and with it the arrays that it holds; not after Ctrl-C, which made no value
            if self._error is not None:
                raise self._error
            return self._value
