"""A bucket with object lock, on a server that is not Amazon's: it refuses every body that carries no checksum."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.proxy import FaultProxy, When, fault_proxy, s3_error
from servers.real import S3Server
from servers.way import WAY
from servers.worlds import OBJECT_LOCK, QUICK, some_bytes
from wherry import Config, Uploader
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.config import MIB, AgentConfig, TransferConfig
from wherry.errors import PermanentError
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(params=["seaweedfs_server", "juicefs_server"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


def open_store(server: S3Server, proxy: FaultProxy, **options: object) -> S3Store:
    return S3Store(StoreURI("s3", server.bucket), {**server.options, **WAY, "endpoint_url": proxy.url, **options})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(some_bytes(5 * MIB + 1))
    return path


def refused(proxy: FaultProxy) -> int:
    """How many requests the lock has refused."""
    return sum(proxy.fired)


def test_a_large_object_arrives(server: S3Server, file: Path, tmp_path: Path) -> None:
    """It failed for good: its parts had no checksum."""
    transfer = TransferConfig(multipart_threshold_bytes=5 * MIB, part_size_bytes=5 * MIB)
    config = Config(transfer=transfer, retry=QUICK, agent=AgentConfig(run_in="caller"))
    with fault_proxy("127.0.0.1", server.port, [OBJECT_LOCK]) as proxy:
        options = {**server.options, **WAY, "endpoint_url": proxy.url}
        with Uploader(f"s3://{server.bucket}/lock", storage_options=options, spool=tmp_path / "spool", config=config) as uploader:
            uploader.put(file, tmp_path.name, overwrite=True).result()
            uploader.get(tmp_path.name, tmp_path / "back")
        assert refused(proxy) <= 2
    assert file.read_bytes() == (tmp_path / "back").read_bytes()


def test_a_server_learns_once_that_bodies_need_a_checksum(server: S3Server, file: Path) -> None:
    """The parts of an upload that has no checksums, and objects of which nobody knows one."""
    with fault_proxy("127.0.0.1", server.port, [OBJECT_LOCK]) as proxy, open_store(server, proxy, checksums=False) as store:
        upload_id = store.begin("lock/parts", 3)
        sent = [store.put_part("lock/parts", upload_id, file, Part(1, 0, 3, crc32c(file.read_bytes()[:3])))]
        assert 3 == store.complete("lock/parts", upload_id, sent).size_bytes
        store.put_file("lock/object", file, PutOptions())
        assert 1 == refused(proxy)


@pytest.mark.parametrize(("code", "n_sent"), [("InvalidRequest", 2), ("EntityTooLarge", 1)])
def test_a_refusal_for_another_reason_is_told_as_it_is(
    seaweedfs_server: S3Server, tmp_path: Path, code: str, n_sent: int
) -> None:
    (tmp_path / "small").write_bytes(b"small")
    plan = [When("PUT", "", s3_error(400, code, "it is what it is"), times=9)]
    with fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy, open_store(seaweedfs_server, proxy) as store:
        with pytest.raises(PermanentError, match="it is what it is"):
            store.put_file("lock/refused", tmp_path / "small", PutOptions())
        assert n_sent == len(proxy.requests("PUT"))
