"""The queue laid over a store: what a listing shows, and how much of the store it asks for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import new_job, store_id
from wherry.backends.memory import MemoryStore
from wherry.spool.journal.journal import Journal
from wherry.spool.overlay import QueuedOverlay
from wherry.spool.spool import Spool
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI


class Endless(WrappedStore):
    """A store of so many objects that nobody may list them all."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.given = 0

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        while True:
            self.given += 1
            if (key := f"{prefix}{self.given:09}") > start_after:
                yield ObjectMeta(key, 1)


@pytest.fixture
def view(tmp_path: Path) -> Iterator[QueuedOverlay]:
    spool = Spool(tmp_path / "spool")
    journal = Journal(spool.folder / "journal.db")
    keys = ("a/000000000b", "a/000000002", "a/000000003x", "b/1")
    journal.uploads.submit("owner", store_id(journal), [new_job(key, size_bytes=7) for key in keys])
    yield QueuedOverlay(Endless(None), StoreURI("s3", "bucket"), "", journal, spool)  # type: ignore[arg-type]  # it is not asked
    journal.close()


def test_listing_is_in_order_and_shows_the_queued_version_of_a_stored_key(view: QueuedOverlay) -> None:
    found = view.list("a/")
    expected = [("0b", 7), ("1", 1), ("2", 7), ("3", 1), ("3x", 7), ("4", 1)]
    assert [(f"a/00000000{end}", size) for end, size in expected] == [(m.key, m.size_bytes) for m, _ in zip(found, expected)]  # noqa: B905


def test_listing_starts_after_a_key_that_is_stored_or_queued_or_neither(view: QueuedOverlay) -> None:
    def after(start_after: str) -> list[tuple[str, int]]:
        assert isinstance(view.inner, Endless)
        view.inner.given = 0
        found = itertools.islice(view.list("a/", start_after=start_after), 3)
        return [(meta.key.removeprefix("a/0000000"), meta.size_bytes) for meta in found]

    assert [("03", 1), ("03x", 7), ("04", 1)] == after("a/000000002")
    assert [("04", 1), ("05", 1), ("06", 1)] == after("a/000000003x")
    assert [("01", 1), ("02", 7), ("03", 1)] == after("a/000000000c")
    assert [("00b", 7), ("01", 1), ("02", 7)] == after("a")


def test_listing_asks_the_store_only_as_far_as_one_reads(view: QueuedOverlay) -> None:
    assert "a/000000000b" == next(view.list("a/")).key
    assert isinstance(view.inner, Endless)
    assert 1 == view.inner.given


def test_pages_show_what_is_queued_once_on_the_first_one(tmp_path: Path) -> None:
    store = MemoryStore(StoreURI("memory", tmp_path.name), {})
    (tmp_path / "file").write_bytes(b"x")
    for key in ("a/1", "a/2", "a/c/1", "a/d/1"):
        store.put_file(key, tmp_path / "file")
    spool = Spool(tmp_path / "spool")
    journal = Journal(spool.folder / "journal.db")
    keys = ("a/2", "a/3", "a/c/2", "a/e/1", "b")
    journal.uploads.submit("owner", store_id(journal), [new_job(key, size_bytes=7) for key in keys])
    view = QueuedOverlay(store, StoreURI("s3", "bucket"), "", journal, spool)

    def shown(prefix: str, *, one_level: bool, mark: str | None = None) -> tuple[list[tuple[str, int]], list[str]]:
        pages = list(view.pages(prefix, one_level=one_level, mark=mark))
        objects = [(meta.key, meta.size_bytes) for page in pages for meta in page.objects]
        return sorted(objects), sorted(folder for page in pages for folder in page.folders)

    assert ([("a/1", 1), ("a/2", 7), ("a/3", 7)], ["a/c/", "a/d/", "a/e/"]) == shown("a/", one_level=True)
    everything = [("a/1", 1), ("a/2", 7), ("a/3", 7), ("a/c/1", 1), ("a/c/2", 7), ("a/d/1", 1), ("a/e/1", 7)]
    assert (everything, []) == shown("a/", one_level=False)
    assert ([("b", 7)], []) == shown("b", one_level=True)
    assert ([("a/c/1", 1), ("a/d/1", 1)], []) == shown("a/", one_level=False, mark="a/2")
    journal.close()
