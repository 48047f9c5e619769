"""The parser of answers: what is right is read as others read it; what is not is a ProtocolError, and nothing else ever."""

from __future__ import annotations

import http.client
import io
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import example, given, settings, strategies as st

from wherry.backends.http.client import Answer
from wherry.backends.http.connection import Connection
from wherry.backends.http.head import parse_chunk_line, parse_head
from wherry.backends.http.routes import Route
from wherry.backends.http.wire_errors import DisconnectedError, ProtocolError, WireError

OK = b"HTTP/1.1 200 OK\r\n"

names = st.text("ABCdef-_.019!~", min_size=1, max_size=12).filter(
    lambda name: name.lower() not in ("content-length", "connection")
)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)
#: Bytes that look like a head more often than others do.
pieces = st.sampled_from(
    [
        *(OK, b"HTTP/1.0 204\r\n", b"\r\n", b"\n", b"\r", b" ", b":", b"\0", b"A: b\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"abc"),
        *(b"Content-Length: 3\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    ]
)
noise = st.lists(st.one_of(pieces, st.binary(max_size=8)), max_size=12).map(b"".join)


@settings(deadline=None)
@given(status=st.integers(100, 599), fields=st.lists(st.tuples(names, values), unique_by=lambda field: field[0].lower()))
@example(status=204, fields=[])
def test_a_head_is_read_as_it_was_written(status: int, fields: list[tuple[str, str]]) -> None:
    lines = [f"HTTP/1.1 {status} words", *(f"{name}: \t{value} " for name, value in fields), "Content-Length: 7", "", ""]
    head = parse_head("\r\n".join(lines).encode("latin-1"))
    assert status == head.status
    assert {name.lower(): value for name, value in fields} | {"content-length": "7"} == head.headers
    assert head.keeps == (status != 204), "which has no body, but this server may send one"


@settings(max_examples=500, deadline=None)
@given(noise)
@example(OK + b"\r\n")
def test_what_is_accepted_the_standard_library_reads_alike(data: bytes) -> None:
    try:
        head = parse_head(data)
    except ProtocolError:
        return

    @dataclass
    class Source:
        def makefile(self, *_: object) -> io.BytesIO:
            return io.BytesIO(data)

    other = http.client.HTTPResponse(cast("Any", Source()))
    if head.status != 100:  # it reads on after those
        other.begin()
        assert (other.status, other.chunked) == (head.status, head.is_chunked)
        if head.status > 199:
            assert (other.length, other.will_close) == (head.body_bytes("GET"), not head.keeps or _has_no_end(data))


def _has_no_end(data: bytes) -> bool:
    head = parse_head(data)
    return head.body_bytes("GET") is None and not head.is_chunked


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\r\n\r\n",
        b"HTTP/1.1 200 OK\n\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 99 OK\r\n\r\n",
        b"HTTP/1.1 600 OK\r\n\r\n",
        b" HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 O\0K\r\n\r\n",
        OK + b"A : b\r\n\r\n",
        OK + b" A: b\r\n\r\n",
        OK + b"A: b\r\n c\r\n\r\n",
        OK + b"A: b\nB: c\r\n\r\n",
        OK + b"A: b\rB: c\r\n\r\n",
        OK + b"A: b\0\r\n\r\n",
        OK + b"A\r\n\r\n",
        OK + b": b\r\n\r\n",
        OK + b"A: b\r\n\r\nB: c\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: +1\r\n\r\n",
        OK + b"Content-Length: 1, 1\r\n\r\n",
        OK + b"Content-Length: 0x1\r\n\r\n",
        OK + b"Content-Length: \r\n\r\n",
        OK + b"Content-Length: " + b"9" * 19 + b"\r\n\r\n",
        OK + "Content-Length: ²\r\n\r\n".encode("latin-1"),
        OK + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
        OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: identity\r\n\r\n",
        OK + b"Transfer-Encoding: chunked \r\n\r\n",
        OK + b"Transfer-Encoding:chunked\t\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_can_be_understood_in_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_head(head)


def test_a_hundred_headers_are_no_error() -> None:
    fields = {f"x-{n}": "v" * 100 for n in range(100)}
    assert fields == parse_head(OK + "".join(f"{name}: {text}\r\n" for name, text in fields.items()).encode() + b"\r\n").headers


def test_other_headers_may_come_twice() -> None:
    assert {"a": "1, 2"} == parse_head(OK + b"A: 1\r\na: 2\r\n\r\n").headers


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\n\r\n", OK + b"Connection: Close\r\n\r\n"])
def test_these_connections_are_not_kept(head: bytes) -> None:
    assert not parse_head(head).keeps


@pytest.mark.parametrize(
    "line", [b"\r\n", b"-1\r\n", b"0x1\r\n", b"1 2\r\n", b"1\n", b"f" * 16 + b"\r\n", b"1;a\rb\r\n", b" 1\r\n"]
)
def test_a_chunk_begins_with_its_size(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_chunk_line(line)


class Loop(Route):
    """A connection to ourselves, on which everything has been said already."""

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(_said.pop())
        return ours


_said: list[bytes] = []


def heard(data: bytes, size_bytes: int = 5) -> bytes:
    """The body of an answer to GET that comes like this, on a connection that ends then."""
    _said.append(data)
    connection = Connection(Loop("", 0, None, 1.0, 30.0))
    released: list[bool] = []

    def release(connection: Connection, is_reusable: bool) -> None:
        released.append(is_reusable)
        connection.close()

    body = b""
    try:
        answer = Answer("GET", parse_head(connection.read_head()), connection, release)
        while block := answer.read(size_bytes):
            body += block
    finally:
        assert len(released) <= 1
        connection.close()
    assert len(released) == 1
    return body


@settings(deadline=None)
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300)),
    size_bytes=st.integers(1, 400),
    extension=st.sampled_from([b"", b";a=b", b" "]),
)
def test_chunks_are_joined_however_they_are_read(chunks: list[bytes], size_bytes: int, extension: bytes) -> None:
    coded = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    said = OK + b"Transfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\nTrailer: x\r\n\r\n"
    assert b"".join(chunks) == heard(said, size_bytes)


@settings(deadline=None)
@given(body=st.binary(max_size=500), n_missing=st.integers(1, 500), kind=st.sampled_from(["length", "chunks"]))
def test_a_body_that_ends_early_is_an_error(body: bytes, n_missing: int, kind: str) -> None:
    if kind == "length":
        said = OK + b"Content-Length: %d\r\n\r\n" % (len(body) + n_missing) + body
    else:
        said = OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (len(body) + n_missing) + body
    with pytest.raises(DisconnectedError):
        heard(said)


@pytest.mark.parametrize("chunks", [b"3\r\nabcd\r\n0\r\n\r\n", b"3\r\nab\r\n0\r\n\r\n", b"3\r\nabc\n0\r\n\r\n"])
def test_a_chunk_has_the_size_that_it_says(chunks: bytes) -> None:
    with pytest.raises(ProtocolError):
        heard(OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)


@pytest.mark.parametrize("trailers", [b"\n", b"\nHTTP/1.1 200 OK\r\n", b"a: b\n"])
def test_a_trailer_ends_as_a_header_does(trailers: bytes) -> None:
    with pytest.raises(ProtocolError):
        heard(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n" + trailers + b"\r\n")


@settings(max_examples=500, deadline=None)
@given(noise)
@example(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 70)
@example(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n")
@example(OK + b"A: " + b"b" * 2**17)
def test_whatever_comes_is_an_answer_or_an_error_of_ours(data: bytes) -> None:
    with suppress(WireError):
        heard(data)
