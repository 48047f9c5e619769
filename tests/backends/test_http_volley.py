"""Many small requests by one thread, against servers that answer in any order, late, wrong, or not at all."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from servers import tls
from servers.wire import Peer, Talk, Wire, secured, wire
from wherry.backends.http.client import Client
from wherry.backends.http.routes import Route, trusting
from wherry.backends.http.volley import SmallRequest, Volley

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def put(name: str, body: bytes = b"body") -> SmallRequest:
    return SmallRequest("PUT", f"PUT /{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def path_in(head: bytes) -> str:
    return head.split(b" ", 2)[1].decode()[1:] if head else ""


def serves(peer: Peer) -> None:
    """Answers each request with its path."""
    while name := path_in(peer.head()):
        peer.body(4)
        peer.answer(name.encode())


@contextmanager
def client_of(route: Route, most_kept: int = 32) -> Iterator[Client]:
    client = Client(route, most_kept, lambda: None)
    try:
        yield client
    finally:
        client.close()


def answers(client: Client, names: Sequence[str], most: int = 3, body: bytes = b"body") -> list[tuple[str, int, bytes]]:
    given = Volley[str](client, most).answers((name, put(name, body)) for name in names)
    return [(name, answer.status, answer.read_all(100)) for name, answer in given]


NAMES = [f"object-{n}" for n in range(20)]


def test_each_answer_comes_with_its_request() -> None:
    with wire(*[serves] * 3) as server, client_of(server.route()) as client:
        assert [(name, 200, name.encode()) for name in NAMES] == sorted(
            answers(client, NAMES), key=lambda one: NAMES.index(one[0])
        )


def test_behind_tls_too(tmp_path: Path) -> None:
    certificates = tls.make_certificates(tmp_path)
    trust = trusting(str(certificates.authority))
    assert isinstance(trust, ssl.SSLContext)
    with wire(*[secured(certificates, serves)] * 3) as server, client_of(server.route(trust=trust)) as client:
        assert set(NAMES) == {name for name, _, body in answers(client, NAMES) if body.decode() == name}


def test_connections_are_kept_for_the_next_requests() -> None:
    with wire(*[serves] * 3) as server, client_of(server.route()) as client:
        for _ in range(3):
            assert len(NAMES) == len(answers(client, NAMES))
        assert 3 == len(server.peers)


def test_no_more_than_so_many_are_under_way_and_each_answer_makes_room_for_one() -> None:
    came, may_answer = threading.Semaphore(0), threading.Semaphore(0)

    def slow(peer: Peer) -> None:
        while name := path_in(peer.head()):
            peer.body(4)
            came.release()
            assert may_answer.acquire(timeout=60)
            peer.answer(name.encode())

    taken: list[str] = []

    def requests() -> Iterator[tuple[str, SmallRequest]]:
        for name in NAMES:
            taken.append(name)
            yield name, put(name)

    with wire(*[slow] * 3) as server, client_of(server.route()) as client:
        given = Volley[str](client, 3).answers(requests())
        first = threading.Thread(target=lambda: next(given)[1].read_all(100))
        first.start()
        for _ in range(3):
            assert came.acquire(timeout=60)
        assert 3 == len(taken)
        may_answer.release()
        first.join(60)
        assert 3 == len(taken)  # what comes next is asked for when the answer was read
        may_answer.release(len(NAMES))
        assert len(NAMES) - 1 == len([answer.read_all(100) for _, answer in given])


def serves_until(n_answers: int, then: Talk, in_trouble: threading.Event | None = None) -> Talk:
    """Answers so many requests, and does this to the one after them."""

    def talk(peer: Peer) -> None:
        for _ in range(n_answers):
            name = path_in(peer.head())
            peer.body(4)
            peer.answer(name.encode())
        if peer.head():
            peer.body(4)
            if in_trouble is not None:
                in_trouble.set()
            then(peer)

    return talk


def hangs_up(peer: Peer) -> None:
    """The connection is closed where a talk ends."""


def says(data: bytes) -> Talk:
    def talk(peer: Peer) -> None:
        peer.say(data)
        peer.wait_for_end()

    return talk


def trickles(peer: Peer) -> None:
    for at in range(len(HEAD) - 1):
        peer.say(HEAD[at : at + 1])
        time.sleep(0.1)
    peer.wait_for_end()


@pytest.mark.parametrize(
    "trouble",
    [
        hangs_up,
        says(b"HTTP/1.1 200 OK\r\nContent-Le"),
        says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n"),
        says(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD),
        says(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        says(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000),
        trickles,
    ],
    ids=["hangs up", "half a head, then silence", "no HTTP", "two lengths", "100", "101", "endless head", "a byte now and then"],
)
def test_after_the_first_trouble_nothing_is_begun_and_what_is_under_way_is_answered(trouble: Talk) -> None:
    with wire(serves_until(2, trouble)) as server, client_of(server.route(timeout_s=1.0)) as client:
        assert NAMES[:2] == [name for name, _, _ in answers(client, NAMES, most=1)]

    in_trouble = threading.Event()
    late: list[str] = []

    def serves_late(peer: Peer) -> None:
        late.append(path_in(peer.head()))
        peer.body(4)
        assert in_trouble.wait(60)
        peer.answer(late[0].encode())
        serves(peer)

    troubled = serves_until(2, trouble, in_trouble)
    with wire(troubled, troubled, serves_late) as server, client_of(server.route(timeout_s=1.0)) as client:
        found = [name for name, _, _ in answers(client, NAMES)]
        assert set(late) <= set(found) < set(NAMES)
        assert len(found) == len(set(found)) >= 3


def test_an_answer_of_any_status_is_given_and_its_connection_goes_on() -> None:
    def refuses(peer: Peer) -> None:
        while peer.head():
            peer.body(4)
            peer.answer(b"<Error/>", "503 Slow Down")

    with wire(refuses) as server, client_of(server.route()) as client:
        assert [(name, 503, b"<Error/>") for name in NAMES] == answers(client, NAMES, most=1)


def test_an_answer_that_closes_leaves_the_others_to_the_other_connections() -> None:
    def closes(peer: Peer) -> None:
        name = path_in(peer.head())
        peer.body(4)
        peer.answer(name.encode(), "200 OK", "Connection: close")

    with wire(closes, serves) as server, client_of(server.route()) as client:
        assert set(NAMES) == {name for name, _, _ in answers(client, NAMES, most=2)}
    with wire(closes) as server, client_of(server.route()) as client:
        assert NAMES[:1] == [name for name, _, _ in answers(client, NAMES, most=1)]


def test_bytes_that_nobody_asked_for_are_not_the_next_answer() -> None:
    def says_more(peer: Peer) -> None:
        peer.head()
        peer.body(4)
        peer.say(HEAD + HEAD)
        peer.wait_for_end()

    with wire(says_more) as server, client_of(server.route()) as client:
        assert NAMES[:1] == [name for name, _, _ in answers(client, NAMES, most=1)]


def test_an_answer_before_the_body_was_sent_is_no_answer() -> None:
    has_ended = threading.Event()

    def impatient(peer: Peer) -> None:
        """Answers, and never reads the body: if it did, all could be sent before the client looks at the answer."""
        peer.head()
        peer.say(HEAD)
        assert has_ended.wait(60)

    body = os.urandom(16 * 2**20)  # more than the buffers between hold
    with wire(impatient, receives_bytes=4096) as server, client_of(server.route()) as client:
        assert [] == answers(client, NAMES, most=1, body=body)
        has_ended.set()


def test_a_server_that_reads_slowly_gets_one_body_at_a_time() -> None:
    body, may_read = os.urandom(8 * 2**20), threading.Event()
    heads: list[bytes] = []

    def reads(peer: Peer) -> None:
        while head := peer.head():
            heads.append(head)
            assert may_read.wait(60)
            assert body == peer.body(len(body))
            peer.answer(path_in(head).encode())

    with wire(*[reads] * 2, receives_bytes=4096) as server, client_of(server.route()) as client:
        found: list[tuple[str, int, bytes]] = []
        thread = threading.Thread(target=lambda: found.extend(answers(client, NAMES[:4], most=2, body=body)))
        thread.start()
        while not heads:
            thread.join(0.01)
        thread.join(0.2)
        assert 1 == len(heads)
        may_read.set()
        thread.join(120)
        assert set(NAMES[:4]) == {name for name, _, _ in found}


def test_a_server_that_is_not_there_gives_no_answers() -> None:
    with wire() as server:
        route = server.route()
    with client_of(route) as client:
        assert [] == answers(client, NAMES)


def test_whoever_stops_reading_closes_what_is_under_way() -> None:
    ended = threading.Semaphore(0)

    def silent(peer: Peer) -> None:
        peer.wait_for_end()
        ended.release()

    with wire(serves, *[silent] * 2) as server, client_of(server.route()) as client:
        given = Volley[str](client, 3).answers((name, put(name)) for name in NAMES)
        next(given)[1].close()
        given.close()  # type: ignore[attr-defined]  # it is a generator
        for _ in range(2):
            assert ended.acquire(timeout=60)


def test_the_requests_are_counted(tmp_path: Path) -> None:
    n_requests: list[int] = []
    with wire(*[serves] * 3) as server:
        client = Client(server.route(), 8, lambda: n_requests.append(1))
        answers(client, NAMES)
        client.close()
    assert len(NAMES) == len(n_requests)


def test_an_error_of_whoever_makes_the_requests_is_raised_and_closes_all() -> None:
    def requests() -> Iterator[tuple[str, SmallRequest]]:
        yield "a", put("a")
        raise OSError("the file is gone")

    def one(peer: Peer) -> None:
        peer.wait_for_end()

    def run(server: Wire, client: Client) -> None:
        with pytest.raises(OSError, match="the file is gone"):
            list(Volley[str](client, 2).answers(requests()))

    with wire(one, one) as server, client_of(server.route()) as client:
        run(server, client)
        client.close()
