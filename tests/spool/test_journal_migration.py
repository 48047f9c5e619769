"""A journal of version 3 is brought into the present form with everything in it, and only when nobody uses it.

`journal_of_version_3.sql` is the dump of a journal that wherry 0.1 at that version has written: stores that differ in their
configuration only, and jobs in every state, one of them half sent in parts.
"""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support import run_script
from wherry.clock import Clock
from wherry.errors import JournalError
from wherry.spool.journal.jobs import JobId, JobKind, JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.submit import NewJob

WRITTEN = Path(__file__).with_name("journal_of_version_3.sql")
WRITTEN_S = 1_795_361_461.0
DAY_S = 86_400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    db = sqlite3.connect(tmp_path / "journal.db")
    db.executescript(WRITTEN.read_text())
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    return tmp_path / "journal.db"


def opened(path: Path) -> Journal:
    return Journal(path, clock=Clock(monotonic_s=lambda: 1000.0, wall_s=lambda: WRITTEN_S + 10, boot="then"))


def test_a_journal_of_version_3_opens_and_loses_nothing(path: Path) -> None:
    journal = opened(path)
    assert {
        "o-done": "done",
        "o-failed": "failed",
        "o-waits": "queued",
        "o-superseded": "superseded",
        "o-newer": "leased",
        "o-part": "leased",
        "o-kept-1": "queued",
        "o-kept-2": "queued",
        "o-marker": "queued",
    } == {job.object_id: job.state.value for job in journal.queries.jobs() if job.object_id != "o-x"}
    assert {
        "o-failed",
        "o-waits",
        "o-newer",
        "o-part",
        "o-kept-1",
        "o-kept-2",
        "o-marker",
        "o-x",
    } == journal.queries.referenced_objects()
    assert 7 * 10 + 3000 == journal.queries.spool_bytes()  # the staged file that two jobs share counts once
    assert journal.queries.is_shared("o-x")
    counts = journal.queries.counts()
    assert (6, 2, 1, 1, 1) == (counts.queued, counts.leased, counts.done, counts.failed, counts.superseded)
    assert ("403: no", "AccessDeniedError") == (journal.queries.jobs()[1].error, journal.queries.jobs()[1].error_kind)
    assert [(1, "etag-part")] == [(part.number, part.etag) for part in journal.parts.sent(JobId(6))]
    assert (1, 2, 3) == journal.work.pieces(JobId(6))
    assert ["never"] == [begin.key for begin in journal.parts.unanswered(WRITTEN_S + DAY_S)]
    journal.check()


def test_the_jobs_of_version_3_go_on_in_their_order(path: Path) -> None:
    journal = opened(path)
    journal.work.release(keep=())
    order: list[str] = []
    while (job := journal.work.lease("w", 60.0)) is not None:
        order.append(job.object_id)
        if job.object_id == "o-kept-1":
            assert "o-kept-2" not in order
        journal.work.ack(job.id, "w", None)
    # What waited for its next try waits no longer than a backoff, whatever the clock did; what requires another comes after it.
    assert ["o-newer", "o-part", "o-kept-1", "o-kept-2", "o-marker", "o-x", "o-x"] == order
    waits = journal.work.lease("w", 60.0, now=journal.work.now_s() + 300.0)
    assert waits is not None
    assert "o-waits" == waits.object_id


def test_stores_that_differed_in_their_configuration_are_one_with_the_newest(path: Path) -> None:
    journal = opened(path)
    stores = {store.scheme: store for store in journal.queries.stores().values()}
    assert 2 == len(journal.queries.stores())
    assert 7200.0 == stores["s3"].settings["retry"]["job_deadline_s"]
    assert {stores["s3"].id} == {job.store_id for job in journal.queries.jobs() if job.uri.startswith("s3:")}
    assert 7200.0 == journal.work.time_left_s(journal.queries.jobs()[2])[0]  # an unfinished job has its whole deadline


def test_a_journal_in_use_by_an_older_program_is_left_as_it_is(path: Path) -> None:
    older = sqlite3.connect(path)
    older.execute("SELECT COUNT(*) FROM jobs").fetchone()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="has an older format, and programs of the wherry that wrote it are using it"):
        opened(path)
    assert before == path.read_bytes()
    assert (3, "wal") == (older.execute("PRAGMA user_version").fetchone()[0], older.execute("PRAGMA journal_mode").fetchone()[0])
    older.close()
    assert 11 == len(opened(path).queries.jobs())


def test_a_migration_that_is_killed_is_made_again(path: Path) -> None:
    text = """
import os, signal, sqlite3, sys
from pathlib import Path
from wherry.spool.journal import schema as journal_schema
from wherry.spool.journal.database import Database

def migrate(db):
    journal_schema.from_version_3(db, 0.0)
    os.kill(os.getpid(), signal.SIGKILL)

Database(Path(sys.argv[1]), journal_schema.SCHEMA, journal_schema.VERSION, "process", checkpoints=True, migrations={3: migrate})
"""
    run_script(text, path, expected=-signal.SIGKILL)
    journal = opened(path)
    assert 11 == len(journal.queries.jobs())
    assert JobState.LEASED is journal.queries.jobs()[4].state
    journal.check()


def test_programs_that_start_together_bring_a_journal_up_once(path: Path) -> None:
    text = """
import sys, threading
from pathlib import Path
from wherry.spool.journal.journal import Journal

found = []
threads = [threading.Thread(target=lambda: found.append(len(Journal(Path(sys.argv[1])).queries.jobs()))) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found)
"""
    assert f"{[11] * 6}\n" == run_script(text, path)


def test_a_journal_of_version_4_gets_the_table_of_what_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    store_id = journal.uploads.store_id("file", "", {}, (), {"retry": {}, "transfer": {}})
    new = NewJob(JobKind.PUT, "file:///a", "a", "object", 1, False, "token")
    (old,), _ = journal.uploads.submit("owner", store_id, [new])
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "DROP TRIGGER comparisons_forgotten; DROP TABLE comparisons; DROP INDEX jobs_urgent;"
            "ALTER TABLE jobs DROP COLUMN is_urgent; PRAGMA user_version = 4;"
        )
    journal = Journal(path)
    (compared,), _ = journal.uploads.submit("owner", store_id, [replace(new, key="b", uri="file:///b", plan="{}")])
    assert (None, ("{}", None, None)) == (journal.comparisons.asked(old), journal.comparisons.asked(compared))
    assert "other" == journal.comparisons.decide(compared, "other") == journal.comparisons.decide(compared, "")
    journal.check()


def test_a_journal_of_a_later_version_is_refused_and_left_as_it_is(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 7")
    db.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"has format 7, this wherry knows 6: finish it with the version that wrote it"):
        opened(path)
    assert before == path.read_bytes()
