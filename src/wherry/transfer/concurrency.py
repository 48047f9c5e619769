"""How many ranges of a download are fetched side by side."""

from __future__ import annotations

import time
from collections.abc import Callable

#: With TLS each record of 16 KiB takes Python's lock and gives it back. Three threads keep two cores busy with it; eight spend a
#: third of the time on handing the lock over.
_FEW = 3
#: Below so many cores' work the line is what limits the speed, and fewer requests would only be slower.
_BUSY_CORES = 0.7
#: Few are kept unless they are slower by more than noise, as they cost less.
_AS_FAST = 0.95


class Concurrency:
    """A limit that is `most`, or 3 where these are as fast: where the processor limits the speed, not the line.

    That is tried once, and only if fetching keeps the processor busy. The first ranges do not count: they wait for connections.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.limit = most
        self._most = most
        self._clock = clock
        self._is_connected = False
        self._speed_of_most: float | None = None
        self._is_decided = most <= _FEW
        self._begin()

    def _begin(self) -> None:
        self._since_s, self._n, self._size_bytes, self._busy_s = self._clock(), 0, 0, 0.0

    def add(self, size_bytes: int, busy_s: float, n_running: int) -> None:
        """A range has come: its size, the processor time that its thread took, and how many others are still under way."""
        if self._is_decided:
            return
        if n_running >= self.limit:  # of those that were begun when more were allowed
            self._begin()
            return
        self._n, self._size_bytes, self._busy_s = self._n + 1, self._size_bytes + size_bytes, self._busy_s + busy_s
        if self._n < self._most:
            return
        if not self._is_connected:
            self._is_connected = True
            self._begin()
            return
        took_s = max(self._clock() - self._since_s, 1e-9)
        speed = self._size_bytes / took_s
        if self._speed_of_most is None:
            self._is_decided = self._busy_s / took_s < _BUSY_CORES
            self.limit = self._most if self._is_decided else _FEW
            self._speed_of_most = speed
            self._begin()
        else:
            self._is_decided = True
            self.limit = _FEW if speed >= _AS_FAST * self._speed_of_most else self._most
