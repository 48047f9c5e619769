"""Lanes: a small pool of daemon threads. It still works while the interpreter exits, and delays nothing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class Lanes(Executor):
    """Runs calls side by side in `n_lanes` threads, which begin with the first call."""

    def __init__(self, n_lanes: int, name: str) -> None:
        self._n_lanes = n_lanes
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Have it done; from the thread that owns the pool."""
        future: Future[_T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # it is raised where the result is taken
                future.set_exception(error)
            else:
                future.set_result(result)

        while len(self._threads) < self._n_lanes:  # all at once: while the interpreter exits none can be begun
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._calls.put(call)
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads go when they have done what was submitted; with `wait`, wait for that."""
        for _ in self._threads:
            self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
