"""csv_of(): the points of a chart as CSV (https://www.rfc-editor.org/rfc/rfc4180), none left out."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from wherry.errors import NotFoundError
from wherry.runs import Run
from wherry.web.drawing.chart_data import Source, epochs_of
from wherry.web.drawing.curves import Wanted, x_axis

#: So many lines are made at a time.
_LINES = 10_000
#: A spreadsheet takes a cell that begins so for a formula (https://owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = tuple("=+-@\t\r")


def csv_of(source: Source, ids: Sequence[str], key: str, wanted: Wanted) -> Iterator[str]:
    """All points between `wanted.low` and `wanted.high`, run by run, in the order in which they were logged.

    `t`: seconds since 1970; overwritten: of an older branch; epochs and relative times are a column of their own. NotFoundError,
    now, if none of the runs has the metric.
    """
    runs = [run for run in map(source.run, ids) if key in run.keys()]  # noqa: SIM118
    if not runs:
        raise NotFoundError(f"no run that is asked for has the metric {key!r}")
    return _lines(runs, key, wanted)


def _lines(runs: Sequence[Run], key: str, wanted: Wanted) -> Iterator[str]:
    import numpy as np

    has_x = wanted.x in ("epoch", "relative")
    yield _text([["run", "step", "t", *([wanted.x] if has_x else []), "value", "overwritten"]])
    for run in runs:  # one after the other: a run may have a million points
        series = run.series(key, whole=True)
        x = x_axis(series, wanted.x, epochs_of(run, whole=True) if wanted.x == "epoch" else None)
        name = f"'{run.id}" if run.id.startswith(_FORMULA) else run.id
        kept = np.flatnonzero(wanted.sees(x))
        for begin in range(0, len(kept), _LINES):
            part = kept[begin : begin + _LINES]
            columns: list[list[Any]] = [series.step[part].tolist(), series.t[part].tolist()]
            columns += [x[part].tolist()] if has_x else []
            columns += [series.value[part].tolist(), series.overwritten[part].astype(int).tolist()]
            yield _text([name, *row] for row in zip(*columns, strict=True))


def _text(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
