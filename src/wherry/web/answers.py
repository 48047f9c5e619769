"""What the scripts of the page ask for, as JSON: points, the log as it grows, moments, commands."""

from __future__ import annotations

import json
import re

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from wherry.web import ansi
from wherry.web.drawing.chart_data import chart_data
from wherry.web.drawing.command_lines import command_of
from wherry.web.drawing.csv_points import csv_of
from wherry.web.drawing.plain import plain
from wherry.web.moment import moment_of
from wherry.web.site import Site
from wherry.web.view import run_ids, wanted_of, whole


def points(request: Request) -> Response:
    """One metric of one or several runs; with `group`, the mean and the band of each group instead of its runs."""
    site: Site = request.app.state.site
    query = request.query_params
    return as_json(chart_data(site, run_ids(query), query.get("key", ""), wanted_of(query), group=query.get("group", "")))


def csv(request: Request) -> Response:
    """All points of one metric of some runs in the part of x that the query names, none left out."""
    site: Site = request.app.state.site
    query = request.query_params
    key, wanted = query.get("key", ""), wanted_of(query)
    lines = csv_of(site, run_ids(query), key, wanted)
    part = "".join(f"_{name}_{end:g}" for name, end in (("from", wanted.low), ("to", wanted.high)) if end is not None)
    name = re.sub(r"[^\w.+-]+", "_", f"{key}{part}", flags=re.ASCII)[:150]
    return StreamingResponse(lines, media_type="text/csv", headers={"content-disposition": f'attachment; filename="{name}.csv"'})


def log(request: Request) -> Response:
    """What a rank's log has after an offset, in pieces of one look."""
    site: Site = request.app.state.site
    (run_id,) = run_ids(request.query_params, most=1)
    chunk = site.run(run_id).log(whole(request.query_params, "rank"), after=whole(request.query_params, "after"))
    found = [[piece.text, piece.look] for piece in ansi.pieces(chunk.text)]
    return as_json({"pieces": found, "start": chunk.start, "after": chunk.after, "size_bytes": chunk.size_bytes})


def moment(request: Request) -> Response:
    """What belongs to a point."""
    site: Site = request.app.state.site
    (run_id,) = run_ids(request.query_params, most=1)
    query = request.query_params
    step, first_rank = whole(query, "step", 0) or 0, max(0, whole(query, "first_rank", 0) or 0)
    return as_json(moment_of(site.run(run_id), query.get("key", ""), step, whole(query, "start"), first_rank))


def command(request: Request) -> Response:
    """The command that draws what an address shows, in a terminal or into a file."""
    site: Site = request.app.state.site
    query = request.query_params
    return as_json({"command": command_of(query.get("verb", ""), site.uris, site.options, query)})


def as_json(value: object) -> Response:
    """The value as strict JSON: what is no finite number is null there."""
    return Response(json.dumps(plain(value), allow_nan=False), media_type="application/json")
