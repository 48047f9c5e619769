from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from wherry.config import RetryConfig
from wherry.errors import NotFoundError, PermanentError, StoreError, ThrottledError, TransientError
from wherry.store.retry import call_with_retry, job_wait_s

CONFIG = RetryConfig(call_deadline_s=30, first_wait_s=0.25, longest_wait_s=20)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


class Calls:
    """Raises what it is given, one after another, then returns "done"."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def retry(fn: Callable[[], str], clock: Clock, deadline_s: float | None = None, seed: int = 1) -> str:
    return call_with_retry(fn, config=CONFIG, deadline_s=deadline_s, sleep=clock.sleep, rng=random.Random(seed), clock=clock)


def test_success_waits_for_nothing() -> None:
    clock = Clock()
    assert retry(Calls(), clock) == "done"
    assert clock.slept_s == []


def test_transient_errors_are_tried_again() -> None:
    clock, calls = Clock(), Calls(TransientError("one"), TransientError("two"), ThrottledError("three"))
    assert retry(calls, clock) == "done"
    assert (calls.count, len(clock.slept_s)) == (4, 3)


@pytest.mark.parametrize("error", [PermanentError("no"), NotFoundError("gone"), ValueError("bug"), StoreError("unsorted")])
def test_any_other_error_is_raised_at_once(error: Exception) -> None:
    clock, calls = Clock(), Calls(error)
    with pytest.raises(type(error)) as caught:
        retry(calls, clock)
    assert error is caught.value
    assert (calls.count, clock.slept_s) == (1, [])


def test_waits_are_drawn_from_doubling_windows() -> None:
    drawn: list[list[float]] = []
    for seed in range(200):
        clock = Clock()
        retry(Calls(*[TransientError("again") for _ in range(9)]), clock, deadline_s=1e9, seed=seed)
        drawn.append(clock.slept_s)
    for place, window in enumerate([0.25, 0.5, 1, 2, 4, 8, 16, 20, 20]):
        waits = [each[place] for each in drawn]
        assert max(waits) <= window
        assert min(waits) < window * 0.1
        assert max(waits) > window * 0.9


def test_deadline_is_not_overslept() -> None:
    for seed in range(50):
        clock = Clock()
        with pytest.raises(TransientError):
            retry(Calls(*[TransientError("down") for _ in range(10_000)]), clock, seed=seed)
        assert clock.now_s - 1000.0 < CONFIG.call_deadline_s


def test_deadline_of_zero_means_one_attempt() -> None:
    clock, calls = Clock(), Calls(TransientError("down"))
    with pytest.raises(TransientError):
        retry(calls, clock, deadline_s=0)
    assert (calls.count, clock.slept_s) == (1, [])


def test_slow_calls_count_towards_the_deadline() -> None:
    clock = Clock()
    attempts: list[float] = []

    def slow() -> str:
        attempts.append(clock.now_s)
        clock.now_s += 20
        raise TransientError("timed out")

    with pytest.raises(TransientError):
        retry(slow, clock)
    assert len(attempts) == 2


def test_stores_own_wait_is_the_least() -> None:
    clock = Clock()
    retry(Calls(ThrottledError("slow down", retry_after_s=7), ThrottledError("again")), clock)
    assert 7 <= clock.slept_s[0] <= 7.25
    assert clock.slept_s[1] <= 0.5


def test_wait_past_the_deadline_is_not_begun() -> None:
    clock, calls = Clock(), Calls(ThrottledError("slow down", retry_after_s=60))
    with pytest.raises(ThrottledError):
        retry(calls, clock)
    assert (calls.count, clock.slept_s) == (1, [])


def test_last_error_itself_is_raised_and_tells_attempts() -> None:
    clock, last = Clock(), NotFoundError("gone", operation="head", uri="s3://b/k", hint="look elsewhere")
    with pytest.raises(NotFoundError) as caught:
        retry(Calls(TransientError("reset"), TransientError("reset"), last), clock)
    assert last is caught.value
    assert str(last) == f"head s3://b/k: gone (look elsewhere; tried 3 times in {sum(clock.slept_s):.1f} s)"


def test_one_attempt_is_not_talked_about() -> None:
    with pytest.raises(TransientError) as caught:
        retry(Calls(TransientError("down")), Clock(), deadline_s=0)
    assert str(caught.value) == "down"


def test_each_wait_is_told_before_it() -> None:
    told: list[tuple[str, int, float]] = []
    clock = Clock()
    call_with_retry(
        Calls(TransientError("one"), TransientError("two")),
        config=CONFIG,
        sleep=clock.sleep,
        clock=clock,
        on_retry=lambda error, attempts, wait_s: told.append((error.message, attempts, wait_s)),
    )
    assert [("one", 1, clock.slept_s[0]), ("two", 2, clock.slept_s[1])] == told


def test_sleep_may_end_the_call() -> None:
    class Stopped(Exception):
        pass

    def stop(_: float) -> None:
        raise Stopped

    calls = Calls(TransientError("down"))
    with pytest.raises(Stopped):
        call_with_retry(calls, config=CONFIG, sleep=stop)
    assert calls.count == 1


def test_tenacity_is_not_imported_while_all_goes_well() -> None:
    program = (
        "import sys, wherry.store.retry, wherry.config\n"
        "wherry.store.retry.call_with_retry(lambda: 1, config=wherry.config.RetryConfig())\n"
        "sys.exit('tenacity' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_job_waits_grow_from_the_longest_call_wait_to_fifteen_times_that() -> None:
    rng = random.Random(4)
    for attempts, window in [(1, 20), (2, 40), (3, 80), (4, 160), (5, 300), (6, 300), (1000, 300)]:
        waits = [job_wait_s(attempts, CONFIG, rng) for _ in range(300)]
        assert CONFIG.first_wait_s <= min(waits) < window * 0.1
        assert window * 0.9 < max(waits) <= window


def test_job_wait_follows_a_short_configuration() -> None:
    short = RetryConfig(first_wait_s=1, longest_wait_s=0.01)
    assert job_wait_s(50, short) <= 0.15
    assert job_wait_s(1, RetryConfig(first_wait_s=0, longest_wait_s=0)) == 0
