"""What a journal is asked again and again costs the same with many jobs as with few: counted in steps of SQLite's machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from support import new_job, store_id
from wherry.spool.journal.jobs import JobId, JobState
from wherry.spool.journal.journal import Journal

FEW, MANY = 40, 1500
FAR_S = 1e12


def steps(journal: Journal, work: Callable[[], object]) -> int:
    """How many steps SQLite's virtual machine makes for some work."""
    n_steps = 0

    def count() -> int:
        nonlocal n_steps
        n_steps += 1
        return 0

    with journal._database.transaction(read_only=True) as db:
        db.set_progress_handler(count, 1)
    try:
        work()
    finally:
        with journal._database.transaction(read_only=True) as db:
            db.set_progress_handler(None, 1)
    return n_steps


def journal_with(folder: Path, n_waiting: int, n_done: int) -> Journal:
    """A journal with one due job, many that wait for their next try, others behind these, and many that are done."""
    folder.mkdir()
    journal = Journal(folder / "journal.db")
    store = store_id(journal)
    journal.uploads.submit("me", store, [new_job(f"waits/{n:06}", object_id=f"w{n}", overwrite=False) for n in range(n_waiting)])
    journal.uploads.submit("me", store, [new_job(f"waits/{n:06}", object_id=f"b{n}", overwrite=False) for n in range(n_waiting)])
    done, _ = journal.uploads.submit("me", store, [new_job(f"done/{n:06}", object_id=f"d{n}") for n in range(n_done)])
    with journal._database.transaction() as db:
        db.execute("UPDATE jobs SET due_s = ?, attempts = 1 WHERE object_id GLOB 'w*'", (FAR_S,))
        db.execute("UPDATE jobs SET state = 'leased', lease_owner = 'w' WHERE id >= ?", (min(done),))
        db.execute(
            "UPDATE jobs SET state = 'done', lease_owner = NULL, finished_s = ?, ended_s = ? WHERE state = 'leased'",
            (FAR_S, FAR_S),
        )
    return journal


WORK: dict[str, Callable[[Journal], object]] = {
    "put": lambda journal: (
        journal.uploads.submit("me", store_id(journal), [new_job("new", object_id="new")]),
        journal.uploads.cancel("s3://bucket/new", ""),
    ),
    "put of a name that has others": lambda journal: journal.uploads.submit(
        "me", store_id(journal), [new_job("waits/000003", overwrite=False)]
    ),
    "lease and give back": lambda journal: journal.work.requeue(_leased(journal), "w", wait_s=FAR_S, error="reset"),
    "lease and finish": lambda journal: journal.work.ack(_leased(journal), "w", None),
    "lease when nothing is due": lambda journal: [journal.work.lease("w", 60.0) for _ in range(3)],
    "ready": lambda journal: journal.work.ready(),
    "renew": lambda journal: journal.work.renew("w", 60.0),
    "expired": lambda journal: journal.work.expired(),
    "release": lambda journal: journal.work.release("w"),
    "counts": lambda journal: journal.queries.counts(),
    "counts of one owner": lambda journal: journal.queries.counts("me"),
    "unfinished": lambda journal: (
        journal.queries.unfinished(),
        journal.queries.unfinished(ids=[JobId(3)]),
    ),
    "failures": lambda journal: journal.uploads.failures("me"),
    "spool_bytes": lambda journal: journal.queries.spool_bytes(),
    "is_shared": lambda journal: journal.queries.is_shared("w3"),
    "newest": lambda journal: (
        journal.queries.newest("s3://bucket/waits/000003", ""),
        journal.queries.newest_open("s3://bucket/waits/000003", ""),
    ),
    "names below a prefix": lambda journal: journal.queries.open_under("s3://bucket/waits/00000", ""),
    "jobs by number": lambda journal: journal.queries.jobs(ids=[JobId(1), JobId(2)], states=[JobState.QUEUED]),
    "waits": lambda journal: (
        journal.overview.waits([JobId(1), JobId(2)]),
        journal.overview.waiting_stores(),
        journal.overview.held_up("me"),
        journal.overview.held_up(),
    ),
    "uploads to clean": lambda journal: (journal.queries.abandoned_uploads(), journal.queries.upload_ids()),
    "prune": lambda journal: journal.work.prune(),
    "time": lambda journal: (journal.work.now_s(), journal.work.time_left_s(journal.queries.jobs(ids=[JobId(1)])[0])),
    "counting time": lambda journal: journal.work.count_time(),
    "resume": lambda journal: journal.work.resume(),
    "parts": lambda journal: (journal.parts.missing(), journal.parts.lease_any("w", 60.0, with_stores=[1], most_lost=1)),
}


def _leased(journal: Journal) -> JobId:
    journal.uploads.submit("me", store_id(journal), [new_job("due", object_id="due")])
    job = journal.work.lease("w", 60.0)
    assert job is not None
    assert "due" == job.key
    return job.id


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Journal, Journal]:
    folder = tmp_path_factory.mktemp("growth")
    return journal_with(folder / "few", FEW, FEW), journal_with(folder / "many", MANY, MANY)


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_work_costs_the_same_with_many_jobs(journals: tuple[Journal, Journal], work: Callable[[Journal], object]) -> None:
    few, many = journals
    assert steps(many, lambda: work(many)) <= steps(few, lambda: work(few)) + 50


def test_a_journal_of_many_finished_jobs_is_not_read_when_it_is_opened(tmp_path: Path) -> None:
    journal = journal_with(tmp_path / "many", 0, 10)
    with journal._database.transaction() as db:
        db.execute(
            "INSERT INTO jobs (kind, owner, store_id, uri, key, place, object_id, size_bytes, overwrite, token, state, created_s)"
            " WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)"
            " SELECT 'put', owner, store_id, uri || n.i, key, place, '', 9, 1, token, 'done', 0 FROM jobs, n WHERE jobs.id = 1"
        )
    journal.close()
    opened: list[Journal] = []
    opened.append(Journal(tmp_path / "many" / "journal.db"))
    assert steps(opened[0], opened[0].quick_check) < 100


def test_a_wait_for_a_million_jobs_is_not_walked_by_status(tmp_path: Path) -> None:
    """The oldest of each state is found by an index: SQLite says so."""
    journal = journal_with(tmp_path / "few", 3, 3)
    with journal._database.transaction(read_only=True) as db:
        plan = _plan(
            db, "SELECT created_s FROM jobs INDEXED BY jobs_by_state WHERE state = ? AND kind = 'put' ORDER BY id LIMIT 1"
        )
    assert "USING INDEX jobs_by_state" in plan
    assert "TEMP B-TREE" not in plan


def _plan(db: sqlite3.Connection, sql: str) -> str:
    return "; ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", ("queued",)))
