"""Background: work that the training loop hands over and does not wait for, such as encoding a video."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wherry.loggers.capture.terminal import printable
from wherry.posix.fork import call_in_children

log = logging.getLogger("wherry")


@dataclass
class _Job:
    work: Callable[[], object]
    pending_bytes: int
    what: str


class Background:
    """Does what is submitted, in order, in one thread, which lives while there is something to do.

    The thread is no daemon: an interpreter that ends waits for it, also in a child of multiprocessing, where no atexit function
    would be called. So nothing that was accepted is lost, except by a signal that kills. Where no thread can be started (at
    the very end of the interpreter, or at the system's limit), submit() does the work itself.

    Any thread may call, also the work itself, before the close; it then waits neither for room nor for itself. The child of a
    fork begins with nothing to do: what was submitted before is done by the parent.
    """

    def __init__(self, name: str, *, max_pending_bytes: int = 256 * 2**20) -> None:
        self._name = name
        self._max_pending_bytes = max_pending_bytes
        self._is_closed = False
        self._start_afresh()
        call_in_children(self, Background._start_afresh)

    def _start_afresh(self) -> None:
        """Also in a fork's child: the thread is the parent's, and the lock may have been held by it."""
        self._changed = threading.Condition()  # its lock is re-entrant: a signal's handler may submit
        self._jobs: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._pending_bytes = 0
        self._n_accepted = 0
        self._n_done = 0
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Background {self._name}: {self._n_accepted - self._n_done} to do>"

    def submit(self, work: Callable[[], object], *, pending_bytes: int = 0, what: str = "") -> None:
        """Accept `work`, which keeps `pending_bytes` of memory alive until it is done. `what` names it, if it fails, in the log.

        Blocks while that would be more than `max_pending_bytes` in all, and something is still to do. RuntimeError after close().
        """
        with self._changed:
            if self._is_closed:
                raise RuntimeError(f"the background thread of {self._name} is closed: make a new one")
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: not self._pending_bytes or self._has_room(pending_bytes))
            self._jobs.append(_Job(work, pending_bytes, what))
            self._pending_bytes += pending_bytes
            self._n_accepted += 1
            self._ensure_thread()

    def flush(self) -> None:
        """Return when all that was submitted before has been done. Raises the first error that was not raised yet.

        Errors after that one mostly have the same cause; they are in the log "wherry", at level DEBUG.
        """
        with self._changed:
            if threading.current_thread() is not self._thread:
                self._ensure_thread()  # Ctrl-C may have cut submit() short
                last = self._n_accepted
                self._changed.wait_for(lambda: self._n_done >= last)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Accept nothing more, and flush. Closing again does no harm."""
        self._is_closed = True
        self.flush()

    def _has_room(self, pending_bytes: int) -> bool:
        return self._pending_bytes + pending_bytes <= self._max_pending_bytes

    def _ensure_thread(self) -> None:
        """Have somebody do what is to do. Called with the lock held, on which the new thread waits: it delays nobody here."""
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
                del job  # and with it the arrays, before anybody hears that there is room
                with self._changed:
                    self._pending_bytes -= pending_bytes
                    self._n_done += 1
                    self._changed.notify_all()

    def _do(self, work: Callable[[], object], what: str) -> None:
        try:
            work()
        except BaseException as error:  # SystemExit too: it must not end the thread, on which flush() waits
            if what:
                log.warning("%s: %s is not logged: %s", self._name, printable(what), printable(str(error)))
            if self._error is None:
                self._error = error
            else:
                log.debug("%s: another error", self._name, exc_info=error)
