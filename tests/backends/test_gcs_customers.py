"""Buckets that bill who asks, and objects that are encrypted with a customer's key: on both ways, in parts and in sessions."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.gcs_server import GCSServer, strict_gcs
from servers.scripted_gcs import open_gcs
from servers.way import WAY
from servers.wire import Peer, wire
from wherry.backends.gcs.options import GCSOptions
from wherry.backends.gcs.store import GCSStore
from wherry.checksum import crc32c, crc32c_of_file
from wherry.errors import ConfigError, PermanentError, StoreError
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

pytestmark = pytest.mark.usefixtures("way")
KEY = base64.b64encode(b"k" * 32).decode()
MIB = 2**20


@pytest.fixture(scope="module")
def server(way: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        server.make_bucket("requester-pays")
        yield server


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(2 * MIB + 5))
    return path


def use(store: GCSStore, source: Path, target: Path) -> None:
    """Every call of the contract, on one object and one upload in two parts."""
    size, crc = source.stat().st_size, crc32c_of_file(source)
    put = PutOptions(crc32c=crc, metadata={"wherry-token": "t"})
    made = store.put_file("used/small", source, put)
    upload_id = store.begin("used/large", size, put)
    sent = [store.put_part("used/large", upload_id, source, Part(1, 0, MIB, crc32c(source.read_bytes()[:MIB])))]
    assert [MIB] == [part.size_bytes for part in store.list_parts("used/large", upload_id)]
    sent.append(store.put_part("used/large", upload_id, source, Part(2, MIB, size, crc32c(source.read_bytes()[MIB:]))))
    assert crc == store.complete("used/large", upload_id, sent, put).crc32c
    for key in ("used/small", "used/large"):
        target.write_bytes(b"")
        assert (size, crc) == (store.head(key).size_bytes, store.head(key).crc32c)
        assert crc == store.get_file(key, target, if_match=store.head(key).etag)
        assert source.read_bytes() == target.read_bytes()
    assert made.etag == store.head("used/small").etag
    assert ["used/large", "used/small"] == [meta.key for meta in store.list("used/")]
    store.abort("used/other", store.begin("used/other", size))
    assert [] == list(store.list_uploads("used/"))
    store.delete_many(["used/small", "used/large"])


@pytest.mark.parametrize("upload", ["compose", "session"])
def test_who_asks_pays(server: GCSServer, source: Path, tmp_path: Path, upload: str) -> None:
    with open_gcs(server, "requester-pays", upload=upload, user_project="payer") as store:
        use(store, source, tmp_path / "target")
    with open_gcs(server, "requester-pays", upload=upload) as store, pytest.raises(PermanentError, match="requester pays"):
        store.put_file("unpaid", source)


@pytest.mark.parametrize("upload", ["compose", "session"])
def test_a_customers_key_goes_where_it_is_needed(server: GCSServer, source: Path, tmp_path: Path, upload: str) -> None:
    target = tmp_path / "target"
    target.touch()
    with open_gcs(server, upload=upload, encryption_key=KEY) as store:
        use(store, source, target)
        store.put_file("kept", source)
    with open_gcs(server, encryption_key=base64.b64encode(b"o" * 32).decode()) as other, open_gcs(server) as none:
        for store in (other, none):
            assert store.head("kept").crc32c is None
            with pytest.raises(PermanentError, match="customer-supplied"):
                store.get_file("kept", target)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_nobody_else_gets_the_key(source: Path, status: int) -> None:
    with wire() as elsewhere:

        def talk(peer: Peer) -> None:
            peer.head()
            peer.answer(b"", f"{status} Moved", f"Location: http://localhost:{elsewhere.port}/", "Connection: close")

        talks = [talk] if WAY["sdk_only"] else [talk, talk]
        with wire(*talks) as server:
            options = {"endpoint_url": f"http://127.0.0.1:{server.port}", "anonymous": True, "encryption_key": KEY, **WAY}
            with GCSStore(StoreURI("gs", "bucket"), options) as store, pytest.raises(StoreError, match=str(status)):
                store.head("key")


@pytest.mark.parametrize("key", ["", "secret", "c2VjcmV0", KEY + "x", KEY.replace("=", "")])
def test_a_wrong_key_is_refused_and_not_told(key: str) -> None:
    with pytest.raises(ConfigError, match="32 bytes in base64") as raised:
        GCSOptions.read({"encryption_key": key})
    assert not key or key not in str(raised.value)


def test_the_key_is_in_no_text() -> None:
    assert KEY not in repr(GCSOptions.read({"encryption_key": KEY}))
