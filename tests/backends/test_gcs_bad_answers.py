"""What a GCS store does with bad certificates, proxies and servers, by our own requests and by requests'."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from servers import tls
from servers.scripted_gcs import refusal
from servers.way import WAY
from servers.wire import Peer, answering, say, secured, wire
from wherry.backends.gcs.store import GCSStore
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, ConfigError, PermanentError, StoreError, TransientError
from wherry.uri import StoreURI

pytestmark = pytest.mark.usefixtures("way")
MIB = 2**20
DATA = b"0123456789"
STORED = json.dumps({"name": "key", "size": "10", "generation": "1"}).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def store_of(port: int, scheme: str = "http", host: str = "127.0.0.1", **options: object) -> GCSStore:
    given = {"endpoint_url": f"{scheme}://{host}:{port}", "token": "TOKEN", "timeout_s": 30, **WAY, **options}
    return GCSStore(StoreURI("gs", "bucket"), given)


class TestCertificates:
    """The error is final, and says what to do."""

    def refused(self, shown: tls.Certificates, trusted: Path, host: str = "127.0.0.1") -> str:
        with ExitStack() as stack:
            server = stack.enter_context(wire(secured(shown, Peer.wait_for_end)))
            store = stack.enter_context(store_of(server.port, "https", host, verify=str(trusted)))
            caught = stack.enter_context(pytest.raises(PermanentError, match="certificate is not trusted"))
            store.head("key")
        return str(caught.value)

    def test_an_expired_one(self, tmp_path: Path) -> None:
        shown = tls.make_certificates(tmp_path, is_expired=True)
        assert "needs a new certificate; else set the clock" in self.refused(shown, shown.authority)

    def test_a_self_signed_one(self, tmp_path: Path) -> None:
        shown = tls.make_certificates(tmp_path, is_self_signed=True)
        assert "'verify'" in self.refused(shown, shown.authority)

    def test_one_of_another_authority(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        trusted = tls.make_certificates(tmp_path / "other")
        assert "'verify'" in self.refused(tls.make_certificates(tmp_path), trusted.authority)

    def test_one_for_another_host(self, tmp_path: Path) -> None:
        shown = tls.make_certificates(tmp_path)
        assert "correct the endpoint" in self.refused(shown, shown.authority, "127.1")


class TestServers:
    def test_a_proxy_that_wants_a_password_says_where_to_give_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trusted = str(tls.make_certificates(tmp_path).authority)
        with wire(say(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")) as server:
            monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret@127.0.0.1:{server.port}")
            with store_of(9, "https", verify=trusted) as store, pytest.raises(AccessDeniedError, match="407") as caught:
                store.head("key")
        assert "HTTPS_PROXY" in caught.value.hint
        assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"

    def test_a_proxy_for_plain_http_says_so_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with wire(answering(b"", "407 Proxy Authentication Required")) as server:
            monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
            with store_of(9) as store, pytest.raises(AccessDeniedError, match="HTTP_PROXY"):
                store.head("key")

    @pytest.mark.parametrize("address", ["http://me:S3CRET#@host:1", "http://me:S3CRET@host:65536", "ftp://me:S3CRET@host:1"])
    def test_a_proxy_whose_address_cannot_be_read_is_not_shown(self, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        monkeypatch.setenv("HTTP_PROXY", address)
        with store_of(9) as store, pytest.raises(ConfigError, match="proxy") as caught:
            store.head("key")
        assert "S3CRET" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"

    @pytest.mark.parametrize("status", ["200 OK", "511 Network Authentication Required"])
    @pytest.mark.parametrize("page", [b"", b"<html>log in</html>", b"[]"])
    def test_a_login_page_says_what_it_may_be(self, status: str, page: bytes) -> None:
        calls: list[Callable[[GCSStore], object]] = [lambda store: store.head("key"), lambda store: list(store.list())]
        for call in calls:
            told = pytest.raises(TransientError, match="log in there")
            with wire(answering(page, status)) as server, store_of(server.port) as store, told:
                call(store)

    def test_one_that_has_a_hundred_headers_to_say(self) -> None:
        headers = "".join(f"x-goog-meta-{n}: v\r\n" for n in range(97))
        said = f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(STORED)}\r\n\r\n".encode() + STORED
        with wire(say(said)) as server, store_of(server.port) as store:
            assert 10 == store.head("key").size_bytes

    def test_one_that_speaks_http_1_0(self, file: Path) -> None:
        said = b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\n" + DATA
        with wire(say(said)) as server, store_of(server.port) as store:
            assert crc32c(DATA) == store.get_file("key", file)

    @pytest.mark.parametrize(
        "said",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n0123456789",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\n01234\r\n",
            b"HTTP/1.1 200 OK\r\nA: " + b"a" * MIB + b"\r\n\r\n",
            b"",
        ],
    )
    def test_one_that_hangs_up_or_speaks_nonsense(self, file: Path, said: bytes) -> None:
        with wire(say(said)) as server, store_of(server.port) as store, pytest.raises(TransientError):
            store.get_file("key", file)

    @pytest.mark.parametrize(
        ("status", "error"), [("403 Forbidden", AccessDeniedError), ("413 Content Too Large", PermanentError)]
    )
    def test_a_refusal_before_the_body_was_read(self, file: Path, status: str, error: type[StoreError]) -> None:
        body = refusal(int(status[:3]), message="these very words")[2]

        def talk(peer: Peer) -> None:
            peer.head()
            peer.answer(body, status, "Connection: close")
            peer.wait_for_end()

        with wire(talk) as server, store_of(server.port) as store, pytest.raises(error, match="these very words"):
            store.put_file("key", file)
