"""Where the processor limits a download, fewer ranges are fetched side by side; where the line does, as many as are allowed."""

from __future__ import annotations

from wherry.transfer.concurrency import Concurrency

MIB = 2**20
FEW = 3


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _fetched(concurrency: Concurrency, clock: Clock, n: int, *, took_s: float, busy_s: float) -> None:
    """`n` ranges come one after the other, each `took_s` after the one before, as many under way as are allowed."""
    for _ in range(n):
        clock.now_s += took_s
        concurrency.add(16 * MIB, busy_s, concurrency.limit - 1)


def _connected(clock: Clock) -> Concurrency:
    """One of eight, whose first ranges took long, as they waited for connections."""
    concurrency = Concurrency(8, clock)
    _fetched(concurrency, clock, 8, took_s=0.5, busy_s=0.5)
    assert concurrency.limit == 8
    return concurrency


def test_a_slow_line_keeps_all() -> None:
    clock = Clock()
    concurrency = _connected(clock)
    _fetched(concurrency, clock, 64, took_s=0.2, busy_s=0.02)
    assert concurrency.limit == 8


def test_a_busy_processor_is_left_with_few_that_are_as_fast() -> None:
    clock = Clock()
    concurrency = _connected(clock)
    _fetched(concurrency, clock, 8, took_s=0.03, busy_s=0.03)
    assert concurrency.limit == FEW
    _fetched(concurrency, clock, 56, took_s=0.03, busy_s=0.02)
    assert concurrency.limit == FEW


def test_all_are_taken_again_where_few_are_slower() -> None:
    clock = Clock()
    concurrency = _connected(clock)
    _fetched(concurrency, clock, 8, took_s=0.01, busy_s=0.08)
    assert concurrency.limit == FEW
    _fetched(concurrency, clock, 8, took_s=0.02, busy_s=0.06)
    assert concurrency.limit == 8
    _fetched(concurrency, clock, 48, took_s=0.01, busy_s=0.08)
    assert concurrency.limit == 8


def test_those_begun_when_more_were_allowed_do_not_count() -> None:
    clock = Clock()
    concurrency = _connected(clock)
    _fetched(concurrency, clock, 8, took_s=0.03, busy_s=0.03)
    for n_running in (7, 6, 5, 4, 3):  # slow ones, of the eight
        clock.now_s += 1
        concurrency.add(16 * MIB, 0.03, n_running)
    _fetched(concurrency, clock, 8, took_s=0.03, busy_s=0.02)
    assert concurrency.limit == FEW


def test_few_that_are_allowed_stay_as_they_are() -> None:
    clock = Clock()
    concurrency = Concurrency(2, clock)
    _fetched(concurrency, clock, 16, took_s=0.01, busy_s=0.02)
    assert concurrency.limit == 2
