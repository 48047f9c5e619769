"""html_report(): runs in one file that loads nothing: the charts of the page with their points, tables, alerts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jinja2
from markupsafe import Markup

from wherry.redact import redact
from wherry.runs import Run
from wherry.runs.filters import flat
from wherry.runs.telling import metric_columns
from wherry.web import uplot, words
from wherry.web.drawing.chart_data import chart_data
from wherry.web.drawing.chosen_runs import Choice
from wherry.web.drawing.colours import marks_of
from wherry.web.drawing.curves import Wanted
from wherry.web.drawing.plain import plain
from wherry.web.drawing.said import said
from wherry.web.drawing.surroundings import surroundings_of
from wherry.web.report.scripts import allowed, script, styles
from wherry.web.table import cell, different, text_of

#: All charts together, some 20 bytes a point: a report is sent by mail.
_MOST_POINTS = 200_000
_POINTS_PER_LINE = range(100, 1001)
_MOST_CHARTS = 200
_MOST_ALERTS = 200
#: Alerts are looked for in so much of the end of each log.
_LOG_BYTES = 4 * 2**20
_ALERT = re.compile(r"^\[alert\]\[(\w{1,20})\]: (.*)$", re.MULTILINE)

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("wherry.web"),
    autoescape=True,
    finalize=words.visible,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= {name: getattr(words, name) for name in ("number", "age", "size", "dollars", "moment", "visible", "exact")}
_templates.filters["redact"] = redact
_templates.globals |= {"cell": cell, "text_of": text_of, "measure": words.measure}


@dataclass(frozen=True)
class ReportView:
    """How the charts of a report look. `baseline`: the id of a run. `with_diff`: the changes of the code are in it, too."""

    wanted: Wanted = field(default_factory=Wanted)
    log_x: bool = False
    clip: bool = False
    group: str = ""
    baseline: str = ""
    with_diff: bool = False


@dataclass(frozen=True)
class Alert:
    """A line that `Logger.alert()` has written to a run's log."""

    run_id: str
    rank: int
    level: str
    text: str


@dataclass(frozen=True)
class Chart:
    """A metric, and what its chart leaves out."""

    key: str
    notes: Sequence[str]


def html_report(chosen: Choice, view: ReportView, *, now_s: float, version: str) -> str:
    """The chosen runs and metrics as one HTML document; the metrics must have been read.

    Nothing of a run is in it but as escaped text; a policy in it allows its own script and styles, and nothing else. Where uPlot
    is missing it has no curves, and says so.
    """
    keys = chosen.keys[:_MOST_CHARTS]
    n_lines = max(1, len(keys) * max(1, len(chosen.rows)))
    n_points = max(_POINTS_PER_LINE.start, min(_POINTS_PER_LINE[-1], _MOST_POINTS // n_lines))
    wanted = replace(view.wanted, n_points=n_points)
    charts = [chart_data(chosen, chosen.ids, key, wanted, group=view.group, whole=True) for key in keys]
    rows = list(chosen.rows.values())
    code, look = script() if uplot.is_there() else "", styles()
    return _templates.get_template("report.html").render(
        policy=_policy(code, look),
        script=_verbatim(code, "script"),
        styles=_verbatim(look, "style"),
        data=_island({"view": _view(view), "charts": [_short(one) for one in charts]}),
        charts=[_chart(key, data, view) for key, data in zip(keys, charts, strict=True)],
        n_keys=len(chosen.keys),
        n_points=n_points,
        rows=rows,
        marks=marks_of(chosen.ids),
        uris=chosen.reader.uris,
        differing=different(rows) if len(rows) > 1 else [],
        metrics=metric_columns(rows),
        hparams=flat(chosen.runs[0].hparams()) if len(rows) == 1 else {},
        truths={run.id: run.truth() for run in chosen.runs},
        truth=words.truth,
        alerts=[alert for run in chosen.runs for alert in alerts_of(run)][:_MOST_ALERTS],
        surroundings={run.id: surroundings_of(run) for run in chosen.runs},
        with_diff=view.with_diff,
        view=view,
        missing="" if code else uplot.MISSING,
        made=words.moment(now_s),
        version=version,
    )


def alerts_of(run: Run) -> Iterator[Alert]:
    """The alerts in the ends of the logs of all ranks, in the order of each log."""
    for rank in run.log().ranks:
        text = run.log(rank, max_bytes=_LOG_BYTES).text
        for match in _ALERT.finditer(text):
            yield Alert(run.id, rank, match[1], match[2])


def _policy(code: str, look: str) -> str:
    """What a browser may do for this file: run our script, use our styles, and ask nobody for anything."""
    scripts = allowed(code) if code else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src {allowed(look)}; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _chart(key: str, data: Mapping[str, object], view: ReportView) -> Chart:
    has_part = view.wanted.low is not None or view.wanted.high is not None
    return Chart(key, said(data, has_part=has_part, has_clip=view.clip))


def _view(view: ReportView) -> dict[str, object]:
    """By the names that an address of the page has."""
    wanted = view.wanted
    found: dict[str, object] = {"x": wanted.x, "low": wanted.low, "high": wanted.high, "base": view.baseline or None}
    flags = {"log": wanted.log_y, "logx": view.log_x, "clip": view.clip}
    return found | {name: "1" for name, is_set in flags.items() if is_set}


def _short(value: object, digits: int = 7) -> object:
    """Numbers with as many digits as a chart can show: x may be seconds since 1970, and needs more."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {str(name): _short(one, 13 if name in ("x", "low", "high") else digits) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_short(one, digits) for one in value]
    return plain(value)


def _island(value: object) -> Markup:
    """JSON that cannot end its element: without < and >, and in ASCII, so that no name breaks the file's encoding."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704  # no markup is left


def _verbatim(code: str, element: str) -> Markup:
    """Our own code, which must not be escaped, as its hash is in the policy."""
    if f"</{element}" in code.lower() or "<!--" in code:
        raise AssertionError(f"the code of the page would end its {element} element")
    return Markup(code)  # noqa: S704  # of this package, not of a bucket
