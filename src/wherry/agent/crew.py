"""The threads of a worker that carry out its small and its whole jobs, and the acknowledgements that these leave behind.

What a thread has begun goes on while the main thread writes down, in one transaction, how the last jobs were done; the next job
is begun after that. The main thread is woken only when it has something to do.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from wherry.spool.journal.work import Ack

_T = TypeVar("_T")
#: An acknowledgement waits at most this long for others that are written with it; not at all when nothing else is under way.
GROUP_S = 0.005


class Crew:
    """Carries out calls in at most `n_threads` threads, which are started as they are needed, and collects acknowledgements.

    `wake` is called from these threads when the main thread should look: a thread has nothing to do, or an acknowledgement is
    the first of its group. All other methods but start() and ack() are the main thread's.
    """

    def __init__(self, n_threads: int, wake: Callable[[], object]) -> None:
        self._n_threads = n_threads
        self._wake = wake
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._n_under_way = 0
        self._acks: list[Ack] = []
        self._since_s = 0.0
        self._broken: BaseException | None = None

    def __len__(self) -> int:
        """How many calls are under way, or wait for a thread."""
        return self._n_under_way

    def start(self, call: Callable[[], object]) -> None:
        """Have a thread make the call. Any thread may ask for it."""
        with self._lock:
            self._n_under_way += 1
            if len(self._threads) < min(self._n_under_way, self._n_threads):
                thread = threading.Thread(target=self._work, name=f"job_{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._calls.put(call)

    def paused(self, write: Callable[[], _T]) -> _T:
        """Call `write` while no thread begins a call; those under way go on.

        Each of SQLite's many short steps gives Python's lock away. Beside eight threads that want it, it comes back late, and
        then the other worker waits as well, for the journal. 5,000 files of 16 KiB take two thirds of the time with this.
        """
        with self._gate:
            return write()

    def ack(self, ack: Ack) -> None:
        """Have the main thread write an acknowledgement. Called by a thread, for a job that it has just done.

        Returns when the main thread writes nothing: whoever goes on with other jobs pauses here, too.
        """
        with self._gate:
            pass
        with self._lock:
            self._acks.append(ack)
            is_first = len(self._acks) == 1
            if is_first:
                self._since_s = time.monotonic()
        if is_first:
            self._wake()

    def group_due_in_s(self) -> float:
        """After how long the acknowledgements are to be written: 0 if now, endless if there are none."""
        with self._lock:
            if not self._acks:
                return math.inf
            if self._n_under_way <= 0:
                return 0.0
            return max(0.0, self._since_s + GROUP_S - time.monotonic())

    def take_group(self) -> list[Ack]:
        """The acknowledgements that are to be written, which leave the crew."""
        with self._lock:
            group, self._acks = self._acks, []
        return group

    def raise_broken(self) -> None:
        """Raise what a call has raised, if one has: nothing should."""
        if self._broken is not None:
            raise self._broken

    def shutdown(self) -> None:
        """End the threads, when they have done what was begun."""
        self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._gate:
                pass
            try:
                call()
            except BaseException as error:  # the main thread raises it
                self._broken = error
            del call
            with self._lock:
                self._n_under_way -= 1
                is_idle = self._n_under_way < len(self._threads)
            if is_idle:
                self._wake()
        self._calls.put(None)  # the end is for the other threads, too
