"""The HTTP server: uvicorn, which says when it is up and when it begins to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

#: How long answers that are under way may take when the server ends.
_LAST_ANSWERS_S = 2


class Serving(uvicorn.Server):
    """Answers until `should_exit` is set, by a signal or another thread; `ending` is set before it waits for open connections."""

    def __init__(self, app: Starlette, ending: asyncio.Event, on_start: Callable[[], object]) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_level="error",  # requests are not logged: their addresses may hold the token
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        )
        super().__init__(config)
        self._ending = ending
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Have endless answers end, then the others."""
        self._ending.set()
        await super().shutdown(sockets)
