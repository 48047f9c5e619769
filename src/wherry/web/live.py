"""What is new, as server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from wherry.errors import WherryError
from wherry.redact import redact
from wherry.web.site import Site, version_of
from wherry.web.view import MOST_COMPARED, whole
from wherry.web.words import spent

#: `Run.refresh()` knows when its writer stores something next, and returns at once before that: asking it costs nothing.
_LOOK_S = 1.0
#: While the table is read for the first time its rows are shown as they come.
_LOOK_FOR_ROWS_S = 0.4


def live(request: Request) -> Response:
    """Send an event when something is new in the runs that the query names, or in the table if it names none.

    `version` in the query is that of the page: what was new between its making and this call is told at once. It goes on until
    the page is hidden or closed, which closes the connection, or the server ends.
    """
    site: Site = request.app.state.site
    ids = list(dict.fromkeys(request.query_params.getlist("id")))[:MOST_COMPARED]
    version = whole(request.query_params, "version")
    return StreamingResponse(_events(site, ids, version), media_type="text/event-stream")


async def _events(site: Site, ids: list[str], version: int | None) -> AsyncIterator[str]:
    told, look_s = "", _LOOK_S
    yield "retry: 3000\n\n"
    while not site.ending.is_set():
        try:
            if ids:
                found = await asyncio.to_thread(_refresh, site, ids)
            else:
                rows = await asyncio.to_thread(site.listing.rows)
                found = rows.version
                look_s = _LOOK_S if rows.is_whole else _LOOK_FOR_ROWS_S
            if version is not None and found != version:
                yield _event("news", {})
            version = found
        except (WherryError, OSError) as error:
            yield _event("trouble", {"text": redact(str(error))})
        now = spent(site.runs.usage())
        if now != told:
            told = now
            yield _event("usage", {"text": now})
        try:
            await asyncio.wait_for(site.ending.wait(), look_s)
        except asyncio.TimeoutError:
            continue


def _refresh(site: Site, ids: list[str]) -> int:
    """The version of the runs together, after a look at each."""
    return version_of([site.look(run_id) for run_id in ids])


def _event(name: str, data: dict[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
