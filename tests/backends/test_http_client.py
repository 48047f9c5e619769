"""Our HTTP client against servers that do what they must not, or what they seldom do."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from servers import tls
from servers.wire import Peer, Talk, Wire, answering, say, secured, wire
from wherry.backends.http.body import FileRange
from wherry.backends.http.client import Client, Request
from wherry.backends.http.routes import Route, proxy_of, trusting
from wherry.backends.http.wire_errors import (
    ConnectError,
    DisconnectedError,
    ProtocolError,
    ShortFile,
    StalledError,
    TLSError,
    UnreadableFile,
    WireError,
)

MIB = 2**20
GET = Request("GET", b"GET /a HTTP/1.1\r\nHost: a\r\n")


@contextmanager
def client_of(route: Route, most_kept: int = 8) -> Iterator[Client]:
    client = Client(route, most_kept, lambda: None)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(8 * MIB))
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def put(file: int, size_bytes: int = 8 * MIB, **given: bool) -> Request:
    head = b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % size_bytes
    return Request("PUT", head, FileRange(file, 0, size_bytes), **given)


def takes_it(peer: Peer) -> None:
    """Takes a large body as it should."""
    assert b"Expect: 100-continue" in peer.head()
    peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
    peer.body(8 * MIB)
    peer.answer(b"stored")


class TestConnections:
    def test_one_is_kept_for_the_next_request(self) -> None:
        def talk(peer: Peer) -> None:
            for n in range(3):
                assert peer.head()
                peer.answer(b"%d" % n)

        with wire(talk) as server, client_of(server.route()) as client:
            assert [b"0", b"1", b"2"] == [client.ask(GET).read_all(10) for _ in range(3)]

    @pytest.mark.parametrize("is_repeatable", [True, False])
    def test_one_that_was_closed_meanwhile_is_not_used(self, is_repeatable: bool) -> None:
        closed = threading.Event()

        def first(peer: Peer) -> None:
            peer.head()
            peer.answer(b"1")
            peer.socket.close()
            closed.set()

        with wire(first, answering(b"2")) as server, client_of(server.route()) as client:
            assert b"1" == client.ask(GET).read_all(10)
            closed.wait(30)
            assert b"2" == client.ask(replace(GET, is_repeatable=is_repeatable)).read_all(10)

    @pytest.mark.parametrize("is_repeatable", [True, False])
    def test_one_that_is_closed_by_a_request_costs_a_second_attempt(self, is_repeatable: bool) -> None:
        """Unless it would do something twice."""

        def first(peer: Peer) -> None:
            peer.head()
            peer.answer(b"1")
            peer.head()

        talks: list[Talk] = [first, answering(b"2")]
        with wire(*talks[: 1 + is_repeatable]) as server, client_of(server.route()) as client:
            assert b"1" == client.ask(GET).read_all(10)
            if is_repeatable:
                assert b"2" == client.ask(GET).read_all(10)
            else:
                with pytest.raises(DisconnectedError):
                    client.ask(replace(GET, is_repeatable=False))

    def test_one_that_ends_within_the_answer_costs_no_second_attempt(self) -> None:
        """The server has begun to answer, and so to do what it was asked for."""

        def talk(peer: Peer) -> None:
            peer.head()
            peer.answer(b"1")
            peer.head()
            peer.say(b"HTTP/1.1 200 ")
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
            time.sleep(0.1)

        with wire(talk) as server, client_of(server.route()) as client:
            assert b"1" == client.ask(GET).read_all(10)
            with pytest.raises(DisconnectedError):
                client.ask(GET)

    def test_a_new_one_that_is_closed_is_no_reason_for_a_second_attempt(self) -> None:
        with wire(lambda peer: peer.head()) as server, client_of(server.route()) as client, pytest.raises(DisconnectedError):
            client.ask(GET)

    def test_one_that_was_silent_for_long_is_not_used(self) -> None:
        """A firewall may have forgotten it."""
        now_s = 0.0

        def talk(peer: Peer) -> None:
            peer.head()
            peer.answer(b"1")
            peer.wait_for_end()

        with wire(talk, talk) as server, closing(Client(server.route(), 8, lambda: None, lambda: now_s)) as client:
            for _ in range(2):
                assert b"1" == client.ask(GET).read_all(10)
                now_s += 100.0

    def test_an_answer_that_nobody_asked_for_is_given_to_nobody(self) -> None:
        said = threading.Event()

        def first(peer: Peer) -> None:
            peer.head()
            peer.answer(b"1")
            peer.answer(b"poison")
            said.set()
            peer.wait_for_end()

        with wire(first, answering(b"2")) as server, client_of(server.route()) as client:
            assert b"1" == client.ask(GET).read_all(10)
            said.wait(30)
            assert b"2" == client.ask(GET).read_all(10)

    @pytest.mark.parametrize("header", ["Connection: close", "A: b"])
    def test_one_whose_body_was_not_read_or_that_the_server_closes_is_not_kept(self, header: str) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.answer(b"12", "200 OK", header)
            peer.wait_for_end()

        with wire(talk, talk) as server, client_of(server.route()) as client:
            for _ in range(2):
                answer = client.ask(GET)
                answer.read(10 if "close" in header else 1)
                answer.close()

    def test_a_child_leaves_those_of_its_parent_alone(self) -> None:
        def talk(peer: Peer) -> None:
            while peer.head():
                peer.answer(b"1")

        with wire(talk, talk) as server, client_of(server.route()) as client:
            client.ask(GET).read_all(10)
            if (child := os.fork()) == 0:
                os._exit(0 if client.ask(GET).read_all(10) == b"1" else 1)
            assert 0 == os.waitpid(child, 0)[1]
            assert b"1" == client.ask(GET).read_all(10)

    def test_ipv6(self) -> None:
        with wire(answering(b"6"), host="::1") as server, client_of(server.route(host="::1")) as client:
            assert b"6" == client.ask(GET).read_all(10)

    def test_a_closed_port_is_named(self) -> None:
        with wire() as server:
            route = server.route()
        with client_of(route) as client, pytest.raises(ConnectError, match=f"127.0.0.1:{route.port}"):
            client.ask(GET)


class TestLargeBodies:
    def test_one_is_sent_when_it_was_asked_for(self, file: int) -> None:
        with wire(takes_it) as server, client_of(server.route()) as client:
            assert b"stored" == client.ask(put(file)).read_all(10)
        assert os.pread(file, 8 * MIB, 0) == bytes(server.peers[0].seen[-8 * MIB :])

    def test_a_refused_one_is_not_sent(self, file: int) -> None:
        def refuse(peer: Peer) -> None:
            peer.head()
            peer.answer(b"no", "403 Forbidden")
            peer.wait_for_end()

        with wire(refuse) as server, client_of(server.route()) as client:
            answer = client.ask(put(file))
            assert (403, b"no") == (answer.status, answer.read_all(10))
        assert server.peers[0].seen.endswith(b"\r\n\r\n")

    def test_a_server_that_knows_no_leave_is_asked_for_it_once(self, file: int) -> None:
        def talk(peer: Peer) -> None:
            for expects in (True, False):
                assert expects == (b"Expect" in peer.head())
                peer.body(8 * MIB)
                peer.answer(b"stored")

        with wire(talk) as server, client_of(server.route()) as client:
            for _ in range(2):
                assert b"stored" == client.ask(put(file)).read_all(10)

    def test_a_server_that_was_late_once_is_asked_again_after_ten_minutes(self, file: int) -> None:
        asked: list[bool] = []
        clock_s = [0.0]

        def talk(peer: Peer) -> None:
            while head := peer.head():
                asked.append(b"Expect" in head)
                peer.body(8 * MIB)
                peer.answer(b"stored")

        with wire(talk, talk) as server, closing(Client(server.route(), 8, lambda: None, lambda: clock_s[0])) as client:
            for clock_s[0] in (0.0, 599.0, 600.0):
                assert b"stored" == client.ask(put(file)).read_all(10)
        assert [True, False, True] == asked

    def test_one_that_refuses_to_give_leave_is_not_asked_for_it(self, file: int) -> None:
        def second(peer: Peer) -> None:
            assert b"Expect" not in peer.head()
            peer.body(8 * MIB)
            peer.answer(b"stored")

        talks = (answering(b"", "417 Expectation Failed"), second)
        with wire(*talks) as server, client_of(server.route()) as client:
            assert b"stored" == client.ask(put(file)).read_all(10)

    def test_interim_answers_are_skipped_whenever_they_come(self, file: int) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
            peer.body(MIB)
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.body(7 * MIB)
            peer.say(b"HTTP/1.1 102 Processing\r\n\r\n" * 2)
            peer.answer(b"stored")

        with wire(talk) as server, client_of(server.route()) as client:
            assert b"stored" == client.ask(put(file)).read_all(10)

    @pytest.mark.parametrize("hangs_up", [False, True])
    def test_a_refusal_in_the_middle_ends_the_sending(self, file: int, hangs_up: bool) -> None:
        """Also if the server takes no more bytes and keeps the connection: nobody waits for the time-out."""

        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.body(MIB)
            peer.answer(b"too large", "413 Content Too Large")
            if not hangs_up:
                done.wait(30)

        done = threading.Event()
        with wire(talk, receives_bytes=64 * 1024) as server, client_of(server.route()) as client:
            try:
                answer = client.ask(put(file))
                assert (413, b"too large") == (answer.status, answer.read_all(10))
            except DisconnectedError:
                assert hangs_up  # the kernel may drop what was said before a reset
            done.set()

    def test_a_refusal_of_a_small_one_is_heard_though_nobody_reads_it(self) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.answer(b"too large", "413 Content Too Large")
            done.wait(30)

        done = threading.Event()
        head = b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % (16 * MIB)
        with wire(talk, receives_bytes=64 * 1024) as server, client_of(server.route()) as client:
            answer = client.ask(Request("PUT", head, bytes(16 * MIB)))
            assert (413, b"too large") == (answer.status, answer.read_all(10))
            done.set()

    @pytest.mark.parametrize("is_small", [False, True])
    def test_success_in_place_of_leave_is_no_answer(self, file: int, is_small: bool) -> None:
        """Of a small body only what the kernel could not take any more shows that it was not sent."""
        with wire(answering(b"stored"), receives_bytes=64 * 1024) as server, client_of(server.route()) as client:
            request = put(file)
            if is_small:
                request = replace(request, body=bytes(16 * MIB))
            with pytest.raises((ProtocolError, DisconnectedError)):
                client.ask(request)

    def test_success_before_the_body_was_sent_is_no_answer(self, file: int) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.body(MIB)
            peer.answer(b"stored")
            done.wait(30)

        done = threading.Event()
        with wire(talk, receives_bytes=64 * 1024) as server, client_of(server.route()) as client:
            with pytest.raises(ProtocolError):
                client.ask(put(file))
            done.set()

    def test_interim_answers_without_end_are_given_up(self, file: int) -> None:
        """They come while the body is sent, so that no wait is too long."""

        def talk(peer: Peer) -> None:
            peer.head()
            while True:
                peer.say(b"HTTP/1.1 102 Processing\r\n\r\n")
                time.sleep(0.01)

        refused = pytest.raises(ProtocolError, match="16 interim answers")
        with wire(talk, receives_bytes=64 * 1024) as server, client_of(server.route()) as client, refused:
            client.ask(put(file))

    def test_a_server_that_takes_no_more_is_given_up(self, file: int) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            done.wait(30)

        done = threading.Event()
        with wire(talk, receives_bytes=64 * 1024) as server, client_of(server.route(timeout_s=0.3)) as client:
            with pytest.raises(StalledError, match="takes no bytes for"):
                client.ask(put(file))
            done.set()

    def test_a_file_that_was_cut_is_no_fault_of_the_server(self, file: int) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.wait_for_end()

        with wire(talk) as server, client_of(server.route()) as client, pytest.raises(ShortFile, match="ends 5 bytes early"):
            client.ask(put(file, 8 * MIB + 5))

    def test_a_file_that_cannot_be_read_is_no_fault_of_the_connection(self, tmp_path: Path, file: int) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.wait_for_end()

        to_write = os.open(tmp_path / "large", os.O_WRONLY)
        with (
            closing(os.fdopen(to_write, "wb")),
            wire(talk) as server,
            client_of(server.route()) as client,
            pytest.raises(UnreadableFile, match="the file to send cannot be read: Bad file descriptor"),
        ):
            client.ask(put(to_write))

    def test_one_that_the_server_has_begun_to_take_is_not_sent_twice(self, file: int) -> None:
        def talk(peer: Peer) -> None:
            takes_it(peer)
            peer.head()
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.body(MIB)

        with wire(talk) as server, client_of(server.route()) as client:
            client.ask(put(file)).read_all(10)
            with pytest.raises(DisconnectedError):
                client.ask(put(file))


class TestAnswers:
    @pytest.mark.parametrize(
        ("said", "error"),
        [
            (b"", DisconnectedError),
            (b"HTTP/1.1 200 OK\r\nContent-Le", DisconnectedError),
            (b"<html>not HTTP at all</html>\r\n\r\n", ProtocolError),
            (b"HTTP/1.1 200 OK\r\nA: " + b"a" * MIB + b"\r\n\r\n", ProtocolError),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", ProtocolError),
            (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", ProtocolError),
            (b"HTTP/1.1 102 Processing\r\n\r\n" * 17, ProtocolError),
        ],
    )
    def test_what_is_none_is_an_error(self, said: bytes, error: type[WireError]) -> None:
        with wire(say(said)) as server, client_of(server.route()) as client, pytest.raises(error):
            client.ask(GET)

    def test_a_body_without_a_length_ends_with_the_connection(self) -> None:
        with wire(say(b"HTTP/1.0 200 OK\r\n\r\nall of it")) as server, client_of(server.route()) as client:
            assert b"all of it" == client.ask(GET).read_all(100)

    def test_a_body_that_is_cut_is_an_error(self) -> None:
        talk = say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123")
        with wire(talk) as server, client_of(server.route()) as client, pytest.raises(DisconnectedError, match="6 bytes early"):
            client.ask(GET).read_all(100)

    def test_an_answer_to_head_has_no_body(self) -> None:
        def talk(peer: Peer) -> None:
            for _ in range(2):
                peer.head()
                peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")

        with wire(talk) as server, client_of(server.route()) as client:
            assert [b"", b""] == [client.ask(replace(GET, method="HEAD")).read_all(10) for _ in range(2)]

    def test_a_silent_server_is_given_up(self) -> None:
        with wire(Peer.wait_for_end) as server:
            route = server.route(timeout_s=0.2)
            with client_of(route) as client, pytest.raises(StalledError, match="sends no bytes"):
                client.ask(GET)

    @pytest.mark.parametrize("is_secure", [False, True])
    def test_a_body_that_drips_comes_as_it_comes_and_a_small_one_is_given_up(
        self, certificates: tls.Certificates, is_secure: bool
    ) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 503 Busy\r\nContent-Length: 100000\r\n\r\n")
            while True:
                peer.say(b"x")
                time.sleep(0.01)

        trust = trusting(str(certificates.authority)) if is_secure else None
        given = secured(certificates, talk) if is_secure else talk
        with wire(given, given) as server, client_of(server.route(0.2, trust)) as client:
            with closing(client.ask(GET)) as answer:
                assert 0 < len(answer.read(MIB)) < 100_000
            with pytest.raises(StalledError, match="does not end"):
                client.ask(GET).read_all(MIB)

    def test_a_head_that_drips_is_given_up(self) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            while True:
                peer.say(b"x")
                time.sleep(0.01)

        with (
            wire(talk) as server,
            client_of(server.route(timeout_s=0.3)) as client,
            pytest.raises(StalledError, match="does not end"),
        ):
            client.ask(GET)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tls.Certificates:
    return tls.make_certificates(tmp_path_factory.mktemp("tls"))


class TestTLS:
    def test_a_large_body_goes_both_ways(self, certificates: tls.Certificates, file: int) -> None:
        def talk(peer: Peer) -> None:
            takes_it(peer)
            peer.head()
            peer.answer(bytes(peer.seen[-8 * MIB :]) if not peer.seen.endswith(b"\r\n\r\n") else bytes(sent))

        sent = os.pread(file, 8 * MIB, 0)
        trust = trusting(str(certificates.authority))
        with wire(secured(certificates, talk)) as server, client_of(server.route(trust=trust)) as client:
            assert b"stored" == client.ask(put(file)).read_all(10)
            assert sent == client.ask(GET).read_all(9 * MIB)
            assert sent in server.peers[0].seen

    def test_a_refusal_in_the_middle_is_heard(self, certificates: tls.Certificates, file: int) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            peer.body(100_000)
            peer.answer(b"no", "413 Content Too Large")
            done.wait(30)

        done = threading.Event()
        trust = trusting(str(certificates.authority))
        with (
            wire(secured(certificates, talk), receives_bytes=64 * 1024) as server,
            client_of(server.route(trust=trust)) as client,
        ):
            assert b"no" == client.ask(put(file)).read_all(10)
            done.set()

    def test_the_certificate_must_be_our_authoritys_and_for_the_host(
        self, certificates: tls.Certificates, tmp_path: Path
    ) -> None:
        other = tls.make_certificates(tmp_path)
        talk = secured(certificates, lambda peer: peer.wait_for_end())
        for authority, host in ((other.authority, "127.0.0.1"), (certificates.authority, "127.1")):
            with wire(talk) as server, client_of(server.route(trust=trusting(str(authority)), host=host)) as client:
                refused = pytest.raises(TLSError, match="CERTIFICATE_VERIFY_FAILED")
                with refused:
                    client.ask(GET)

    def test_nothing_turns_verification_off(self, certificates: tls.Certificates) -> None:
        trust = trusting(str(certificates.authority))
        assert (ssl.TLSVersion.TLSv1_2, True, ssl.CERT_REQUIRED) == (
            trust.minimum_version,
            trust.check_hostname,
            trust.verify_mode,
        )

    def test_an_answer_may_come_in_records_of_any_size(self, certificates: tls.Certificates) -> None:
        def talk(peer: Peer) -> None:
            while peer.head():
                peer.say(b"HTTP/1.1 200 OK\r\nContent-Le")
                peer.say(b"ngth: %d\r\n\r\n%b" % (len(sent), sent[:1]))
                at, size = 1, 0
                while at < len(sent):
                    size = min(2 * size + 1, 50_000)
                    peer.say(sent[at : at + size])
                    at += size

        sent = os.urandom(1_000_001)
        trust = trusting(str(certificates.authority))
        with wire(secured(certificates, talk)) as server, client_of(server.route(trust=trust)) as client:
            assert [sent, sent] == [client.ask(GET).read_all(2 * MIB) for _ in range(2)]

    @pytest.mark.parametrize("size_bytes", [0, 1, 20_000, 300_000])
    def test_an_end_within_the_body_is_an_error(self, certificates: tls.Certificates, size_bytes: int) -> None:
        talk = secured(certificates, say(b"HTTP/1.1 200 OK\r\nContent-Length: 300001\r\n\r\n" + bytes(size_bytes)))
        trust = trusting(str(certificates.authority))
        with wire(talk) as server, client_of(server.route(trust=trust)) as client:
            answer = client.ask(GET)
            with pytest.raises(DisconnectedError):
                answer.read_all(MIB)

    def test_a_server_that_falls_silent_is_left(self, certificates: tls.Certificates) -> None:
        def talk(peer: Peer) -> None:
            peer.head()
            peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(50_000))
            peer.wait_for_end()

        trust = trusting(str(certificates.authority))
        with (
            wire(secured(certificates, talk)) as server,
            client_of(replace(server.route(trust=trust), timeout_s=0.2)) as client,
            pytest.raises(StalledError),
        ):
            client.ask(GET).read_all(MIB)

    def test_a_handshake_must_end(self, certificates: tls.Certificates) -> None:
        trust = trusting(str(certificates.authority))
        with (
            wire(lambda peer: peer.wait_for_end()) as server,
            client_of(replace(server.route(trust=trust), connect_timeout_s=0.2)) as client,
            pytest.raises(ConnectError, match="no TLS with"),
        ):
            client.ask(GET)

    def test_plain_text_where_tls_should_be_is_an_error(self, certificates: tls.Certificates) -> None:
        trust = trusting(str(certificates.authority))
        with wire(lambda peer: peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
            route = server.route(trust=trust)
            with client_of(route) as client, pytest.raises(TLSError):
                client.ask(GET)


def proxied(server: Wire, certificates: tls.Certificates, user: str = "") -> Route:
    proxy = proxy_of(f"http://{user}127.0.0.1:{server.port}")
    return Route("localhost", 443, trusting(str(certificates.authority)), 30.0, 30.0, proxy)


class TestProxies:
    def test_tls_goes_through_its_tunnel(self, certificates: tls.Certificates) -> None:
        def talk(peer: Peer) -> None:
            assert peer.head().startswith(b"CONNECT localhost:443 HTTP/1.1\r\n")
            peer.say(b"HTTP/1.1 200 Connection established\r\n\r\n")
            secured(certificates, answering(b"1"))(peer)

        with wire(talk) as server, client_of(proxied(server, certificates, "me:s%3Acret@")) as client:
            assert b"1" == client.ask(GET).read_all(10)
        assert b"Proxy-Authorization: Basic bWU6czpjcmV0\r\n" in server.peers[0].seen

    @pytest.mark.parametrize("said", [b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"HTTP/1.1 200 OK", b"no\r\n\r\n"])
    def test_one_that_refuses_is_named_without_its_password(self, certificates: tls.Certificates, said: bytes) -> None:
        with wire(say(said)) as server:
            route = proxied(server, certificates, "me:secret@")
            with (
                client_of(route) as client,
                pytest.raises(ConnectError, match=r"the proxy 127\.0\.0\.1 gave no connection") as caught,
            ):
                client.ask(GET)
        assert "secret" not in f"{caught.value!r} {route!r}"

    @pytest.mark.parametrize("address", ["https://proxy:1", "socks5://proxy:1", "http://"])
    def test_other_kinds_are_not_known(self, address: str) -> None:
        assert proxy_of(address) is None
