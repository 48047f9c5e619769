"""What is left behind in a store is aborted if it is surely ours, and nothing else is."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support import file_of, new_job, store_id
from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c_of_file
from wherry.errors import TransientError
from wherry.spool.abandoned_uploads import (
    STALE_AFTER_S,
    UNANSWERED_AFTER_S,
    clean_known_uploads,
    clean_marked_uploads,
    stores_with_known_uploads,
)
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.journal import Journal
from wherry.store import ObjectStore, Part, PendingUpload
from wherry.store.wrappers import WrappedStore
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

DAY_S = 86_400.0


class UnmarkedStore(WrappedStore):
    """As S3 is: the ids of uploads say nothing of who has begun them."""

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        for upload in super().list_uploads(prefix):
            yield PendingUpload(upload.key, upload.upload_id, upload.begun_s, is_ours=False)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


@pytest.fixture
def store() -> UnmarkedStore:
    return UnmarkedStore(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))


def pending(store: WrappedStore) -> list[str]:
    return [upload.key for upload in store.list_uploads()]


def never_opened(store_id: int) -> ObjectStore:
    raise AssertionError(f"store {store_id} was opened for nothing")


def lose_begin(journal: Journal, store: WrappedStore, key: str = "key") -> tuple[int, str]:
    """A begin whose answer does not come: the store's id, and the upload that is there all the same."""
    found = store_id(journal)
    journal.parts.note_begin(found, key)
    return found, store.begin(key, 10)


def clean(journal: Journal, store: WrappedStore, after_s: float) -> list[str]:
    found = clean_known_uploads(journal, store_id(journal), lambda _: store, now=time.time() + after_s)
    return [upload.key for upload in found]


def test_nothing_is_opened_when_there_is_nothing_to_clean(journal: Journal) -> None:
    journal.parts.note_begin(store_id(journal), "key")  # not old enough
    assert set() == stores_with_known_uploads(journal)
    assert [] == clean_known_uploads(journal, store_id(journal), never_opened)


def test_an_upload_whose_begin_was_not_answered_is_aborted_a_day_later(journal: Journal, store: UnmarkedStore) -> None:
    lose_begin(journal, store)
    assert [] == clean(journal, store, UNANSWERED_AFTER_S - 60)
    assert ["key"] == pending(store)
    assert ["key"] == clean(journal, store, UNANSWERED_AFTER_S + 60)
    assert [] == pending(store)
    assert [] == journal.parts.unanswered(time.time() + 2 * DAY_S)


def test_an_upload_with_a_part_is_another_writers_and_stays(journal: Journal, store: UnmarkedStore, tmp_path: Path) -> None:
    _, upload_id = lose_begin(journal, store)
    path = file_of(tmp_path / "file", 10)
    store.put_part("key", upload_id, path, Part(1, 0, 10, crc32c_of_file(path, 0, 10)))
    assert [] == clean(journal, store, 2 * DAY_S)
    assert ["key"] == pending(store)


def test_an_upload_of_another_time_is_another_writers_and_stays(journal: Journal, store: UnmarkedStore) -> None:
    inner = store.inner
    assert isinstance(inner, MemoryStore)
    _, upload_id = lose_begin(journal, store)
    began = inner._root.uploads[upload_id]
    inner._root.uploads[upload_id] = replace(began, begun_s=began.begun_s - 3600)
    assert [] == clean(journal, store, 2 * DAY_S)
    assert ["key"] == pending(store)


@pytest.mark.parametrize("key", ["key2", "key/2", "other"])
def test_an_upload_of_another_key_stays(journal: Journal, store: UnmarkedStore, key: str) -> None:
    lose_begin(journal, store, "key")
    store.begin(key, 10)
    assert ["key"] == clean(journal, store, 2 * DAY_S)
    assert [key] == pending(store)


def test_the_upload_that_a_job_goes_on_with_stays(journal: Journal, store: UnmarkedStore) -> None:
    found, upload_id = lose_begin(journal, store)
    (job_id,), _ = journal.uploads.submit("me", found, [new_job("key")])
    journal.parts.plan(job_id, f"checked:{upload_id}", 5, [None, None], journal.parts.note_begin(found, "key"))
    assert [] == clean(journal, store, 2 * DAY_S)
    assert ["key"] == pending(store)


def test_the_upload_of_a_job_that_was_given_up_is_aborted_at_once(journal: Journal, store: UnmarkedStore) -> None:
    (job_id,), _ = journal.uploads.submit("me", store_id(journal), [new_job("key")])
    journal.parts.plan(job_id, store.begin("key", 10), 5, [None, None], 0)
    assert set() == stores_with_known_uploads(journal)
    assert journal.work.lease("w", 60.0) is not None
    journal.work.fail(job_id, "w", "no")
    assert {store_id(journal)} == stores_with_known_uploads(journal)
    assert ["key"] == clean(journal, store, 0)
    assert [] == pending(store)
    assert set() == stores_with_known_uploads(journal)
    assert JobState.FAILED is journal.queries.jobs()[0].state


def test_what_could_not_be_aborted_is_tried_again(journal: Journal) -> None:
    store = FaultyStore(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}), [Fault("abort", TransientError("reset"))])
    lose_begin(journal, store)
    with pytest.raises(TransientError):
        clean(journal, store, 2 * DAY_S)
    assert ["key"] == clean(journal, store, 2 * DAY_S)
    assert [] == pending(store)


def test_marked_uploads_are_aborted_below_a_prefix_when_they_are_old(journal: Journal) -> None:
    store = MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})
    open_id = store.begin("run/open", 10)
    for key in ("run/old", "other"):
        store.begin(key, 10)
    (job_id,), _ = journal.uploads.submit("me", store_id(journal), [new_job("run/open")])
    journal.parts.plan(job_id, open_id, 5, [None], 0)

    def cleaned(after_s: float) -> list[str]:
        found = clean_marked_uploads(store, "run/", journal, now=time.time() + after_s)
        return [upload.key for upload in found]

    assert [] == cleaned(STALE_AFTER_S - 60)
    assert ["run/old"] == cleaned(STALE_AFTER_S + 60)
    assert ["other", "run/open"] == sorted(upload.key for upload in store.list_uploads())


def test_unmarked_uploads_are_never_touched_by_their_age(store: UnmarkedStore, journal: Journal) -> None:
    store.begin("run/old", 10)
    assert [] == list(clean_marked_uploads(store, "", journal, now=time.time() + 100 * DAY_S))
    assert ["run/old"] == pending(store)
