"""What a request sends: a range of a file between a few other bytes, in memory or from the file."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from servers import tls
from servers.wire import Peer, wire
from wherry.backends.http.body import FileRange, body_of
from wherry.backends.http.client import Client, Request, head_of
from wherry.backends.http.routes import route_to, trusting
from wherry.backends.http.wire_errors import ShortFile, UnknownWay

MIB = 2**20
BEFORE, AFTER = b"--limit\r\n", b"\r\n--limit--"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3 * MIB))
    return path


@pytest.fixture
def file(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 5), (5, 6), (1, 1 + MIB), (1, 2 + MIB), (0, 3 * MIB)])
@pytest.mark.parametrize("is_secure", [False, True])
def test_a_range_goes_between_what_is_given(tmp_path: Path, path: Path, file: int, start: int, end: int, is_secure: bool) -> None:
    data = BEFORE + path.read_bytes()[start:end] + AFTER
    body = body_of(file, start, end, BEFORE, AFTER)
    assert (end - start > MIB) == isinstance(body, FileRange)
    kept = tls.make_certificates(tmp_path)

    def talk(peer: Peer) -> None:
        with ExitStack() as stack:
            if is_secure:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(kept.chain, kept.key)
                peer.socket = stack.enter_context(context.wrap_socket(peer.socket, server_side=True))
            if b"Expect" in peer.head():
                peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert data == peer.body(len(data))
            peer.answer(b"stored")
            peer.wait_for_end()

    with wire(talk) as server:
        route = replace(server.route(), trust=trusting(str(kept.authority)) if is_secure else None)
        client = Client(route, 1, lambda: None)
        head = head_of(["POST / HTTP/1.1", "Host: h", f"Content-Length: {len(data)}"])
        assert b"stored" == client.ask(Request("POST", head, body)).read_all(100)
        client.close()


def test_a_refusal_ends_the_sending_before_the_file_and_within_it(file: int) -> None:
    def talk(peer: Peer) -> None:
        peer.head()
        peer.answer(b"", "403 Forbidden")

    def late(peer: Peer) -> None:
        peer.head()
        peer.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        peer.body(len(BEFORE) + 1)
        peer.answer(b"", "413 Too Large")
        peer.socket.shutdown(socket.SHUT_WR)
        peer.wait_for_end()

    with wire(talk, late) as server:
        client = Client(server.route(), 1, lambda: None)
        head = head_of(["POST / HTTP/1.1", "Host: h", f"Content-Length: {3 * MIB}"])
        request = Request("POST", head, body_of(file, 0, 3 * MIB, BEFORE * 1000, AFTER))
        assert [403, 413] == [client.ask(request).status for _ in range(2)]
        client.close()


@pytest.mark.parametrize("end", [3 * MIB + 1, 9 * MIB])
@pytest.mark.parametrize("start", [0, 3 * MIB - 1])
def test_a_file_that_is_too_short_is_not_sent(file: int, start: int, end: int) -> None:
    with pytest.raises(ShortFile) as raised:
        body_of(file, start, end)
    assert end - 3 * MIB == raised.value.missing_bytes


@pytest.mark.parametrize("line", ["X: a\r\nY: b", "X: a\n", "X: \r", "X: ü"])
def test_a_line_of_a_head_is_one_line(line: str) -> None:
    with pytest.raises(ValueError, match=r"line breaks|ascii"):
        head_of(["GET / HTTP/1.1", line])


@pytest.mark.parametrize(
    ("scheme", "authorities", "proxy"),
    [
        ("https", None, None),
        ("https", "/no/such/file", None),
        ("http", None, "http://proxy:1"),
        ("https", "", "https://proxy:1"),
        ("https", "", "socks5://proxy:1"),
    ],
)
def test_ways_that_are_not_ours(tmp_path: Path, scheme: str, authorities: str | None, proxy: str | None) -> None:
    trusted = authorities if authorities != "" else str(tls.make_certificates(tmp_path).authority)
    with pytest.raises(UnknownWay):
        route_to(urlsplit(f"{scheme}://host/"), trusted, proxy, 1, 1)


def test_a_folder_of_authorities_is_trusted(tmp_path: Path) -> None:
    route = route_to(urlsplit("https://host/"), str(tmp_path), None, 1, 2)
    assert route.trust is not None
    assert [] == route.trust.get_ca_certs(), "they are looked up when a server shows its certificate"


def test_the_way_through_a_tunnel(tmp_path: Path) -> None:
    authority = str(tls.make_certificates(tmp_path).authority)
    route = route_to(urlsplit("https://[::1]:8443/path"), authority, "http://user:secret@proxy:1", 1, 2)
    assert ("::1", 8443, 1, 2) == (route.host, route.port, route.connect_timeout_s, route.timeout_s)
    assert route.proxy is not None
    assert "proxy" == route.proxy.hostname
    assert "secret" not in repr(route)
