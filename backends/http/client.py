"""Sends requests to one server over connections that are kept, and gives their answers.

The rules of "RFC 9110" and "RFC 9112" that a client of an object store needs: 100-continue and other 1xx answers, answers that
come before the body was sent, bodies by length, in chunks or to the connection's end. Redirects are answers like any other.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from wherry.backends.http.body import FileRange
from wherry.backends.http.connection import Connection
from wherry.backends.http.head import Head, parse_chunk_line, parse_head
from wherry.backends.http.routes import Route
from wherry.backends.http.wire_errors import DisconnectedError, ProtocolError, StalledError

#: A server that has not asked for the body by then knows nothing of "100-continue" (RFC 9110, section 10.1.1).
_LEAVE_S = 1.0
#: So long it is not asked for leave then. One that does know it may have been late once, as under load.
_NO_LEAVE_S = 600.0
#: A body up to this size goes with its head: the kernel takes it without waiting, mostly.
_AT_ONCE_BYTES = 64 * 1024
#: Firewalls forget silent connections, some after four minutes, and tell nobody: a request on such a one would wait in vain.
_MOST_IDLE_S = 60.0
#: Of 1xx answers before the answer.
_MOST_INTERIM = 16
_MOST_TRAILERS = 64


@dataclass(frozen=True)
class Request:
    """A request: `head` is all of its lines, without the empty one. It must give the size of the body.

    `head` comes from head_of(). A body of bytes goes with the head; a range of a file is sent when the server has asked for it.
    """

    method: str
    head: bytes
    body: bytes | FileRange = b""
    #: Made twice it does the same as once.
    is_repeatable: bool = True


def head_of(lines: Sequence[str]) -> bytes:
    """The head of a request. ValueError for a line with a break in it, or that is not ASCII: it would say something else."""
    head = "\r\n".join([*lines, ""]).encode("ascii")
    if head.count(b"\r") != len(lines) or head.count(b"\n") != len(lines):
        raise ValueError("a header has no line breaks")
    return head


class Answer:
    """An answer, whose body is still to be read. Read to its end, or closed, it gives the connection back."""

    def __init__(self, method: str, head: Head, connection: Connection, release: Callable[[Connection, bool], None]) -> None:
        self.status = head.status
        self.headers = head.headers
        self._head = head
        self._connection: Connection | None = connection
        self._release = release
        size_bytes = head.body_bytes(method)
        self._is_chunked = size_bytes is None and head.is_chunked
        self._ends_with_connection = size_bytes is None and not head.is_chunked
        #: Of the body, or of the chunk.
        self._left_bytes = sys.maxsize if self._ends_with_connection else size_bytes or 0
        if size_bytes == 0:
            self._finish(is_whole=True)

    def read(self, size_bytes: int) -> bytes:
        """Some of the next bytes of the body, at most `size_bytes`; none at its end only. Raises WireError."""
        if (connection := self._connection) is None:
            return b""
        try:
            if self._is_chunked and not self._left_bytes and not self._next_chunk(connection):
                return b""
            if data := connection.read(min(size_bytes, self._left_bytes)):
                self._left_bytes -= len(data)
                if not self._left_bytes:
                    self._end_piece(connection)
            elif self._ends_with_connection:
                self._finish(is_whole=False)
            else:
                raise DisconnectedError(f"the answer ended {self._left_bytes} bytes early")
        except BaseException:
            self._finish(is_whole=False)
            raise
        return data

    def read_all(self, most_bytes: int) -> bytes:
        """The rest of the body, or its first `most_bytes`. StalledError if it takes more than twice the time-out."""
        connection, data, begun_s = self._connection, b"", time.monotonic()
        while len(data) < most_bytes and (block := self.read(most_bytes - len(data))):
            data += block
            if connection is not None and self._connection is not None and time.monotonic() - begun_s > connection.timeout_s:
                self.close()
                raise StalledError("the answer's body does not end")
        self.close()
        return data

    def close(self) -> None:
        """Read no more. The connection is kept only if the body was read to its end."""
        self._finish(is_whole=False)

    def _next_chunk(self, connection: Connection) -> bool:
        self._left_bytes = parse_chunk_line(connection.read_line())
        if self._left_bytes:
            return True
        for _ in range(_MOST_TRAILERS):
            if (line := connection.read_line()) == b"\r\n":
                self._finish(is_whole=True)
                return False
            if not line.endswith(b"\r\n"):
                raise ProtocolError("the answer's body has a trailer that ends by a bare line feed")
        raise ProtocolError(f"the answer's body has more than {_MOST_TRAILERS} trailers")

    def _end_piece(self, connection: Connection) -> None:
        if not self._is_chunked:
            self._finish(is_whole=True)
        elif connection.read_line() != b"\r\n":
            raise ProtocolError("a chunk of the answer's body has another size than it says")

    def _finish(self, *, is_whole: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._release(connection, is_whole and self._head.keeps)


class Client:
    """Connections to one server, for all threads. `note_request` is called for each request that is sent."""

    def __init__(
        self, route: Route, most_kept: int, note_request: Callable[[], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._route = route
        self.note_request = note_request
        self._most_kept = most_kept
        #: Since when each is not in use; the last one used is at the end.
        self._kept: deque[tuple[float, Connection]] = deque()
        self._process = os.getpid()
        self._is_open = True
        #: Until then no request asks for leave to send, as the server has let one wait for it, or refused to give it.
        self._no_leave_until_s = now()
        weakref.finalize(self, _close_all, self._kept)  # as urllib3 does: nobody has to close a store

    def ask(self, request: Request) -> Answer:
        """Send a request. Raises WireError, and ShortFile or UnreadableFile for the file to send.

        A server may close a connection just when it is used again. Then the request is sent once more, on a new one, if that
        costs no bytes and cannot do anything twice.
        """
        answer = self._ask(request)
        if answer.status == 417 and self._asks_for_leave():  # somebody on the way knows no "Expect"
            self._no_leave_until_s = self._now() + _NO_LEAVE_S
            answer.close()
            answer = self._ask(request)
        return answer

    def _ask(self, request: Request) -> Answer:
        if (kept := self.kept_one()) is not None:
            try:
                return self._exchange(kept, request)
            except DisconnectedError as error:
                if not (error.is_free and request.is_repeatable):
                    raise
        return self._exchange(self.new_one(), request)

    def close(self) -> None:
        """Close the connections that are not in use, and each of the others when its answer ends."""
        self._is_open = False
        _close_all(self._kept)

    def new_one(self) -> Connection:
        """A new connection, for whoever sends requests by himself. Raises ConnectError, TLSError."""
        return Connection(self._route)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose last answer was read to its end."""
        self._release(connection, True)

    def kept_one(self) -> Connection | None:
        """A kept connection, the one that was used last; None: there is none.

        One on which something has come is closed: it was its end, or an answer to a request that nobody sent.
        """
        if self._process != os.getpid():  # after a fork they are the parent's: closed here, they stay open there
            self._process = os.getpid()
            _close_all(self._kept)
        while self._kept:
            try:
                since_s, connection = self._kept.pop()
            except IndexError:  # another thread has it
                return None
            if self._now() - since_s < _MOST_IDLE_S and not connection.has_input():
                return connection
            connection.close()
        return None

    def _release(self, connection: Connection, is_reusable: bool) -> None:
        if is_reusable and self._is_open and len(self._kept) < self._most_kept:
            self._kept.append((self._now(), connection))
        else:
            connection.close()

    def _asks_for_leave(self) -> bool:
        return self._now() >= self._no_leave_until_s

    def _exchange(self, connection: Connection, request: Request) -> Answer:
        self.note_request()
        try:
            head, was_sent = self._send(connection, request)
            if head.status < 300 and not was_sent:
                raise ProtocolError("the server says that it has done it before it had the body")
            return Answer(request.method, head if was_sent else replace(head, keeps=False), connection, self._release)
        except BaseException:
            connection.close()
            raise

    def _send(self, connection: Connection, request: Request) -> tuple[Head, bool]:
        """Send a request. The answer's head, and whether the server has taken all of the body before."""
        if isinstance(request.body, FileRange) or len(request.body) > _AT_ONCE_BYTES:
            return self._send_watching(connection, request.head, request.body)
        try:
            connection.send(request.head + b"\r\n" + request.body)
        except DisconnectedError:  # the server may have said why before it hung up
            return _read_head(connection), False
        return _read_head(connection), True

    def _send_watching(self, connection: Connection, head: bytes, body: bytes | FileRange) -> tuple[Head, bool]:
        """The same for a body that the server may not take at once: an answer that comes meanwhile ends the sending."""
        asks = self._asks_for_leave() and isinstance(body, FileRange)
        answered: list[Head] = []
        interim: list[Head] = []

        def is_answered() -> bool:
            found = _next_head(connection)
            (answered if found.status >= 200 else interim).append(found)
            if len(interim) > _MOST_INTERIM:
                raise _no_answer()
            return bool(answered)

        connection.send(head + (b"Expect: 100-continue\r\n\r\n" if asks else b"\r\n"))
        if asks:
            if not connection.has_input(_LEAVE_S):
                self._no_leave_until_s = self._now() + _NO_LEAVE_S
            elif is_answered():
                return answered[0], False
        try:
            connection.send_file(body if isinstance(body, FileRange) else FileRange(-1, 0, 0, before=body), is_answered)
            if not answered:
                return _read_head(connection), True
        except DisconnectedError as error:
            error.is_free &= not isinstance(body, FileRange)
            raise
        return answered[0], False


def _close_all(kept: deque[tuple[float, Connection]]) -> None:
    with suppress(IndexError):  # none is left, as other threads take them, too
        while True:
            kept.pop()[1].close()


def _read_head(connection: Connection) -> Head:
    for _ in range(_MOST_INTERIM):
        if (head := _next_head(connection)).status >= 200:
            return head
    raise _no_answer()


def _no_answer() -> ProtocolError:
    return ProtocolError(f"the server has given {_MOST_INTERIM} interim answers, and no other")


def _next_head(connection: Connection) -> Head:
    head = parse_head(connection.read_head())
    if head.status == 101:  # what would follow is no HTTP
        raise ProtocolError("the server changes to another protocol, which nobody has asked for")
    return head
