"""The laws of the job table: order, leases, superseding, requirements, fencing, and what frees a staged file."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support import SETTINGS, new_job, run_script, store_id, submit_many
from wherry.spool.journal.jobs import LEGAL_STEPS, Job, JobId, JobKind, JobState, endpoint_key
from wherry.spool.journal.journal import Journal, readable_jobs
from wherry.spool.journal.submit import NewJob
from wherry.spool.journal.work import MAX_LEASES_LOST, SUSPECT_AFTER
from wherry.store import StoredPart


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


def submit(journal: Journal, *new: NewJob, owner: str = "me") -> list[JobId]:
    return journal.uploads.submit(owner, store_id(journal), new)[0]


def lease(journal: Journal, worker: str = "w", **options: float) -> Job:
    job = journal.work.lease(worker, 60.0, **options)  # type: ignore[arg-type]
    assert job is not None
    return job


def state(journal: Journal, job_id: JobId) -> JobState:
    job = journal.queries.job(job_id)
    assert job is not None
    return job.state


def fail(journal: Journal, *new: NewJob) -> list[JobId]:
    """Submit jobs and have them all fail."""
    ids = submit(journal, *new)
    for _ in ids:
        journal.work.fail(lease(journal).id, "w", "no")
    return ids


# -- order and leases


def test_jobs_are_leased_in_the_order_of_their_calls(journal: Journal) -> None:
    ids = submit(journal, *(new_job(name) for name in "cab"))
    assert ids == [lease(journal).id for _ in ids]
    assert journal.work.lease("w", 60.0) is None


def test_a_name_is_leased_once_at_a_time_older_first(journal: Journal) -> None:
    first, second = submit(journal, new_job("a", overwrite=False), new_job("a", overwrite=False))
    assert first == lease(journal, "w1").id
    assert journal.work.lease("w2", 60.0) is None
    journal.work.ack(first, "w1", None)
    assert second == lease(journal, "w2").id


def test_other_names_go_on_while_one_is_leased(journal: Journal) -> None:
    _, _, other = submit(journal, new_job("a", overwrite=False), new_job("a", overwrite=False), new_job("b"))
    lease(journal, "w1")
    assert other == lease(journal, "w2").id


def test_a_later_version_waits_while_an_earlier_one_backs_off(journal: Journal) -> None:
    first, second = submit(journal, new_job("a", overwrite=False), new_job("a", overwrite=False))
    journal.work.requeue(lease(journal).id, "w", wait_s=100.0, error="reset")
    assert journal.work.lease("w", 60.0) is None
    assert first == lease(journal, now=time.time() + 101).id
    journal.work.ack(first, "w", None)
    assert second == lease(journal).id


def test_ready_tells_what_is_due_and_when_the_next_will_be(journal: Journal) -> None:
    submit(journal, new_job("a"), new_job("b"))
    assert (2, None) == journal.work.ready()
    journal.work.requeue(lease(journal).id, "w", wait_s=100.0, error="reset")
    due, next_s = journal.work.ready()
    assert 1 == due
    assert next_s is not None
    assert (2, None) == journal.work.ready(now=next_s)


def test_a_lease_counts_an_attempt_and_waiting_for_a_requirement_does_not(journal: Journal) -> None:
    submit(journal, new_job("a"))
    job = lease(journal)
    assert 1 == job.attempts
    journal.work.requeue(job.id, "w", wait_s=0.0, error="reset")
    job = lease(journal)
    assert 2 == job.attempts
    journal.work.requeue(job.id, "w", wait_s=0.0, error="waits", counts=False)
    assert 2 == lease(journal).attempts


def test_jobs_of_stores_that_a_worker_cannot_open_are_passed_over(journal: Journal) -> None:
    (closed,), _ = journal.uploads.submit("me", store_id(journal, "closed"), [new_job("a", root="s3://closed")])
    (opened,), _ = journal.uploads.submit("me", store_id(journal, "open"), [new_job("a", root="s3://open")])
    ours = [store_id(journal, "open")]
    found = journal.work.lease("w", 60.0, with_stores=ours)
    assert found is not None
    assert opened == found.id
    assert journal.work.lease("w", 60.0, with_stores=ours) is None
    assert closed == lease(journal).id


def test_a_lease_that_is_renewed_does_not_expire(journal: Journal) -> None:
    submit(journal, new_job("a"))
    now = time.time()
    lease(journal, now=now - 59)
    assert {"w"} == journal.work.expired(now=now + 2)
    journal.work.renew("w", 60.0)
    assert set() == journal.work.expired(now=now + 2)


# -- superseding


def test_a_queued_version_is_superseded_by_the_next_and_its_file_is_freed(journal: Journal) -> None:
    (old,) = submit(journal, new_job("a", object_id="old"))
    (new,), freed = journal.uploads.submit("me", store_id(journal), [new_job("a", object_id="new")])
    assert ["old"] == freed
    found = journal.queries.job(old)
    assert found is not None
    assert (JobState.SUPERSEDED, new) == (found.state, found.end.superseded_by)
    assert new == lease(journal).id


def test_a_leased_version_is_not_superseded(journal: Journal) -> None:
    (old,) = submit(journal, new_job("a"))
    lease(journal)
    (new,), freed = journal.uploads.submit("me", store_id(journal), [new_job("a")])
    assert [] == freed
    assert JobState.LEASED is state(journal, old)
    journal.work.ack(old, "w", None)
    assert new == lease(journal).id


def test_a_version_that_is_being_retried_is_superseded(journal: Journal) -> None:
    (old,) = submit(journal, new_job("a", object_id="old"))
    journal.work.requeue(lease(journal).id, "w", wait_s=100.0, error="reset")
    (new,), freed = journal.uploads.submit("me", store_id(journal), [new_job("a")])
    assert ["old"] == freed
    assert JobState.SUPERSEDED is state(journal, old)
    assert new == lease(journal).id


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (False, False)])
def test_only_overwriting_versions_supersede_and_are_superseded(journal: Journal, first: bool, second: bool) -> None:
    (old,) = submit(journal, new_job("a", overwrite=first))
    _, freed = journal.uploads.submit("me", store_id(journal), [new_job("a", overwrite=second)])
    assert [] == freed
    assert JobState.QUEUED is state(journal, old)


def test_the_same_name_is_superseded_through_another_record_of_the_same_place(journal: Journal) -> None:
    (old,) = submit(journal, new_job("a", object_id="old"))
    other = journal.uploads.store_id("s3", "bucket", {"region": "elsewhere"}, (), SETTINGS)
    (new,), freed = journal.uploads.submit("me", other, [new_job("a")])
    assert ["old"] == freed
    assert JobState.SUPERSEDED is state(journal, old)
    assert new == lease(journal).id


# -- one URI in two places


@pytest.fixture
def elsewhere(journal: Journal) -> int:
    """A store of the same URI at another server."""
    return journal.uploads.store_id("s3", "bucket", {"endpoint_url": PLACE.partition("=")[2]}, (), SETTINGS)


PLACE = "endpoint_url=http://127.0.0.1:9000"


def test_the_same_name_in_another_place_is_not_superseded(journal: Journal, elsewhere: int) -> None:
    (here,) = submit(journal, new_job("a"))
    _, freed = journal.uploads.submit("me", elsewhere, [new_job("a")])
    assert [] == freed
    assert JobState.QUEUED is state(journal, here)


def test_the_same_name_in_two_places_is_sent_to_both_at_once(journal: Journal, elsewhere: int) -> None:
    (here,) = submit(journal, new_job("a"))
    (there,), _ = journal.uploads.submit("me", elsewhere, [new_job("a")])
    assert {here, there} == {lease(journal, "w1").id, lease(journal, "w2").id}


def test_jobs_of_one_place_keep_their_order_whatever_record_they_came_by(journal: Journal, elsewhere: int) -> None:
    same = journal.uploads.store_id("s3", "bucket", {"endpoint_url": "HTTP://127.0.0.1:9000/", "region": "x"}, (), SETTINGS)
    (first,), _ = journal.uploads.submit("me", elsewhere, [new_job("a", overwrite=False)])
    (second,), _ = journal.uploads.submit("me", same, [new_job("a", overwrite=False)])
    assert first == lease(journal, "w1").id
    assert journal.work.lease("w2", 60.0) is None
    journal.work.ack(first, "w1", None)
    assert second == lease(journal, "w2").id


def test_what_is_deleted_in_one_place_stays_queued_in_another(journal: Journal, elsewhere: int) -> None:
    (here,) = submit(journal, new_job("a"))
    (there,), _ = journal.uploads.submit("me", elsewhere, [new_job("a", object_id="there")])
    assert ["there"] == journal.uploads.cancel("s3://bucket/a", PLACE)
    assert [JobState.QUEUED, JobState.DISCARDED] == [state(journal, here), state(journal, there)]


def test_readers_of_one_place_see_nothing_of_another(journal: Journal, elsewhere: int) -> None:
    (here,) = submit(journal, new_job("a"))
    assert journal.queries.newest_open("s3://bucket/a", PLACE) is None
    assert journal.queries.newest("s3://bucket/a", PLACE) is None
    assert [] == journal.queries.open_under("s3://bucket/", PLACE)
    (there,), _ = journal.uploads.submit("me", elsewhere, [new_job("a")])
    for place, expected in (("", here), (PLACE, there)):
        open_job, newest = journal.queries.newest_open("s3://bucket/a", place), journal.queries.newest("s3://bucket/a", place)
        assert open_job is not None
        assert newest is not None
        assert [expected] * 3 == [open_job.id, newest.id, *(job.id for job in journal.queries.open_under("s3://bucket/", place))]


def test_a_failed_upload_is_retried_also_if_another_place_has_a_newer_one(journal: Journal, elsewhere: int) -> None:
    (here,) = fail(journal, new_job("a"))
    (there,), _ = journal.uploads.submit("me", elsewhere, [new_job("a")])
    journal.work.ack(lease(journal).id, "w", None)
    assert JobState.DONE is state(journal, there)
    assert (1, []) == journal.uploads.retry(None)
    assert JobState.QUEUED is state(journal, here)


def test_a_job_waits_for_what_it_requires_in_its_own_place_only(journal: Journal, elsewhere: int) -> None:
    (data,) = submit(journal, new_job("data"))
    (marker,), _ = journal.uploads.submit("me", elsewhere, [new_job("marker", requires=("data",))])
    assert [None] == [one.state for one in journal.work.requirements(marker)]
    assert [data, marker] == [lease(journal).id, lease(journal).id]


def test_a_store_record_says_where_it_is(journal: Journal, elsewhere: int) -> None:
    here = store_id(journal)
    assert {here: "", elsewhere: PLACE} == {number: record.endpoint_key for number, record in journal.queries.stores().items()}


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, ""),
        ({"region": "x", "profile": "y", "verify": False, "endpoint_url": None}, ""),
        ({"endpoint_url": "HTTPS://Host:9000/Path/"}, "endpoint_url=https://host:9000/Path"),
        ({"port": 8021, "host": "Name"}, "host=name port=8021"),
        ({"account_name": "a", "account_host": "b"}, "account_host=b account_name=a"),
    ],
)
def test_a_place_is_made_of_what_says_which_server_it_is(options: dict[str, object], place: str) -> None:
    assert place == endpoint_key(options)


# -- superseding and requirements


def test_a_version_that_another_job_requires_is_not_superseded(journal: Journal) -> None:
    (data, _) = submit(journal, new_job("data"), new_job("marker", requires=("data",)))
    _, freed = journal.uploads.submit("me", store_id(journal), [new_job("data")])
    assert [] == freed
    assert JobState.QUEUED is state(journal, data)


def test_a_version_is_superseded_again_when_who_required_it_is_finished(journal: Journal) -> None:
    data, marker = submit(journal, new_job("data", object_id="old"), new_job("marker", requires=("data",)))
    journal.uploads.cancel("s3://bucket/marker", "")
    assert JobState.DISCARDED is state(journal, marker)
    _, freed = journal.uploads.submit("me", store_id(journal), [new_job("data")])
    assert ["old"] == freed
    assert JobState.SUPERSEDED is state(journal, data)


def test_two_versions_in_one_call_supersede_in_order(journal: Journal) -> None:
    old, new = submit(journal, new_job("a"), new_job("a"))
    assert (JobState.SUPERSEDED, JobState.QUEUED) == (state(journal, old), state(journal, new))


# -- requirements


def test_a_job_waits_for_the_jobs_that_it_requires(journal: Journal) -> None:
    data, more, marker = submit(journal, new_job("data"), new_job("more"), new_job("marker", requires=("data", "more")))
    assert [data, more] == [lease(journal).id, lease(journal).id]
    assert journal.work.lease("w", 60.0) is None
    journal.work.ack(data, "w", None)
    assert journal.work.lease("w", 60.0) is None
    journal.work.requeue(more, "w", wait_s=100.0, error="reset")
    assert journal.work.lease("w", 60.0) is None
    journal.work.ack(lease(journal, now=time.time() + 101).id, "w", None)
    assert marker == lease(journal).id


def test_requirements_carry_state_and_checksum_of_our_own_jobs(journal: Journal) -> None:
    data, marker = submit(journal, new_job("data"), new_job("marker", requires=("data", "foreign")))
    lease(journal)
    journal.work.set_crc32c(data, 0xDEADBEEF)
    journal.work.ack(data, "w", None)
    found = {wanted.key: (wanted.state, wanted.crc32c) for wanted in journal.work.requirements(marker)}
    assert {"data": (JobState.DONE, 0xDEADBEEF), "foreign": (None, None)} == found


def test_a_job_whose_requirement_failed_is_leased_to_be_told_so(journal: Journal) -> None:
    data, marker = submit(journal, new_job("data"), new_job("marker", requires=("data",)))
    journal.work.fail(lease(journal).id, "w", "no")
    assert marker == lease(journal).id
    assert [(data, JobState.FAILED)] == [(data, wanted.state) for wanted in journal.work.requirements(marker)]


def test_a_requirement_means_the_newest_earlier_job_of_that_name(journal: Journal) -> None:
    (old,) = submit(journal, new_job("data", overwrite=False))
    journal.work.ack(lease(journal).id, "w", None)
    new, marker, later = submit(journal, new_job("data"), new_job("marker", requires=("data",)), new_job("data", overwrite=False))
    assert new == lease(journal).id
    assert journal.work.lease("w", 60.0) is None
    journal.work.ack(new, "w", None)
    assert marker == lease(journal).id
    assert later == lease(journal).id
    assert JobState.DONE is state(journal, old)


# -- fencing and lost leases


def test_a_worker_whose_lease_was_taken_away_changes_nothing(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a", object_id="file"))
    lease(journal, "slow")
    journal.work.release("slow")
    lease(journal, "quick")
    assert [] == journal.work.ack(job_id, "slow", "etag")
    journal.work.fail(job_id, "slow", "no")
    journal.work.requeue(job_id, "slow", wait_s=0.0, error="reset")
    assert JobState.LEASED is state(journal, job_id)
    assert ["file"] == journal.work.ack(job_id, "quick", "etag")
    assert JobState.DONE is state(journal, job_id)


def test_an_acknowledged_job_stays_done(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    lease(journal)
    journal.work.ack(job_id, "w", "etag")
    journal.work.fail(job_id, "w", "too late")
    journal.work.requeue(job_id, "w", wait_s=0.0, error="too late")
    assert (0, []) == journal.work.release()
    assert JobState.DONE is state(journal, job_id)


def test_releasing_a_worker_queues_its_jobs_and_no_others(journal: Journal) -> None:
    first, second = submit(journal, new_job("a"), new_job("b"))
    lease(journal, "dead")
    lease(journal, "alive")
    assert (1, []) == journal.work.release("dead")
    assert (JobState.QUEUED, JobState.LEASED) == (state(journal, first), state(journal, second))


def test_a_job_on_which_workers_keep_dying_fails_and_keeps_its_file(journal: Journal) -> None:
    (deadly,) = submit(journal, new_job("deadly", object_id="file"))
    for _ in range(MAX_LEASES_LOST - 1):
        lease(journal)
        assert (1, []) == journal.work.release("w")
    lease(journal)
    queued, doomed = journal.work.release("w")
    assert (0, [deadly]) == (queued, [job.id for job in doomed])
    found = journal.queries.job(deadly)
    assert found is not None
    assert JobState.FAILED is found.state
    assert "died 5 times" in (found.error or "")
    assert {"file"} == journal.queries.referenced_objects()


def test_a_retried_job_may_lose_its_leases_again(journal: Journal) -> None:
    (deadly,) = submit(journal, new_job("deadly"))
    for _ in range(MAX_LEASES_LOST):
        lease(journal)
        journal.work.release("w")
    assert (1, []) == journal.uploads.retry([deadly])
    lease(journal)
    assert (1, []) == journal.work.release("w")


def test_the_death_of_the_agent_is_held_against_no_job(journal: Journal) -> None:
    submit(journal, new_job("a"))
    for _ in range(2 * MAX_LEASES_LOST):
        lease(journal)
        assert (1, []) == journal.work.release()


def test_a_job_on_which_workers_died_is_left_to_one_who_works_alone(journal: Journal) -> None:
    suspect, innocent = submit(journal, new_job("suspect"), new_job("innocent"))
    for _ in range(SUSPECT_AFTER):
        assert suspect == lease(journal).id
        journal.work.release("w")
    assert innocent == lease(journal, with_suspects=False).id
    assert journal.work.lease("w", 60.0, with_suspects=False) is None
    assert suspect == lease(journal).id


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


# -- failures, retry, discard


def test_failures_are_reported_once_and_to_their_owner(journal: Journal) -> None:
    (mine,) = fail(journal, new_job("a"))
    (theirs,) = submit(journal, new_job("b"), owner="other")
    journal.work.fail(lease(journal).id, "w", "no")
    assert [mine] == [failure.job_id for failure in journal.uploads.failures("me", mark=False)]
    assert [mine] == [failure.job_id for failure in journal.uploads.failures("me")]
    assert [] == journal.uploads.failures("me")
    assert [theirs] == [failure.job_id for failure in journal.uploads.failures("other")]


def test_a_failure_is_reported_to_one_of_many_threads(journal: Journal) -> None:
    ids = fail(journal, *(new_job(str(i)) for i in range(20)))
    together = threading.Barrier(8)
    reported: list[int] = []

    def ask() -> None:
        together.wait()
        reported.extend(failure.job_id for failure in journal.uploads.failures("me"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*ids] == sorted(reported)


def test_a_failure_says_where_how_often_and_why(journal: Journal) -> None:
    submit(journal, new_job("a"))
    journal.work.requeue(lease(journal).id, "w", wait_s=0.0, error="reset")
    journal.work.fail(lease(journal).id, "w", "refused")
    (failure,) = journal.uploads.failures("me")
    assert ("s3://bucket/a", 2, "refused") == (failure.uri, failure.attempts, failure.error)


def test_a_retried_job_is_queued_and_reports_a_new_failure(journal: Journal) -> None:
    (job_id,) = fail(journal, new_job("a"))
    journal.uploads.failures("me")
    assert (1, []) == journal.uploads.retry(None)
    assert JobState.QUEUED is state(journal, job_id)
    journal.work.fail(lease(journal).id, "w", "again")
    assert ["again"] == [failure.error for failure in journal.uploads.failures("me")]


@pytest.mark.parametrize("newer", [JobState.QUEUED, JobState.LEASED, JobState.DONE])
def test_a_retry_never_puts_older_bytes_over_newer_ones(journal: Journal, newer: JobState) -> None:
    (old,) = fail(journal, new_job("a", object_id="old"))
    (new,) = submit(journal, new_job("a"))
    if newer is not JobState.QUEUED:
        lease(journal)
    if newer is JobState.DONE:
        journal.work.ack(new, "w", None)
    assert (0, ["old"]) == journal.uploads.retry([old])
    found = journal.queries.job(old)
    assert found is not None
    assert (JobState.SUPERSEDED, new) == (found.state, found.end.superseded_by)


def test_a_retry_of_chosen_jobs_leaves_the_others(journal: Journal) -> None:
    first, second = fail(journal, new_job("a"), new_job("b"))
    assert (1, []) == journal.uploads.retry([second])
    assert (JobState.FAILED, JobState.QUEUED) == (state(journal, first), state(journal, second))


def test_discarding_frees_the_file_of_a_failed_job(journal: Journal) -> None:
    (first, second) = fail(journal, new_job("a", object_id="fa"), new_job("b", object_id="fb"))
    assert {"fa", "fb"} == journal.queries.referenced_objects()
    assert (1, ["fa"]) == journal.uploads.discard([first])
    assert (1, ["fb"]) == journal.uploads.discard(None)
    assert (JobState.DISCARDED, JobState.DISCARDED) == (state(journal, first), state(journal, second))
    assert set() == journal.queries.referenced_objects()


def test_discarding_takes_only_failed_jobs(journal: Journal) -> None:
    (job_id,) = submit(journal, new_job("a"))
    assert (0, []) == journal.uploads.discard([job_id])
    assert JobState.QUEUED is state(journal, job_id)


def test_cancelling_a_name_takes_back_what_is_queued_and_not_what_is_sent(journal: Journal) -> None:
    sent, waits, other = submit(
        journal, new_job("a", overwrite=False), new_job("a", object_id="file", overwrite=False), new_job("b")
    )
    lease(journal)
    assert ["file"] == journal.uploads.cancel("s3://bucket/a", "")
    assert [JobState.LEASED, JobState.DISCARDED, JobState.QUEUED] == [state(journal, job_id) for job_id in (sent, waits, other)]


# -- staged files and the budget


def test_a_staged_file_shared_by_two_jobs_counts_once_and_goes_with_the_last(journal: Journal) -> None:
    first, second = submit(
        journal, new_job("a", object_id="shared", size_bytes=100), new_job("b", object_id="shared", size_bytes=100)
    )
    submit(journal, new_job("c", size_bytes=7))
    assert 107 == journal.queries.spool_bytes()
    lease(journal)
    assert [] == journal.work.ack(first, "w", None)
    lease(journal)
    assert ["shared"] == journal.work.ack(second, "w", None)
    assert 7 == journal.queries.spool_bytes()


def test_failed_jobs_hold_their_part_of_the_budget(journal: Journal) -> None:
    fail(journal, new_job("a", size_bytes=100))
    assert 100 == journal.queries.spool_bytes()
    journal.uploads.discard(None)
    assert 0 == journal.queries.spool_bytes()


# -- questions


def test_counts_of_one_owner_leave_out_the_others_and_checks(journal: Journal) -> None:
    submit(journal, new_job("a", size_bytes=5), new_job("b", size_bytes=6))
    submit(journal, new_job("c", size_bytes=7), owner="other")
    submit(journal, new_job("check", kind=JobKind.CHECK))
    lease(journal)
    counts = journal.queries.counts("me")
    assert (1, 1, 11) == (counts.queued, counts.leased, counts.bytes_queued)
    assert 18 == journal.queries.counts().bytes_queued


def test_the_newest_open_job_of_a_name_is_what_a_reader_gets(journal: Journal) -> None:
    assert journal.queries.newest_open("s3://bucket/a", "") is None
    old, new = submit(journal, new_job("a", overwrite=False), new_job("a", overwrite=False))
    found = journal.queries.newest_open("s3://bucket/a", "")
    assert found is not None
    assert new == found.id
    lease(journal)
    journal.work.ack(old, "w", None)
    lease(journal)
    journal.work.ack(new, "w", None)
    assert journal.queries.newest_open("s3://bucket/a", "") is None
    newest = journal.queries.newest("s3://bucket/a", "")
    assert newest is not None
    assert new == newest.id


def test_names_below_a_prefix_are_found_whatever_characters_they_have(journal: Journal) -> None:
    submit(journal, *(new_job(name) for name in ("a%b/1", "a_b/1", "aXb/1", "a%b/2")))
    assert ["a%b/1", "a%b/2"] == [job.key for job in journal.queries.open_under("s3://bucket/a%b/", "")]
    assert ["a_b/1"] == [job.key for job in journal.queries.open_under("s3://bucket/a_b/", "")]


def test_pruning_forgets_what_was_finished_and_keeps_what_failed(journal: Journal) -> None:
    done, failed, queued = submit(journal, new_job("a"), new_job("b"), new_job("c"))
    journal.work.ack(lease(journal).id, "w", None)
    journal.work.fail(lease(journal).id, "w", "no")
    journal.work.prune()
    assert journal.queries.job(done) is not None
    journal.work.prune(keep_s=-1.0)
    assert journal.queries.job(done) is None
    assert [failed, queued] == [job.id for job in journal.queries.jobs()]


def test_a_pruned_requirement_does_not_hold_a_job_back(journal: Journal) -> None:
    _, marker = submit(journal, new_job("data"), new_job("marker", requires=("data",)))
    journal.work.ack(lease(journal).id, "w", None)
    journal.work.prune(keep_s=-1.0)
    assert marker == lease(journal).id
    assert [None] == [wanted.state for wanted in journal.work.requirements(marker)]


def test_a_check_can_be_forgotten_when_it_is_finished(journal: Journal) -> None:
    (check,) = submit(journal, new_job("check", kind=JobKind.CHECK))
    journal.uploads.forget(check)
    assert JobState.QUEUED is state(journal, check)
    journal.work.ack(lease(journal).id, "w", None)
    journal.uploads.forget(check)
    assert journal.queries.job(check) is None


# -- stores


def test_one_store_has_one_record(journal: Journal) -> None:
    ids = {store_id(journal), store_id(journal), store_id(journal, "other"), store_id(journal, secret_names=("token",))}
    assert 3 == len(ids)
    assert ids == set(journal.queries.stores())


def test_the_id_of_a_store_is_the_same_in_every_journal(journal: Journal, tmp_path: Path) -> None:
    # Secrets are handed over by this id, and workers keep stores open by it, also when a damaged journal was replaced.
    other = Journal(tmp_path / "other.db")
    store_id(other, "first-in-this-one")
    assert store_id(journal) == store_id(other)
    other.close()


# -- processes and threads


def test_two_processes_submit_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=submit_many, args=(path, owner, 200)) for owner in ("one", "two")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [0, 0] == [process.exitcode for process in processes]
    journal = Journal(path)
    jobs = journal.queries.jobs()
    journal.close()
    assert Counter({"one": 200, "two": 200}) == Counter(job.owner for job in jobs)
    for owner in ("one", "two"):
        assert [f"{owner}/{i}" for i in range(200)] == [job.key for job in jobs if job.owner == owner]


def test_threads_share_a_journal(journal: Journal) -> None:
    def work(owner: str) -> None:
        for i in range(25):
            submit(journal, new_job(f"{owner}/{i}"), owner=owner)
            if (job := journal.work.lease(owner, 60.0)) is not None:
                journal.work.ack(job.id, owner, None)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [JobState.DONE] * 100 == [job.state for job in journal.queries.jobs()]


def test_a_forked_child_opens_its_own_connection_and_the_parent_goes_on(tmp_path: Path) -> None:
    text = """
    import os, sys
    from pathlib import Path
    from support import new_job, store_id
    from wherry.spool.journal.journal import Journal

    journal = Journal(Path(sys.argv[1]))
    store = store_id(journal)
    journal.uploads.submit("parent", store, [new_job("before")])
    pid = os.fork()
    if pid == 0:
        for i in range(20):
            journal.uploads.submit("child", store, [new_job(f"child/{i}")])
        journal.close()
        sys.exit(0)  # with all exit handlers, which must not hurt the parent's connection
    for i in range(20):
        journal.uploads.submit("parent", store, [new_job(f"parent/{i}")])
    assert os.waitpid(pid, 0)[1] == 0
    journal.uploads.submit("parent", store, [new_job("after")])
    journal.check()
    print(len(journal.queries.jobs(owner="parent")), len(journal.queries.jobs(owner="child")))
    """
    assert "22 20\n" == run_script(text, tmp_path / "journal.db")


# -- the state machine


def test_only_legal_steps_are_made_and_all_of_them_occur(journal: Journal) -> None:
    """A long random life: whatever the methods are called with, the table keeps its laws."""
    watch = sqlite3.connect(journal.path, isolation_level=None)
    watch.execute("CREATE TABLE steps (was TEXT, now TEXT)")
    watch.execute(
        "CREATE TRIGGER note AFTER UPDATE OF state ON jobs WHEN old.state != new.state"
        " BEGIN INSERT INTO steps VALUES (old.state, new.state); END"
    )
    dice = random.Random(11)
    store = store_id(journal)
    staged: set[str] = set()
    freed: list[str] = []
    now = time.time()

    def some(*states: JobState) -> list[JobId]:
        ids = [job.id for job in journal.queries.jobs(states=states)]
        return dice.sample(ids, min(len(ids), dice.randint(0, 2)))

    for turn in range(4000):
        now += 1.0
        worker = dice.choice("xy")
        what = dice.choices(
            ["submit", "lease", "ack", "fail", "requeue", "release", "retry", "discard", "cancel"],
            [12, 20, 8, 4, 4, 5, 4, 1, 1],
        )[0]
        if what == "submit":
            requires = tuple(dice.sample("abc", dice.choice([0, 0, 1])))
            job = new_job(dice.choice("abc"), object_id=f"file-{turn}", overwrite=dice.random() < 0.7, requires=requires)
            staged.add(job.object_id)
            freed += journal.uploads.submit("me", store, [job])[1]
        elif what == "lease":
            if (leased := journal.work.lease(worker, 60.0, now=now)) is not None:
                older = [
                    job
                    for job in journal.queries.jobs()
                    if job.uri == leased.uri and job.id < leased.id and not job.state.is_final
                ]
                assert [] == older
        elif what == "ack":
            for job_id in some(JobState.LEASED):
                freed += journal.work.ack(job_id, worker, None)
        elif what == "fail":
            for job_id in some(JobState.LEASED):
                journal.work.fail(job_id, worker, "no")
        elif what == "requeue":
            for job_id in some(JobState.LEASED):
                journal.work.requeue(job_id, worker, wait_s=turn - 1000.0, error="reset")
        elif what == "release":
            journal.work.release(worker)
        elif what == "retry":
            freed += journal.uploads.retry(some(JobState.FAILED))[1]
        elif what == "discard":
            freed += journal.uploads.discard(some(JobState.FAILED))[1]
        else:
            freed += journal.uploads.cancel(f"s3://bucket/{dice.choice('abc')}", "")
        open_names = Counter(job.uri for job in journal.queries.jobs(states=[JobState.LEASED]))
        assert set(open_names.values()) <= {1}
    assert len(freed) == len(set(freed))
    assert staged - set(freed) == journal.queries.referenced_objects()

    made = {(JobState(was), JobState(step)) for was, step in watch.execute("SELECT DISTINCT was, now FROM steps")}
    watch.close()
    assert {(was, step) for was, steps in LEGAL_STEPS.items() for step in steps} == made


# -- what is left of a damaged one


def test_readable_jobs_of_a_sound_journal_are_the_unfinished_and_failed_ones(journal: Journal) -> None:
    submit(journal, new_job("done", object_id="d"))
    journal.work.ack(lease(journal).id, "w", None)
    submit(journal, new_job("failed", object_id="f", size_bytes=3), new_job("queued", object_id="q", size_bytes=4))
    journal.work.fail(lease(journal).id, "w", "no")
    journal.close()
    assert [("f", "s3://bucket/failed", 3), ("q", "s3://bucket/queued", 4)] == readable_jobs(journal.path)


def test_nothing_can_be_read_of_what_is_no_journal(tmp_path: Path) -> None:
    garbage = tmp_path / "journal.db"
    garbage.write_bytes(b"no database" * 1000)
    assert [] == readable_jobs(garbage)
    assert [] == readable_jobs(tmp_path / "missing.db")


def test_a_retried_older_job_waits_for_a_newer_one_that_is_being_sent(journal: Journal) -> None:
    store = store_id(journal)
    (old,), _ = journal.uploads.submit("me", store, [new_job("s3://bucket/a", overwrite=False)])
    assert journal.work.lease("x", 60.0) is not None
    journal.work.fail(old, "x", "no")
    (new,), _ = journal.uploads.submit("me", store, [new_job("s3://bucket/a", overwrite=False)])
    leased = journal.work.lease("x", 60.0)
    assert leased is not None
    assert new == leased.id
    assert (1, []) == journal.uploads.retry([old])
    assert journal.work.lease("y", 60.0) is None
    journal.work.ack(new, "x", None)
    retried = journal.work.lease("y", 60.0)
    assert retried is not None
    assert old == retried.id
