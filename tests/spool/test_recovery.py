"""A damaged journal is put aside with its staged files; nothing is deleted, and uploads go on."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import file_of, new_job, store_id
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.submit import JournalReplaced
from wherry.spool.recovery import open_journal, restore_quarantined
from wherry.spool.spool import Spool


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def fill(spool: Spool, n: int = 200) -> list[str]:
    """Put n staged files and their jobs into the spool: their object ids, in order."""
    journal = open_journal(spool)
    store = store_id(journal)
    ids = [f"1-dead-{i:03d}" for i in range(n)]
    for i, object_id in enumerate(ids):
        file_of(spool.path(object_id), 100, seed=i)
        journal.uploads.submit("me", store, [new_job(f"run/file-{i:03d}", object_id=object_id, size_bytes=100)])
    journal.close()
    return ids


def garbage_header(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"garbage " * 50)


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damage_a_page_in_the_middle(path: Path) -> None:
    """The middle one of those that hold rows of the table of jobs; indexes do not hold the object ids."""
    data = path.read_bytes()
    rows = [at for at in range(0, len(data), 4096) if b"1-dead-" in data[at : at + 4096]]
    with open(path, "r+b") as file:
        file.seek(rows[len(rows) // 2])
        file.write(b"\xff" * 4096)


def empty(path: Path) -> None:
    path.write_bytes(b"x")


def forget_the_log(path: Path) -> None:
    for name in ("journal.db-wal", "journal.db-shm"):
        path.with_name(name).unlink(missing_ok=True)


DAMAGES = [garbage_header, cut_short, damage_a_page_in_the_middle, empty]


def quarantined(spool: Spool) -> Path:
    (aside,) = (spool.folder / "quarantine").iterdir()
    return aside


def test_a_sound_journal_is_opened_as_it_is(spool: Spool) -> None:
    ids = fill(spool, 3)
    journal = open_journal(spool)
    assert ids == [job.object_id for job in journal.queries.jobs()]
    assert not (spool.folder / "quarantine").exists()
    journal.close()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_put_aside_and_every_staged_file_is_kept_and_listed(
    spool: Spool, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    ids = fill(spool)
    before = {object_id: spool.path(object_id).read_bytes() for object_id in ids}
    damage(spool.journal_path)  # type: ignore[operator]
    with caplog.at_level(logging.ERROR, logger="wherry"):
        journal = open_journal(spool)
    aside = quarantined(spool)
    assert before == {path.name: path.read_bytes() for path in (aside / "objects").iterdir()}
    assert (aside / "journal.db").exists()
    listing = (aside / "FILES").read_text()
    assert [] == [object_id for object_id in ids if str(aside / "objects" / object_id) not in listing]
    assert str(aside) in caplog.text
    assert "none deleted" in caplog.text
    assert "damaged" in (aside / "REASON").read_text()
    assert [] == journal.queries.jobs()
    assert [] == list(spool.objects.iterdir())
    journal.close()


def test_the_list_says_what_the_files_were_to_become_where_it_can_be_read(spool: Spool) -> None:
    fill(spool)
    damage_a_page_in_the_middle(spool.journal_path)
    open_journal(spool).close()
    listing = (quarantined(spool) / "FILES").read_text()
    assert 200 == listing.count(" was to become ")
    assert 150 < listing.count(" was to become s3://bucket/run/file-") < 200


def test_the_new_journal_works(spool: Spool) -> None:
    fill(spool)
    garbage_header(spool.journal_path)
    journal = open_journal(spool)
    journal.uploads.submit("me", store_id(journal), [new_job("new")])
    journal.close()
    again = open_journal(spool)
    assert ["new"] == [job.key for job in again.queries.jobs()]
    again.close()


def test_new_jobs_never_have_the_numbers_of_lost_ones(spool: Spool) -> None:
    """A handle of a lost upload must not tell of another one."""
    journal = open_journal(spool)
    ids, _ = journal.uploads.submit("me", store_id(journal), [new_job("old")])
    journal.close()
    garbage_header(spool.journal_path)
    journal = open_journal(spool)
    new_ids, _ = journal.uploads.submit("me", store_id(journal), [new_job("new")])
    assert max(ids) < min(new_ids)
    journal.close()


def test_files_that_are_just_being_accepted_stay(spool: Spool) -> None:
    fill(spool, 3)
    file_of(spool.path("2-alive-1"), 10)
    garbage_header(spool.journal_path)
    open_journal(spool, keep=["2-alive-1"]).close()
    assert ["2-alive-1"] == [path.name for path in spool.objects.iterdir()]


def test_a_journal_can_be_damaged_again(spool: Spool) -> None:
    for _ in range(3):
        fill(spool, 2)
        garbage_header(spool.journal_path)
        open_journal(spool).close()
    assert 3 == len(list((spool.folder / "quarantine").iterdir()))
    assert 6 == len(list((spool.folder / "quarantine").glob("*/objects/*")))


def test_who_has_the_old_journal_open_goes_on_with_the_new_one(spool: Spool) -> None:
    fill(spool)
    agent = open_journal(spool)
    garbage_header(spool.journal_path)
    open_journal(spool).close()
    agent.uploads.submit("me", store_id(agent), [new_job("new")])
    job = agent.work.lease("w", 60.0)
    assert job is not None
    assert "new" == job.key
    agent.work.ack(job.id, "w", None)
    assert [JobState.DONE] == [job.state for job in agent.queries.jobs()]
    agent.close()


def test_many_who_find_the_damage_put_it_aside_once(spool: Spool) -> None:
    fill(spool, 10)
    garbage_header(spool.journal_path)
    with ThreadPoolExecutor(8) as pool:
        journals = list(pool.map(lambda _: open_journal(Spool(spool.folder)), range(8)))
    for journal in journals:
        journal.close()
    assert 10 == len(list((quarantined(spool) / "objects").iterdir()))


def test_a_journal_that_was_deleted_takes_no_staged_file_with_it(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    ids = fill(spool, 3)
    spool.journal_path.unlink()
    forget_the_log(spool.journal_path)
    with caplog.at_level(logging.ERROR, logger="wherry"):
        open_journal(spool).close()
    assert ids == sorted(path.name for path in (quarantined(spool) / "objects").iterdir())
    assert "gone or empty" in caplog.text


def test_a_new_spool_has_no_journal_and_that_is_no_damage(spool: Spool) -> None:
    journal = open_journal(spool)
    file_of(spool.path("1-new-1"), 10)  # staged, while the log still holds all that the journal knows
    open_journal(spool).close()
    journal.close()
    assert not (spool.folder / "quarantine").exists()


def test_a_job_is_never_accepted_for_a_store_that_the_new_journal_does_not_know(spool: Spool) -> None:
    fill(spool, 3)
    trainer = open_journal(spool)
    store = store_id(trainer)
    garbage_header(spool.journal_path)
    open_journal(spool).close()
    with pytest.raises(JournalReplaced):
        trainer.uploads.submit("me", store, [new_job("a")])
    assert [] == trainer.queries.jobs()
    assert store == store_id(trainer)
    trainer.uploads.submit("me", store, [new_job("a")])
    trainer.close()


def test_a_staged_file_that_was_put_aside_is_brought_back(spool: Spool) -> None:
    open_journal(spool).close()
    source = file_of(spool.path("1-alive-1"), 10)
    before = source.read_bytes()
    garbage_header(spool.journal_path)
    open_journal(spool).close()
    assert not source.exists()
    restore_quarantined(spool, ["1-alive-1", "1-alive-2"])
    assert before == source.read_bytes()


def test_what_is_put_aside_is_private(spool: Spool) -> None:
    fill(spool, 1)
    garbage_header(spool.journal_path)
    open_journal(spool).close()
    aside = quarantined(spool)
    assert {0o700} == {folder.stat().st_mode & 0o777 for folder in (aside, aside / "objects")}
