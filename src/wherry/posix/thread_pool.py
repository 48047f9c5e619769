"""A small pool of threads that still works while the interpreter ends, and delays nothing then.

A ThreadPoolExecutor takes no work from the moment on when the interpreter begins to end, which is before any atexit function is
called; and from Python 3.12 on no thread can be started then at all. What has to be done at the end must not depend on either.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")
_A = TypeVar("_A")
#: Of each_at_once(). Its calls are small ones: lists, copies and deletes inside the store.
_AT_ONCE = 16
#: No wait is longer. Ctrl-C that strikes just before a wait begins is noticed by the interpreter only when that wait ends.
_LOOK_S = 0.5
#: How long a thread may take from the system's call until it runs.
_START_S = 1.0


@dataclass
class _Call:
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except BaseException as error:  # it is raised where the result is taken
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class DaemonThreadPool(Executor):
    """Runs calls side by side in at most `n_threads` daemon threads, which are started as they are needed, or by start().

    Where no thread can be started and none is there, submit() makes the call itself. Calls must not wait for one another.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._n_threads = n_threads
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._n_unfinished = 0
        self._is_shut = False

    def start(self) -> None:
        """Start all threads now, for work that may come when the interpreter ends."""
        with self._lock:
            while len(self._threads) < self._n_threads and self._start_one():
                pass

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Have a thread call it. RuntimeError after shutdown()."""
        call = _Call(lambda: fn(*args, **kwargs))
        with self._lock:
            if self._is_shut:
                raise RuntimeError(f"{self._name} was shut down")
            self._n_unfinished += 1
            if len(self._threads) < min(self._n_unfinished, self._n_threads):
                self._start_one()
            has_threads = bool(self._threads)
        call.future.add_done_callback(self._finished)
        if has_threads:
            self._calls.put(call)
        else:
            call.run()
        return call.future

    def _start_one(self) -> bool:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        self._threads.append(thread)  # before it runs: Ctrl-C may strike while start() waits for it
        try:
            thread.start()
        except RuntimeError:  # "can't start new thread": the interpreter ends, or the system has no more
            self._threads.remove(thread)
            return False
        return True

    def _finished(self, future: Future[Any]) -> None:
        with self._lock:
            self._n_unfinished -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads go when they have done what was submitted; with `wait`, wait for that."""
        with self._lock:
            self._is_shut = True
            threads = list(self._threads)
        if cancel_futures:
            with suppress(queue.Empty):
                while True:
                    if (call := self._calls.get_nowait()) is not None:
                        call.future.cancel()
        self._calls.put(None)
        if wait:
            for thread in threads:
                wait_for_end(thread)

    def __del__(self) -> None:
        """End the threads of a pool that is dropped without shutdown(), as ThreadPoolExecutor does."""
        self._calls.put(None)


def each_at_once(
    call: Callable[[_A], _T],
    arguments: Iterable[_A],
    *,
    all_of_them: bool = False,
    stop: Callable[[], object] = lambda: None,
) -> list[_T]:
    """Call with each argument, 16 at once, and return what came of it in their order: for calls that wait for an answer.

    The first error, or Ctrl-C, is raised when all that was begun has ended. After it nothing more is begun, unless `all_of_them`
    are wanted all the same, as where they clean up. `stop` is called then, to end long calls early.
    """
    given = list(arguments)
    if len(given) <= 1:  # no thread for one call
        return [call(argument) for argument in given]
    results: list[_T] = []
    with DaemonThreadPool(_AT_ONCE, "wherry-call") as pool:
        futures: deque[Future[_T]] = deque()
        try:
            futures.extend(pool.submit(call, argument) for argument in given)
            # No name for one: an error keeps this frame, which through it would keep the error, and a closed store's connections.
            while futures:
                results.append(result_of(futures.popleft()))
        except BaseException:
            stop()
            raise
        finally:
            while futures:
                future = futures.pop()
                if not all_of_them:
                    future.cancel()
    return results


def map_at_once(pool: Executor, work: Callable[..., _T], arguments: Sequence[tuple[object, ...]], at_once: int = 8) -> list[_T]:
    """`work` on each of the arguments, in the pool, at most `at_once` at a time: the results in order.

    After an error nothing more is begun, and what runs is awaited.
    """
    futures: list[Future[_T]] = []
    running: set[Future[_T]] = set()
    try:
        for one in arguments:
            while len(running) >= at_once:
                for future in first_done(running):
                    running.discard(future)
                    future.result()
            futures.append(pool.submit(work, *one))
            running.add(futures[-1])
        return [result_of(future) for future in futures]
    finally:
        for future in futures:
            future.cancel()
        while wait(futures, _LOOK_S).not_done:
            pass


def first_done(futures: Collection[Future[_T]]) -> set[Future[_T]]:
    """Wait until at least one of the futures is done; those that are. Ctrl-C ends the wait within half a second."""
    while not (done := wait(futures, _LOOK_S, FIRST_COMPLETED).done):
        pass
    return done


def result_of(future: Future[_T]) -> _T:
    """`future.result()`, which Ctrl-C ends within half a second."""
    first_done((future,))
    return future.result()


def wait_for(changed: threading.Condition, is_so: Callable[[], bool], timeout_s: float | None = None) -> bool:
    """`changed.wait_for(is_so, timeout_s)`, which Ctrl-C ends within half a second."""
    until_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while not (is_so_now := changed.wait_for(is_so, min(_LOOK_S, max(0.0, until_s - time.monotonic())))):
        if time.monotonic() >= until_s:
            break
    return is_so_now


def wait_for_end(thread: threading.Thread) -> None:
    """`thread.join()`, which Ctrl-C ends within half a second. Also of a thread whose start() it has cut short."""
    until_s = time.monotonic() + _START_S
    while thread.is_alive() or (thread in threading.enumerate() and time.monotonic() < until_s):
        if thread.is_alive():
            thread.join(_LOOK_S)
        else:
            time.sleep(0.001)  # Ctrl-C struck in its start(): it begins to run soon, or never


def _work(calls: queue.SimpleQueue[_Call | None]) -> None:
    """The loop of a thread. It keeps no reference to its pool, which may be dropped without shutdown()."""
    while (call := calls.get()) is not None:
        call.run()
        del call  # its result is not kept while the next one is waited for
    calls.put(None)  # the end is for the other threads, too
