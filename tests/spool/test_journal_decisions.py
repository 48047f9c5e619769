"""What users decide in a journal, and what they ask of it: failures, retry, discard, cancel, counts and look-ups."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from journals import fail, lease, state, submit
from support import new_job
from wherry.spool.journal.jobs import JobKind, JobState
from wherry.spool.journal.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


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
    lease(journal)
    submit(journal, new_job("check", kind=JobKind.CHECK))
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
