"""Background: a thread for work that the training loop does not wait for, such as encoding a video."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wherry.loggers.capture.terminal import printable
from wherry.posix.fork import call_in_children
from wherry.posix.thread_pool import wait_for

log = logging.getLogger("wherry")


@dataclass
class _Job:
    work: Callable[[], object]
    pending_bytes: int
    what: str


class Background:
    """Does what is submitted, in order, in one thread, which ends when there is nothing to do.

    The thread is no daemon: an interpreter that ends waits for it, also in a child of multiprocessing, which may call no atexit
    functions. So accepted work is lost only by a signal that kills. If no thread can be started (at the very end of the
    interpreter, or at the system's limit), submit() does the work itself.

    Any thread may call until the close. The work itself may submit more; it then does not wait for room. A forked child begins
    with nothing to do: the parent does what was submitted before.
    """

    def __init__(self, name: str, *, max_pending_bytes: int = 256 * 2**20) -> None:
        self._name = name
        self._max_pending_bytes = max_pending_bytes
        self._is_closed = False
        self._start_afresh()
        call_in_children(self, Background._start_afresh)

    def _start_afresh(self) -> None:
        """At the start, and in a forked child, where the thread does not exist and nobody would release its lock."""
        self._changed = threading.Condition()  # its lock is re-entrant, as a signal handler may submit
        self._jobs: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._pending_bytes = 0
        self._n_accepted = 0
        self._n_done = 0
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Background {self._name}: {self._n_accepted - self._n_done} to do>"

    def submit(self, work: Callable[[], object], *, pending_bytes: int = 0, what: str = "") -> None:
        """Accept `work`, which keeps `pending_bytes` of memory until it is done. `what` names it in the log if it fails.

        Blocks while other work waits, if with this one it would have more than `max_pending_bytes`. RuntimeError after close().
        """
        with self._changed:
            if self._is_closed:
                raise RuntimeError(f"the background thread of {self._name} is closed: make a new one")
            if threading.current_thread() is not self._thread:
                most = self._max_pending_bytes - pending_bytes
                wait_for(self._changed, lambda: not self._pending_bytes or self._pending_bytes <= most)
            self._jobs.append(_Job(work, pending_bytes, what))
            self._pending_bytes += pending_bytes
            self._n_accepted += 1
            self._ensure_thread()

    def flush(self) -> None:
        """Return when all work that was submitted before is done. Raise the first error that was not raised yet.

        Later errors, which mostly have the same cause, are in the log "wherry" at level DEBUG.
        """
        with self._changed:
            if threading.current_thread() is not self._thread:
                self._ensure_thread()  # Ctrl-C may have cut submit() short
                last = self._n_accepted
                wait_for(self._changed, lambda: self._n_done >= last)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Accept no more work, and flush. May be called again."""
        self._is_closed = True
        self.flush()

    def _ensure_thread(self) -> None:
        """Start the thread if there is work and no thread. Called with the lock held: the new thread waits for that."""
        if not self._jobs or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._run, name=f"wherry-{self._name}", daemon=False)
        try:
            self._thread.start()
        except RuntimeError:  # "can't start new thread"
            self._thread = threading.current_thread()
            self._run()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._thread = None  # under the lock: the next submit() starts another
                    return
                job = self._jobs.popleft()
            pending_bytes = job.pending_bytes
            try:
                self._do(job.work, job.what)
            finally:
                del job  # frees its arrays before another thread is told that there is room
                with self._changed:
                    self._pending_bytes -= pending_bytes
                    self._n_done += 1
                    self._changed.notify_all()

    def _do(self, work: Callable[[], object], what: str) -> None:
        try:
            work()
        except BaseException as error:  # also SystemExit: it must not end the thread, which flush() waits for
            if what:
                log.warning("%s: %s is not logged: %s", self._name, printable(what), printable(str(error)))
            if self._error is None:
                self._error = error
            else:
                log.debug("%s: another error", self._name, exc_info=error)
