"""What the scripts of the page ask for, as JSON: points, the log as it grows, moments."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from wherry.errors import NotFoundError, WherryError
from wherry.redact import redact
from wherry.runs import Run, Series
from wherry.web import ansi
from wherry.web.drawing.bands import band_of
from wherry.web.drawing.colours import marks_of
from wherry.web.drawing.curves import Curve, Wanted, as_drawn, csv_lines, curve_of
from wherry.web.moment import moment_of
from wherry.web.site import Site
from wherry.web.table import text_of, value_of
from wherry.web.view import run_ids, wanted_of, whole


def points(request: Request) -> Response:
    """One metric of one or several runs; with `group`, the mean and the band of each group instead of its runs."""
    site: Site = request.app.state.site
    wanted = wanted_of(request.query_params)
    key, group = request.query_params.get("key", ""), request.query_params.get("group", "")
    ids = run_ids(request.query_params)
    marks = marks_of(ids)
    lines: list[dict[str, object]] = []
    groups: dict[str, list[Curve]] = {}
    for run_id in ids:
        mine = {"id": run_id, "colour": marks[run_id].colour, "dash": marks[run_id].dash}
        try:
            run = site.run(run_id)
            curve = _curve(run, key, wanted)
        except NotFoundError:
            lines.append({**mine, "missing": True})  # it has no such metric, which is no trouble
        except (WherryError, OSError) as error:
            lines.append({**mine, "trouble": redact(str(error))})
        else:
            if group:
                groups.setdefault(text_of(value_of(site.row(run_id), group)), []).append(curve)
            else:
                lines.append({**mine, **as_drawn(curve, wanted)})
    bands = [{"group": name, **band_of(curves, wanted)} for name, curves in groups.items()]
    return as_json({"key": key, "runs": lines, "bands": bands})


def csv(request: Request) -> Response:
    """All points of one metric of one run, none left out."""
    site: Site = request.app.state.site
    (run_id,) = run_ids(request.query_params, most=1)
    series = site.run(run_id).series(request.query_params.get("key", ""), whole=True)
    headers = {"content-disposition": 'attachment; filename="points.csv"'}
    return StreamingResponse(csv_lines(series), media_type="text/csv", headers=headers)


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
    step = whole(request.query_params, "step", 0) or 0
    return as_json(moment_of(site.run(run_id), request.query_params.get("key", ""), step))


def as_json(value: object) -> Response:
    """The value as strict JSON: what is no finite number is null there."""
    return Response(json.dumps(_plain(value), allow_nan=False), media_type="application/json")


def epochs_of(run: Run) -> Series | None:
    """The metric that says the epoch of each step, if the run has one."""
    found = next((key for key in run.keys() if key == "epoch" or key.endswith("/epoch")), None)  # noqa: SIM118
    return None if found is None else run.series(found)


def _curve(run: Run, key: str, wanted: Wanted) -> Curve:
    return curve_of(run.series(key), wanted, epochs_of(run) if wanted.x == "epoch" else None)


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(one) for one in value]
    return value
