"""Bands: several runs of one group as one line, their mean, between the least and the greatest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from wherry.runs import downsample
from wherry.web.drawing.curves import Curve, Wanted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Runs are compared at every place of x at which one of them has a point; where those are more, at so many, evenly.
_MOST_PLACES = 1_000_000


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What can be drawn of one run: one point for each x, in order. `n_points` in view are; the others there are not."""

    x: Floats
    y: Floats
    n_points: int
    n_not_finite: int
    n_not_positive: int


def band_of(curves: Sequence[Curve], wanted: Wanted) -> dict[str, object]:
    """The mean, the least and the greatest of the curves, at the same places of x for all.

    Between its first and its last point a run has a value everywhere, on the straight line between two points; before and behind
    them it counts in nothing. `n`: how many runs each place has. So the mean jumps only where a run begins or ends. Of many
    places those are kept that show the spikes of the mean and of both edges.
    """
    import numpy as np

    drawn = [_drawn(curve, wanted) for curve in curves]
    counts = {
        "n_runs": sum(one.n_points > 0 for one in drawn),
        "n_points": sum(one.n_points for one in drawn),
        "n_not_finite": sum(one.n_not_finite for one in drawn),
        "n_not_positive": sum(one.n_not_positive for one in drawn),
        "tail_only": any(curve.tail_only for curve in curves),
    }
    drawn = [one for one in drawn if len(one.x)]
    places = _places(drawn, wanted)
    low, high = np.full(len(places), np.inf), np.full(len(places), -np.inf)
    total, n_runs = np.zeros(len(places)), np.zeros(len(places), np.int64)
    for one in drawn:
        here = slice(*np.searchsorted(places, [one.x[0], np.nextafter(one.x[-1], np.inf)]))
        value = np.interp(places[here], one.x, one.y)
        np.minimum(low[here], value, out=low[here])
        np.maximum(high[here], value, out=high[here])
        total[here] += value / len(drawn)  # parts of it, as a sum may be beyond the greatest float
        n_runs[here] += 1
    has = np.flatnonzero(n_runs)
    mean = np.clip(total[has] * (len(drawn) / n_runs[has]), low[has], high[has])  # rounding moves it out of no constant
    x, low, high, n_runs = places[has], low[has], high[has], n_runs[has]
    kept = _kept(x, (mean, low, high), wanted.n_points)
    lines = {"x": x, "mean": mean, "low": low, "high": high, "n": n_runs}
    return {**{name: values[kept].tolist() for name, values in lines.items()}, "n_places": len(x), **counts}


def _drawn(curve: Curve, wanted: Wanted) -> _Drawn:
    import numpy as np

    value = curve.value if curve.smoothed is None else curve.smoothed
    is_number = np.isfinite(value)
    can_be_drawn = is_number & (value > 0) if wanted.log_y else is_number
    is_seen = wanted.sees(curve.x)
    x, y = curve.x[can_be_drawn], value[can_be_drawn]
    last = np.append(np.diff(x) > 0, True)[: len(x)]  # of several points at one x the one that was logged last
    n_points, n_numbers = int((is_seen & can_be_drawn).sum()), int((is_seen & is_number).sum())
    return _Drawn(x[last], y[last], n_points, int(is_seen.sum()) - n_numbers, n_numbers - n_points)


def _places(drawn: Sequence[_Drawn], wanted: Wanted) -> Floats:
    """The places of x in view: those of all points, and the edges, up to which lines go on."""
    import numpy as np

    if not drawn:
        return np.empty(0)
    first, last = min(float(one.x[0]) for one in drawn), max(float(one.x[-1]) for one in drawn)
    begin, end = max(first, first if wanted.low is None else wanted.low), min(last, last if wanted.high is None else wanted.high)
    if begin > end:
        return np.empty(0)
    every = reduce(lambda one, more: one if np.array_equal(one, more) else np.union1d(one, more), [one.x for one in drawn])
    seen = np.union1d(every[(every >= begin) & (every <= end)], [begin, end])
    return seen if len(seen) <= _MOST_PLACES else np.linspace(begin, end, _MOST_PLACES)


def _kept(x: Floats, lines: Sequence[Floats], n_points: int) -> NDArray[np.int64]:
    import numpy as np

    if len(x) <= n_points:
        return np.arange(len(x))
    return np.unique(np.concatenate([downsample(x, line, max(4, n_points // len(lines))).indices for line in lines]))
