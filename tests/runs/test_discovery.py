"""Which runs are below a prefix, in whatever order a store tells of its objects."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wherry.backends.memory import MemoryStore
from wherry.runs.objects.discovery import runs_of
from wherry.store import ObjectMeta, Page
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

NAMES = (
    *(f"p/run{number}/{name}" for number in range(5) for name in ("hparams.json", "metrics.jsonl", "media/images/1.png")),
    *("p/run-1/metrics.jsonl", "p/run-1/attempt-2/metrics.jsonl", "p/deep/er/metrics.jsonl", "p/deep/metrics.jsonl"),
    *("p/metrics.jsonl", "p/rank1/metrics.jsonl", "p/readme.txt"),
)


class Told(WrappedStore):
    """Tells of its objects in another order than list()."""

    def __init__(self, names: tuple[str, ...], folder: Path, order: Callable[[list[ObjectMeta]], list[ObjectMeta]]) -> None:
        super().__init__(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))
        (folder / "one").write_bytes(b"x")
        for name in names:
            self.inner.put_file(name, folder / "one")
        self.order = order
        self.n_told = 0

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        assert not one_level
        assert mark is None
        for meta in self.order(list(self.inner.list(prefix))):
            self.n_told += 1
            yield Page([meta])


def by_folder(metas: list[ObjectMeta]) -> list[ObjectMeta]:
    return sorted(metas, key=lambda meta: meta.key.split("/"))


def shuffled(metas: list[ObjectMeta]) -> list[ObjectMeta]:
    return random.Random(5).sample(metas, len(metas))


def kept(store: WrappedStore, *, as_told: bool) -> dict[str, list[str]]:
    """The runs with their objects; the last one of a name counts."""
    return {one.folder: sorted(meta.key for meta in one.objects) for one in runs_of(store, "p", as_told=as_told)}


@pytest.mark.parametrize("order", [list, by_folder, shuffled])
def test_any_order_has_the_same_runs(order: Callable[[list[ObjectMeta]], list[ObjectMeta]], tmp_path: Path) -> None:
    store = Told(NAMES, tmp_path, order)
    expected = kept(store, as_told=False)
    assert {"", "run-1", "deep", "deep/er", *(f"run{number}" for number in range(5))} == expected.keys()
    assert expected == kept(store, as_told=True)


def test_the_first_run_is_there_before_the_listing_is_at_its_end(tmp_path: Path) -> None:
    store = Told(NAMES, tmp_path, by_folder)
    next(runs_of(store, "p", as_told=True))
    assert store.n_told < len(NAMES) / 2


def test_a_large_folder_is_passed_over_all_the_same(tmp_path: Path) -> None:
    names = (*NAMES, *(f"p/run3/media/images/{number:04}.png" for number in range(700)))
    store = Told(names, tmp_path, by_folder)
    found = list(runs_of(store, "p", as_told=True))
    assert kept(store, as_told=False) == {one.folder: sorted(meta.key for meta in one.objects) for one in found}
    assert "run3" in [one.folder for one in found if one.is_cut]
    assert store.n_told < 600
    assert len(found) == len({one.folder for one in found})
