"""One request through the fault proxy: up to the server and its answer down again, with what the plan does to both."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from servers.proxy_http import STREAM_LIMIT_BYTES, Head, framed, read_body, read_head, write
from servers.proxy_plan import (
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
)

_A = TypeVar("_A", bound=Action)
_BODILESS = (204, 304)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass
class Exchange:
    """One request and what became of it; its figures grow while it is under way."""

    method: str
    target: str
    started_s: float
    """When its head had come, by time.monotonic()."""
    actions: tuple[Action, ...] = ()
    """What the plan had for it."""
    request_bytes: int = 0
    """Bytes of the request's body that have come from the client."""
    answer_bytes: int = 0
    """Bytes of the answer's body that were sent to the client."""
    upstream_status: int | None = None
    """The server's own status, also where the client was told another or none; None: the server has not answered."""


@dataclass(frozen=True)
class Side:
    """A connection, to the client or to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _ResetNow(Exception):
    """As much of the request has gone up as shall."""


async def carry_out(client: Side, head: Head, exchange: Exchange, upstream: tuple[str, int]) -> bool:
    """Carry one request out; whether the client's connection is good for another.

    Raises OSError or IncompleteReadError when one of the sides goes away.
    """
    if (do := _first(exchange, Do)) is not None:
        await asyncio.to_thread(do.call)
    body = _counted(_paced(read_body(client.reader, head), exchange), exchange)
    if (hole := _first(exchange, BlackHole)) is not None:
        if _expects(head):
            await write(client.writer, _CONTINUE)
        if hole.after_bytes is None:
            await _drain(body)
            return await _end(client, "hang")
        await _drain(_at_most(body, hole.after_bytes))
        await asyncio.Event().wait()  # until the proxy ends: whether the client has gone cannot be seen without reading
        return False
    answer = _first(exchange, Answer)
    if answer is not None and not answer.committed:
        if not _expects(head):
            await _drain(body)
        await _hold_back(exchange)
        # A client that asked first is told at once, as S3 does it; then nothing can follow on this connection.
        return await _answer(client, head, exchange, answer, is_last=_expects(head))
    server = Side(*await asyncio.open_connection(*upstream, limit=STREAM_LIMIT_BYTES))
    sending = asyncio.ensure_future(_send(server, head, body, _first(exchange, Reset)))
    try:
        return await _pass_on(client, server, head, exchange, sending)
    except _ResetNow:
        return await _end(client, "reset")
    finally:
        _hang_up(server, at_once=not sending.done() or sending.cancelled() or sending.exception() is not None)
        await _stop(sending)


async def _stop(work: asyncio.Future[Any]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def _send(server: Side, head: Head, body: AsyncIterator[bytes], reset: Reset | None) -> None:
    """Send a request up. A server that takes no more is no error: it will have said why."""
    left = None if reset is None else reset.after_bytes
    await _offer(server, head.raw)
    if left == 0:
        raise _ResetNow
    async for block in body:
        await _offer(server, framed(block[:left], chunked=head.is_chunked))
        if left is not None:
            left -= len(block[:left])
            if left == 0:
                raise _ResetNow
    if head.is_chunked:
        await _offer(server, b"0\r\n\r\n")


async def _offer(server: Side, data: bytes) -> None:
    with suppress(ConnectionError):
        await write(server.writer, data)


async def _pass_on(client: Side, server: Side, head: Head, exchange: Exchange, sending: asyncio.Future[None]) -> bool:
    """Bring the server's answer to the client, while the request may still be on its way up."""
    reply = await _unless_failed(_final_head(client, server), sending)
    exchange.upstream_status = reply.status
    is_empty = head.words[0] == "HEAD" or reply.status in _BODILESS
    body = read_body(server.reader, reply, is_empty=is_empty, to_end=True)
    drop, answer = _first(exchange, DropAnswer), _first(exchange, Answer)
    if drop is not None or answer is not None:
        await _drain(body)
        await sending
    await _hold_back(exchange)
    if drop is not None:
        return await _end(client, drop.end)
    if answer is not None:
        return await _answer(client, head, exchange, answer)
    if not await _copy_answer(client, reply, body, exchange, is_empty=is_empty):
        return False
    if not sending.done():  # the server does not want the rest
        await _stop(sending)
        return await _say_end(client)
    has_end = is_empty or reply.is_chunked or reply.length is not None
    return head.keeps_alive and reply.keeps_alive and has_end


async def _unless_failed(work: Coroutine[Any, Any, Head], sending: asyncio.Future[None]) -> Head:
    """What `work` gives, or the error of `sending`, if that comes first."""
    task = asyncio.ensure_future(work)
    both: set[asyncio.Future[Any]] = {task, sending}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and not task.done():
            sending.result()
        return await task
    finally:
        await _stop(task)


async def _final_head(client: Side, server: Side) -> Head:
    """The head of the answer; those that only announce it (100 Continue) are passed on."""
    while True:
        head = await read_head(server.reader)
        if head is None:
            raise ConnectionError("the server hung up instead of answering")
        if head.status >= 200:
            return head
        await write(client.writer, head.raw)


async def _copy_answer(client: Side, reply: Head, body: AsyncIterator[bytes], exchange: Exchange, *, is_empty: bool) -> bool:
    """Send an answer down, changed as the plan says; whether the client has got a whole message, and no more."""
    cut, truncate, extend = _first(exchange, CutAnswer), _first(exchange, Truncate), _first(exchange, Extend)
    change, is_whole = 0, True
    if (corrupt := _first(exchange, Corrupt)) is not None:
        body = _corrupted(body, corrupt.at)
    if truncate is not None:
        body = _without_end(body, truncate.n_bytes)
        change -= truncate.n_bytes if truncate.rewrite_length else 0
        is_whole = truncate.rewrite_length
    if extend is not None:
        body = _extended(body, extend)
        change += len(extend.extra) if extend.rewrite_length else 0
        is_whole = is_whole and (extend.rewrite_length or reply.length is None)
    if cut is not None:
        body = _at_most(body, cut.after_bytes)
    await write(client.writer, reply.with_length(max(0, reply.length + change)) if reply.length is not None else reply.raw)
    async for block in _paced(body, exchange):
        exchange.answer_bytes += len(block)
        await write(client.writer, framed(block, chunked=reply.is_chunked))
    if cut is not None:
        return await _end(client, cut.end)
    if is_whole and reply.is_chunked and not is_empty:
        await write(client.writer, b"0\r\n\r\n")
    return is_whole


async def _answer(client: Side, head: Head, exchange: Exchange, answer: Answer, *, is_last: bool = False) -> bool:
    """Send an answer of the plan's own."""
    is_bodiless = answer.status in _BODILESS
    lines = [f"HTTP/1.1 {answer.status} By Plan", *(f"{name}: {value}" for name, value in answer.headers)]
    lines += [] if is_bodiless else [f"Content-Length: {len(answer.body)}"]
    lines += ["Connection: close"] if is_last or not head.keeps_alive else []
    body = b"" if is_bodiless or head.words[0] == "HEAD" else answer.body
    exchange.answer_bytes += len(body)
    await write(client.writer, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
    if is_last:
        return await _say_end(client)
    return head.keeps_alive


async def _hold_back(exchange: Exchange) -> None:
    if (delay := _first(exchange, Delay)) is not None:
        await asyncio.sleep(delay.seconds)


async def _say_end(client: Side) -> bool:
    """End a connection whose request was not read to its end: a plain close would be a reset, and overtake the answer."""
    client.writer.write_eof()
    return await _end(client, "hang")


async def _end(side: Side, end: End) -> bool:
    """End a connection; False, because nothing can follow. "hang" waits until the other side ends it."""
    if end == "hang":
        while await side.reader.read(STREAM_LIMIT_BYTES):
            pass
    _hang_up(side, at_once=end == "reset")
    return False


def _hang_up(side: Side, *, at_once: bool) -> None:
    """Close a connection. `at_once`: with a reset, and what is not sent is lost."""
    if at_once and not side.writer.is_closing():
        # Closing with a linger time of zero sends RST (socket(7)).
        side.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.writer.transport.abort()
    side.writer.close()


def _first(exchange: Exchange, kind: type[_A]) -> _A | None:
    return next((action for action in exchange.actions if isinstance(action, kind)), None)


def _expects(head: Head) -> bool:
    return "100-continue" in head.get("expect").lower()


async def _drain(body: AsyncIterator[bytes]) -> None:
    async for _ in body:
        pass


async def _counted(body: AsyncIterator[bytes], exchange: Exchange) -> AsyncIterator[bytes]:
    async for block in body:
        exchange.request_bytes += len(block)
        yield block


async def _paced(body: AsyncIterator[bytes], exchange: Exchange) -> AsyncIterator[bytes]:
    throttle = _first(exchange, Throttle)
    async for block in body:
        if throttle is not None:
            await asyncio.sleep(len(block) / throttle.bytes_per_s)
        yield block


async def _corrupted(body: AsyncIterator[bytes], at: int) -> AsyncIterator[bytes]:
    async for block in body:
        yield block[:at] + bytes([block[at] ^ 0xFF]) + block[at + 1 :] if 0 <= at < len(block) else block
        at -= len(block)


async def _without_end(body: AsyncIterator[bytes], n_bytes: int) -> AsyncIterator[bytes]:
    held = b""
    async for block in body:
        held += block
        if (ready := len(held) - n_bytes) > 0:
            yield held[:ready]
            held = held[ready:]


async def _extended(body: AsyncIterator[bytes], extend: Extend) -> AsyncIterator[bytes]:
    async for block in body:
        yield block
    await asyncio.sleep(extend.late_s)
    yield extend.extra


async def _at_most(body: AsyncIterator[bytes], n_bytes: int) -> AsyncIterator[bytes]:
    async for block in body:
        if n_bytes:
            yield block[:n_bytes]
        n_bytes -= len(block[:n_bytes])
        if not n_bytes:
            return
