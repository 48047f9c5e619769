"""A handle shows what the journal knows: of one file, of a folder, of a version that was superseded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from support import new_job, store_id
from wherry.errors import UploadFailed
from wherry.spool.handle import UploadHandle
from wherry.spool.journal.jobs import JobId, JobState
from wherry.spool.journal.journal import Journal

Wait = Callable[[Sequence[JobId], "float | None"], bool]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


def never(ids: Sequence[JobId], timeout_s: float | None) -> bool:
    return False


def at_once(ids: Sequence[JobId], timeout_s: float | None) -> bool:
    return True


def state(handle: UploadHandle) -> JobState:
    return handle.state


def accept(journal: Journal, *names: str, uri: str = "s3://bucket/a", wait: Wait = at_once) -> UploadHandle:
    ids, _ = journal.uploads.submit("me", store_id(journal), [new_job(name, size_bytes=10) for name in names])
    return UploadHandle(uri, ids, journal, wait)


def finish(journal: Journal, n: int = 1, error: str | None = None) -> None:
    for _ in range(n):
        job = journal.work.lease("w", 60.0)
        assert job is not None
        if error is None:
            journal.work.set_crc32c(job.id, 0xABCD)
            journal.work.ack(job.id, "w", "etag")
        else:
            journal.work.fail(job.id, "w", error)


def test_a_handle_follows_its_job(journal: Journal) -> None:
    handle = accept(journal, "a")
    assert JobState.QUEUED is state(handle)
    job = journal.work.lease("w", 60.0)
    assert job is not None
    assert JobState.LEASED is state(handle)
    journal.work.ack(job.id, "w", None)
    assert JobState.DONE is state(handle)


def test_a_result_describes_the_object(journal: Journal) -> None:
    handle = accept(journal, "a")
    finish(journal)
    meta = handle.result()
    assert ("a", 10, "etag", 0xABCD) == (meta.key, meta.size_bytes, meta.etag, meta.crc32c)


def test_a_result_that_does_not_come_in_time_says_that_it_goes_on(journal: Journal) -> None:
    handle = accept(journal, "a", wait=never)
    assert not handle.wait(0.0)
    with pytest.raises(TimeoutError, match=r"s3://bucket/a.*goes on in the background"):
        handle.result(0.0)


def test_the_result_of_a_failed_upload_is_its_failure(journal: Journal) -> None:
    handle = accept(journal, "a")
    finish(journal, error="the server said no")
    for _ in range(2):
        with pytest.raises(UploadFailed, match="the server said no") as caught:
            handle.result()
        assert handle.ids == tuple(failure.job_id for failure in caught.value.failures)
    assert JobState.FAILED is state(handle)


def test_the_result_of_a_discarded_upload_is_no_success(journal: Journal) -> None:
    handle = accept(journal, "a")
    journal.uploads.cancel("s3://bucket/a", "")
    with pytest.raises(UploadFailed, match="discarded"):
        handle.result()


def test_a_superseded_upload_gives_what_became_of_its_newest_version(journal: Journal) -> None:
    first = accept(journal, "a")
    accept(journal, "a")
    newest = accept(journal, "a")
    assert JobState.SUPERSEDED is state(first)
    finish(journal)
    assert newest.result() == first.result()
    assert JobState.DONE is state(newest)


def test_a_superseded_upload_waits_for_its_newest_version(journal: Journal) -> None:
    waited: list[tuple[JobId, ...]] = []

    def wait(ids: Sequence[JobId], timeout_s: float | None) -> bool:
        waited.append(tuple(ids))
        if len(waited) == 2:
            finish(journal)
        return True

    first = accept(journal, "a", wait=wait)
    newest = accept(journal, "a")
    first.result()
    assert [first.ids, newest.ids] == waited


def test_a_superseded_upload_fails_with_its_newest_version(journal: Journal) -> None:
    first = accept(journal, "a")
    accept(journal, "a")
    finish(journal, error="no")
    with pytest.raises(UploadFailed, match="no"):
        first.result()


def test_a_folder_is_as_far_as_its_last_file(journal: Journal) -> None:
    handle = accept(journal, "a/1", "a/2", "a/3")
    finish(journal, 2)
    assert JobState.QUEUED is state(handle)
    finish(journal)
    assert JobState.DONE is state(handle)
    assert ("s3://bucket/a", 30) == (handle.result().key, handle.result().size_bytes)


def test_a_folder_with_a_file_that_failed_has_failed_and_names_it(journal: Journal) -> None:
    handle = accept(journal, "a/1", "a/2")
    finish(journal)
    finish(journal, error="no")
    assert JobState.FAILED is state(handle)
    with pytest.raises(UploadFailed) as caught:
        handle.result()
    assert ["s3://bucket/a/2"] == [failure.uri for failure in caught.value.failures]


def test_an_upload_that_the_journal_does_not_know_is_never_a_success(journal: Journal) -> None:
    handle = UploadHandle("s3://bucket/a", [JobId(77)], journal, at_once)
    with pytest.raises(UploadFailed, match="journal"):
        handle.result()


def test_a_handle_shows_its_uri_and_state(journal: Journal) -> None:
    assert "<UploadHandle s3://bucket/a queued>" == repr(accept(journal, "a"))


def test_a_wait_is_over_with_the_object_in_the_store_and_with_nothing_else(journal: Journal) -> None:
    """``if handle.wait(): os.remove(local)`` is what people write."""
    stored = accept(journal, "a")
    finish(journal)
    assert stored.wait()
    late = accept(journal, "b", wait=never)
    assert not late.wait(0.0)
    journal.uploads.cancel("s3://bucket/b", "")
    failed = accept(journal, "c")
    finish(journal, error="the server said no")
    with pytest.raises(UploadFailed, match="the server said no"):
        failed.wait()
    with pytest.raises(UploadFailed, match="discarded"):
        UploadHandle("s3://bucket/b", late.ids, journal, at_once).wait()
    with pytest.raises(UploadFailed, match="journal"):
        UploadHandle("s3://bucket/x", [JobId(77)], journal, at_once).wait()


def test_a_failure_that_wait_has_raised_is_reported(journal: Journal) -> None:
    handle = accept(journal, "a")
    finish(journal, error="no")
    with pytest.raises(UploadFailed):
        handle.wait()
    assert [] == journal.uploads.failures("me")


def test_a_wait_for_a_superseded_upload_ends_with_its_newest_version(journal: Journal) -> None:
    newer: list[UploadHandle] = []

    def wait(ids: Sequence[JobId], timeout_s: float | None) -> bool:
        if len(newer) < 3:  # replaced again each time that somebody waits
            newer.append(accept(journal, "a"))
        else:
            finish(journal)
        return True

    first = accept(journal, "a", wait=wait)
    assert first.wait()
    assert 3 == len(newer)
    assert JobState.DONE is state(newer[-1])
