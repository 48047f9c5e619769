"""Requests to GCS past requests: what they say, whose token they carry, what they refuse, and when there are none."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from servers import tls
from servers.gcs_server import GCSServer, strict_gcs
from servers.real import tls_terminator
from servers.scripted_gcs import anonymous, issued, key_file, refusal, scripted
from servers.wire import Peer, say, wire
from wherry.backends.gcs.direct_requests import Direct
from wherry.backends.gcs.store import GCSStore
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, ConfigError, PermanentError, StoreError, TransientError
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

DATA = b"0123456789"
MIB = 2**20
STORED = json.dumps({"name": "key", "size": "10", "generation": "1"}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GCSServer]:
    with strict_gcs(tmp_path_factory.mktemp("strict")) as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def store_of(port: int, scheme: str = "http", **options: object) -> GCSStore:
    return GCSStore(StoreURI("gs", "bucket"), {"endpoint_url": f"{scheme}://127.0.0.1:{port}", "token": "TOKEN", **options})


def direct_of(store: GCSStore) -> Direct | None:
    return store._bucket.connected().direct


def answering(*answers: bytes) -> Any:
    def talk(peer: Peer) -> None:
        for each in answers:
            if head := peer.head():
                sizes = [line[16:] for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")]
                peer.body(int(sizes[0]) if sizes else 0)
                peer.say(each)

    return talk


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


class TestWhen:
    @pytest.mark.parametrize("is_secure", [False, True])
    def test_a_real_server_is_asked_past_requests(
        self, server: GCSServer, tmp_path: Path, is_secure: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        path, back = tmp_path / "file", tmp_path / "back"
        path.write_bytes(os.urandom(3 * MIB))
        back.write_bytes(b"")
        data, key, options = path.read_bytes(), f"direct/{is_secure}/a b+~ü?&=%2F", server.options
        with ExitStack() as stack:
            if is_secure:
                url, authority = stack.enter_context(tls_terminator(server.port, tmp_path))
                options = {**options, "endpoint_url": url, "verify": str(authority)}
            stack.enter_context(caplog.at_level(logging.DEBUG, "urllib3.connectionpool"))
            store = stack.enter_context(GCSStore(StoreURI("gs", server.bucket), options))
            made = store.put_file(key, path, PutOptions(crc32c=crc32c(data), metadata={"wherry-token": "two words"}))
            assert (3 * MIB, made.etag, "two words") == (made.size_bytes, store.head(key).etag, store.head(key).token)
            assert crc32c(data[5:]) == store.get_file(key, back, start=5, if_match=made.etag)
            assert data[5:] == back.read_bytes()[5:]
            store.delete(key)
        assert "urllib3.connectionpool" not in caplog.text

    @pytest.mark.parametrize(
        ("scheme", "options", "environment"),
        [
            ("http", {"sdk_only": True}, {}),
            ("https", {"verify": False}, {}),
            ("http", {}, {"HTTP_PROXY": "http://127.0.0.1:9"}),
            ("https", {}, {"HTTPS_PROXY": "https://127.0.0.1:9"}),
            ("https", {}, {"ALL_PROXY": "socks5://127.0.0.1:9"}),
        ],
    )
    def test_what_is_not_known_here_is_for_requests(
        self, monkeypatch: pytest.MonkeyPatch, scheme: str, options: dict[str, object], environment: dict[str, str]
    ) -> None:
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        with store_of(9, scheme, **options) as store:
            assert direct_of(store) is None

    def test_a_proxy_for_tls_is_used_and_no_proxy_is_heeded(
        self, monkeypatch: pytest.MonkeyPatch, file: Path, tmp_path: Path
    ) -> None:
        authority = str(tls.make_certificates(tmp_path).authority)
        with wire(say(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
            with store_of(9, "https", verify=authority) as store, pytest.raises(AccessDeniedError, match="HTTPS_PROXY"):
                store.put_file("key", file)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            with store_of(9, "https", verify=authority) as store, pytest.raises(TransientError, match=":9: "):
                store.put_file("key", file)

    def test_an_endpoint_may_be_an_ipv6_address(self) -> None:
        with ExitStack() as stack:
            peer = stack.enter_context(wire(answering(answer(STORED)), host="::1"))
            store = stack.enter_context(store_of(9, endpoint_url=f"http://[::1]:{peer.port}"))
            assert 10 == store.head("key").size_bytes
        assert b"\r\nHost: [::1]:%d\r\n" % peer.port in peer.peers[0].seen

    def test_the_authorities_of_the_environment_are_trusted(
        self, server: GCSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with tls_terminator(server.port, tmp_path) as (url, authority):
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
            with GCSStore(StoreURI("gs", server.bucket), {**server.options, "endpoint_url": url}) as store:
                store.delete("tls/absent")
                assert direct_of(store) is not None


class TestSaid:
    def test_a_put_says_what_the_server_is_to_check(self, file: Path) -> None:
        with wire(answering(answer(STORED))) as peer, store_of(peer.port) as store:
            store.put_file("a/ü", file, PutOptions(if_absent=True, metadata={"k": "v"}))
        head, _, body = bytes(peer.peers[0].seen).partition(b"\r\n\r\n")
        assert head.startswith(
            b"POST /upload/storage/v1/b/bucket/o?uploadType=multipart&ifGenerationMatch=0 HTTP/1.1\r\n"
            b"Host: 127.0.0.1:%d\r\nUser-Agent: python-requests/" % peer.port
        )
        assert b" wherry\r\n" in head
        assert b"\r\nauthorization: Bearer TOKEN" in head
        resource = {"name": "a/ü", "contentType": "application/octet-stream", "metadata": {"k": "v"}}
        assert resource == json.loads(body.split(b"\r\n\r\n")[1].split(b"\r\n--")[0])
        assert body.split(b"\r\n\r\n")[2].startswith(DATA + b"\r\n--")

    def test_objects_come_as_they_are_stored(self, tmp_path: Path) -> None:
        stored, target = gzip.compress(DATA), tmp_path / "target"
        target.touch()
        said = answer(stored, "200 OK", "Content-Encoding: gzip", "X-Goog-Generation: 1")
        with wire(answering(said)) as peer, store_of(peer.port) as store:
            assert int(google_crc32c.value(stored)) == store.get_file("key", target)
        assert stored == target.read_bytes()
        assert b"\r\nAccept-Encoding: gzip\r\n" in peer.peers[0].seen

    @pytest.mark.parametrize("coding", ["gzip", "GZIP"])
    def test_what_is_no_object_is_decoded(self, tmp_path: Path, coding: str) -> None:
        target = tmp_path / "target"
        target.touch()
        words = gzip.compress(refusal(403, message="these very words")[2])
        said = answer(words, "403 Forbidden", f"Content-Encoding: {coding}")
        with wire(answering(said, said)) as peer, store_of(peer.port) as store:
            for call in (lambda: store.get_file("key", target), lambda: store.head("key")):
                with pytest.raises(AccessDeniedError, match="these very words"):
                    call()

    @pytest.mark.parametrize(
        "body", [b"no gzip at all", gzip.compress(bytes(2**23)), gzip.compress(STORED)[:-12]], ids=["other", "bomb", "cut"]
    )
    def test_what_cannot_be_decoded_is_tried_again(self, body: bytes) -> None:
        said = answering(answer(body, "200 OK", "Content-Encoding: gzip"))
        with wire(said) as peer, store_of(peer.port) as store, pytest.raises(TransientError):
            store.head("key")

    def test_a_name_cannot_end_the_line(self) -> None:
        with wire(answering(answer(b"", "204 No Content"))) as peer, store_of(peer.port) as store:
            store.delete("a\r\nX: y HTTP/1.1\r\n\r\n../b")
        assert peer.peers[0].seen.startswith(
            b"DELETE /storage/v1/b/bucket/o/a%0D%0AX%3A%20y%20HTTP%2F1.1%0D%0A%0D%0A..%2Fb HTTP/1.1\r\n"
        )

    @pytest.mark.parametrize("token", ["TOKEN\r\nX-Other: x", "TOKEN\n", "TÖKEN"])
    def test_a_token_with_a_line_break_is_not_sent_and_not_told(self, token: str) -> None:
        with (
            pytest.raises((ConfigError, PermanentError), match=r"cannot be sent|'token' has") as raised,
            store_of(9, token=token) as store,
        ):
            store.head("key")
        assert token not in str(raised.value)


class TestTokens:
    def test_of_many_threads_one_renews(self, server: GCSServer, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(DATA)
        with scripted(issued("an-old-token"), issued(server.token)) as issuer:
            options = {"endpoint_url": server.url, "credentials_json": key_file(issuer.url)}
            with GCSStore(StoreURI("gs", server.bucket), options) as store:
                store.put_file("many/0", path)
                store.delete_many([f"many/{n}" for n in range(20)])
            assert 2 == len(issuer.asked)

    def test_a_refused_token_costs_no_body(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(2 * MIB))

        def deny(peer: Peer) -> None:
            assert b"Bearer an-old-token" in peer.head()
            peer.answer(b"{}", "401 Unauthorized")
            peer.wait_for_end()
            assert 1000 > len(peer.seen)

        def take(peer: Peer) -> None:
            head = peer.head()
            assert b"Bearer a-new-token" in head
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.body(int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]))
            peer.answer(json.dumps({"size": str(2 * MIB), "generation": "1"}).encode())

        with ExitStack() as stack:
            issuer = stack.enter_context(scripted(issued("an-old-token"), issued("a-new-token")))
            peer = stack.enter_context(wire(deny, take))
            store = stack.enter_context(store_of(peer.port, token=None, credentials_json=key_file(issuer.url)))
            assert 2 * MIB == store.put_file("refused/large", path).size_bytes

    def test_no_renewal_without_means(self) -> None:
        with wire(answering(answer(b"{}", "401 Unauthorized"))) as peer, store_of(peer.port) as store:
            with pytest.raises(AccessDeniedError):
                store.head("key")
            assert 1 == store.n_requests


class TestRedirects:
    def test_no_other_host_gets_the_token(self, file: Path) -> None:
        """Requests follows, as before, and takes the token off."""
        with wire(answering(answer(STORED))) as elsewhere:
            moved = answer(b"", "307 Temporary Redirect", f"Location: http://localhost:{elsewhere.port}/x", "Connection: close")
            with wire(answering(moved), answering(moved)) as peer, store_of(peer.port) as store:
                assert 10 == store.head("key").size_bytes
        assert b"TOKEN" in peer.peers[0].seen
        assert b"TOKEN" not in elsewhere.peers[0].seen

    def test_a_session_stays_where_it_is(self, file: Path) -> None:
        moved = answer(b"", "307 Temporary Redirect", "Location: http://127.0.0.1:9/")
        opened = answer(b"", "200 OK", "Location: http://elsewhere.example/upload/o?upload_id=1", "Connection: close")
        with wire(answering(opened), answering(moved)) as peer, store_of(peer.port, upload="session") as store:
            upload_id = store.begin("key", 2**20)
            with pytest.raises(StoreError, match="307"):
                store.list_parts("key", upload_id)
        assert peer.peers[1].seen.startswith(b"PUT /upload/o?upload_id=1 HTTP/1.1\r\n")
        assert b"TOKEN" not in peer.peers[1].seen


class TestAnswers:
    @pytest.mark.parametrize(
        "head",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -10\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * MIB,
            b"<html>",
        ],
    )
    def test_an_unclear_answer_is_tried_again(self, tmp_path: Path, head: bytes) -> None:
        target = tmp_path / "target"
        target.touch()
        calls: list[Callable[[GCSStore], object]] = [
            lambda store: store.get_file("key", target),
            lambda store: store.head("key"),
        ]
        for call in calls:
            with wire(say(head)) as peer, store_of(peer.port) as store, pytest.raises(TransientError):
                call(store)

    def test_chunks_and_an_end_by_the_connections_end_are_read(self, tmp_path: Path) -> None:
        target = tmp_path / "target"
        for said in (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n\r\nabcde",
        ):
            target.write_bytes(b"")
            with wire(say(said)) as peer, store_of(peer.port) as store:
                assert crc32c(b"abcde") == store.get_file("key", target)
            assert b"abcde" == target.read_bytes()

    def test_an_endless_description_is_cut(self) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 2**40)
            while True:
                peer.say(bytes(2**16))

        with wire(talk) as peer, store_of(peer.port) as store, pytest.raises(TransientError, match="more than"):
            store.head("key")

    def test_a_refusal_ends_a_large_body(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        with open(path, "wb") as file:
            file.truncate(2**30)

        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.body(MIB)
            peer.answer(refusal(413, message="too large for me")[2], "413 Content Too Large")
            peer.socket.shutdown(1)

        with wire(talk) as peer, store_of(peer.port) as store, pytest.raises(PermanentError, match="too large for me"):
            store.put_part("key", "0" * 32, path, Part(1, 0, 2**30, 0))

    @pytest.mark.parametrize("if_absent", [False, True])
    def test_a_put_that_may_have_taken_the_name_is_not_sent_twice(self, file: Path, if_absent: bool) -> None:
        more = [] if if_absent else [answering(answer(STORED))]
        with wire(answering(answer(STORED), b""), *more) as peer, store_of(peer.port, timeout_s=2) as store:
            store.put_file("key", file)
            if if_absent:
                with pytest.raises(TransientError, match="hung up"):
                    store.put_file("key", file, PutOptions(if_absent=True))
            else:
                store.put_file("key", file)

    def test_a_kept_connection_that_has_ended_is_replaced(self, server: GCSServer, file: Path) -> None:
        said = answer(b"", "204 No Content")
        with wire(answering(said), answering(said)) as peer, store_of(peer.port) as store:
            store.delete("one")
            store.delete("two")
        assert 2 == len(peer.peers)
        with anonymous(f"http://127.0.0.1:{peer.port}") as store, pytest.raises(TransientError, match="refused"):
            store.delete("three")
