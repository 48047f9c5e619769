"""An option that switches something off switches it off in every request, those of the trial among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lax_s3 import lax_server, store_at
from servers.proxy import When, fault_proxy, s3_error
from servers.real import S3Server
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.errors import AlreadyExistsError
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

DATA = b"some bytes"
CRC = crc32c(DATA)
#: What a switch keeps out of the head of every request.
HEADERS = {"checksums": "x-amz-(sdk-)?checksum-", "conditional_writes": "if-none-match"}


@pytest.fixture(params=[False, True], ids=["direct", "sdk_only"])
def sdk_only(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize("switch", HEADERS)
def test_no_request_has_what_is_switched_off(seaweedfs_server: S3Server, file: Path, switch: str, sdk_only: bool) -> None:
    refused = When("", "", s3_error(400, "InvalidArgument", "not that header"), times=1000, header=HEADERS[switch])
    with fault_proxy("127.0.0.1", seaweedfs_server.port, [refused]) as proxy:
        options = {**seaweedfs_server.options, "endpoint_url": proxy.url, switch: False, "sdk_only": sdk_only}
        uri = StoreURI("s3", seaweedfs_server.bucket)
        with S3Store(uri, options) as store:
            prefix = f"switches/{switch}/{sdk_only}/"
            store.probe(f"{prefix}trial/")
            put = PutOptions(if_absent=True, crc32c=CRC)
            for name in "abc":
                store.put_file(prefix + name, file, put)
            with pytest.raises(AlreadyExistsError):
                store.put_file(f"{prefix}a", file, put)
            upload_id = store.begin(f"{prefix}parts", len(DATA), put)
            part = store.put_part(f"{prefix}parts", upload_id, file, Part(1, 0, len(DATA), CRC))
            store.complete(f"{prefix}parts", upload_id, [part], put)
            store.copy(f"{prefix}copy", store.head(f"{prefix}a"))
            store.get_file(f"{prefix}a", file)
            store.delete_many([prefix + name for name in ("a", "b", "c", "parts", "copy")])
            assert [] == list(store.list(prefix))
        assert [0] == proxy.fired


@pytest.mark.parametrize("switch", HEADERS)
def test_a_server_that_refuses_the_header_can_be_tried(switch: str) -> None:
    """What is switched off is not found; all the rest is."""
    options: dict[str, object] = {switch: False}
    with lax_server() as server, store_at(server.server_port, "http", **options) as store:
        found = store.probe("trial/")
        assert [] == [head for head in server.heads if re.search(HEADERS[switch], head, re.IGNORECASE)]
    of_switch = {
        "checksums": {"checks_crc32c", "joins_crc32c", "copies_parts"},
        "conditional_writes": {"conditional_put", "conditional_complete"},
    }
    assert of_switch[switch] == {name for name, value in found.items() if not value}


def test_what_a_trial_may_not_send_is_not_kept_for_those_who_may() -> None:
    with store_at(1) as plain, store_at(1, checksums=False) as bare, store_at(1, conditional_writes=False) as other:
        assert 3 == len({plain.endpoint, bare.endpoint, other.endpoint})
