"""The store as its user must see it: with the uploads that are still queued laid over it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from wherry.spool.journal.jobs import Job
from wherry.spool.journal.journal import Journal
from wherry.spool.spool import Spool
from wherry.store import ObjectMeta, ObjectStore, Page, TakeBlock, order_of
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI


class QueuedOverlay(WrappedStore):
    """Reads what is queued from the spool, and the rest from `inner`. Writes go to `inner`, around the queue."""

    def __init__(self, inner: ObjectStore, uri: StoreURI, place: str, journal: Journal, spool: Spool) -> None:
        super().__init__(inner)
        self._uri = uri
        self._place = place
        self._journal = journal
        self._spool = spool

    def queued(self, key: str) -> Job | None:
        """The newest unfinished upload of a key."""
        return self._journal.queries.newest_open(self._uri.uri_for(key), self._place)

    def queued_under(self, prefix: str) -> list[Job]:
        """The newest unfinished upload of each key that starts with `prefix`."""
        return self._journal.queries.open_under(self._uri.uri_for(prefix), self._place)

    def head(self, key: str) -> ObjectMeta:
        """Describe the queued version, if there is one, else the stored one."""
        job = self.queued(key)
        return super().head(key) if job is None else _describe(job)

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """Read from the staged file while the upload is queued."""
        if self.queued(key) is None:
            super().get_file(key, path, start=start, end=end, if_match=if_match)
            return
        with open(path, "r+b") as target:

            def write(block: bytes | memoryview, at: int) -> None:
                target.seek(at)
                target.write(block)

            self.read(key, write, start=start, end=end, if_match=if_match)

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """The same."""
        while (job := self.queued(key)) is not None:
            try:
                with open(self._spool.open_staged(job.object_id), "rb") as staged:
                    staged.seek(start)
                    at, stop = start, job.size_bytes if end is None else end
                    while at < stop and (block := staged.read(min(stop - at, 2**20))):
                        take(block, at)
                        at += len(block)
                return
            except FileNotFoundError:  # noqa: PERF203  it was uploaded and freed while we looked
                continue
        super().read(key, take, start=start, end=end, if_match=if_match)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Both, by key; of a key that is stored and queued, the queued version. The store is asked as far as one reads."""
        after = order_of(start_after)
        queued = sorted((_describe(job) for job in self.queued_under(prefix) if order_of(job.key) > after), key=_order)
        stored = super().list(prefix, start_after=start_after)
        last: str | None = None
        for meta in heapq.merge(queued, stored, key=_order):  # of equal keys, that of the first list comes first
            if meta.key != last:
                last = meta.key
                yield meta

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """Both: what is queued comes first, on the first page, and what the store has of it is left out."""
        queued = [_describe(job) for job in self.queued_under(prefix)]
        first = Page.of_level(queued, prefix) if one_level else Page(queued)
        keys, folders = {meta.key for meta in first.objects}, set(first.folders)
        due = first if queued and mark is None else Page([])
        for page in super().pages(prefix, one_level=one_level, mark=mark):
            objects = [meta for meta in page.objects if meta.key not in keys]
            others = [folder for folder in page.folders if folder not in folders]
            yield replace(page, objects=[*due.objects, *objects], folders=[*due.folders, *others])
            due = Page([])
        if due.objects or due.folders:
            yield due


def _order(meta: ObjectMeta) -> bytes:
    return order_of(meta.key)


def _describe(job: Job) -> ObjectMeta:
    return ObjectMeta(job.key, job.size_bytes, crc32c=job.crc32c, modified_s=job.created_s)
