"""The two clocks of a mirror, so that tests can set them."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """`monotonic` never goes back and measures durations. `wall` is what other machines know, in seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds since any moment."""

    def wall(self) -> float:
        """Seconds since the epoch."""


class SystemClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        """As time.monotonic()."""
        return time.monotonic()

    def wall(self) -> float:
        """As time.time()."""
        return time.time()
