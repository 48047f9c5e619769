"""SignalEvent: what a signal handler sets, and the main thread waits for."""

from __future__ import annotations

import queue
from contextlib import suppress


class SignalEvent:
    """An event that may be set at any moment, also by a handler that interrupts its own wait().

    threading.Event may not: wait() holds a plain lock for an instant before and after it sleeps, and a handler that runs in that
    instant, in the same thread, waits for that lock for ever. SimpleQueue.put() is made for such callers.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Set it, for good, and end every wait."""
        self._is_set = True
        self._bell.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait for at most so long, in one thread. Whether it was set."""
        if not self._is_set:
            with suppress(queue.Empty):
                self._bell.get(timeout=timeout_s)
        return self._is_set
