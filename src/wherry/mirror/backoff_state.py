"""BackoffState: how long to leave a failing store alone. There is no limit to the attempts: the files are the queue."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from wherry.config import RetryConfig
from wherry.errors import StoreError, ThrottledError, TransientError
from wherry.store.retry import job_wait_s

log = logging.getLogger("wherry.mirror")
#: The wait after an error that only a person can mend, such as missing rights or a missing bucket.
_FATAL_WAIT_S = 300.0


@dataclass(eq=False)
class BackoffState:
    """Counts the errors in a row of one thing, says so once, and says when to try again. Any thread may call."""

    what: str
    config: RetryConfig
    clock: Callable[[], float] = time.monotonic
    rng: random.Random | None = None
    #: Errors in a row.
    n_errors: int = field(default=0, init=False)
    #: The last error's text, while there is one.
    error: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._not_before_s = self._failed_s = 0.0
        self._since_s: float | None = None
        self._fatal_wait_s = min(_FATAL_WAIT_S, self.config.longest_job_wait_s)
        self._warned: set[str] = set()

    def note(self, error: BaseException) -> None:
        """It failed: wait, longer each time, with full jitter. An error that does not pass by itself is logged as one, once."""
        self.n_errors += 1
        self.error = f"{error}"
        transient = isinstance(error, TransientError)
        wait_s = job_wait_s(self.n_errors, self.config, self.rng) if transient else self._fatal_wait_s
        if isinstance(error, ThrottledError):
            wait_s += error.retry_after_s or 0.0
        self._failed_s = self.clock()
        self._since_s = self._failed_s if self._since_s is None else self._since_s
        self._not_before_s = self._failed_s + wait_s
        text = "transient" if transient else f"{error}"
        if text not in self._warned:
            self._warned.add(text)
            what = "goes on as soon as it can" if transient else f"is tried again every {self._fatal_wait_s:.0f} s"
            remedy = f" ({error.hint})" if isinstance(error, StoreError) and error.hint and error.hint not in str(error) else ""
            log.log(
                logging.WARNING if transient else logging.ERROR,
                "%s: %s%s. Nothing is lost, the files stay where they are; it %s",
                self.what, error, remedy, what,
            )  # fmt: skip

    def note_progress(self) -> None:
        """Something worked, though not all of what was tried: from here on lasts_s() counts anew."""
        if self._since_s is not None:
            self._since_s = self.clock()

    def clear(self) -> None:
        """It worked."""
        if self.n_errors:
            log.info("%s: it works again, after %d errors", self.what, self.n_errors)
        self.n_errors, self.error, self._not_before_s, self._since_s = 0, None, 0.0, None
        self._warned.discard("transient")  # the others are said once for all

    def wait_s(self, longest_s: float | None = None) -> float:
        """How long it is still left alone; `longest_s` after the last error at most."""
        until_s = self._not_before_s if longest_s is None else min(self._not_before_s, self._failed_s + longest_s)
        return max(0.0, until_s - self.clock())

    def duration_s(self) -> float:
        """How long nothing has worked."""
        return 0.0 if (since_s := self._since_s) is None else max(0.0, self.clock() - since_s)
