"""A text stream of Python whose text somebody else gets, too: for a sys.stdout that does not lead to a file descriptor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TextIO, cast


class TeeStream:
    """Stands in for `stream`; what is written goes there, and then to `tap`. Everything else is that of `stream`."""

    def __init__(self, stream: TextIO, tap: Callable[[str], object]) -> None:
        self._stream = stream
        self._tap = tap

    def write(self, text: str) -> int:
        """Write to both."""
        n = self._stream.write(text)
        self._tap(text)
        return n

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all to both."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def tee_standard_stream(name: str, fd: int, tap: Callable[[str], object]) -> Callable[[], None]:
    """Have `tap` get what Python writes to ``sys.stdout`` or ``sys.stderr``, if that does not lead to the descriptor `fd`.

    A notebook's streams do not, nor those that a test replaces. Returns what undoes it; that leaves alone what was put over it.
    """
    stream: TextIO | None = getattr(sys, name)
    if stream is None or _leads_to(stream, fd):
        return lambda: None
    tapped = cast("TextIO", TeeStream(stream, tap))
    setattr(sys, name, tapped)

    def undo() -> None:
        if getattr(sys, name) is tapped:
            setattr(sys, name, stream)

    return undo


def _leads_to(stream: TextIO, fd: int) -> bool:
    try:
        # A notebook's stream gives the descriptor of what it has put aside, or none.
        return stream.fileno() == fd
    except (OSError, ValueError, AttributeError):
        return False
