"""The contract's laws, on every backend and every wrapper."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.backends.fsspec_store import FsspecStore
from wherry.backends.local import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.config import RetryConfig
from wherry.store import ObjectStore
from wherry.testing import FaultyStore, StoreConformance
from wherry.uri import StoreURI
from wherry.wrappers import LimitStore, RetryStore


def memory_store() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


def files_below(prefix: str) -> set[str]:
    """The keys of all files below a local prefix, whatever their names."""
    return {str(path).lstrip("/") for path in Path("/", prefix).rglob("*") if not path.is_dir()}


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with memory_store() as store:
            yield store


class TestRetryOverMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with RetryStore(memory_store(), RetryConfig()) as store:
            yield store


class TestLimitOverMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with LimitStore(memory_store(), max_in_flight=2) as store:
            yield store


class TestFaultyOverMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with FaultyStore(memory_store()) as store:
            yield store


class TestLocal(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with LocalStore(StoreURI("file", ""), {}) as store:
            yield store

    @pytest.fixture
    def prefix(self, tmp_path: Path) -> str:
        return f"{tmp_path}/bucket/{'p' * 20}".lstrip("/")

    def raw_names(self, store: ObjectStore, prefix: str) -> set[str]:
        return files_below(prefix)


class TestLocalWithFsync(TestLocal):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with LocalStore(StoreURI("file", ""), {"fsync": True}) as store:
            yield store


class TestRetryOverLocal(TestLocal):
    """A wrapper around a store that takes no parts."""

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with RetryStore(LimitStore(LocalStore(StoreURI("file", ""), {}), max_in_flight=4)) as store:
            yield store


class TestFsspecMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with FsspecStore(StoreURI("memory", uuid.uuid4().hex), {}) as store:
            yield store


class TestFsspecLocal(TestLocal):
    """fsspec's own local file system: files that are put under a temporary name and renamed."""

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with FsspecStore(StoreURI("file", ""), {}) as store:
            yield store
