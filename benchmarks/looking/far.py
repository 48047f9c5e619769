"""A server that is far away: a proxy that hands every answer over a while later, and counts the requests.

    python far.py PORT SECONDS

prints its own port, and the counts as JSON at each line that it reads; it ends with its input. It looks at nothing but the first
lines of requests: bodies are not to hold any. Connections are made at once.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter, deque

_REQUEST = re.compile(rb"(?:^|\r\n)(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")


class Far(asyncio.Protocol):
    """One side of a connection, which hands what it gets to the other side after `late_s`, in order."""

    def __init__(self, late_s: float, counts: Counter[str] | None) -> None:
        self.late_s, self.counts = late_s, counts
        self.to: asyncio.Transport | None = None
        self.transport: asyncio.Transport | None = None
        self.waiting: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.counts is not None:
            for method, target in _REQUEST.findall(data):
                self.counts["list" if b"list-type=" in target else method.decode()] += 1
        self.waiting.append(data)
        if self.late_s and self.to is not None:
            asyncio.get_running_loop().call_later(self.late_s, self.hand_over)
        else:
            self.hand_over()

    def hand_over(self) -> None:
        while self.to is not None and self.waiting:
            self.to.write(self.waiting.popleft())
            if self.late_s:
                break

    def connection_lost(self, error: Exception | None) -> None:
        if self.to is not None:
            asyncio.get_running_loop().call_later(self.late_s, self.to.close)


async def serve(port: int, late_s: float) -> None:
    loop, counts = asyncio.get_running_loop(), Counter[str]()
    under_way: set[asyncio.Task[None]] = set()

    def accepted() -> Far:
        near, there = Far(0.0, counts), Far(late_s, None)

        async def join() -> None:
            transport, _ = await loop.create_connection(lambda: there, "127.0.0.1", port)
            near.to, there.to = transport, near.transport
            near.hand_over()

        task = loop.create_task(join())
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        return near

    server = await loop.create_server(accepted, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
