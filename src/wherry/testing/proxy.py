"""A proxy that makes trouble by plan: for tests of anything that speaks HTTP/1.1 to a server on this machine.

>>> with fault_proxy("127.0.0.1", server.port, [When("POST", r"\\?uploadId=", DropAnswer())]) as proxy:
...     uploader = Uploader("s3://bucket", storage_options={**server.options, "endpoint_url": proxy.url})
...     ...
...     assert proxy.unfired == []

It listens on 127.0.0.1, in a thread of its own. Heads pass unchanged, so that a client signs for the proxy's own host and port and
the server finds just that signed. Bodies pass block by block. Each request has a connection to the server for itself.

Plain HTTP only; what the actions do stands in `wherry.testing.proxy_plan`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from wherry.testing.proxy_http import STREAM_LIMIT_BYTES, Head, MalformedError, framed, read_body, read_head, write
from wherry.testing.proxy_plan import (
    Action,
    Answer,
    BlackHole,
    Corrupt,
    CutAnswer,
    Delay,
    Do,
    DropAnswer,
    End,
    Extend,
    Reset,
    Throttle,
    Truncate,
    When,
)

_A = TypeVar("_A", bound=Action)
_BODILESS = (204, 304)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass
class Exchange:
    """One request and what became of it; its figures grow while it is under way."""

    method: str
    target: str
    started_s: float  # by time.monotonic()
    #: The actions that the plan had for it.
    actions: tuple[Action, ...] = ()
    #: Bytes of the request's body that have come from the client.
    request_bytes: int = 0
    #: Bytes of the answer's body that were sent to the client.
    answer_bytes: int = 0
    #: The server's own status, also where the client was told another or none; None: the server did not answer.
    upstream_status: int | None = None


class FaultProxy:
    """A running proxy. Its properties may be read at any time, also after its end."""

    def __init__(self, upstream_host: str, upstream_port: int, plan: Sequence[When]) -> None:
        self.plan = tuple(plan)
        self.port = 0
        self._upstream = upstream_host, upstream_port
        self._log: list[Exchange] = []
        self._seen: Counter[int] = Counter()
        self._fired: Counter[int] = Counter()
        self._connections: set[asyncio.Task[None]] = set()
        self._errors: list[Exception] = []

    @property
    def url(self) -> str:
        """The address to give to a client."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[Exchange]:
        """All requests so far, in the order in which their heads came."""
        return list(self._log)

    @property
    def fired(self) -> list[int]:
        """How many requests each row of the plan has acted on."""
        return [self._fired[row] for row in range(len(self.plan))]

    @property
    def unfired(self) -> list[When]:
        """The rows of the plan that have not acted on as many requests as they say."""
        return [when for when, fired in zip(self.plan, self.fired, strict=True) if fired < when.times]

    def requests(self, method: str = "", target: str = "") -> list[Exchange]:
        """The requests with that method ("" for any), whose target has the regular expression `target` in it."""
        return [one for one in self._log if method in ("", one.method) and re.search(target, one.target)]

    def request_bytes(self, method: str = "", target: str = "") -> int:
        """How many bytes of bodies clients have sent with such requests."""
        return sum(one.request_bytes for one in self.requests(method, target))

    async def _serve(self, started: Future[asyncio.Event]) -> None:
        end = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=STREAM_LIMIT_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        started.set_result(end)
        await end.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writer.transport.set_write_buffer_limits(high=0)
        try:
            while (head := await read_head(reader)) is not None:
                if not await self._exchange(_Side(reader, writer), head):
                    break
        except (OSError, asyncio.IncompleteReadError):  # one side has gone: so must the other
            writer.transport.abort()
        except Exception as error:  # the test's own function, or a message that is no HTTP: raised when the proxy ends
            self._errors.append(error)
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    def _note(self, head: Head) -> Exchange:
        method, target, _ = head.words
        due: list[Action] = []
        for row, when in enumerate(self.plan):
            if when.matches(method, target, head.raw.decode("latin-1")):
                self._seen[row] += 1
                if when.nth <= self._seen[row] < when.nth + when.times:
                    self._fired[row] += 1
                    due.append(when.action)
        self._log.append(Exchange(method, target, time.monotonic(), tuple(due)))
        return self._log[-1]

    async def _exchange(self, client: _Side, head: Head) -> bool:
        """Carry one request out; whether the client's connection is good for another."""
        exchange = self._note(head)
        if (do := _first(exchange, Do)) is not None:
            await asyncio.to_thread(do.call)
        body = _counted(_paced(read_body(client.reader, head), exchange), exchange)
        if _first(exchange, BlackHole) is not None:
            return await _black_hole(client, head, body)
        answer = _first(exchange, Answer)
        if answer is not None and not answer.committed:
            expects = _expects(head)
            if not expects:  # a client that asked first is told at once, as S3 does
                await _drain(body)
            return await _answer(client, head, exchange, answer, last=expects)
        server_reader, server_writer = await asyncio.open_connection(*self._upstream, limit=STREAM_LIMIT_BYTES)
        server = _Side(server_reader, server_writer)
        sending = asyncio.ensure_future(_send(server, head, body, _first(exchange, Reset)))
        try:
            return await self._pass_on(client, server, head, exchange, sending)
        except _ResetNow:
            return await _end(client, "reset")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await _end(server, "reset" if sending.cancelled() or sending.exception() else "close")

    async def _pass_on(self, client: _Side, server: _Side, head: Head, exchange: Exchange, sending: asyncio.Future[None]) -> bool:
        """Bring the server's answer to the client while the request may still be on its way up."""
        reply = await _unless_failed(_final_head(client, server), sending)
        exchange.upstream_status = reply.status
        is_empty = head.words[0] == "HEAD" or reply.status in _BODILESS
        body = _nothing() if is_empty else read_body(server.reader, reply, to_end=True)
        if (delay := _first(exchange, Delay)) is not None:
            await asyncio.sleep(delay.seconds)
        drop, answer = _first(exchange, DropAnswer), _first(exchange, Answer)
        if drop is not None or answer is not None:
            await _drain(body)
            await sending
        if drop is not None:
            return await _end(client, drop.end)
        if answer is not None:
            return await _answer(client, head, exchange, answer)
        is_whole = await _copy_answer(client, reply, body, exchange, is_empty=is_empty)
        if not is_whole:
            return False
        if not sending.done():  # the server did not want the rest: let the client read why, before it meets a reset
            client.writer.write_eof()
            await _read_to_end(client)
            return False
        has_end = is_empty or reply.is_chunked or reply.length is not None
        return head.keeps_alive and reply.keeps_alive and has_end


@dataclass(frozen=True)
class _Side:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _ResetNow(Exception):
    """As much of the request has gone up as shall."""


@contextmanager
def fault_proxy(upstream_host: str, upstream_port: int, plan: Sequence[When] = ()) -> Iterator[FaultProxy]:
    """Run a proxy before a server until the block is left; connections that are still open then are cut.

    Raises at the end what a `Do` raised, and for messages that are no HTTP.
    """
    proxy = FaultProxy(upstream_host, upstream_port, plan)
    started: Future[asyncio.Event] = Future()
    loop = asyncio.new_event_loop()

    def serve() -> None:
        try:
            loop.run_until_complete(proxy._serve(started))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        except OSError as error:
            started.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=serve, name="fault-proxy", daemon=True)
    thread.start()
    try:
        end = started.result()
        try:
            yield proxy
        finally:
            loop.call_soon_threadsafe(end.set)
    finally:
        thread.join()
    if proxy._errors:
        raise proxy._errors[0]


def _first(exchange: Exchange, kind: type[_A]) -> _A | None:
    return next((action for action in exchange.actions if isinstance(action, kind)), None)


def _expects(head: Head) -> bool:
    return "100-continue" in head.get("expect").lower()


async def _unless_failed(work: Coroutine[Any, Any, Head], sending: asyncio.Future[None]) -> Head:
    """What `work` gives, or the error of `sending`, if that comes first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, sending}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and not task.done():
            sending.result()
        return await task
    finally:
        task.cancel()


async def _send(server: _Side, head: Head, body: AsyncIterator[bytes], reset: Reset | None) -> None:
    """Send a request up. A server that takes no more is no error: it will have said why."""
    left = None if reset is None else reset.after_bytes
    await _take(server, head.raw)
    if left == 0:
        raise _ResetNow
    async for block in body:
        await _take(server, framed(block[:left], chunked=head.is_chunked))
        if left is not None:
            left -= len(block[:left])
            if left == 0:
                raise _ResetNow
    if head.is_chunked:
        await _take(server, b"0\r\n\r\n")


async def _take(server: _Side, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        await write(server.writer, data)


async def _final_head(client: _Side, server: _Side) -> Head:
    """The head of the answer; those that only announce it (100 Continue) are passed on."""
    while True:
        head = await read_head(server.reader)
        if head is None:
            raise ConnectionError("the server hung up instead of answering")
        if head.status >= 200:
            return head
        await write(client.writer, head.raw)


async def _copy_answer(client: _Side, reply: Head, body: AsyncIterator[bytes], exchange: Exchange, *, is_empty: bool) -> bool:
    """Send an answer down, changed as the plan says; whether the client has got a whole message, and no more."""
    cut, truncate, extend = _first(exchange, CutAnswer), _first(exchange, Truncate), _first(exchange, Extend)
    raw, length, is_whole = reply.raw, reply.length, True
    if (corrupt := _first(exchange, Corrupt)) is not None:
        body = _corrupted(body, corrupt.at)
    if truncate is not None:
        body = _without_end(body, truncate.n_bytes)
        is_whole = truncate.rewrite_length
        if truncate.rewrite_length and length is not None:
            raw = reply.with_length(length := max(0, length - truncate.n_bytes))
    if extend is not None:
        body = _extended(body, extend.extra)
        is_whole = is_whole and (extend.rewrite_length or length is None)
        if extend.rewrite_length and length is not None:
            raw = reply.with_length(length + len(extend.extra))
    if cut is not None:
        body = _at_most(body, cut.after_bytes)
    await write(client.writer, raw)
    async for block in _paced(body, exchange):
        exchange.answer_bytes += len(block)
        await write(client.writer, framed(block, chunked=reply.is_chunked))
    if cut is not None:
        return await _end(client, cut.end)
    if is_whole and reply.is_chunked and not is_empty:
        await write(client.writer, b"0\r\n\r\n")
    return is_whole


async def _answer(client: _Side, head: Head, exchange: Exchange, answer: Answer, *, last: bool = False) -> bool:
    """Send an answer of the plan's. `last`: the request's body is not read, so nothing can follow."""
    lines = [f"HTTP/1.1 {answer.status} By Plan", *(f"{name}: {value}" for name, value in answer.headers)]
    lines += [f"Content-Length: {len(answer.body)}"] if answer.status not in _BODILESS else []
    lines += ["Connection: close"] if last or not head.keeps_alive else []
    body = b"" if head.words[0] == "HEAD" or answer.status in _BODILESS else answer.body
    exchange.answer_bytes += len(body)
    await write(client.writer, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
    if last:
        client.writer.write_eof()
        await _read_to_end(client)
    return head.keeps_alive and not last


async def _black_hole(client: _Side, head: Head, body: AsyncIterator[bytes]) -> bool:
    if _expects(head):
        await write(client.writer, _CONTINUE)
    await _drain(body)
    return await _end(client, "hang")


async def _end(side: _Side, end: End) -> bool:
    """End a connection; False, because nothing can follow."""
    if end == "hang":
        await _read_to_end(side)
    if end == "reset":
        # Closing with a linger time of zero sends RST (tcp(7), socket(7)).
        side.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.writer.transport.abort()
    side.writer.close()
    return False


async def _read_to_end(side: _Side) -> None:
    while await side.reader.read(STREAM_LIMIT_BYTES):
        pass


async def _drain(body: AsyncIterator[bytes]) -> None:
    async for _ in body:
        pass


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""  # what makes it an iterator


async def _counted(body: AsyncIterator[bytes], exchange: Exchange) -> AsyncIterator[bytes]:
    async for block in body:
        exchange.request_bytes += len(block)
        yield block


async def _paced(body: AsyncIterator[bytes], exchange: Exchange) -> AsyncIterator[bytes]:
    throttle = _first(exchange, Throttle)
    async for block in body:
        yield block
        if throttle is not None:
            await asyncio.sleep(len(block) / throttle.bytes_per_s)


async def _corrupted(body: AsyncIterator[bytes], at: int) -> AsyncIterator[bytes]:
    async for block in body:
        if 0 <= at < len(block):
            yield block[:at] + bytes([block[at] ^ 0xFF]) + block[at + 1 :]
        else:
            yield block
        at -= len(block)


async def _without_end(body: AsyncIterator[bytes], n_bytes: int) -> AsyncIterator[bytes]:
    held = b""
    async for block in body:
        held += block
        if len(held) > n_bytes:
            yield held[: len(held) - n_bytes]
            held = held[len(held) - n_bytes :]


async def _extended(body: AsyncIterator[bytes], extra: bytes) -> AsyncIterator[bytes]:
    async for block in body:
        yield block
    yield extra


async def _at_most(body: AsyncIterator[bytes], n_bytes: int) -> AsyncIterator[bytes]:
    async for block in body:
        if block := block[:n_bytes]:
            yield block
        n_bytes -= len(block)
