"""The points of a curve as a chart wants them: over its x axis, smoothed, cut to what is looked at, and as few as can be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from wherry.runs import Series, downsample, smooth

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Axis = Literal["step", "epoch", "time", "relative"]
AXES: tuple[Axis, ...] = ("step", "epoch", "time", "relative")
#: A line cannot show more points than a wide screen has columns, twice.
MOST_POINTS = 8000
#: NaN, infinities, restarts and checkpoints are drawn as marks, so many at most; they are counted all.
_MOST_MARKS = 300


@dataclass(frozen=True)
class Wanted:
    """What a chart asks for. `half_life_steps`: of the smoothing, 0 for none. `low`, `high`: the part of x that is looked at."""

    x: Axis = "step"
    n_points: int = 800
    half_life_steps: float = 0.0
    low: float | None = None
    high: float | None = None
    log_y: bool = False

    def sees(self, x: Floats) -> NDArray[np.bool_]:
        """Which places are in the part that is looked at: neither its ends nor what lies between them is left out."""
        import numpy as np

        seen = np.ones(len(x), np.bool_)
        if self.low is not None:
            seen &= x >= self.low
        if self.high is not None:
            seen &= x <= self.high
        return seen

    def has(self, x: float) -> bool:
        """Whether one place is in that part."""
        return (self.low is None or x >= self.low) and (self.high is None or x <= self.high)


@dataclass(frozen=True, eq=False)
class Older:
    """A branch that was overwritten by a later start. `start`: how many restarts came before it."""

    start: int
    x: Floats
    value: Floats
    step: Floats


@dataclass(frozen=True, eq=False)
class Curve:
    """All points of a series over one x axis, in the order of x: those of the branch that counts, and those of older ones.

    `restarts` and `checkpoints` are places on the x axis. `n_total` counts the points of the branch that counts, also those that
    were not read yet.
    """

    x: Floats
    step: Floats
    value: Floats
    smoothed: Floats | None
    older: list[Older]
    restarts: list[float]
    checkpoints: list[float]
    n_total: int
    tail_only: bool


def curve_of(series: Series, wanted: Wanted, epochs: Series | None = None, checkpoint_steps: Sequence[int] = ()) -> Curve:
    """The curve over the x axis that is wanted; `epochs` is the metric that says the epoch of a step.

    The smoothing is that of all points, before any is left out.
    """
    import numpy as np

    x_of_series = x_axis(series, wanted.x, epochs)
    is_main = ~series.overwritten & np.isfinite(x_of_series)
    x, value = _those(x_of_series, is_main), _those(series.value, is_main)
    step = x if wanted.x == "step" else _those(series.step, is_main).astype(np.float64)
    x, step, value = _in_order(x, step, value)
    smoothed = smooth(step, value, 0.5, wanted.half_life_steps) if wanted.half_life_steps > 0 else None
    starts = np.cumsum(np.concatenate(([False], np.diff(series.step) < 0))[: len(series.step)])
    older = [
        Older(int(starts[part.start]), *_in_order(x_of_series[part], series.value[part], series.step[part].astype(np.float64)))
        for part in _branches(series.overwritten & np.isfinite(x_of_series), starts)
    ]
    restarts = [found for one in series.restarts if (found := _x_of_step(step, x, one)) is not None]
    checkpoints = [found for one in checkpoint_steps if (found := _x_of_step(step, x, one)) is not None]
    n_total = series.n_total - (len(series.step) - len(x))
    return Curve(x, step, value, smoothed, older, restarts, checkpoints, n_total, series.tail_only)


def as_drawn(curve: Curve, wanted: Wanted) -> dict[str, object]:
    """The lines and marks of a curve in plain values: the part that is looked at, in at most `wanted.n_points` a line.

    Lines go on to the next point on each side of it, which no number counts.
    """
    import numpy as np

    part = _window(curve.x, wanted)
    x, value = curve.x[part], curve.value[part]
    is_number = np.isfinite(value)
    can_be_drawn = is_number & (value > 0) if wanted.log_y else is_number
    is_seen = wanted.sees(x)
    lines = [_line("raw", x, value, can_be_drawn, wanted, curve.step[part] if wanted.x != "step" else None)]
    if curve.smoothed is not None:
        smoothed = curve.smoothed[part]
        is_drawn = np.isfinite(smoothed) & (smoothed > 0) if wanted.log_y else np.isfinite(smoothed)
        lines.append(_line("smooth", x, smoothed, is_drawn, wanted))
    for older in curve.older[-_MOST_MARKS:]:
        cut = _window(older.x, wanted)
        drawn = np.isfinite(older.value[cut]) & ((older.value[cut] > 0) | (not wanted.log_y))
        if drawn.any():
            line = _line("older", older.x[cut], older.value[cut], drawn, wanted, older.step[cut])
            lines.append({**line, "start": older.start})
    restarts, checkpoints = ([one for one in places if wanted.has(one)] for places in (curve.restarts, curve.checkpoints))
    return {
        "lines": lines,
        "n_total": curve.n_total - _n_not_drawn(curve, wanted),
        "n_here": int(is_seen.sum()),
        "tail_only": curve.tail_only,
        "n_not_positive": int((is_number & ~can_be_drawn & is_seen).sum()),
        "marks": {
            name: {"n": int(which.sum()), "x": _some(x[which])}
            for name, of_kind in (("NaN", np.isnan(value)), ("+inf", value == np.inf), ("-inf", value == -np.inf))
            if (which := of_kind & is_seen).any()
        },
        "restarts": restarts[-_MOST_MARKS:],
        "n_restarts": len(restarts),
        "checkpoints": checkpoints[-_MOST_MARKS:],
        "n_checkpoints": len(checkpoints),
    }


def _n_not_drawn(curve: Curve, wanted: Wanted) -> int:
    """How many points have no place on the y axis; they are counted apart."""
    import numpy as np

    is_drawn = np.isfinite(curve.value)
    if wanted.log_y:
        is_drawn &= curve.value > 0
    return len(is_drawn) - int(is_drawn.sum())


def x_axis(series: Series, axis: Axis, epochs: Series | None) -> Floats:
    """Where the points of a series are on an x axis, in the order of the series; NaN where that is not known."""
    import numpy as np

    if axis == "step":
        return series.step.astype(np.float64)
    if axis == "epoch":
        if epochs is None or len(epochs.step) == 0:
            return np.full(len(series.step), np.nan)
        return _epoch_at(series.step, epochs)
    if axis == "time":
        return series.t
    known = series.t[np.isfinite(series.t)]
    return series.t - (known.min() if len(known) else 0.0)


def _epoch_at(step: NDArray[np.int64], epochs: Series) -> Floats:
    """The epoch of each step. Whole epochs, as loops count them, are spread over their steps, so that no two steps are at one x.

    The last epoch is taken to be as long as the one before it.
    """
    import numpy as np

    counts = ~epochs.overwritten & np.isfinite(epochs.value)
    order = np.argsort(epochs.step[counts], kind="stable")
    at, epoch = epochs.step[counts][order].astype(np.float64), epochs.value[counts][order]
    is_whole = bool(np.all(epoch == np.floor(epoch)))
    if is_whole and len(epoch):
        first = np.concatenate(([True], np.diff(epoch) > 0))
        at, epoch = at[first], epoch[first]
        at[0] = min(at[0], step.min(initial=at[0]))  # a loop says where it is from its second batch on
        if len(at) > 1:
            at, epoch = np.append(at, 2 * at[-1] - at[-2]), np.append(epoch, 2 * epoch[-1] - epoch[-2])
    return np.interp(step, at, epoch) if len(at) else np.full(len(step), np.nan)


def _in_order(x: Floats, *others: Floats) -> tuple[Floats, ...]:
    """All of them in the order of `x`, as they are if it has one."""
    import numpy as np

    if bool(np.all(x[1:] >= x[:-1])):
        return x, *others
    order = np.argsort(x, kind="stable")
    return x[order], *(other[order] for other in others)


def _branches(is_old: NDArray[np.bool_], starts: NDArray[np.int64]) -> Iterator[slice]:
    """Each unbroken stretch of overwritten points of one start."""
    import numpy as np

    named = np.where(is_old, starts + 1, 0)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], named, [0]))))
    for begin, end in pairwise(edges):
        if named[begin]:
            yield slice(int(begin), int(end))


def _x_of_step(steps: Floats, x: Floats, step: float) -> float | None:
    import numpy as np

    place = int(np.searchsorted(steps, step))
    return float(x[place]) if place < len(x) else None


def _window(x: Floats, wanted: Wanted) -> slice:
    """The points between `low` and `high`, and one more on each side, so that the line goes on to the edge. Of an ordered x."""
    import numpy as np

    begin = 0 if wanted.low is None else max(0, int(np.searchsorted(x, wanted.low, "left")) - 1)
    end = len(x) if wanted.high is None else min(len(x), int(np.searchsorted(x, wanted.high, "right")) + 1)
    return slice(begin, max(begin, end))


def _line(
    kind: str, x: Floats, y: Floats, is_drawn: NDArray[np.bool_], wanted: Wanted, step: Floats | None = None
) -> dict[str, object]:
    """`n` of `n_of` points in view."""
    x, y = _those(x, is_drawn), _those(y, is_drawn)
    kept = downsample(x, y, wanted.n_points).indices if len(x) > wanted.n_points else slice(None)
    n, n_of = int(wanted.sees(x[kept]).sum()), int(wanted.sees(x).sum())
    line: dict[str, object] = {"kind": kind, "x": x[kept].tolist(), "y": y[kept].tolist(), "n": n, "n_of": n_of}
    if step is not None:
        line["step"] = _those(step, is_drawn)[kept].tolist()
    return line


def _those(values: NDArray[Any], which: NDArray[np.bool_]) -> NDArray[Any]:
    """The ones that `which` says; if that is all, no copy is made of what may be a million."""
    return values if which.all() else values[which]


def _some(x: Floats) -> list[float]:
    import numpy as np

    if len(x) <= _MOST_MARKS:
        return [float(one) for one in x]
    return [float(one) for one in x[np.linspace(0, len(x) - 1, _MOST_MARKS).astype(np.int64)]]
