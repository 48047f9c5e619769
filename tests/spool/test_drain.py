"""Waiting for the end of uploads: how long, and what is shown meanwhile."""

from __future__ import annotations

import os
import pty
import re
import select
import time
from collections.abc import Callable, Iterator

import pytest

from wherry.spool.drain import Patience, wait_until_drained
from wherry.spool.journal.jobs import Counts


def counts(queued: int, leased: int = 0, failed: int = 0) -> Counts:
    return Counts(queued, leased, 0, failed, 0, 1000 * queued, 0, 0.0, 0)


def series(*states: Counts) -> Callable[[], Counts]:
    left: Iterator[Counts] = iter(states)
    return lambda: next(left)


def test_nothing_to_wait_for() -> None:
    waited: list[float] = []
    assert wait_until_drained(series(counts(0)), waited.append)
    assert [] == waited


def test_it_waits_until_nothing_is_queued_or_leased() -> None:
    waited: list[float] = []
    assert wait_until_drained(series(counts(2), counts(1), counts(0, leased=1), counts(0)), waited.append)
    assert [1.0] * 3 == waited


def test_failed_uploads_are_finished() -> None:
    assert wait_until_drained(series(counts(1), counts(0, failed=1)), lambda timeout_s: None)


def test_no_time_is_no_waiting() -> None:
    waited: list[float] = []
    assert not wait_until_drained(series(counts(1)), waited.append, timeout_s=0.0)
    assert [] == waited


def test_no_wait_is_longer_than_the_time_that_is_left() -> None:
    waited: list[float] = []

    def wait(timeout_s: float) -> None:
        waited.append(timeout_s)
        time.sleep(timeout_s)

    assert not wait_until_drained(lambda: counts(1), wait, timeout_s=0.2)
    assert waited
    assert max(waited) <= 0.2


def test_uploads_that_end_at_once_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert wait_until_drained(series(counts(1), counts(0)), lambda timeout_s: None, progress=True)
    assert ("", "") == capsys.readouterr()


def test_a_bar_that_begins_late_shows_no_impossible_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        states = series(counts(1000), *[counts(400)] * 40, counts(0))
        frames: list[bytes] = []

        def wait(timeout_s: float) -> None:
            time.sleep(0.05)
            if select.select([ours], [], [], 0)[0]:
                frames.append(os.read(ours, 10_000))

        assert wait_until_drained(states, wait, progress=True)
    os.close(ours)
    shown = b"".join(frames).decode()
    assert "60%" in shown
    assert not re.search(r"[MGTP]B/s", shown), shown


def test_patience_ends_when_nothing_has_got_on_and_lasts_over_waits() -> None:
    clock = [100.0]
    patience = Patience(10.0, now=lambda: clock[0])
    assert not patience.is_over(1)
    clock[0] += 9
    assert not patience.is_over(1)
    assert not patience.is_over(2)  # something has got on
    clock[0] += 10
    assert patience.is_over(2)
    assert patience.is_over(2)
    assert not patience.is_over(3)


def test_a_process_that_ends_by_an_error_does_not_wait_long_for_other_ranks() -> None:
    clock = [100.0]
    patience = Patience(1800.0, now=lambda: clock[0])
    assert not patience.is_over(1, lambda: True)
    clock[0] += 20
    assert not patience.is_over(1, lambda: True)
    patience.is_ending = True
    assert not patience.is_over(1, lambda: False)
    assert patience.is_over(1, lambda: True)
    assert "as other ranks have not saved their parts of a set for 10 s" == patience.why
    assert not patience.is_over(2, lambda: True)


def test_a_wait_that_is_stuck_ends() -> None:
    assert not wait_until_drained(series(counts(2), counts(1)), lambda timeout_s: None, is_stuck=lambda now: now.queued == 1)
