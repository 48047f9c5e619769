"""Ctrl-C for a call that another thread makes: what a signal handler raises is raised in the main thread only."""

from __future__ import annotations

from contextvars import ContextVar


class Interrupt:
    """Hands on what has interrupted the wait for a call, to the call: its next raise_if_interrupted() raises it, once."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        #: Whether the call has got it.
        self.is_taken = False

    def listen(self) -> None:
        """Be what raise_if_interrupted() asks, in the context in which this is called."""
        _mine.set(self)

    def set(self, error: BaseException) -> None:
        """Interrupt the call: KeyboardInterrupt, or what a signal handler raises (Composer's raises SystemExit)."""
        self._error = error

    def take(self) -> None:
        """Raise the error if there is one that was not taken."""
        if self._error is not None and not self.is_taken:
            self.is_taken = True
            raise self._error


_mine: ContextVar[Interrupt | None] = ContextVar("wherry_interrupt", default=None)


def raise_if_interrupted() -> None:
    """Raise what has interrupted whoever waits for this call: for loops that wait, between two waits."""
    if (interrupt := _mine.get()) is not None:
        interrupt.take()
