"""A download that was broken off goes on where it was."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from downloads import DATA, KEY, ONE_BY_ONE, RANGES, DamagingStore, LyingStore, break_off, fetch, flip, put
from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c
from wherry.errors import NotFoundError
from wherry.testing.faulty import Fault, FaultyStore
from wherry.uri import StoreURI


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


# going on


def test_the_next_call_fetches_only_the_rest(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    break_off(store, tmp_path / "file", 3)
    assert not (tmp_path / "file").exists()
    break_off(store, tmp_path / "file", 2)
    counted = FaultyStore(store)
    meta = fetch(counted, tmp_path / "file")
    assert counted.calls == {"head": 1, "get": 2}
    assert (tmp_path / "file").read_bytes() == DATA
    assert meta.crc32c == crc32c(DATA)
    assert os.listdir(tmp_path) == ["file"]


def test_the_next_call_may_have_another_range_size(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    break_off(store, tmp_path / "file", 5)
    counted = FaultyStore(store)
    fetch(counted, tmp_path / "file", transfer=replace(RANGES, range_size_bytes=1000))
    assert counted.calls["get"] == 2
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_relative_and_an_absolute_destination_are_the_same(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, tmp_path)
    break_off(store, tmp_path / "file", 5)
    monkeypatch.chdir(tmp_path)
    counted = FaultyStore(store)
    fetch(counted, Path("file"))
    assert counted.calls["get"] == 2


@pytest.mark.parametrize("newer", [DATA[::-1], DATA[:50_000]])
def test_a_changed_object_starts_over(store: MemoryStore, tmp_path: Path, newer: bytes) -> None:
    put(store, tmp_path)
    break_off(store, tmp_path / "file", 5)
    put(store, tmp_path, newer)
    fetch(store, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == newer
    assert os.listdir(tmp_path) == ["file"]


def test_an_object_without_an_etag_starts_over(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    nameless = LyingStore(store, etag=None)
    break_off(nameless, tmp_path / "file", 5)
    assert os.listdir(tmp_path) == []
    counted = FaultyStore(nameless)
    fetch(counted, tmp_path / "file")
    assert counted.calls["get"] == 7


def test_a_deleted_object_takes_what_was_fetched_along(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    break_off(store, tmp_path / "file", 5)
    store.delete(KEY)
    with pytest.raises(NotFoundError):
        fetch(store, tmp_path / "file")
    assert os.listdir(tmp_path) == []


def test_bytes_that_changed_meanwhile_are_fetched_again(store: MemoryStore, tmp_path: Path) -> None:
    """A power cut, a bad disk, somebody's hand: what the record says is summed again before it counts."""
    put(store, tmp_path)
    break_off(store, tmp_path / "file", 5, transfer=ONE_BY_ONE)
    (temporary,) = (path for path in tmp_path.iterdir() if path.suffix != ".record")
    flip(temporary, 20_000)
    flip(temporary, 40_000)
    counted = FaultyStore(store)
    fetch(counted, tmp_path / "file")
    assert counted.calls["get"] == 2 + 2
    assert (tmp_path / "file").read_bytes() == DATA


def test_bytes_that_came_damaged_in_the_first_call_are_found_by_the_second(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    break_off(DamagingStore(store, 1), tmp_path / "file", 5, transfer=ONE_BY_ONE)
    counted = FaultyStore(store)
    fetch(counted, tmp_path / "file", transfer=ONE_BY_ONE)
    assert counted.calls["get"] == 2 + 1
    assert (tmp_path / "file").read_bytes() == DATA


def test_of_two_downloads_to_one_destination_neither_harms_the_other(store: MemoryStore, tmp_path: Path) -> None:
    put(store, tmp_path)
    second = FaultyStore(store)

    def fetch_meanwhile() -> None:
        fetch(second, tmp_path / "file", overwrite=True)

    first = FaultyStore(store, [Fault("get", nth=4, act=fetch_meanwhile)])
    fetch(first, tmp_path / "file", overwrite=True, transfer=ONE_BY_ONE)
    assert (first.calls["get"], second.calls["get"]) == (7, 7)
    assert (tmp_path / "file").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["file"]
