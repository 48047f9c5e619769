"""Bands: several runs of one group as one line, their mean, between the least and the greatest of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wherry.web.drawing.curves import Curve, Wanted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def band_of(curves: Sequence[Curve], wanted: Wanted) -> dict[str, object]:
    """The mean, the least and the greatest of the curves, in equal parts of x.

    The mean is that of the runs which have points in a part, each counted once; least and greatest are those of all points,
    so a spike of one run is an edge of the band.
    """
    import numpy as np

    drawn = [one for curve in curves if (one := _points(curve, wanted))]
    if not drawn:
        return {"x": [], "mean": [], "low": [], "high": [], "n_runs": 0}
    begin = min(float(x[0]) for x, _ in drawn) if wanted.low is None else wanted.low
    end = max(float(x[-1]) for x, _ in drawn) if wanted.high is None else wanted.high
    longest = max(len(x) for x, _ in drawn)
    n_parts = max(1, min(wanted.n_points // 2, longest))
    edges = np.linspace(begin, end, n_parts + 1)
    low, high = np.full(n_parts, np.inf), np.full(n_parts, -np.inf)
    total, n_runs = np.zeros(n_parts), np.zeros(n_parts)
    for x, y in drawn:
        part = np.clip(np.searchsorted(edges, x, "right") - 1, 0, n_parts - 1)
        np.minimum.at(low, part, y)
        np.maximum.at(high, part, y)
        count = np.bincount(part, minlength=n_parts)
        has = count > 0
        total[has] += np.bincount(part, y, minlength=n_parts)[has] / count[has]
        n_runs += has
    has = n_runs > 0
    middle = ((edges[:-1] + edges[1:]) / 2)[has]
    return {
        "x": middle.tolist(),
        "mean": (total[has] / n_runs[has]).tolist(),
        "low": low[has].tolist(),
        "high": high[has].tolist(),
        "n_runs": len(drawn),
    }


def _points(curve: Curve, wanted: Wanted) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    import numpy as np

    value = curve.value if curve.smoothed is None else curve.smoothed
    kept = np.isfinite(value) & ((value > 0) | (not wanted.log_y))
    if wanted.low is not None:
        kept &= curve.x >= wanted.low
    if wanted.high is not None:
        kept &= curve.x <= wanted.high
    return (curve.x[kept], value[kept]) if kept.any() else None
