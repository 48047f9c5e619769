"""The fault proxy: transparent where the plan says nothing, and exact where it says something."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gate import wait_until
from servers.proxy import (
    Action,
    Answer,
    BlackHole,
    Corrupt,
    CutAnswer,
    Delay,
    Do,
    DropAnswer,
    Extend,
    FaultProxy,
    Reset,
    Throttle,
    Truncate,
    When,
    fault_proxy,
    gcs_error,
    s3_error,
)

DATA = random.Random(3).randbytes(3 * 2**20 + 1)
REFUSED = b"<Error>no</Error>"
#: What stays silent for so long after all that was due has come is taken to hang.
SILENCE_S = 0.3


@dataclass
class Seen:
    """What the server has had: requests with whole bodies, and how far it came with the others."""

    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    more: threading.Event = field(default_factory=threading.Event)
    ports: set[int] = field(default_factory=set)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD give DATA, framed as the path says; PUT takes a body; "/refuse" refuses one without reading it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Upstream

    def handle_expect_100(self) -> bool:
        if self.path == "/refuse":
            self.close_connection = True
            self._reply(REFUSED, 403)
            return False
        return super().handle_expect_100()

    def do_GET(self) -> None:
        self.server.seen.heads.append(f"{self.requestline}\n{self.headers}")
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(DATA), 100_000):
                block = DATA[at : at + 100_000]
                self.wfile.write(b"%x;name=value\r\n%b\r\n" % (len(block), block))
            self.wfile.write(b"0\r\nTrailer: x\r\n\r\n")
        elif self.path == "/to-end":
            self.close_connection = True
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(DATA)
        elif self.path == "/empty":
            self.send_response(204)
            self.end_headers()
        elif self.path == "/slow":
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"1")
            assert self.server.seen.more.wait(60)
            self.wfile.write(b"2")
        else:
            self._reply(DATA)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        body, left = b"", int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        elif self.path == "/slow":
            body = self.rfile.read(1)
            self.server.seen.more.set()
            body += self.rfile.read(left - 1)
        else:
            try:
                while len(body) < left and (block := self.rfile.read1(left - len(body))):
                    body += block
            except ConnectionError:
                block = b""
            if len(body) < left:
                self.close_connection = True
                self.server.seen.cut.append(len(body))
                self.server.seen.more.set()
                return
        self.server.seen.bodies.append(body)
        self._reply(b"stored")

    def _reply(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("X-Odd", "  spaced   out ")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Upstream(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.seen = Seen()
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what these tests are about."""

    def process_request(self, request: object, client_address: object) -> None:
        self.seen.ports.add(client_address[1])  # type: ignore[index]
        super().process_request(request, client_address)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def seen(upstream: Upstream) -> Seen:
    upstream.seen = Seen()
    return upstream.seen


@contextmanager
def proxied(upstream: Upstream, *plan: When) -> Iterator[tuple[FaultProxy, http.client.HTTPConnection]]:
    with (
        fault_proxy("127.0.0.1", upstream.server_address[1], plan) as proxy,
        closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)) as connection,
    ):
        yield proxy, connection


def ask(connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection.request(method, target, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def outcome(connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None = None) -> str:
    """How a client sees an answer that is lost."""
    try:
        connection.request(method, target, body)
    except ConnectionError:
        return "reset"
    return outcome_of(connection, 60.0)


def outcome_of(connection: http.client.HTTPConnection, silence_s: float = SILENCE_S) -> str:
    """How a client, whose request is sent, sees an answer that is lost."""
    connection.sock.settimeout(silence_s)
    try:
        connection.getresponse().read()
    except TimeoutError:
        return "hang"
    except http.client.RemoteDisconnected:
        return "close"
    except ConnectionError:
        return "reset"
    return "answer"


class TestTransparent:
    @pytest.mark.parametrize("target", ["/length", "/chunked", "/to-end"])
    def test_an_answer_comes_as_it_was_sent(self, upstream: Upstream, target: str) -> None:
        with proxied(upstream) as (proxy, connection):
            assert (200, DATA) == ask(connection, "GET", target)
            assert [(1, 200, len(DATA))] == [(len(proxy.log), one.upstream_status, one.answer_bytes) for one in proxy.log]

    def test_heads_pass_unchanged(self, upstream: Upstream, seen: Seen) -> None:
        with proxied(upstream) as (proxy, connection):
            connection.putrequest("GET", "/a%2Fb?x=%20&y", skip_host=True, skip_accept_encoding=True)
            for name, value in (("HOST", "signed.example:1"), ("x-b", "two  words"), ("X-A", "1")):
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            answer.read()
        assert ["GET /a%2Fb?x=%20&y HTTP/1.1\nHOST: signed.example:1\nx-b: two  words\nX-A: 1\n\n"] == seen.heads
        assert "spaced   out" == (answer.getheader("X-Odd") or "").strip()
        assert proxy.url == f"http://127.0.0.1:{proxy.port}"

    @pytest.mark.parametrize("size_bytes", [0, 1, len(DATA)])
    def test_a_body_with_a_length_goes_up_whole(self, upstream: Upstream, seen: Seen, size_bytes: int) -> None:
        with proxied(upstream) as (proxy, connection):
            assert (200, b"stored") == ask(connection, "PUT", "/x", DATA[:size_bytes])
            assert [DATA[:size_bytes]] == seen.bodies
            assert size_bytes == proxy.request_bytes("PUT", "^/x$")

    def test_a_body_in_chunks_goes_up_whole(self, upstream: Upstream, seen: Seen) -> None:
        blocks = [DATA[:1], DATA[1:200_000], DATA[200_000:]]
        with proxied(upstream) as (proxy, connection):
            connection.request("PUT", "/x", iter(blocks), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
            assert b"stored" == connection.getresponse().read()
            assert [DATA] == seen.bodies
            assert len(DATA) == proxy.log[0].request_bytes

    def test_one_connection_carries_many_requests(self, upstream: Upstream, seen: Seen) -> None:
        with proxied(upstream) as (proxy, connection):
            ask(connection, "GET", "/length")
            assert connection.sock is not None
            port = connection.sock.getsockname()[1]
            for method, target in (("HEAD", "/length"), ("HEAD", "/chunked"), ("GET", "/empty"), ("GET", "/chunked")):
                ask(connection, method, target)
            assert (200, b"stored") == ask(connection, "PUT", "/x", b"1")
            assert port == connection.sock.getsockname()[1]
            assert ["GET", "HEAD", "HEAD", "GET", "GET", "PUT"] == [one.method for one in proxy.log]
        assert port not in seen.ports

    def test_a_head_has_a_length_and_no_body(self, upstream: Upstream) -> None:
        with proxied(upstream) as (proxy, connection):
            connection.request("HEAD", "/length")
            answer = connection.getresponse()
            assert (str(len(DATA)), b"") == (answer.getheader("Content-Length"), answer.read())
            assert 0 == proxy.log[0].answer_bytes

    def test_an_answer_is_passed_on_before_it_is_whole(self, upstream: Upstream, seen: Seen) -> None:
        with proxied(upstream) as (_, connection):
            connection.request("GET", "/slow")
            answer = connection.getresponse()
            assert b"1" == answer.read(1)
            seen.more.set()
            assert b"2" == answer.read()

    def test_a_body_is_passed_on_before_it_is_whole(self, upstream: Upstream, seen: Seen) -> None:
        with proxied(upstream) as (_, connection):
            connection.putrequest("PUT", "/slow")
            connection.putheader("Content-Length", "2")
            connection.endheaders(b"1")
            assert seen.more.wait(60)
            connection.send(b"2")
            assert b"stored" == connection.getresponse().read()

    def test_many_clients_at_once_get_their_own_answers(self, upstream: Upstream, seen: Seen) -> None:
        def put(n: int) -> bytes:
            with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)) as own:
                return b"".join(ask(own, "PUT", f"/{n}/{i}", bytes([n]) * 1000)[1] for i in range(5))

        with proxied(upstream) as (proxy, _), ThreadPoolExecutor(8) as pool:
            assert [b"stored" * 5] * 8 == list(pool.map(put, range(8)))
            assert 40 == len(proxy.log)
        assert sorted(bytes([n]) * 1000 for n in range(8) for _ in range(5)) == sorted(seen.bodies)

    def test_a_server_that_is_not_there_is_a_broken_connection(self) -> None:
        with closing(socket.socket()) as held:  # bound and not listening
            held.bind(("127.0.0.1", 0))
            with fault_proxy("127.0.0.1", held.getsockname()[1]) as proxy:
                with closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)) as connection:
                    assert outcome(connection, "GET", "/") in ("close", "reset")
                assert [None] == [one.upstream_status for one in proxy.log]


def expecting(proxy: FaultProxy, target: str, size_bytes: int) -> tuple[socket.socket, bytes]:
    """Ask for permission to send a body; the connection, and what it says."""
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=60)
    head = f"PUT {target} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {size_bytes}\r\n\r\n"
    client.sendall(head.encode())
    said = b""
    while b"\r\n\r\n" not in said and (block := client.recv(1000)):
        said += block
    return client, said


class TestPermission:
    def test_the_servers_permission_is_passed_on(self, upstream: Upstream, seen: Seen) -> None:
        with proxied(upstream) as (proxy, _):
            client, said = expecting(proxy, "/x", len(DATA))
            with client:
                assert said.startswith(b"HTTP/1.1 100 ")
                client.sendall(DATA)
                assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert [DATA] == seen.bodies

    def test_the_servers_refusal_is_passed_on_without_the_body(self, upstream: Upstream) -> None:
        with proxied(upstream) as (proxy, _):
            client, said = expecting(proxy, "/refuse", len(DATA))
            with client:
                while block := client.recv(1000):
                    said += block
            assert said.startswith(b"HTTP/1.1 403 ")
            assert said.endswith(REFUSED)
            assert 0 == proxy.log[0].request_bytes

    def test_the_plans_refusal_comes_without_the_body(self, upstream: Upstream, seen: Seen) -> None:
        with proxied(upstream, When("PUT", "", Answer(503, REFUSED))) as (proxy, _):
            client, said = expecting(proxy, "/x", len(DATA))
            with client:
                while block := client.recv(1000):
                    said += block
            assert said.startswith(b"HTTP/1.1 503 ")
            assert b"Connection: close" in said
            assert said.endswith(REFUSED)
        assert ([], []) == (seen.bodies, seen.cut)

    def test_a_black_hole_gives_permission(self, upstream: Upstream, seen: Seen) -> None:
        with proxied(upstream, When("PUT", "", BlackHole())) as (proxy, _):
            client, said = expecting(proxy, "/x", 10)
            with client:
                assert said.startswith(b"HTTP/1.1 100 ")
        assert ([], []) == (seen.bodies, seen.cut)


class TestActions:
    @pytest.mark.parametrize("after_bytes", [0, 1, 100_000, len(DATA) - 1])
    def test_a_reset_cuts_the_body_on_both_sides(self, upstream: Upstream, seen: Seen, after_bytes: int) -> None:
        with proxied(upstream, When("PUT", "", Reset(after_bytes))) as (proxy, connection):
            assert "reset" == outcome(connection, "PUT", "/x", DATA)
            if after_bytes:
                assert seen.more.wait(60)
                assert seen.cut[0] <= after_bytes  # a reset may overtake what came before it
            assert after_bytes <= proxy.log[0].request_bytes <= len(DATA)
            assert proxy.unfired == []
        assert [] == seen.bodies

    @pytest.mark.parametrize("end", ["reset", "close", "hang"])
    def test_a_dropped_answer_is_lost_after_the_server_has_done_it(self, upstream: Upstream, seen: Seen, end: str) -> None:
        with proxied(upstream, When("PUT", "", DropAnswer(end))) as (proxy, connection):  # type: ignore[arg-type]
            connection.request("PUT", "/x", DATA)
            wait_until(lambda: proxy.log and proxy.log[0].upstream_status, what="the server's answer")
            assert end == outcome_of(connection, SILENCE_S if end == "hang" else 60.0)
            assert [DATA] == seen.bodies
            assert (200, 0) == (proxy.log[0].upstream_status, proxy.log[0].answer_bytes)

    def test_a_black_hole_takes_everything_and_answers_nothing(self, upstream: Upstream, seen: Seen) -> None:
        with proxied(upstream, When("PUT", "", BlackHole())) as (proxy, connection):
            connection.request("PUT", "/x", DATA)
            wait_until(lambda: proxy.log and proxy.log[0].request_bytes == len(DATA), what="all bytes to be taken")
            assert "hang" == outcome_of(connection)
            assert (len(DATA), None) == (proxy.log[0].request_bytes, proxy.log[0].upstream_status)
        assert ([], []) == (seen.bodies, seen.cut)

    @pytest.mark.parametrize("committed", [False, True])
    def test_an_answer_of_the_plan_comes_before_or_after_the_server(
        self, upstream: Upstream, seen: Seen, committed: bool
    ) -> None:
        answer = s3_error(200, "InternalError", committed=committed)
        with proxied(upstream, When("PUT", "", answer)) as (proxy, connection):
            status, body = ask(connection, "PUT", "/x", DATA)
            assert (200, answer.body) == (status, body)
            assert b"<Code>InternalError</Code>" in body
            assert ([DATA] if committed else []) == seen.bodies
            assert (200 if committed else None) == proxy.log[0].upstream_status
            assert (200, b"stored") == ask(connection, "PUT", "/x", b"")  # on the same connection

    def test_errors_carry_their_headers(self, upstream: Upstream) -> None:
        plan = [
            When("GET", "/s3", s3_error(503, "SlowDown", retry_after_s=7)),
            When("GET", "/gcs", gcs_error(429, "rateLimitExceeded", retry_after_s=8)),
        ]
        with proxied(upstream, *plan) as (_, connection):
            found = []
            for target in ("/s3", "/gcs"):
                connection.request("GET", target)
                answer = connection.getresponse()
                answer.read()
                found.append((answer.status, answer.getheader("Retry-After"), answer.getheader("Content-Type")))
        assert [(503, "7", "application/xml"), (429, "8", "application/json; charset=UTF-8")] == found

    def test_a_head_is_answered_without_a_body(self, upstream: Upstream) -> None:
        with proxied(upstream, When("HEAD", "", Answer(404, b"words"))) as (_, connection):
            assert (404, b"") == ask(connection, "HEAD", "/length")
            assert (200, DATA) == ask(connection, "GET", "/length")

    @pytest.mark.parametrize("target", ["/length", "/chunked", "/to-end"])
    @pytest.mark.parametrize("n_bytes", [1, 100_000])
    def test_a_truncated_answer_lacks_its_end(self, upstream: Upstream, target: str, n_bytes: int) -> None:
        with proxied(upstream, When("GET", "", Truncate(n_bytes))) as (_, connection):
            connection.request("GET", target)
            try:
                found = connection.getresponse().read()
                assert target == "/to-end"  # where nothing tells a client
            except http.client.IncompleteRead as error:
                found = error.partial
        assert DATA[:-n_bytes] == found

    @pytest.mark.parametrize("target", ["/length", "/chunked"])
    def test_a_truncated_answer_may_lie_about_its_length(self, upstream: Upstream, target: str) -> None:
        with proxied(upstream, When("GET", "", Truncate(5, rewrite_length=True))) as (_, connection):
            assert (200, DATA[:-5]) == ask(connection, "GET", target)
            assert (200, DATA) == ask(connection, "GET", target)

    @pytest.mark.parametrize("target", ["/length", "/chunked", "/to-end"])
    def test_an_over_long_answer_may_lie_about_its_length(self, upstream: Upstream, target: str) -> None:
        with proxied(upstream, When("GET", "", Extend(b"more", rewrite_length=True))) as (_, connection):
            assert (200, DATA + b"more") == ask(connection, "GET", target)

    def test_an_over_long_answer_may_go_on_after_its_end(self, upstream: Upstream) -> None:
        with (
            proxied(upstream, When("GET", "", Extend(b"more"))) as (proxy, _),
            socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client,
        ):
            client.sendall(b"GET /length HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b""
            while block := client.recv(100_000):
                said += block
        assert f"Content-Length: {len(DATA)}\r\n".encode() in said
        assert DATA + b"more" == said.partition(b"\r\n\r\n")[2]

    @pytest.mark.parametrize("target", ["/length", "/chunked"])
    @pytest.mark.parametrize("at", [0, 123_456, len(DATA) - 1, len(DATA)])
    def test_one_byte_is_corrupted(self, upstream: Upstream, target: str, at: int) -> None:
        with proxied(upstream, When("GET", "", Corrupt(at))) as (_, connection):
            _, found = ask(connection, "GET", target)
        assert len(DATA) == len(found)
        assert [(at, 0xFF)][: at < len(DATA)] == [(i, a ^ b) for i, (a, b) in enumerate(zip(DATA, found, strict=True)) if a != b]

    @pytest.mark.parametrize("end", ["reset", "close", "hang"])
    @pytest.mark.parametrize("after_bytes", [0, 70_000])
    def test_an_answer_is_cut_in_its_body(self, upstream: Upstream, end: str, after_bytes: int) -> None:
        found = b""
        with proxied(upstream, When("GET", "", CutAnswer(after_bytes, end))) as (proxy, connection):  # type: ignore[arg-type]
            connection.request("GET", "/length")
            answer = None
            how = "close"
            try:
                answer = connection.getresponse()
                found = answer.read(after_bytes)
                connection.sock.settimeout(SILENCE_S if end == "hang" else 60.0)
                while block := answer.read1():
                    found += block
            except TimeoutError:
                how = "hang"
            except ConnectionResetError:
                how = "reset"
            if answer is not None:
                answer.close()
            assert end == how
            assert DATA[: len(found)] == found
            if end != "reset":  # which may overtake the bytes before it
                assert after_bytes == len(found)
            assert after_bytes == proxy.log[0].answer_bytes

    def test_a_delayed_answer_comes_later_than_those_asked_for_after_it(self, upstream: Upstream) -> None:
        plan = [When("GET", "/late", Delay(3600)), When("GET", "/early", Answer(200, b"early"))]
        with (
            proxied(upstream, *plan) as (proxy, connection),
            closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)) as late,
        ):
            late.request("GET", "/late")
            assert (200, b"early") == ask(connection, "GET", "/early")
            assert "hang" == outcome_of(late)

    def test_a_delayed_answer_comes_after_its_delay(self, upstream: Upstream) -> None:
        with proxied(upstream, When("GET", "", Delay(0.2))) as (_, connection):
            started_s = time.monotonic()
            assert (200, DATA) == ask(connection, "GET", "/length")
            assert time.monotonic() - started_s >= 0.18

    @pytest.mark.parametrize(("method", "body"), [("PUT", DATA[:10_000]), ("GET", None)])
    def test_a_throttled_body_takes_its_time(self, upstream: Upstream, method: str, body: bytes | None) -> None:
        rate = 50_000 if method == "PUT" else 5 * len(DATA)
        with proxied(upstream, When(method, "", Throttle(rate))) as (_, connection):
            started_s = time.monotonic()
            assert 200 == ask(connection, method, "/x", body)[0]
            assert time.monotonic() - started_s >= 0.18

    def test_a_function_is_called_before_the_request_goes_on(self, upstream: Upstream, seen: Seen) -> None:
        found: list[int] = []
        with proxied(upstream, When("PUT", "", Do(lambda: found.append(len(seen.bodies))), times=2)) as (_, connection):
            for _ in range(2):
                ask(connection, "PUT", "/x", b"")
        assert [0, 1] == found

    def test_what_a_function_raises_is_raised_at_the_end(self, upstream: Upstream) -> None:
        def fail() -> None:
            raise ZeroDivisionError("of the test")

        with (
            pytest.raises(ZeroDivisionError, match="of the test"),
            proxied(upstream, When("GET", "", Do(fail))) as (_, connection),
        ):
            assert outcome(connection, "GET", "/length") in ("close", "reset")

    def test_what_is_no_http_is_raised_at_the_end(self, upstream: Upstream) -> None:
        with (
            pytest.raises(Exception, match="Content-Length is 'x'"),
            proxied(upstream) as (proxy, _),
            socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client,
        ):
            client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: x\r\n\r\n")
            assert client.recv(10) == b""


class TestPlans:
    @pytest.mark.parametrize(
        ("when", "expected"),
        [
            ({}, [404, 200, 200]),
            ({"nth": 2}, [200, 404, 200]),
            ({"nth": 2, "times": 9}, [200, 404, 404]),
            ({"times": 3}, [404, 404, 404]),
        ],
    )
    def test_a_row_acts_from_its_nth_match_on(self, upstream: Upstream, when: dict[str, int], expected: list[int]) -> None:
        with proxied(upstream, When("HEAD", "", Answer(404), **when)) as (proxy, connection):  # type: ignore[arg-type]
            ask(connection, "GET", "/empty")  # no match, so not counted
            assert expected == [ask(connection, "HEAD", "/length")[0] for _ in range(3)]
            assert [expected.count(404)] == proxy.fired
            assert (expected.count(404) < when.get("times", 1)) == bool(proxy.unfired)

    @pytest.mark.parametrize(
        ("row", "matches"),
        [
            (When("GET", "", Answer(404)), True),
            (When("", "", Answer(404)), True),
            (When("GE", "", Answer(404)), False),
            (When("PUT", "", Answer(404)), False),
            (When("", r"^/a\?partNumber=2&", Answer(404)), True),
            (When("", r"^/a\?partNumber=1", Answer(404)), False),
            (When("", "", Answer(404), header="^range: bytes=0-9$"), True),
            (When("", "", Answer(404), header="^range: bytes=1"), False),
        ],
    )
    def test_a_request_is_named_by_method_target_and_head(self, upstream: Upstream, row: When, matches: bool) -> None:
        with proxied(upstream, row) as (proxy, connection):
            connection.request("GET", "/a?partNumber=2&uploadId=x", headers={"Range": "bytes=0-9"})
            connection.getresponse().read()
            assert [int(matches)] == proxy.fired

    def test_rows_count_for_themselves_and_act_together(self, upstream: Upstream) -> None:
        plan = [When("GET", "", Corrupt(0)), When("GET", "", Truncate(1, rewrite_length=True), nth=1, times=2)]
        with proxied(upstream, *plan) as (proxy, connection):
            both = bytes([DATA[0] ^ 0xFF]) + DATA[1:-1]
            assert [both, DATA[:-1], DATA] == [ask(connection, "GET", "/length")[1] for _ in range(3)]
            assert [(Corrupt(0), plan[1].action), (plan[1].action,), ()] == [one.actions for one in proxy.log]
            assert [1, 2] == proxy.fired

    @pytest.mark.parametrize("action", [BlackHole(), Delay(3600), DropAnswer("hang"), CutAnswer(0, "hang"), Throttle(1)])
    def test_the_end_of_the_proxy_cuts_what_hangs(self, upstream: Upstream, action: Action) -> None:
        with proxied(upstream, When("", "", action)) as (proxy, connection):
            connection.request("PUT", "/x", b"123")
            assert "hang" == outcome_of(connection)
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=60):
                pass
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", proxy.port), timeout=60)
        assert [] == [thread for thread in threading.enumerate() if thread.name == "fault-proxy"]
