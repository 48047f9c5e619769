"""The pages, made on the server: they can be read without a script, which then draws curves and keeps them fresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jinja2
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from wherry.runs import KeySummary, Run, RunRow
from wherry.runs.checkpoint_rows import best_set, metrics_of, sorted_sets
from wherry.runs.filters import flat
from wherry.runs.telling import best_columns, best_of, metric_columns
from wherry.web import ansi, media_files, uplot, words
from wherry.web.drawing.colours import colour_of, marks_of
from wherry.web.drawing.figures import HEIGHT, WIDTH, heat, parallel
from wherry.web.drawing.rail import Rail, rail_of
from wherry.web.drawing.surroundings import surroundings_of
from wherry.web.media_view import media_view
from wherry.web.site import Site, version_of
from wherry.web.table import cell, different, table_of, text_of, value_of
from wherry.web.view import TABS, TableView, link, run_ids, tab_of, whole

#: A table that is not known whole is shown after this long, with what is known; one without any row later, when it has the first.
_WHOLE_TABLE_S = 0.6
_FIRST_ROWS_S = 2.0
#: So many runs are looked at side by side.
_AT_ONCE = 16
#: More cards than this no page shows; the filter of keys reaches the others.
_MOST_CARDS = 2000
#: More columns than this the table of checkpoints has not.
_MOST_SET_METRICS = 8

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("wherry.web"),
    autoescape=True,
    finalize=words.visible,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {name: getattr(words, name) for name in ("number", "age", "size", "dollars", "moment", "visible", "exact")}
_templates.globals |= {"link": link, "cell": cell, "text_of": text_of, "colour_of": colour_of, "value_of": value_of}
_templates.globals |= {"measure": words.measure}


@dataclass(frozen=True)
class Cards:
    """The charts of one group of keys, which share what stands before their last slash."""

    name: str
    keys: Sequence[str]


def runs(request: Request) -> Response:
    """The table of all runs."""
    site: Site = request.app.state.site
    view = TableView.of(request.query_params)
    known = site.listing.rows(_WHOLE_TABLE_S, _FIRST_ROWS_S)
    table = table_of(known.rows, view)
    only = known.rows[0] if known.is_whole and len(known.rows) == 1 else None
    more = {"view": view, "known": known, "table": table, "only": only, "version": known.version}
    more["marks"] = marks_of([row.id for group in table.groups for row in group.rows])
    return _page(request, "runs.html", "Runs", more)


def run(request: Request) -> Response:
    """One run, in tabs."""
    site: Site = request.app.state.site
    query = request.query_params
    (run_id,) = run_ids(query, most=1)
    tab = tab_of(query)
    found = site.look(run_id)
    version = found.version  # before it is read: what is new meanwhile is news for the page
    more = _OF_TAB[tab](request, found)
    more = {
        "version": version,
        "row": found.row,
        "ids": [run_id],
        "tab": tab,
        "tabs": TABS,
        "truth": words.truth(found.truth()),
        **more,
    }
    more["rail"] = _rail(request, [found.row])
    return _page(request, f"run_{tab}.html", run_id, more)


def compare(request: Request) -> Response:
    """Several runs over one another."""
    site: Site = request.app.state.site
    query = request.query_params
    ids = run_ids(query)
    found = [site.run(run_id) for run_id in ids]
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # each takes some calls
        truths = dict(zip(ids, pool.map(Run.truth, found), strict=True))
    version, rows = version_of(found), [one.row for one in found]
    keys = sorted({key for row in rows for key in row.metrics} or {key for one in found for key in one.keys()})  # noqa: SIM118
    differing = different(rows)
    metrics = metric_columns(rows)
    figure = parallel(rows, [*differing[:8], *best_columns(rows)])
    more = {
        "version": version,
        "rail": _rail(request, rows),
        "rows": rows,
        "ids": ids,
        "tab": "charts",
        "marks": marks_of(ids),
        "base": next((row for row in rows if row.id == query.get("base")), None),
        "differing": differing,
        "metrics": metrics,
        "names": sorted({name for row in rows for name in flat(row.hparams)}),
        "figure": figure,
        "width": WIDTH,
        "height": HEIGHT,
        "truths": truths,
        "bad_words": lambda truth: [one.text for one in words.truth(truth) if one.look == "bad"],
    }
    return _page(request, "compare.html", f"{len(rows)} runs", more | _cards(keys, query.get("keys", "")))


def rail(request: Request) -> Response:
    """The rows of the rail alone, as they are by now."""
    site: Site = request.app.state.site
    query = request.query_params
    ids = run_ids(query)
    found = _rail(request, [site.run(run_id).row for run_id in ids])
    return _html(_templates.get_template("rail_rows.html").render(rail=found, ids=ids, tab=tab_of(query)))


def error(request: Request, status: int, text: str) -> Response:
    """A page that says what is wrong."""
    return _page(request, "error.html", "Not shown", {"text": text}, status)


def icon(request: Request) -> Response:
    """The icon of the tab: a browser asks for it on its own, and would log that it is missing."""
    return FileResponse(Path(__file__).parent / "static" / "icon.svg")


def _rail(request: Request, rows: Sequence[RunRow]) -> Rail:
    """The runs that are shown, and those that this viewer has read: a page of one run asks the store for no other run."""
    site: Site = request.app.state.site
    return rail_of(rows, site.listing.known(), request.query_params.get("find", ""))


def _cards(keys: Sequence[str], wanted: str) -> dict[str, object]:
    chosen = [key for key in keys if wanted.lower() in key.lower()]
    groups: dict[str, list[str]] = {}
    for key in chosen[:_MOST_CARDS]:
        groups.setdefault(key.rpartition("/")[0], []).append(key)
    cards = [Cards(name, groups[name]) for name in sorted(groups, key=_place)]
    return {"groups": cards, "n_cards": min(len(chosen), _MOST_CARDS), "n_keys": len(keys), "wanted_keys": wanted}


def _place(group: str) -> tuple[bool, int, bool, str]:
    """Training and validation come first, and what the machine did last."""
    parts = group.split("/")
    first = {"train": 0, "val": 1}.get(parts[0], 2)
    return "system" in parts, first, group == "", group


def _charts(request: Request, found: Run) -> dict[str, object]:
    keys = [key for key in found.keys() if not key.startswith("system/")]  # noqa: SIM118
    more = {"best": _best(found.row), "hparams": flat(found.hparams()), "found": surroundings_of(found), "with_diff": True}
    return _cards(keys, request.query_params.get("keys", "")) | more


def _system(request: Request, found: Run) -> dict[str, object]:
    return {**_cards(found.system(), request.query_params.get("keys", "")), "best": _best(found.row)}


def _best(row: RunRow) -> Mapping[str, tuple[Sequence[str], KeySummary]]:
    """Of each metric what stands above its chart beside the last number: the best, or both ends where its name says none."""
    return {key: ([best] if (best := best_of(key)) else ["min", "max"], summary) for key, summary in row.metrics.items()}


def _media(request: Request, found: Run) -> dict[str, object]:
    return {
        "media": media_view(found, request.query_params),
        "at_once_bytes": media_files.SHOWN_AT_ONCE_BYTES,
        "heat": heat,
        "width": WIDTH,
        "height": HEIGHT,
    }


def _log(request: Request, found: Run) -> dict[str, object]:
    chunk = found.log(whole(request.query_params, "rank"))
    rank = whole(request.query_params, "rank", chunk.ranks[0] if chunk.ranks else None)
    return {"chunk": chunk, "pieces": list(ansi.pieces(chunk.text)), "rank": rank}


def _checkpoints(request: Request, found: Run) -> dict[str, object]:
    rows, sort = list(reversed(found.checkpoints())), request.query_params.get("sort", "")
    metrics = metrics_of(rows)
    return {
        "checkpoints": sorted_sets(rows, sort or "-step"),
        "metrics": metrics[:_MOST_SET_METRICS],
        "n_metrics": len(metrics),
        "best": best_set(rows, sort),
        "sort": sort or "-step",
    }


def _uploads(request: Request, found: Run) -> dict[str, object]:
    return {"uploads": found.uploads()}


_OF_TAB = {"charts": _charts, "media": _media, "log": _log, "system": _system, "checkpoints": _checkpoints, "uploads": _uploads}


def _page(request: Request, template: str, title: str, more: Mapping[str, object], status: int = 200) -> Response:
    site: Site = request.app.state.site
    shared = {
        "title": title,
        "ids": [],
        "version": None,
        "uris": site.uris,
        "query": request.query_params,
        "usage": words.spent(site.runs.usage()),
        "has_curves": site.has_curves,
        "missing": uplot.MISSING,
    }
    return _html(_templates.get_template(template).render(shared | dict(more)), status)


def _html(text: str, status: int = 200) -> Response:
    """As an answer. An attribute that holds the name itself may have half of a surrogate pair, which UTF-8 has not."""
    return HTMLResponse(text.encode(errors="replace"), status)
