"""Jobs leased in batches and acknowledged in groups: what a batch may hold, and that a group ends its own jobs only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support import SETTINGS, new_job, store_id
from wherry.spool.journal.jobs import JobId, JobKind, JobState, WaitsFor
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.order import LARGE_BYTES
from wherry.spool.journal.work import SMALL_BYTES, Ack


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


def accept(journal: Journal, name: str, size_bytes: int = 10, **options: object) -> JobId:
    job = new_job(name, object_id=f"file-{name}", size_bytes=size_bytes, **options)  # type: ignore[arg-type]
    return journal.uploads.submit("me", store_id(journal), [job])[0][0]


def batch(journal: Journal, places: int, n_ahead: int = 0, worker: str = "w") -> list[JobId]:
    return [one.job.id for one in journal.work.lease_many(worker, 60.0, places, n_ahead)]


def states(journal: Journal, ids: list[JobId]) -> list[JobState]:
    return [job.state for job in journal.queries.jobs(ids=ids)]


def test_a_batch_has_the_next_jobs_in_the_order_of_their_calls(journal: Journal) -> None:
    ids = [accept(journal, str(i)) for i in range(6)]
    assert ids[:3] == batch(journal, 2, 1)
    assert ids[3:] == batch(journal, 4, 4)
    assert [] == batch(journal, 4, 4)
    assert [JobState.LEASED] * 6 == states(journal, ids)


def test_only_small_files_are_leased_ahead(journal: Journal) -> None:
    large = [accept(journal, f"large{i}", SMALL_BYTES + 1) for i in range(3)]
    small = accept(journal, "small", SMALL_BYTES)
    assert large[:2] == batch(journal, 2, 8)
    assert [*large[2:], small] == batch(journal, 1, 8)


def test_of_one_name_a_batch_has_one_job(journal: Journal) -> None:
    first, other, second = (accept(journal, name, overwrite=False) for name in ("a", "b", "a"))
    assert [first, other] == batch(journal, 8, 8)
    journal.work.ack(first, "w", None)
    assert [second] == batch(journal, 8, 8)


def test_a_suspect_is_alone_in_its_batch(journal: Journal) -> None:
    suspect = accept(journal, "suspect")
    for _ in range(2):
        assert [suspect] == batch(journal, 8, 8, "dying")
        journal.work.release("dying")
    innocent = accept(journal, "innocent")
    assert [suspect] == batch(journal, 8, 8)
    assert [innocent] == batch(journal, 8, 8)


def test_a_job_on_which_a_worker_has_died_is_not_leased_ahead(journal: Journal) -> None:
    ids = [accept(journal, str(i)) for i in range(3)]
    assert ids == batch(journal, 3, worker="dying")
    journal.work.release("dying")
    assert ids[:1] == batch(journal, 1, 8)


def test_of_a_store_that_waits_for_an_operator_a_batch_has_one_job(journal: Journal) -> None:
    ids = [accept(journal, str(i)) for i in range(3)]
    refused = journal.work.lease("w", 60.0)
    assert refused is not None
    journal.work.requeue(refused.id, "w", wait_s=300.0, error="expired", waits_for=WaitsFor.CREDENTIALS)
    now_s = journal.work.now_s() + 10.0
    assert [ids[1]] == [one.job.id for one in journal.work.lease_many("w", 60.0, 8, 8, now=now_s)]


def test_a_batch_says_which_jobs_require_nothing_and_are_compared_with_nothing(journal: Journal) -> None:
    store = store_id(journal)
    jobs = [
        new_job("plain"),
        new_job("tied", requires=("elsewhere",)),
        replace(new_job("compared"), plan="a part of a set"),
    ]
    ids, _ = journal.uploads.submit("me", store, jobs)
    found = {one.job.id: one.is_plain for one in journal.work.lease_many("w", 60.0, 8)}
    assert {ids[0]: True, ids[1]: False, ids[2]: False} == found


def test_a_group_ends_its_own_jobs_and_no_other_worker_s(journal: Journal) -> None:
    ids = [accept(journal, str(i)) for i in range(3)]
    assert ids == batch(journal, 3)
    journal.work.release("w")
    assert ids[:1] == batch(journal, 1, worker="other")
    assert ids[1:] == batch(journal, 2)
    freed = journal.work.ack_many("w", [Ack(job_id, f"etag{job_id}", note="told") for job_id in ids])
    assert ["file-1", "file-2"] == freed
    assert [JobState.LEASED, JobState.DONE, JobState.DONE] == states(journal, ids)
    done = journal.queries.job(ids[2])
    assert done is not None
    assert (f"etag{ids[2]}", "told") == (done.end.etag, done.error)


def test_a_file_that_several_jobs_share_is_freed_by_the_last_of_their_group(journal: Journal) -> None:
    one = new_job("a", object_id="shared")
    ids, _ = journal.uploads.submit("me", store_id(journal), [one])
    more, _ = journal.uploads.submit("me", store_id(journal), [new_job("b", object_id="shared")], shared=True)
    assert [*ids, *more] == batch(journal, 2)
    assert ["shared"] == journal.work.ack_many("w", [Ack(job_id) for job_id in (*ids, *more)])


def test_checks_are_leased_and_acknowledged_like_uploads(journal: Journal) -> None:
    store = journal.uploads.store_id("s3", "bucket", {}, (), SETTINGS)
    job = new_job("check", kind=JobKind.CHECK, object_id="file")
    (check,), _ = journal.uploads.submit("me", store, [job])
    assert [check] == batch(journal, 8, 8)
    assert ["file"] == journal.work.ack_many("w", [Ack(check)])
    assert [JobState.DONE] == states(journal, [check])


def few_large(journal: Journal, places: int, most_large: int) -> list[JobId]:
    return [one.job.id for one in journal.work.lease_many("w", 60.0, places, 4, most_large=most_large)]


def test_a_small_file_does_not_wait_for_the_end_of_large_ones(journal: Journal) -> None:
    large = [accept(journal, f"large{i}", LARGE_BYTES) for i in range(20)]
    assert large[:2] == few_large(journal, 8, 2)
    small = [accept(journal, f"small{i}") for i in range(3)]
    assert small == few_large(journal, 6, 2)
    assert [] == few_large(journal, 6, 2)


def test_a_large_file_is_next_when_another_has_ended_however_many_small_ones_wait(journal: Journal) -> None:
    large = [accept(journal, f"large{i}", LARGE_BYTES) for i in range(3)]
    small = [accept(journal, f"small{i}") for i in range(30)]
    assert [*large[:2], *small[:10]] == few_large(journal, 8, 2)
    journal.work.ack(large[0], "w", None)
    assert [large[2], *small[10:15]] == few_large(journal, 2, 2)


def test_files_that_were_given_back_count_as_large_ones_too(journal: Journal) -> None:
    first, *others = [accept(journal, f"large{i}", LARGE_BYTES) for i in range(4)]
    assert [first] == few_large(journal, 8, 1)
    journal.work.requeue(first, "w", wait_s=0.0, error="once more")
    assert [first, others[0]] == few_large(journal, 8, 2)
