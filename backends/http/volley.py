"""Many small requests by one thread, several under way at once, each on a connection of its own.

Threads that wait for one answer each spend as much on handing Python's lock to one another as on a request of a few KiB. One
thread that waits for all answers takes less than half of their processor time.

For fine weather only: at the first trouble nothing more is begun, and a request without an answer is left out of the answers.
Whoever made it makes it again by Client.ask(), which says what is wrong.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from wherry.backends.http.client import Answer, Client
from wherry.backends.http.connection import Connection
from wherry.backends.http.head import Head, parse_head
from wherry.backends.http.wire_errors import WireError
from wherry.posix.thread_pool import each_at_once

_T = TypeVar("_T")
#: How often connections on which nothing comes are looked at.
_LOOK_S = 1.0


@dataclass(frozen=True)
class SmallRequest:
    """A request whose body is in memory: `data` is all that is sent."""

    method: str
    data: bytes


@dataclass
class _UnderWay(Generic[_T]):
    what: _T
    method: str
    connection: Connection
    #: Since when nothing was sent. The answer's head is to come within the time-out, from its first byte to its last.
    since_s: float


class Volley(Generic[_T]):
    """Makes requests to the server of a client, at most `most` at once."""

    def __init__(self, client: Client, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._most = most
        self._now = now
        self._idle: list[Connection] = []
        #: By the descriptor of the connection.
        self._under_way: dict[int, _UnderWay[_T]] = {}
        #: The request whose data the kernel has not all taken: nothing else is begun before, so that little is held in memory.
        self._unsent: _UnderWay[_T] | None = None
        self._poll = select.poll()
        self._begins = True
        self._looked_s = now()

    def answers(self, requests: Iterable[tuple[_T, SmallRequest]]) -> Iterator[tuple[_T, Answer]]:
        """The answers, of any status, as they come, each with what its request was given with; read each before the next.

        A request without an answer may have reached the server or not. `requests` is asked for the next one when there is room
        for it, so it can end after an answer that is no good.
        """
        waiting = iter(requests)
        try:
            self._connect()
            self._begin(waiting)
            while self._under_way:
                for descriptor, _ in self._poll.poll(_LOOK_S * 1000):
                    one = self._under_way[descriptor]
                    if (head := self._head_of(one)) is not None:
                        yield one.what, Answer(one.method, head, one.connection, self._release)
                    self._begin(waiting)
                self._drop_the_silent()
        finally:
            for one in self._under_way.values():
                one.connection.close()
            while self._idle:
                self._client.give_back(self._idle.pop())

    def _connect(self) -> None:
        """Take the connections that are kept, and make the others side by side, as each takes some round trips."""
        while len(self._idle) < self._most and (kept := self._client.kept_one()) is not None:
            self._idle.append(kept)
        made = each_at_once(lambda _: self._connection(), range(self._most - len(self._idle)))
        self._idle += [connection for connection in made if connection is not None]

    def _connection(self) -> Connection | None:
        try:
            return self._client.new_one()
        except WireError:  # whoever asks alone is told
            return None

    def _begin(self, waiting: Iterator[tuple[_T, SmallRequest]]) -> None:
        while self._begins and self._unsent is None and self._has_unused():
            if (given := next(waiting, None)) is None:
                self._begins = False
                return
            (what, request), connection = given, self._idle.pop()
            one = _UnderWay(what, request.method, connection, self._now())
            self._under_way[connection.fileno()] = one
            self._poll.register(connection.fileno(), select.POLLIN)
            self._client.note_request()
            try:
                if not connection.begin(request.data):
                    self._unsent = one
                    self._poll.modify(connection.fileno(), select.POLLIN | select.POLLOUT)
            except WireError:
                self._lose(one)

    def _has_unused(self) -> bool:
        """Whether there is an idle connection on which nothing has come, neither its end nor an answer to nobody's request."""
        while self._idle and self._idle[-1].has_input():
            self._idle.pop().close()
        return bool(self._idle)

    def _head_of(self, one: _UnderWay[_T]) -> Head | None:
        """The head of an answer, if it has come; the request is then no longer under way."""
        try:
            if one is self._unsent:
                one.since_s = self._now()
                if one.connection.go_on():
                    self._unsent = None
                    self._poll.modify(one.connection.fileno(), select.POLLIN)
            if (raw := one.connection.head_if_come()) is None:
                return None
            head = parse_head(raw)
        except WireError:
            self._lose(one)
            return None
        if head.status < 200 or one is self._unsent:  # nobody has asked for leave; an answer before its request
            self._lose(one)
            return None
        self._leave(one)
        return head

    def _leave(self, one: _UnderWay[_T]) -> None:
        descriptor = one.connection.fileno()
        del self._under_way[descriptor]
        self._poll.unregister(descriptor)

    def _lose(self, one: _UnderWay[_T]) -> None:
        self._begins = False
        if one is self._unsent:
            self._unsent = None
        self._leave(one)
        one.connection.close()

    def _drop_the_silent(self) -> None:
        now_s = self._now()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            for one in [one for one in self._under_way.values() if now_s - one.since_s > one.connection.timeout_s]:
                self._lose(one)

    def _release(self, connection: Connection, is_reusable: bool) -> None:
        if is_reusable:
            self._idle.append(connection)
        else:
            connection.close()
