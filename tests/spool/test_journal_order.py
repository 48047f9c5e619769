"""Which job is leased next: what somebody waits for before logs that were handed over earlier, and no job starves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support import new_job, store_id
from wherry.clock import Clock
from wherry.spool.journal.jobs import JobId, JobKind
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.order import HEAD_START_S, LARGE_BYTES, URGENT_BYTES

STEP_S = 1.0


class Spool:
    """A journal in which time passes when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1000.0
        self.path = folder / "journal.db"
        self.journal = self.open()

    def open(self) -> Journal:
        return Journal(self.path, clock=Clock(lambda: self.now_s, lambda: 1_700_000_000.0 + self.now_s, "boot"))

    def passes(self, seconds: float) -> None:
        """Somebody works all the time."""
        for _ in range(int(seconds / STEP_S)):
            self.now_s += STEP_S
            self.journal.work.count_time()

    def accept(self, name: str, size_bytes: int = 10, requires: tuple[str, ...] = (), kind: JobKind = JobKind.PUT) -> JobId:
        job = new_job(name, object_id=f"file-{name}", size_bytes=size_bytes, requires=requires, kind=kind)
        return self.journal.uploads.submit("me", store_id(self.journal), [job])[0][0]

    def batch(self, places: int, most_large: int | None = None) -> list[str]:
        """The names of the jobs of one lease."""
        return [one.job.key for one in self.journal.work.lease_many("w", 60.0, places, most_large=most_large)]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path)
    yield opened
    opened.journal.close()


def test_a_checkpoint_goes_before_logs_that_were_handed_over_earlier(spool: Spool) -> None:
    logs = [f"log{i}" for i in range(100)]
    for name in logs:
        spool.accept(name)
    spool.accept("checkpoint", URGENT_BYTES)
    spool.accept("a little less", URGENT_BYTES - 1)
    assert ["checkpoint", *logs[:2]] == spool.batch(3)


def test_so_does_what_a_marker_requires_and_then_the_marker(spool: Spool) -> None:
    for i in range(10):
        spool.accept(f"log{i}")
    small = spool.accept("small-checkpoint")
    spool.accept("latest", requires=("small-checkpoint",))
    assert ["small-checkpoint", "log0"] == spool.batch(2)
    spool.journal.work.ack(small, "w", None)
    assert ["latest", "log1"] == spool.batch(2)


@pytest.mark.parametrize("kind", [JobKind.CHECK, JobKind.RECEIPT, JobKind.COMMIT])
def test_so_does_what_is_no_upload(spool: Spool, kind: JobKind) -> None:
    spool.accept("log")
    spool.accept("now", kind=kind)
    assert ["now", "log"] == spool.batch(2)


def test_urgent_ones_keep_the_order_of_their_calls(spool: Spool) -> None:
    for i in range(4):
        spool.accept(f"log{i}")
        spool.accept(f"checkpoint{i}", LARGE_BYTES)
    assert ["checkpoint0", "checkpoint1"] == spool.batch(2)
    assert ["checkpoint2", "checkpoint3", "log0", "log1", "log2", "log3"] == spool.batch(9)


def test_what_was_given_back_is_still_urgent(spool: Spool) -> None:
    job = spool.accept("checkpoint", LARGE_BYTES)
    assert ["checkpoint"] == spool.batch(1)
    spool.journal.work.requeue(job, "w", wait_s=0.0, error="reset")
    for i in range(3):
        spool.accept(f"log{i}")
    assert ["checkpoint", "log0"] == spool.batch(2)


def test_of_large_ones_a_worker_has_only_some_and_logs_go_on_beside_them(spool: Spool) -> None:
    for i in range(3):
        spool.accept(f"log{i}")
    for i in range(20):
        spool.accept(f"checkpoint{i}", LARGE_BYTES)
    assert ["checkpoint0", "checkpoint1", "log0", "log1", "log2"] == spool.batch(8, most_large=2)


def test_a_log_waits_only_for_what_came_within_the_head_start(spool: Spool) -> None:
    """However many urgent ones come, and though there is one place only."""
    spool.accept("log")
    spool.passes(HEAD_START_S - 10)
    spool.accept("marker0", requires=("nothing",))
    assert ["marker0"] == spool.batch(1)
    spool.passes(20)
    spool.accept("marker1", requires=("nothing",))
    assert ["log"] == spool.batch(1)
    assert ["marker1"] == spool.batch(1)


def test_a_journal_of_version_5_keeps_the_order_of_its_calls(spool: Spool) -> None:
    spool.accept("log")
    spool.accept("checkpoint", LARGE_BYTES)
    spool.journal.close()
    with closing(sqlite3.connect(spool.path)) as db:
        db.executescript("DROP INDEX jobs_urgent; ALTER TABLE jobs DROP COLUMN is_urgent; PRAGMA user_version = 5;")
    spool.journal = spool.open()
    spool.accept("next", LARGE_BYTES)
    assert ["next", "log", "checkpoint"] == spool.batch(3)
    spool.journal.check()
