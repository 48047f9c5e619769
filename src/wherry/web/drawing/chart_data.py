"""chart_data(): all that one chart shows of one metric, for the page, the report and the terminal."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from wherry.errors import ConfigError, NotFoundError, WherryError
from wherry.redact import redact
from wherry.runs import Run, RunRow, Series
from wherry.web.drawing.bands import band_of
from wherry.web.drawing.colours import marks_of
from wherry.web.drawing.curves import Curve, Wanted, as_drawn, curve_of
from wherry.web.drawing.outliers import Bulk, axis_of, bulk_of
from wherry.web.table import text_of, value_of

#: A curve of a million points takes 40 MB while it is computed, and no less time beside others: a page asks for six at once.
_computing = threading.BoundedSemaphore(2)


class Source(Protocol):
    """Where runs come from. NotFoundError for an id that no run has."""

    def run(self, run_id: str) -> Run:
        """The run."""
        ...

    def row(self, run_id: str) -> RunRow:
        """Its row."""
        ...


def chart_data(
    source: Source, ids: Sequence[str], key: str, wanted: Wanted, *, group: str = "", whole: bool = False
) -> dict[str, object]:
    """One metric of the runs `ids` in plain values; with `group`, the mean and the band of each group instead of its runs.

    A run without the metric is `missing`; what cannot be read of one is its `trouble`. Groups are in the order of their
    values, and `n_of` counts all runs of one. `clip`: the ends of a y axis without outliers, None for groups and where there
    is none; of each run `n_clipped` points are outside of it. `whole`: wait until all points are read.
    """
    marks = marks_of(ids)
    lines: list[dict[str, object]] = []
    groups: dict[str, list[Curve]] = {}
    bulks: dict[str, Bulk | None] = {}
    n_of: Counter[str] = Counter()
    for run_id in ids:
        mine = {"id": run_id, "colour": marks[run_id].colour, "dash": marks[run_id].dash}
        try:
            run = source.run(run_id)
            name = text_of(value_of(source.row(run_id), group)) if group else ""
            n_of[name] += 1
            epochs = epochs_of(run, whole=whole) if wanted.x == "epoch" else None
            series = run.series(key, whole=whole)
            checkpoints = run.checkpoint_steps()
            with _computing:
                curve = curve_of(series, wanted, epochs, checkpoints)
                drawn = {} if group else as_drawn(curve, wanted)
                bulk = None if group else bulk_of(curve, wanted)
        except NotFoundError:
            lines.append({**mine, "missing": True})  # it has no such metric, which is no trouble
        except (WherryError, OSError) as error:
            lines.append({**mine, "trouble": redact(str(error))})
        else:
            if group:
                groups.setdefault(name, []).append(curve)
            else:
                lines.append({**mine, **drawn})
                bulks[run_id] = bulk
    clip = axis_of([bulk for bulk in bulks.values() if bulk is not None], log_y=wanted.log_y)
    for line in lines:
        if "lines" in line:
            bulk = bulks[str(line["id"])]
            line["n_clipped"] = 0 if bulk is None else bulk.n_outside(clip)
    with _computing:
        bands = [{"group": name, "n_of": n_of[name], **band_of(groups[name], wanted)} for name in sorted(groups, key=_in_order)]
    return {"key": key, "runs": lines, "bands": bands, "clip": clip}


def _in_order(name: str) -> tuple[bool, float, str]:
    """Numbers by their size, then texts."""
    try:
        return False, float(name.replace(",", "")), name
    except ValueError:
        return True, 0.0, name


def epochs_of(run: Run, *, whole: bool) -> Series:
    """The metric that says the epoch of each step. ConfigError if the run has none."""
    names = [key for key in run.keys() if key == "epoch" or key.endswith("/epoch")]  # noqa: SIM118
    if not names:
        raise ConfigError("it records no epoch: log a metric named epoch, or set State.timestamp in the training loop")
    return run.series(min(names, key=len), whole=whole)
