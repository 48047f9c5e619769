"""Threads that share our HTTP client."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from servers.wire import Peer, wire
from wherry.backends.http.client import Client, Request

GET = Request("GET", b"GET /a HTTP/1.1\r\nHost: a\r\n")


@pytest.mark.parametrize("at", range(4))
def test_threads_may_close_the_connections_at_the_same_time(at: int) -> None:
    """Within one close(), after some of its steps, there is another, as a thread may make it then."""

    def talk(peer: Peer) -> None:
        peer.head()
        together.wait(30)
        peer.answer()
        peer.wait_for_end()

    together = threading.Barrier(3)
    with wire(*[talk] * 3) as server, closing(Client(server.route(), 8, lambda: None)) as client, ThreadPoolExecutor(3) as pool:
        for answered in [pool.submit(client.ask, GET) for _ in range(3)]:
            assert 200 == answered.result().status

        steps = iter(range(99))

        def follow(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code.co_name == "_close_all" and event == "line" and next(steps) == at:
                sys.settrace(None)
                client.close()
            return follow

        before = sys.gettrace()
        sys.settrace(follow)
        try:
            client.close()
        finally:
            sys.settrace(before)
        assert at < next(steps)


def test_threads_share_the_connections() -> None:
    def talk(peer: Peer) -> None:
        while head := peer.head():
            peer.answer(head.split()[1])

    with wire(*[talk] * 4) as server, closing(Client(server.route(), 8, lambda: None)) as client:
        together = threading.Barrier(4)
        wrong: list[str] = []

        def ask(name: str) -> None:
            together.wait(30)
            for n in range(200):
                target = f"/{name}-{n}".encode()
                if client.ask(replace(GET, head=b"GET %b HTTP/1.1\r\n" % target)).read_all(100) != target:
                    wrong.append(name)

        threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
