"""The contract's laws, on every backend and every wrapper."""

from __future__ import annotations

import gc
import re
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servers.gcs_server import GCSServer, strict_gcs
from servers.real import S3Server, Server, fast_folder
from support import open_files
from wherry.backends.fsspec.store import FsspecStore
from wherry.backends.gcs.store import GCSStore
from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.backends.s3.store import S3Store
from wherry.config import RetryConfig
from wherry.errors import AlreadyExistsError, StoreError
from wherry.store import ObjectMeta, ObjectStore, PutOptions, StoredPart, contract
from wherry.store.wrappers import LimitStore, RetryStore
from wherry.testing import FaultyStore, StoreConformance
from wherry.uri import StoreURI


def memory_store() -> MemoryStore:
    return MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})


def connections_to(port: int) -> set[str]:
    """The connections that this process has open to a port of this machine."""
    tables = "".join(Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6"))
    ours = {target for _, target in open_files()}
    remote_and_inode = [(line.split()[2], line.split()[9]) for line in tables.splitlines() if ": " in line]
    there = {f"socket:[{inode}]" for remote, inode in remote_and_inode if remote.endswith(f":{port:04X}")}
    return there & ours


_found: dict[str, Mapping[str, bool]] = {}


def try_once(store: S3Store, server: S3Server, prefix: str) -> None:
    """Find out what the server honours, or have the store assume what was found out before, as later workers do."""
    if server.url in _found:
        store.assume(_found[server.url])
    else:
        _found[server.url] = store.probe(f"{prefix}-probe/")


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
    def store(self, server: S3Server, prefix: str) -> Iterator[ObjectStore]:
        """After its server was tried, as a worker does before its first upload."""
        with S3Store(StoreURI("s3", server.bucket), server.options) as store:
            try_once(store, server, prefix)
            yield store

    def test_close_frees_the_connections(self, server: S3Server, prefix: str, tmp_path: Path) -> None:
        before = connections_to(server.port)
        path = tmp_path / "source"
        path.write_bytes(b"x" * 100_000)
        store = S3Store(StoreURI("s3", server.bucket), server.options)
        for name in ("a", "b"):
            store.put_file(f"{prefix}/{name}", path)
            store.get_file(f"{prefix}/{name}", path, start=5)
            assert store.head(f"{prefix}/{name}").size_bytes == 100_000
        assert next(store.list(f"{prefix}/")).key == f"{prefix}/a"
        assert connections_to(server.port) - before
        store.close()
        assert set() == connections_to(server.port) - before

    @pytest.mark.usefixtures("short_races")
    def test_close_frees_the_connections_of_a_trial(self, server: S3Server, prefix: str) -> None:
        """Without the garbage collector, which finds a connection that an error has dropped sooner or later."""
        gc.collect()
        gc.disable()
        try:
            before = connections_to(server.port)
            store = S3Store(StoreURI("s3", server.bucket), server.options)
            store.probe(f"{prefix}-probe/")
            store.close()
            assert set() == connections_to(server.port) - before
        finally:
            gc.enable()


class TestSeaweedFS(S3Conformance):
    """The strict S3 server."""

    @pytest.fixture
    def server(self, seaweedfs_server: S3Server) -> S3Server:
        return seaweedfs_server

    def decides_races_of_completes(self, store: ObjectStore) -> bool:
        """SeaweedFS 4.48 looks first and completes second: of two at one moment both succeeded in 13 of 20 rounds."""
        return False


class TestSeaweedFSBySDK(TestSeaweedFS):
    """Every request made by botocore."""

    @pytest.fixture
    def server(self, seaweedfs_server: S3Server) -> S3Server:
        return replace(seaweedfs_server, sdk_only=True)


class TestSeaweedFSOverTLS(TestSeaweedFS):
    @pytest.fixture
    def server(self, seaweedfs_tls: S3Server) -> S3Server:
        return seaweedfs_tls


@pytest.mark.slow
class TestSeaweedFSOverTLSBySDK(TestSeaweedFS):
    @pytest.fixture
    def server(self, seaweedfs_tls: S3Server) -> S3Server:
        return replace(seaweedfs_tls, sdk_only=True)


class TestJuiceFS(S3Conformance):
    """The lax S3 server: no conditions, no checksums, and a moment in each replacement when it answers 500 or without an ETag."""

    @pytest.fixture
    def server(self, juicefs_server: S3Server) -> S3Server:
        return juicefs_server

    @pytest.fixture
    def store(self, server: S3Server, prefix: str) -> Iterator[ObjectStore]:
        with S3Store(StoreURI("s3", server.bucket), server.options) as store:
            try_once(store, server, prefix)
            store.capabilities = replace(store.capabilities, atomic_replace=False)
            yield store


@pytest.mark.slow
class TestJuiceFSBySDK(TestJuiceFS):
    @pytest.fixture
    def server(self, juicefs_server: S3Server) -> S3Server:
        return replace(juicefs_server, sdk_only=True)


@pytest.fixture(scope="module")
def strict_gcs_server() -> Iterator[GCSServer]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        yield server


class TestStrictGCS(StoreConformance):
    """Our own server, which refuses what Google refuses."""

    server: GCSServer
    options: Mapping[str, object] = {}

    @pytest.fixture
    def store(self, strict_gcs_server: GCSServer) -> Iterator[ObjectStore]:
        self.server = strict_gcs_server
        with GCSStore(StoreURI("gs", self.server.bucket), {**self.server.options, **self.options}) as store:
            yield store

    def raw_names(self, store: ObjectStore, prefix: str) -> set[str]:
        return self.server.names(f"{prefix}/")


@pytest.mark.slow
class TestStrictGCSBySDK(TestStrictGCS):
    """Every request made by requests."""

    options: Mapping[str, object] = {"sdk_only": True}


class TestStrictGCSInSessions(TestStrictGCS):
    """Large objects as one stream."""

    options: Mapping[str, object] = {"upload": "session"}


@pytest.mark.slow
class TestStrictGCSInSessionsBySDK(TestStrictGCS):
    options: Mapping[str, object] = {"upload": "session", "sdk_only": True}


class TestFakeGCS(StoreConformance):
    """An independent server, and a lax one: it keeps ifGenerationMatch on simple uploads only, and names of files at most.

    fake-gcs-server 1.54 answers 500 to a composition of what is not there.
    """

    longest_part_bytes = 200
    missing_source_error = StoreError
    keeps_conditions_of_copies = False
    sdk_only = False

    @pytest.fixture
    def store(self, fake_gcs_server: Server) -> Iterator[ObjectStore]:
        options: dict[str, object] = {"endpoint_url": fake_gcs_server.url, "anonymous": True, "sdk_only": self.sdk_only}
        with GCSStore(StoreURI("gs", fake_gcs_server.bucket), options) as store:
            store.capabilities = replace(store.capabilities, conditional_complete=False)
            yield store


@pytest.mark.slow
class TestFakeGCSBySDK(TestFakeGCS):
    sdk_only = True


class WritesInPlace(MemoryStore):
    """Each of these stores breaks one law. This one shows half an object until somebody has read it."""

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        super().__init__(uri, options)
        self.half_was_read = threading.Event()

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        if any(self.list(key)):
            half = path.with_name("half")
            half.write_bytes(path.read_bytes()[:-1])
            super().put_file(key, half)
            self.half_was_read.wait(2)  # not again: a reader who saw its size reads no more
            self.half_was_read.set()
        return super().put_file(key, path, put)

    def get_file(self, key: str, path: Path, **options: Any) -> None:
        before = self.head(key)
        super().get_file(key, path, **options)
        if before.size_bytes % 2 and before == self.head(key):  # the whole ones are even
            self.half_was_read.set()


class ForgetsTheCondition(MemoryStore):
    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        return super().put_file(key, path, replace(put, if_absent=False))


class LooksThenPuts(MemoryStore):
    both_looked = threading.Barrier(2)

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        if put.if_absent and any(self.list(key)):
            raise AlreadyExistsError("there already")
        LooksThenPuts.both_looked.wait(60)
        return super().put_file(key, path, replace(put, if_absent=False))


class EchoesTheChecksum(MemoryStore):
    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        self.capabilities = replace(self.capabilities, checks_crc32c=False)
        return replace(super().put_file(key, path, replace(put, crc32c=None)), crc32c=put.crc32c)


class KeepsAlink(MemoryStore):
    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        self.linked = {**getattr(self, "linked", {}), key: path}
        return super().put_file(key, path, put)

    def get_file(self, key: str, path: Path, **options: Any) -> None:
        path.write_bytes(self.linked[key].read_bytes())


class TruncatesTheTarget(MemoryStore):
    def get_file(self, key: str, path: Path, **options: Any) -> None:
        path.write_bytes(b"")
        super().get_file(key, path, **options)


class AnswersShort(MemoryStore):
    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        size = self.head(key).size_bytes
        super().get_file(key, path, start=min(start, size), end=None if end is None else min(end, size), if_match=if_match)


class IgnoresTheEtag(MemoryStore):
    def get_file(self, key: str, path: Path, **options: Any) -> None:
        super().get_file(key, path, **{**options, "if_match": None})


class ListsInUTF16(MemoryStore):
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        return iter(sorted(super().list(prefix, start_after=start_after), key=lambda meta: meta.key.encode("utf-16-be")))


class ListsByFolder(MemoryStore):
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        return iter(sorted(super().list(prefix, start_after=start_after), key=lambda meta: meta.key.split("/")))


class TakesPrefixesForFolders(MemoryStore):
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        return super().list(prefix if prefix.endswith("/") else f"{prefix}/", start_after=start_after)


class ShowsTheKeyItself(MemoryStore):
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        return (meta for meta in super().list(prefix) if meta.key >= start_after)


class SkipsByFolder(MemoryStore):
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        return (meta for meta in super().list(prefix) if meta.key.split("/") > start_after.split("/"))


class MissesDeletes(MemoryStore):
    def delete(self, key: str) -> None:
        self.head(key)
        super().delete(key)


class JoinsAsGiven(MemoryStore):
    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        with self._root.lock:
            held = self._root.uploads[upload_id].parts
            data = b"".join(held[part.number][1] for part in parts)
        self.abort(key, upload_id)
        return self._store("complete", key, data, PutOptions(metadata=put.metadata))


class KeepsAbortedParts(MemoryStore):
    def abort(self, key: str, upload_id: str) -> None:
        pass


class LeavesTemporaryNames(MemoryStore):
    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        super().put_file(f"{key}.part", path)
        return super().put_file(key, path, put)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (WritesInPlace, "test_replacing_shows_no_mixture"),
        (ForgetsTheCondition, "test_if_absent_keeps_the_first"),
        (LooksThenPuts, "test_of_two_writers_one_wins"),
        (EchoesTheChecksum, "test_wrong_checksum_is_refused"),
        (TruncatesTheTarget, "test_ranges_join_to_the_whole"),
        (AnswersShort, "test_range_beyond_the_end_is_an_error"),
        (IgnoresTheEtag, "test_changed_object_does_not_match"),
        (ListsInUTF16, "test_list_is_sorted"),
        (ListsByFolder, "test_list_is_sorted"),
        (TakesPrefixesForFolders, "test_prefix_is_a_plain_string"),
        (ShowsTheKeyItself, "test_listing_starts_after_any_key"),
        (SkipsByFolder, "test_listing_starts_after_any_key_of_folders"),
        (MissesDeletes, "test_delete_twice"),
        (JoinsAsGiven, "test_parts_join_in_order"),
        (KeepsAbortedParts, "test_abort_leaves_nothing"),
        (LeavesTemporaryNames, "test_nothing_temporary_is_left"),
    ],
)
def test_the_suite_finds_a_store_that_breaks_a_law(kind: type[MemoryStore], law: str, tmp_path: Path) -> None:
    store = kind(StoreURI("memory", uuid.uuid4().hex), {})
    with pytest.raises((AssertionError, StoreError, pytest.fail.Exception)):
        getattr(StoreConformance(), law)(store, "prefix", tmp_path)


def test_a_changed_source_is_found(tmp_path: Path) -> None:
    store = KeepsAlink(StoreURI("memory", uuid.uuid4().hex), {})
    with pytest.raises(AssertionError):
        StoreConformance().test_put_takes_the_bytes_of_the_moment(store, "prefix", tmp_path, frozen=False)


def test_every_guarantee_of_the_contract_names_a_law_that_is_there() -> None:
    named = set(re.findall(r"\btest_\w+", Path(contract.__file__).read_text()))
    assert named
    assert named <= set(dir(StoreConformance))
