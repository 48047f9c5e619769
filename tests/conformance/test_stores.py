"""The contract's laws, on every backend and every wrapper."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.backends.fsspec_store import FsspecStore
from wherry.backends.local import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.backends.s3 import S3Store
from wherry.config import RetryConfig
from wherry.store import ObjectStore
from wherry.testing import FaultyStore, StoreConformance
from wherry.testing.servers import S3Server
from wherry.uri import StoreURI
from wherry.wrappers import LimitStore, RetryStore


def memory_store() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


def n_connections_to(port: int) -> int:
    """How many connections this process has open to a port of this machine."""
    tables = "".join(Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6"))
    ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")}
    remote_and_inode = [(line.split()[2], line.split()[9]) for line in tables.splitlines() if ": " in line]
    return sum(remote.endswith(f":{port:04X}") and f"socket:[{inode}]" in ours for remote, inode in remote_and_inode)


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


class NamedLocalStore(LocalStore):
    """As on a file system without O_TMPFILE: copies are made under a temporary name."""

    _o_tmpfile = 0


class TestLocalWithTemporaryNames(TestLocal):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        with NamedLocalStore(StoreURI("file", ""), {}) as store:
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


class S3Conformance(StoreConformance):
    """On the server that a subclass gives, which also has to close every connection that a test opens."""

    @pytest.fixture
    def server(self) -> S3Server:
        raise NotImplementedError

    @pytest.fixture
    def store(self, server: S3Server) -> Iterator[ObjectStore]:
        with S3Store(StoreURI("s3", server.bucket), self.options(server)) as store:
            yield store

    def options(self, server: S3Server) -> dict[str, object]:
        return server.options

    def test_close_frees_the_connections(self, store: ObjectStore, server: S3Server, prefix: str, tmp_path: Path) -> None:
        before = n_connections_to(server.port)
        path = tmp_path / "source"
        path.write_bytes(b"x" * 100_000)
        for name in ("a", "b"):
            store.put_file(f"{prefix}/{name}", path)
            store.get_file(f"{prefix}/{name}", path, start=5)
            assert store.head(f"{prefix}/{name}").size_bytes == 100_000
        assert next(store.list(f"{prefix}/")).key == f"{prefix}/a"
        assert n_connections_to(server.port) > before
        store.close()
        assert before == n_connections_to(server.port)


class TestSeaweedFS(S3Conformance):
    """The strict S3 server."""

    @pytest.fixture
    def server(self, seaweedfs_server: S3Server) -> S3Server:
        return seaweedfs_server

    def decides_races_of_completes(self, store: ObjectStore) -> bool:
        """SeaweedFS 4.48 looks first and completes second: of two at one moment both succeeded in 13 of 20 rounds."""
        return False


class TestSeaweedFSOverTLS(TestSeaweedFS):
    @pytest.fixture
    def server(self, seaweedfs_tls: S3Server) -> S3Server:
        return seaweedfs_tls


class TestJuiceFS(S3Conformance):
    """The lax S3 server: no conditions, no checksums."""

    @pytest.fixture
    def server(self, juicefs_server: S3Server) -> S3Server:
        return juicefs_server

    def options(self, server: S3Server) -> dict[str, object]:
        return {**server.options, "conditional_writes": False}
