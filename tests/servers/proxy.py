"""A proxy that makes trouble by plan: for tests of anything that speaks HTTP/1.1 to a server on this machine.

>>> with fault_proxy("127.0.0.1", server.port, [When("POST", r"\\?uploadId=", DropAnswer())]) as proxy:
...     uploader = Uploader("s3://bucket", storage_options={**server.options, "endpoint_url": proxy.url})
...     ...
...     assert proxy.unfired == []

It listens on 127.0.0.1, in a thread of its own. Heads pass unchanged, so that a client signs for the proxy's own host and port
and the server finds just that signed. Bodies pass block by block. Each request has a connection to the server for itself.

Plain HTTP only. What the actions do stands in `servers.proxy_plan`.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from servers.proxy_exchange import Exchange, Side, carry_out
from servers.proxy_http import STREAM_LIMIT_BYTES, Head, read_head
from servers.proxy_plan import (
    Action,
    Answer,
    BlackHole,
    Corrupt,
    CutAnswer,
    Delay,
    Do,
    DropAnswer,
    Extend,
    Reset,
    Throttle,
    Truncate,
    When,
    gcs_error,
    s3_error,
)

__all__ = [
    "Action",
    "Answer",
    "BlackHole",
    "Corrupt",
    "CutAnswer",
    "Delay",
    "Do",
    "DropAnswer",
    "Exchange",
    "Extend",
    "FaultProxy",
    "Reset",
    "Throttle",
    "Truncate",
    "When",
    "fault_proxy",
    "gcs_error",
    "s3_error",
]


class FaultProxy:
    """A running proxy; fault_proxy() makes one. What it tells may be read at any time, also after its end."""

    def __init__(self, upstream_host: str, upstream_port: int, plan: Sequence[When]) -> None:
        self.plan = tuple(plan)
        self.port = 0
        self._upstream = upstream_host, upstream_port
        self._log: list[Exchange] = []
        self._seen: Counter[int] = Counter()
        self._fired: Counter[int] = Counter()
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
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
        """The rows of the plan that have acted on fewer requests than they say."""
        return [when for when, fired in zip(self.plan, self.fired, strict=True) if fired < when.times]

    def requests(self, method: str = "", target: str = "") -> list[Exchange]:
        """The requests with that method ("" for any) in whose target the regular expression `target` is found."""
        return [one for one in self.log if method in ("", one.method) and re.search(target, one.target)]

    def request_bytes(self, method: str = "", target: str = "") -> int:
        """How many bytes of bodies clients have sent with such requests."""
        return sum(one.request_bytes for one in self.requests(method, target))

    async def _serve(self, started: Future[asyncio.Event]) -> None:
        # Not asyncio.start_server(): it forgets a connection that it accepts while it is closed (python/cpython#109564).
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            listener.setblocking(False)
            self.port = listener.getsockname()[1]
            loop, end = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(listener, self._accept, listener)
            started.set_result(end)
            await end.wait()
            loop.remove_reader(listener)
        left = dict(self._connections)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for connection in left.values():  # those that nobody had begun to serve
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it was gone before we came
            return
        # An answer goes in several pieces: without this each waits for the client's delayed acknowledgement, 40 ms. asyncio
        # does it only for sockets that were made with IPPROTO_TCP by name.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.ensure_future(self._converse(connection))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    def change(self, plan: Sequence[When]) -> None:
        """Go on with another plan, from the next request on."""
        self._seen, self._fired, self.plan = Counter(), Counter(), tuple(plan)

    async def _converse(self, connection: socket.socket) -> None:
        client = Side(*await asyncio.open_connection(sock=connection, limit=STREAM_LIMIT_BYTES))
        client.writer.transport.set_write_buffer_limits(high=0)  # what is counted as sent is in the kernel's hands
        try:
            while (head := await read_head(client.reader)) is not None:
                if not await carry_out(client, head, self._note(head), self._upstream):
                    break
        except (OSError, asyncio.IncompleteReadError):  # one side has gone, and so must the other
            client.writer.transport.abort()
        except Exception as error:  # the test's own function, or what is no HTTP: raised when the proxy ends
            self._errors.append(error)
            client.writer.transport.abort()
        finally:
            client.writer.close()

    def _note(self, head: Head) -> Exchange:
        method, target, _ = head.words
        text = head.raw.decode("latin-1").replace("\r\n", "\n")
        due: list[Action] = []
        for row, when in enumerate(self.plan):
            if when.matches(method, target, text):
                self._seen[row] += 1
                if when.nth <= self._seen[row] < when.nth + when.times:
                    self._fired[row] += 1
                    due.append(when.action)
        self._log.append(Exchange(method, target, time.monotonic(), tuple(due)))
        return self._log[-1]


@contextmanager
def fault_proxy(upstream_host: str, upstream_port: int, plan: Sequence[When] = ()) -> Iterator[FaultProxy]:
    """Run a proxy before a server until the block is left; connections that are open then are cut.

    Raises at the end what a `Do` has raised, and for messages that were no HTTP.
    """
    proxy = FaultProxy(upstream_host, upstream_port, plan)
    started: Future[asyncio.Event] = Future()
    loop = asyncio.new_event_loop()

    def serve() -> None:
        try:
            loop.run_until_complete(proxy._serve(started))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        except OSError as error:  # it cannot listen
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
