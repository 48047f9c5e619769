"""Checkpoint sets for tests, written straight into a store; and stores with a clock of their own, or without conditions."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from memory_copies import copy_of
from wherry.backends.memory import MemoryStore
from wherry.checkpoints import prune
from wherry.checkpoints.protocol import catalog, commit as commit_module, deletion
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import commit
from wherry.checkpoints.protocol.documents import put_small, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checksum import crc32c
from wherry.store import Capabilities, ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

DAY_S = 86_400.0
_A = TypeVar("_A")
_T = TypeVar("_T")


def make_requests_in_turn(patch: pytest.MonkeyPatch) -> None:
    """Sets are read, committed and pruned without threads, so that a request's number is the same each time."""
    for module in (catalog, commit_module, deletion, prune):
        patch.setattr(module, "each_at_once", in_turn)


def in_turn(call: Callable[[_A], _T], arguments: Iterable[_A], *, all_of_them: bool = False) -> list[_T]:
    """As each_at_once(), but without threads."""
    return [call(one) for one in arguments]


class TimedStore(WrappedStore):
    """Tells the times of a clock that stands still until the test moves it on: those of objects that were written through it."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.now_s = 1_000_000.0
        self.times: dict[str, float] = {}

    @property
    def is_in_memory(self) -> bool:
        """The objects are in a MemoryStore, with or without conditions."""
        return isinstance(self._innermost, MemoryStore)

    def copy_of_all(self) -> TimedStore:
        """Make another store with the same objects and the same clock. `is_in_memory` must hold."""
        innermost = self._innermost
        assert isinstance(innermost, MemoryStore)
        memory = copy_of(innermost, StoreURI("memory", uuid.uuid4().hex))
        timed = TimedStore(LaxStore(memory) if isinstance(self.inner, LaxStore) else memory)
        timed.now_s, timed.times = self.now_s, dict(self.times)
        return timed

    @property
    def _innermost(self) -> ObjectStore:
        return self.inner.inner if isinstance(self.inner, LaxStore) else self.inner

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        meta = super().put_file(key, path, put)
        self.times[key] = self.now_s
        return meta

    def head(self, key: str) -> ObjectMeta:
        return replace(super().head(key), modified_s=self.times.get(key))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        for meta in super().list(prefix, start_after=start_after):
            yield replace(meta, modified_s=self.times.get(meta.key))


class CallCounter(WrappedStore):
    """Counts calls by their operation; a listing is one."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        self.calls[operation] += 1
        return call()

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        self.calls["list"] += 1
        return self.inner.list(prefix, start_after=start_after)


class LaxStore(WrappedStore):
    """Keeps no condition: an object is looked for and then written, as backends do it for such a server."""

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return replace(self.inner.capabilities, conditional_put=False, conditional_complete=False)

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        if put.if_absent and next(iter(self.inner.list(key)), None) is not None:
            return self.inner.put_file(key, path, put)
        return self.inner.put_file(key, path, replace(put, if_absent=False))


def write_part(
    store: ObjectStore,
    keys: RunKeys,
    name: SetName,
    *,
    rank: int = 0,
    world: int = 1,
    files: Mapping[str, bytes] | None = None,
    metrics: Mapping[str, float] | None = None,
    parent: SetName | None = None,
    references: Sequence[SetObject] = (),
) -> None:
    """One rank's objects and receipt."""
    files = {f"rank{rank}.bin": f"{name} {rank}".encode()} if files is None else files
    for path, data in files.items():
        put_small(store, keys.data(name) + path, data, if_absent=False)
    objects = tuple(SetObject(path, len(data), crc32c(data)) for path, data in files.items())
    receipt = Receipt(name, rank, world, "folder", (*objects, *references), parent, metrics or {}, {})
    data = receipt.to_bytes()
    put_small(store, keys.ranks(name) + receipt.name(data), data, if_absent=False)


def save_set(
    store: ObjectStore,
    keys: RunKeys,
    step: int,
    *,
    attempt: str = "000000001",
    world: int = 1,
    metrics: Mapping[str, float] | None = None,
    parent: SetName | None = None,
) -> Manifest:
    """A whole set of `world` ranks, committed."""
    name = SetName(attempt, step)
    for rank in range(world):
        write_part(store, keys, name, rank=rank, world=world, metrics=metrics, parent=parent)
    return commit(store, keys, name).manifest


def check_whole(store: ObjectStore, keys: RunKeys, manifest: Manifest) -> None:
    """Every object of the set is there, with the bytes that were saved."""
    for key, one in Catalog(store, keys).objects(manifest):
        data = read_small(store, key)
        assert (one.size_bytes, one.crc32c) == (len(data), crc32c(data)), key


def steps_of(names: Sequence[SetName]) -> list[int]:
    """Their steps, sorted."""
    return sorted(name.step for name in names)
