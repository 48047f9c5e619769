"""What our HTTP client makes of bytes that are said to it, and the laws that hold whatever they are."""

from __future__ import annotations

import http.client
import io
import os
import re
import socket
from ast import literal_eval
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from wherry.backends.http.body import FileRange
from wherry.backends.http.client import Client, Request
from wherry.backends.http.routes import Route
from wherry.backends.http.wire_errors import WireError

#: The size of a body that is sent from a file.
_FILE_BYTES = 100
#: What atheris has found to lead to different places of the client: one Python literal a line. See CONTRIBUTING.md.
CORPUS = Path(__file__).with_name("answers.txt")


def corpus() -> list[bytes]:
    """All of CORPUS."""
    return [literal_eval(line) for line in CORPUS.read_text().splitlines()]


@dataclass(frozen=True)
class Said(Route):
    """A way to ourselves, on which everything has been said already."""

    data: bytes = b""
    #: The connection takes no bytes.
    hangs_up: bool = False
    #: Closed by the caller.
    theirs: list[socket.socket] = field(default_factory=list)

    def connect(self) -> socket.socket:
        """As Route says."""
        ours, theirs = socket.socketpair()
        theirs.sendall(self.data)
        self.theirs.append(theirs)
        theirs.shutdown(socket.SHUT_RDWR if self.hangs_up else socket.SHUT_WR)
        return ours


def hear(data: bytes) -> bytes | None:
    """Send a request to somebody who says `data`, whose first byte chooses which request; the body, None after an error.

    Raises AssertionError, or whatever came, if a law was broken: there are WireErrors only; a connection is kept only if its
    answer was whole and nothing came after it; the standard library reads the same body.
    """
    choice, data = data[0] if data else 0, data[1:]
    method = ("GET", "HEAD", "PUT", "PUT")[choice & 3]
    route = Said("", 0, None, 30.0, 30.0, data=data, hangs_up=bool(choice & 4))
    client = Client(route, 1, lambda: None)
    file = os.memfd_create("body")
    try:
        os.truncate(file, _FILE_BYTES)
        content = FileRange(file, 0, _FILE_BYTES) if choice & 3 == 3 else b"" if method != "PUT" else b"small"
        with suppress(WireError):
            answer = client.ask(Request(method, b"", content))
            body = b""
            while block := answer.read((choice >> 3) * 7 + 1):
                body += block
            _check(method, data, answer.status, body)
            return body
        return None
    finally:
        os.close(file)
        for theirs in route.theirs:
            theirs.close()
        client.close()


def _check(method: str, data: bytes, status: int, body: bytes) -> None:
    if status in (204, 304) or re.search(rb"HTTP/1\.[01] 1(?!00)", data):
        return  # the standard library reads chunks where no body is, and takes an interim answer for the answer

    @dataclass
    class Source:
        def makefile(self, *_: object) -> io.BytesIO:
            return io.BytesIO(data)

    other = http.client.HTTPResponse(cast("Any", Source()), method=method)
    other.begin()
    assert (status, body) == (other.status, other.read())
