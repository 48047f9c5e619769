"""Ranges of objects that are fetched together, and verified before they are given out."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from support import open_files
from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c
from wherry.errors import IntegrityError, NotFoundError
from wherry.store import Capabilities, ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.torch.verified_ranges import Range, VerifiedRanges
from wherry.uri import StoreURI

MIB = 2**20


class Counting(WrappedStore):
    """Notes what is fetched, and flips a bit in the first so many answers that have this offset."""

    def __init__(self, inner: ObjectStore, wrong: Mapping[int, int] | None = None) -> None:
        super().__init__(inner)
        self.fetched: list[tuple[int, int | None]] = []
        self._wrong = dict(wrong or {})
        self._lock = threading.Lock()

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        self.inner.get_file(key, path, start=start, end=end, if_match=if_match)
        with self._lock:
            self.fetched.append((start, end))
            found = next((at for at, left in self._wrong.items() if left and start <= at < (end or 0)), None)
            if found is not None:
                self._wrong[found] -= 1
                with open(path, "r+b") as file:
                    byte = os.pread(file.fileno(), 1, found)
                    os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), found)
        return None


class WithoutRanges(Counting):
    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # as in WrappedStore
        return replace(self.inner.capabilities, ranged_get=False)


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore(StoreURI("memory", "bucket"), {})


def put(store: ObjectStore, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    store.put_file("object", path)


def ranges(data: bytes, *places: tuple[int, int]) -> list[Range]:
    return [Range("object", start, end, crc32c(data[start:end])) for start, end in places]


def fetched(store: ObjectStore, wanted: list[Range]) -> list[bytes]:
    return [view.part(0, one.end - one.start).read() for one, view in VerifiedRanges(store).fetch(wanted)]


def test_neighbours_come_together_and_what_lies_apart_does_not(inner: MemoryStore, tmp_path: Path) -> None:
    data = os.urandom(3 * MIB)
    put(inner, tmp_path / "file", data)
    store = Counting(inner)
    near = [(at, at + 10) for at in range(0, 40_000, 1000)]
    found = fetched(store, ranges(data, (2 * MIB, 2 * MIB + 5), *near))
    assert [data[start:end] for start, end in [*near, (2 * MIB, 2 * MIB + 5)]] == found
    assert [(0, 39_010), (2 * MIB, 2 * MIB + 5)] == sorted(store.fetched)


def test_a_large_one_comes_in_pieces(inner: MemoryStore, tmp_path: Path) -> None:
    data = os.urandom(40 * MIB)
    put(inner, tmp_path / "file", data)
    store = Counting(inner)
    assert [data[7:]] == fetched(store, ranges(data, (7, len(data))))
    assert [(7, 16 * MIB + 7), (16 * MIB + 7, 32 * MIB + 7), (32 * MIB + 7, len(data))] == sorted(store.fetched)


def test_more_than_fits_in_memory_at_once_comes_in_order(inner: MemoryStore, tmp_path: Path) -> None:
    data = os.urandom(20 * MIB)
    put(inner, tmp_path / "file", data)
    places = [(at, at + 15 * MIB) for at in range(0, 5 * MIB, MIB // 4)]  # 20 times 15 MiB
    assert [data[start:end] for start, end in places] == fetched(inner, ranges(data, *places))


def test_a_wrong_range_is_fetched_again(inner: MemoryStore, tmp_path: Path) -> None:
    data = os.urandom(MIB)
    put(inner, tmp_path / "file", data)
    places = [(0, 100), (200, 300), (400, 500)]
    store = Counting(inner, {250: 1})
    assert [data[start:end] for start, end in places] == fetched(store, ranges(data, *places))
    assert [(0, 500), (200, 300)] == store.fetched


def test_what_is_wrong_twice_is_an_error(inner: MemoryStore, tmp_path: Path) -> None:
    data = os.urandom(MIB)
    put(inner, tmp_path / "file", data)
    with pytest.raises(IntegrityError, match="bytes 200-299 came wrong, twice"):
        fetched(Counting(inner, {250: 2}), ranges(data, (0, 100), (200, 300)))


def test_a_store_without_ranges_is_asked_once_an_object(inner: MemoryStore, tmp_path: Path) -> None:
    data = os.urandom(3 * MIB)
    put(inner, tmp_path / "file", data)
    store = WithoutRanges(inner)
    places = [(0, 10), (2 * MIB, 3 * MIB)]
    assert [data[start:end] for start, end in places] == fetched(store, ranges(data, *places))
    assert [(0, 3 * MIB)] == store.fetched


def test_nothing_is_asked_for_no_bytes(inner: MemoryStore) -> None:
    assert [] == fetched(inner, [])
    assert [b""] == fetched(inner, [Range("object", 5, 5, 0)])


def test_an_object_that_is_not_there_is_an_error(inner: MemoryStore) -> None:
    with pytest.raises(NotFoundError):
        fetched(inner, [Range("missing", 0, 5, 0)])


def test_who_stops_in_the_middle_leaves_nothing(inner: MemoryStore, tmp_path: Path) -> None:
    data = os.urandom(MIB)
    put(inner, tmp_path / "file", data)
    before = open_files()
    taking = VerifiedRanges(inner).fetch(ranges(data, (0, 10), (500_000, 500_010), (900_000, 900_010)))
    next(iter(taking))
    taking.close()  # type: ignore[attr-defined]  # it is a generator
    assert set() == open_files() - before
    assert [] == [each.name for each in threading.enumerate() if each.name.startswith("wherry-ranges")]
