"""A count that several threads keep."""

from __future__ import annotations

import threading


class Tally:
    """A number that several threads count up."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self, **_: object) -> None:
        """Count one more. Arguments, which the events of libraries pass, are ignored."""
        with self._lock:
            self.value += 1
