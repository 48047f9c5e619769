"""Uploads in parts that nobody is going to complete take room, and cost money, until they are aborted.

Ours are: those in our journal, by their ids; those whose temporary objects carry our mark; what a begin has left whose answer
was lost; and what a trial of a server has left that was killed, by its names, which carry our mark. S3 shows of an upload no more
than its key, its id and its time. So one whose begin was not answered is taken for ours if it is of that very key, was begun at
that time, has no part, and is unknown to the journal; and only when it is old, for then nobody is sending it. Of anything else
nothing is touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from wherry.errors import NotFoundError
from wherry.spool.journal.journal import Journal
from wherry.store import MultipartStore, ObjectMeta, ObjectStore, PendingUpload

#: An upload on which nothing has happened for a week is not going to be completed.
STALE_AFTER_S = 7 * 86_400.0
#: An unanswered begin: its key has been written by then, or was given up; another writer's upload would have a part.
UNANSWERED_AFTER_S = 86_400.0
#: How far the store's clock and ours may differ (S3 refuses requests that are a quarter of an hour off).
_SKEW_S = 900.0


@runtime_checkable
class Tried(Protocol):
    """A store whose server was tried by small objects, and shows those that are left: see `ObjectStore.probe`."""

    def left_by_trials(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield the objects below `prefix` that a trial has made and did not live to delete; of one under way, too."""

    def delete(self, key: str) -> None:
        """As `ObjectStore.delete`."""


def stores_with_known_uploads(journal: Journal, now: float | None = None) -> set[int]:
    """The stores for which the journal has something for clean_known_uploads()."""
    before_s = (time.time() if now is None else now) - UNANSWERED_AFTER_S
    abandoned = {job.store_id for job in journal.queries.abandoned_uploads()}
    return abandoned | {begin.store_id for begin in journal.parts.unanswered(before_s)}


def clean_known_uploads(
    journal: Journal,
    store_id: int,
    open_store: Callable[[int], ObjectStore],
    now: float | None = None,
    *,
    dry_run: bool = False,
) -> list[PendingUpload]:
    """Abort what the journal knows to be left behind in one store; what was aborted. Nothing is opened when there is nothing.

    With `dry_run` nothing is aborted or forgotten. Raises StoreError as the store does: then the rest is left for another time.
    """
    now = time.time() if now is None else now
    abandoned = [job for job in journal.queries.abandoned_uploads() if job.store_id == store_id]
    unanswered = [begin for begin in journal.parts.unanswered(now - UNANSWERED_AFTER_S) if begin.store_id == store_id]
    if not abandoned and not unanswered:
        return []
    store = open_store(store_id)
    cleaned: list[PendingUpload] = []
    for job in abandoned:
        if isinstance(store, MultipartStore) and job.upload_id is not None:
            if not dry_run:
                store.abort(job.key, job.upload_id)
            cleaned.append(PendingUpload(job.key, job.upload_id, job.created_s, is_ours=True))
        if not dry_run:
            journal.parts.drop(job.id)
    for begin in unanswered:
        if isinstance(store, MultipartStore) and store.capabilities.multipart:
            known = journal.queries.upload_ids()
            for upload in list(store.list_uploads(begin.key)):
                is_then = abs(upload.begun_s - begin.begun_s) < _SKEW_S
                is_known = any(one.endswith(upload.upload_id) for one in known)
                if upload.key == begin.key and is_then and not is_known and _is_empty(store, upload):
                    if not dry_run:
                        store.abort(upload.key, upload.upload_id)
                    cleaned.append(upload)
        if not dry_run:
            journal.parts.forget_begin(begin.id)
    return cleaned


def clean_marked_uploads(
    store: MultipartStore,
    prefix: str,
    journal: Journal | None,
    older_than_s: float = STALE_AFTER_S,
    now: float | None = None,
    *,
    dry_run: bool = False,
) -> Iterator[PendingUpload]:
    """Abort the uploads below `prefix` that carry our mark and on which nothing has happened for so long; yield each.

    Those of jobs that are still open in `journal` stay, however old. With `dry_run` they are only found.
    """
    before_s = (time.time() if now is None else now) - older_than_s
    known = journal.queries.upload_ids() if journal is not None else set()
    for upload in list(store.list_uploads(prefix)):
        if upload.is_ours and upload.begun_s < before_s and not any(one.endswith(upload.upload_id) for one in known):
            if not dry_run:
                store.abort(upload.key, upload.upload_id)
            yield upload


def clean_trials(
    store: Tried, prefix: str, older_than_s: float = STALE_AFTER_S, now: float | None = None, *, dry_run: bool = False
) -> Iterator[str]:
    """Delete the objects below `prefix` that trials of the server have left so long ago; yield the key of each.

    With `dry_run` they are only found.

    The uploads in parts that they have left are among those of clean_marked_uploads().
    """
    before_s = (time.time() if now is None else now) - older_than_s
    for meta in list(store.left_by_trials(prefix)):
        if meta.modified_s is not None and meta.modified_s < before_s:
            if not dry_run:
                store.delete(meta.key)
            yield meta.key


def _is_empty(store: MultipartStore, upload: PendingUpload) -> bool:
    try:
        return upload.is_ours or not store.list_parts(upload.key, upload.upload_id)
    except NotFoundError:  # it has just ended
        return False
