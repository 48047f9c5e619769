"""The bar of a command that moves objects: the bytes of all of them, as they come."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wherry.cli.shell.verbosity import is_quiet
from wherry.progress import ByteBar

if TYPE_CHECKING:
    from wherry.uri import StoreURI


def is_bar_shown() -> bool:
    """Whether there is a terminal, whose owner wants to see what goes on."""
    return sys.stderr is not None and sys.stderr.isatty() and not is_quiet()


@dataclass(frozen=True)
class Tracked:
    """An object that is moved. `uri`: what its bytes are counted under, that of what is read or of what is written."""

    uri: str
    size_bytes: int


@dataclass
class Bar:
    """Counts the bytes of objects that are under way, each no further than its size, and shows them on a terminal."""

    #: What is on the terminal, if there is one.
    shown: ByteBar | None = None
    #: Of the objects under way: how many bytes are still to come.
    _left: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, what: str, total_bytes: int) -> None:
        """Show a bar from now on, unless this is no terminal."""
        if total_bytes > 0 and is_bar_shown():
            self.shown = ByteBar(what, total_bytes)

    def expect(self, one: Tracked) -> None:
        """The object is moved from now on."""
        with self._lock:
            self._left[one.uri] = max(0, one.size_bytes)

    def moved(self, folder: StoreURI, key: str, n_bytes: int) -> None:
        """Bytes of an object of the store `folder` have moved; from any thread. More than its size is no progress."""
        if self.shown is None:
            return
        with self._lock:
            self._advance(folder.uri_for(key), n_bytes)

    def settle(self, one: Tracked) -> None:
        """The object is done, or has failed: what has not moved of it will not."""
        with self._lock:
            self._advance(one.uri, max(0, one.size_bytes))
            self._left.pop(one.uri, None)

    def hide(self) -> None:
        """Make the line free for a message; the next bytes bring the bar back."""
        if self.shown is not None:
            with self._lock:
                self.shown.clear()

    def end(self) -> None:
        """Take the bar away."""
        with self._lock:
            if self.shown is not None:
                self.shown.close()
            self.shown = None

    def _advance(self, uri: str, n_bytes: int) -> None:
        left = self._left.get(uri, 0)
        self._left[uri] = left - min(left, n_bytes)
        if self.shown is not None and left:
            self.shown.advance(min(left, n_bytes))
