"""Joins inside a store, under trouble: what is left behind, and that trying again is enough."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from servers.features import features_of
from servers.gcs_server import GCSServer, strict_gcs
from servers.proxy import DropAnswer, Reset, When, fault_proxy, gcs_error
from servers.real import S3Server, fast_folder
from servers.way import WAY
from wherry.backends.gcs.store import GCSStore
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.config import RetryConfig
from wherry.errors import NotFoundError, PermanentError, TransientError
from wherry.store import MultipartStore, PutOptions
from wherry.store.wrappers import RetryStore
from wherry.uri import StoreURI

PATIENT = RetryConfig(call_deadline_s=60, first_wait_s=0, longest_wait_s=0)
MIB = 2**20

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(scope="module")
def gcs_server() -> Iterator[GCSServer]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        yield server


def put(store: MultipartStore, folder: Path, *contents: bytes, prefix: str) -> list[str]:
    names = [f"{prefix}/{number}" for number in range(len(contents))]
    for name, data in zip(names, contents, strict=True):
        (folder / "source").write_bytes(data)
        store.put_file(name, folder / "source", PutOptions(crc32c=crc32c(data)))
    return names


def get(store: MultipartStore, key: str, folder: Path) -> bytes:
    (folder / "got").write_bytes(b"")
    store.get_file(key, folder / "got")
    return (folder / "got").read_bytes()


def test_gcs_joins_more_than_two_levels_of_compositions_hold(gcs_server: GCSServer, tmp_path: Path) -> None:
    with GCSStore(StoreURI("gs", gcs_server.bucket), {**gcs_server.options, **WAY}) as store:
        names = put(store, tmp_path, b"one", b"two!", prefix="levels")
        order = [n % 3 % 2 for n in range(32 * 32 + 1)]
        whole = b"".join((b"one", b"two!")[n] for n in order)
        store.join("levels/joined", [names[n] for n in order], len(whole), PutOptions(crc32c=crc32c(whole)))
        assert whole == get(store, "levels/joined", tmp_path)
        assert {*names, "levels/joined"} == gcs_server.names("levels/")


@pytest.mark.pairwise
@pytest.mark.parametrize("action", [DropAnswer(), Reset()], ids=["lost", "reset"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 6, 7])
def test_a_join_on_gcs_gets_over_trouble_at_any_request(
    gcs_server: GCSServer, tmp_path: Path, action: DropAnswer | Reset, nth: int
) -> None:
    """Three compositions, the final one, and three deletions."""
    prefix = f"trouble{tmp_path}"
    with fault_proxy("127.0.0.1", gcs_server.port, [When("", "joined", action, nth=nth)]) as proxy:
        options = {**gcs_server.options, **WAY, "endpoint_url": proxy.url}
        with GCSStore(StoreURI("gs", gcs_server.bucket), options) as store:
            names = put(store, tmp_path, b"one", b"two!", prefix=prefix)
            sources = names * 17
            whole = b"onetwo!" * 17
            joined = RetryStore(store, PATIENT).join(f"{prefix}/joined", sources, len(whole), PutOptions(crc32c=crc32c(whole)))
            assert crc32c(whole) == joined.crc32c
            assert whole == get(store, f"{prefix}/joined", tmp_path)
            assert {*names, f"{prefix}/joined"} == gcs_server.names(f"{prefix}/")
            assert [] == proxy.unfired


def test_a_second_join_on_gcs_removes_what_a_killed_one_has_left(gcs_server: GCSServer, tmp_path: Path) -> None:
    """Killed, as far as the store can tell: none of its deletions arrived."""
    whole = b"onetwo!" * 17
    with fault_proxy("127.0.0.1", gcs_server.port, [When("DELETE", "", gcs_error(500, "backendError"), times=3)]) as proxy:
        options = {**gcs_server.options, **WAY, "endpoint_url": proxy.url}
        with GCSStore(StoreURI("gs", gcs_server.bucket), options) as store:
            names = put(store, tmp_path, b"one", b"two!", prefix="killed")
            with pytest.raises(TransientError):
                store.join("killed/joined", names * 17, len(whole), PutOptions(crc32c=crc32c(whole)))
            assert 3 == len(gcs_server.names("killed/") - {*names, "killed/joined"})
            assert [("killed/joined", True)] == [(one.key, one.is_ours) for one in store.list_uploads("killed/")]
            store.join("killed/joined", names * 17, len(whole), PutOptions(crc32c=crc32c(whole)))
            assert {*names, "killed/joined"} == gcs_server.names("killed/")


@pytest.mark.pairwise
@pytest.mark.parametrize("action", [DropAnswer(), Reset()], ids=["lost", "reset"])
@pytest.mark.parametrize("target", ["partNumber=2", "GET.*uploadId", "POST.*uploadId"], ids=["copy", "list", "complete"])
def test_a_join_on_s3_gets_over_trouble_at_any_request(
    seaweedfs_server: S3Server, tmp_path: Path, action: DropAnswer | Reset, target: str
) -> None:
    prefix = f"trouble{tmp_path}"
    method, _, pattern = target.rpartition(".*")
    with fault_proxy("127.0.0.1", seaweedfs_server.port, [When(method, f"joined.*{pattern}", action)]) as proxy:
        uri, options = StoreURI("s3", seaweedfs_server.bucket), {**seaweedfs_server.options, **WAY, "endpoint_url": proxy.url}
        with S3Store(uri, options) as store:
            store.assume(features_of(seaweedfs_server))
            contents = (b"a" * (5 * MIB), b"b" * (5 * MIB + 1), b"end")
            names = put(store, tmp_path, *contents, prefix=prefix)
            whole = b"".join(contents)
            joined = RetryStore(store, PATIENT).join(f"{prefix}/joined", names, len(whole), PutOptions(crc32c=crc32c(whole)))
            assert crc32c(whole) == joined.crc32c
            assert whole == get(store, f"{prefix}/joined", tmp_path)
            assert [] == list(store.list_uploads(prefix))
            assert [] == proxy.unfired


def test_a_join_that_failed_keeps_no_connection(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    """Without a garbage collection, too: urllib3 closes connections when the last reference to their pool goes."""

    def connections() -> set[object]:
        return {
            one.laddr for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr.port == seaweedfs_server.port
        }

    gc.collect()
    gc.disable()
    try:
        before = connections()  # of stores that other tests keep open
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), {**seaweedfs_server.options, **WAY}) as store:
            store.assume(features_of(seaweedfs_server))
            (there,) = put(store, tmp_path, b"a" * (5 * MIB), prefix="kept")
            with contextlib.suppress(NotFoundError):
                store.join("kept/joined", ["kept/missing", there], 10 * MIB)
        assert connections() <= before
    finally:
        gc.enable()


def test_an_s3_server_that_was_not_tried_joins_nothing(seaweedfs_server: S3Server) -> None:
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), {**seaweedfs_server.options, **WAY}) as store:
        assert store.capabilities.min_joined_bytes is None
        with pytest.raises(PermanentError, match="min_joined_bytes"):
            store.join("a", ["b"], 1)
    with S3Store(StoreURI("s3", "bucket"), {"region": "us-east-1", "anonymous": True, **WAY}) as amazons:
        assert 5 * MIB == amazons.capabilities.min_joined_bytes
