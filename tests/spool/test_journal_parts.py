"""Uploads in parts as the journal keeps them: parts are leased, received, given back and confirmed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from journals import lease, submit
from support import new_job
from wherry.spool.journal.jobs import JobId
from wherry.spool.journal.journal import Journal
from wherry.store import StoredPart


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


# -- parts


def plan(journal: Journal, job_id: JobId, upload_id: str = "upload", n_parts: int = 3) -> None:
    journal.parts.plan(job_id, upload_id, 5, [None] * n_parts, journal.parts.note_begin(1, "key"))


def test_parts_are_kept_over_a_lost_lease_and_forgotten_at_the_end(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    lease(journal)
    plan(journal, job_id)
    receipts = [StoredPart(1, 5, "one", 11), StoredPart(2, 5, "two", None)]
    for receipt in reversed(receipts):
        assert journal.parts.receive(job_id, "upload", receipt)
    journal.work.release()
    job = lease(journal)
    assert ("upload", 5) == (job.upload_id, job.part_size_bytes)
    assert receipts == journal.parts.sent(job_id)
    journal.work.ack(job_id, "w", "etag")
    assert [] == journal.parts.sent(job_id)
    assert [] == journal.queries.abandoned_uploads()


def test_a_new_upload_forgets_the_parts_of_the_old_one_also_those_that_come_late(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    plan(journal, job_id, "first")
    journal.parts.receive(job_id, "first", StoredPart(1, 5, "one"))
    plan(journal, job_id, "second")
    assert not journal.parts.receive(job_id, "first", StoredPart(2, 5, "two"))
    assert [] == journal.parts.sent(job_id)


def test_each_part_is_leased_once(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    lease(journal)
    plan(journal, job_id)
    (store,) = journal.queries.stores()
    taken: list[object] = [journal.parts.lease(job_id, "w", 60.0)]
    taken += [journal.parts.lease_any("helper", 60.0, with_stores=[store], most_lost=1) for _ in range(3)]
    assert [(1, None), (job_id, 2, None), (job_id, 3, None), None] == taken
    assert (0, 3) == journal.parts.left(job_id)
    assert {"w", "helper"} == journal.work.lease_owners()


def test_a_helper_takes_parts_of_others_jobs_that_are_leased_and_whose_store_it_can_open(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    plan(journal, job_id)
    (store,) = journal.queries.stores()

    def helped(worker: str = "helper", stores: Sequence[int] = (store,), most_lost: int = 1) -> bool:
        return journal.parts.lease_any(worker, 60.0, with_stores=stores, most_lost=most_lost) is not None

    assert not helped()  # its job is queued
    lease(journal)
    journal.parts.keep(job_id, [])
    assert not helped(worker="w")  # its own
    assert not helped(stores=())
    assert not helped(most_lost=-1)
    assert helped()


def test_a_part_that_a_helper_gave_back_is_left_to_the_jobs_own_worker(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    lease(journal)
    plan(journal, job_id, n_parts=1)
    (store,) = journal.queries.stores()
    assert (job_id, 1, None) == journal.parts.lease_any("helper", 60.0, with_stores=[store], most_lost=1)
    journal.parts.give_back(job_id, "helper", 1)
    assert journal.parts.lease_any("another", 60.0, with_stores=[store], most_lost=1) is None
    assert (1, None) == journal.parts.lease(job_id, "w", 60.0)


def test_the_parts_of_a_dead_worker_are_missing_again_and_those_of_the_others_are_not(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    lease(journal)
    plan(journal, job_id)
    for worker in ("dead", "alive"):
        journal.parts.lease(job_id, worker, 60.0)
    journal.work.release("dead")
    assert (2, 1) == journal.parts.left(job_id)
    journal.work.release()
    assert (3, 0) == journal.parts.left(job_id)


def test_a_worker_that_does_not_renew_the_lease_of_a_part_is_expired(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    plan(journal, job_id)
    journal.parts.lease(job_id, "stuck", -1.0)
    assert {"stuck"} == journal.work.expired()
    journal.work.renew("stuck", 60.0)
    assert set() == journal.work.expired()


def test_receipts_that_the_store_does_not_confirm_are_void(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    plan(journal, job_id)
    receipts = [StoredPart(number, 5, f"etag-{number}") for number in (1, 2, 3)]
    for receipt in receipts:
        journal.parts.receive(job_id, "upload", receipt)
    journal.parts.keep(job_id, [receipts[0], StoredPart(2, 5, "another's"), StoredPart(3, 4, "etag-3")])
    assert receipts[:1] == journal.parts.sent(job_id)
    assert (2, 0) == journal.parts.left(job_id)


def planned(journal: Journal) -> JobId:
    """A job of twelve bytes, in parts of five; the checksum of the first and the third is known."""
    (job_id,) = submit(journal, new_job("a", size_bytes=12))
    journal.parts.plan(job_id, "upload", 5, [1, None, 3], journal.parts.note_begin(1, "key"))
    return job_id


def test_a_part_that_the_store_holds_needs_no_receipt_of_ours(journal: Journal) -> None:
    """Its worker was killed before it heard the answer. The size of the last part is the rest."""
    job_id = planned(journal)
    held = [StoredPart(1, 5, "one", 1), StoredPart(2, 5, "two"), StoredPart(3, 2, "three", 3), StoredPart(4, 5, "no part of it")]
    journal.parts.keep(job_id, held)
    assert [StoredPart(1, 5, "one", 1), StoredPart(2, 5, "two"), StoredPart(3, 2, "three", 3)] == journal.parts.sent(job_id)
    assert (0, 0) == journal.parts.left(job_id)


def test_a_held_part_that_is_not_the_plans_is_sent_again(journal: Journal) -> None:
    job_id = planned(journal)
    journal.parts.keep(
        job_id, [StoredPart(1, 5, "other bytes", 9), StoredPart(2, 4, "too short", 2), StoredPart(3, 5, "too long")]
    )
    assert [] == journal.parts.sent(job_id)
    assert (3, 0) == journal.parts.left(job_id)


def test_a_held_part_that_somebody_is_sending_stays_leased_until_its_receipt_comes(journal: Journal) -> None:
    job_id = planned(journal)
    assert journal.parts.lease(job_id, "helper", 60.0) is not None
    part = StoredPart(1, 5, "one", 1)
    journal.parts.keep(job_id, [part])
    assert (2, 1) == journal.parts.left(job_id)
    assert journal.parts.receive(job_id, "upload", part)
    assert [part] == journal.parts.sent(job_id)


def test_nobody_helps_with_a_job_that_goes_on_before_its_worker_knows_what_the_store_holds(journal: Journal) -> None:
    job_id = planned(journal)
    journal.work.requeue(lease(journal, "first").id, "first", wait_s=0.0, error="reset")
    lease(journal, "second")
    stores = list(journal.queries.stores())
    assert 0 == journal.parts.missing()
    assert journal.parts.lease_any("helper", 60.0, with_stores=stores, most_lost=0) is None
    journal.parts.keep(job_id, [StoredPart(1, 5, "one")])
    assert 2 == journal.parts.missing()
    assert (job_id, 2, None) == journal.parts.lease_any("helper", 60.0, with_stores=stores, most_lost=0)


def test_a_begin_is_known_until_it_is_answered(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    lost = journal.parts.note_begin(7, "key")
    plan(journal, job_id)
    (begin,) = journal.parts.unanswered(time.time() + 1)
    assert (lost, 7, "key") == (begin.id, begin.store_id, begin.key)
    assert [] == journal.parts.unanswered(begin.begun_s)
    journal.parts.forget_begin(lost)
    assert [] == journal.parts.unanswered(time.time() + 1)


def test_uploads_in_parts_of_jobs_given_up_are_listed_for_cleaning(journal: Journal) -> None:
    old, other = submit(journal, new_job("a"), new_job("b"))
    for job_id in (old, other):
        plan(journal, job_id, f"upload-{job_id}")
    submit(journal, new_job("a"))
    journal.work.fail(lease(journal).id, "w", "no")
    assert {old, other} == {job.id for job in journal.queries.abandoned_uploads()}
    assert {f"upload-{old}", f"upload-{other}"} == journal.queries.upload_ids()
