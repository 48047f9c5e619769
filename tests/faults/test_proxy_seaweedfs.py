"""The fault proxy before a real server."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from servers.proxy import (
    DropAnswer,
    When,
    fault_proxy,
)
from servers.real import S3Server
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, NotFoundError, TransientError
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

DATA = random.Random(3).randbytes(3 * 2**20 + 1)


@pytest.fixture(params=[False, True], ids=["direct", "sdk_only"])
def sdk_only(request: pytest.FixtureRequest) -> bool:
    """A name of its own: with parameters of the server's name, pytest starts the server anew for each of them."""
    return bool(request.param)


@pytest.fixture
def seaweedfs_server(seaweedfs_server: S3Server, sdk_only: bool) -> S3Server:
    """Asked by our own requests, and by botocore's."""
    return replace(seaweedfs_server, sdk_only=sdk_only)


@pytest.fixture
def key() -> str:
    return f"proxy/{uuid.uuid4().hex}"


class TestSeaweedFS:
    """A strict server, signatures and all."""

    def test_signed_requests_of_all_kinds_pass(self, seaweedfs_server: S3Server, key: str, tmp_path: Path) -> None:
        data = DATA * 2  # 6 MiB: more than the smallest part, and sent after asking
        (tmp_path / "file").write_bytes(data)
        with fault_proxy("127.0.0.1", seaweedfs_server.port) as proxy:
            options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
            with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
                assert len(data) == store.put_file(key, tmp_path / "file", PutOptions(crc32c=crc32c(data))).size_bytes
                upload = store.begin(f"{key}-parts", len(data))
                ranges = [(0, 5 * 2**20), (5 * 2**20, len(data))]
                parts = [
                    store.put_part(f"{key}-parts", upload, tmp_path / "file", Part(n, a, b, crc32c(data[a:b])))
                    for n, (a, b) in enumerate(ranges, 1)
                ]
                store.complete(f"{key}-parts", upload, parts, PutOptions(crc32c=crc32c(data)))
                assert [key, f"{key}-parts"] == [meta.key for meta in store.list(key)]
                for name in (key, f"{key}-parts"):
                    (tmp_path / "back").write_bytes(b"")
                    store.get_file(name, tmp_path / "back", start=1, end=len(data))
                    assert data[1:] == (tmp_path / "back").read_bytes()[1:]
                    store.delete(name)
                with pytest.raises(NotFoundError):
                    store.head(key)
            assert 2 * len(data) == proxy.request_bytes("PUT")
            assert 200 == proxy.requests("POST", r"uploadId=")[0].upstream_status

    def test_a_wrong_signature_is_still_refused(self, seaweedfs_server: S3Server, key: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(DATA)
        with fault_proxy("127.0.0.1", seaweedfs_server.port) as proxy:
            options = {**seaweedfs_server.options, "endpoint_url": proxy.url, "aws_secret_access_key": "wrong"}
            store = S3Store(StoreURI("s3", seaweedfs_server.bucket), options)
            with store, pytest.raises(AccessDeniedError, match="SignatureDoesNotMatch"):
                store.put_file(key, tmp_path / "file")

    def test_a_lost_answer_has_left_its_object(self, seaweedfs_server: S3Server, key: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(DATA)
        with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("PUT", key, DropAnswer())]) as proxy:
            options = {**seaweedfs_server.options, "endpoint_url": proxy.url}
            with S3Store(StoreURI("s3", seaweedfs_server.bucket), options) as store:
                with pytest.raises(TransientError):
                    store.put_file(key, tmp_path / "file", PutOptions(if_absent=True))
                assert len(DATA) == store.head(key).size_bytes
            assert [200] == [one.upstream_status for one in proxy.requests("PUT", key)]
