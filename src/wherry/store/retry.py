"""The one retry policy: transient errors are tried again, until a deadline, with full jitter; writes are confirmed by two looks.

Waits are drawn from [0, w], w doubling from `first_wait_s` to `longest_wait_s` ("Exponential Backoff And Jitter", AWS
Architecture Blog, section "Full Jitter"). A store that names its own wait (Retry-After) gets at least that one.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from wherry.config import RetryConfig
from wherry.errors import IntegrityError, NotFoundError, PermanentError, StoreError, ThrottledError, TransientError

if TYPE_CHECKING:
    from tenacity import RetryCallState

_T = TypeVar("_T")

log = logging.getLogger("wherry.store.retry")

_lock = threading.Lock()
_n_retries = 0


def retries() -> int:
    """How many calls this process has made again so far, for the summary of a command."""
    return _n_retries


def _count_retry() -> None:
    global _n_retries
    with _lock:
        _n_retries += 1


def call_with_retry(
    fn: Callable[[], _T],
    *,
    config: RetryConfig,
    deadline_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_retry: Callable[[TransientError, int, float], None] | None = None,
) -> _T:
    """Return what `fn` returns, calling it again after each TransientError until `deadline_s` (default: `call_deadline_s`).

    No wait is begun that would end past the deadline; a call under way is not cut, so the whole may take longer by one call.
    `on_retry(error, attempts, wait_s)` is told of each wait before it. `sleep` may raise, which ends the call at once.

    The last error is raised as it is; if there was more than one attempt, its hint says how many there were and for how long.
    """
    started, limit_s = clock(), config.call_deadline_s if deadline_s is None else deadline_s
    # The first call does without tenacity: importing it costs 50 ms, which a process whose calls all succeed never pays.
    try:
        return fn()
    except TransientError as error:
        first = [error]

    from tenacity import Retrying, retry_if_exception_type

    dice = rng or random.Random()

    def told(error: TransientError, attempts: int, wait_s: float) -> None:
        log.debug("trying again in %.1f s, after attempt %d: %s", wait_s, attempts, error)
        if on_retry is not None:
            on_retry(error, attempts, wait_s)

    def attempt() -> _T:
        if first:
            raise first.pop()
        _count_retry()
        return fn()

    retrying = Retrying(
        retry=retry_if_exception_type(TransientError),
        wait=lambda state: _wait_s(_error_of(state), state.attempt_number, config, dice),
        stop=lambda state: clock() - started + state.upcoming_sleep >= limit_s,
        before_sleep=lambda state: told(_error_of(state), state.attempt_number, state.upcoming_sleep),
        sleep=sleep,
        reraise=True,
    )
    try:
        return retrying(attempt)
    except StoreError as error:
        if (attempts := retrying.statistics["attempt_number"]) > 1:
            tried = f"tried {attempts} times in {clock() - started:.1f} s"
            error.hint = f"{error.hint}; {tried}" if error.hint else tried
        raise


class NotVerifiedError(IntegrityError):
    """The store has answered a write with success and does not have what was written, asked twice: to be written again."""


def confirmed(look: Callable[[], _T]) -> _T:
    """Return what `look` finds of an object that was just written.

    One answer may be wrong, as of a cache or a proxy on the way: after a PermanentError it is asked once more. NotVerifiedError
    if the object is missing or another one again.
    """
    try:
        return look()
    except PermanentError as error:
        if error.waits_for is not None:
            raise
        log.info("asking again, as one answer may be wrong: %s", error)
    try:
        return look()
    except (NotFoundError, IntegrityError) as error:
        raise NotVerifiedError(error.message, operation=error.operation, uri=error.uri, hint=error.hint) from error


def _error_of(state: RetryCallState) -> TransientError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, TransientError), "no other error is tried again"
    return error


def _wait_s(error: TransientError, attempts: int, config: RetryConfig, rng: random.Random) -> float:
    """On top of the store's own wait, so that clients that were told the same one do not come back at one instant."""
    asked_s = error.retry_after_s if isinstance(error, ThrottledError) else None
    return (asked_s or 0.0) + _full_jitter_s(attempts, config.first_wait_s, config.longest_wait_s, rng)


def job_wait_s(attempts: int, config: RetryConfig, rng: random.Random | None = None) -> float:
    """How long a job that failed `attempts` times (1 or more) waits in the queue before it is leased again.

    Drawn from [first_wait_s, w], where w doubles from `longest_wait_s` to `longest_job_wait_s`: a job comes back only after
    `call_deadline_s` of short waits, so its own continue the backoff of those.
    """
    longest_s = config.longest_wait_s
    drawn = _full_jitter_s(attempts, longest_s, config.longest_job_wait_s, rng or random.Random())
    return max(drawn, min(config.first_wait_s, longest_s))


def _full_jitter_s(attempts: int, first_s: float, longest_s: float, rng: random.Random) -> float:
    doublings = min(attempts - 1, 62)  # a float holds more, but a day of attempts never reaches it
    return rng.uniform(0.0, min(longest_s, first_s * 2.0**doublings))
