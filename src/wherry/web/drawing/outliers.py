"""Outliers: a y axis that spans 98 % of the points of each curve and a margin, and how many points lie outside of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wherry.web.drawing.curves import Curve, Wanted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: So much of its height the axis goes on at both ends; a logarithmic one by so much of the number there.
_MARGIN, _LOG_MARGIN = 0.05, 1.1


@dataclass(frozen=True, eq=False)
class Bulk:
    """Of the points of a curve that are looked at, 98 % lie from `low` to `high`, and the `others` do not."""

    low: float
    high: float
    others: NDArray[np.float64]

    def n_outside(self, axis: tuple[float, float] | None) -> int:
        """How many points are outside of an axis of axis_of(), which has all of this bulk in it."""
        return 0 if axis is None else int(((self.others < axis[0]) | (self.others > axis[1])).sum())


def bulk_of(curve: Curve, wanted: Wanted) -> Bulk | None:
    """The bulk of a curve; None where it has no point, or they lie too far apart for a float."""
    import numpy as np

    is_drawn = np.isfinite(curve.value) & wanted.sees(curve.x)
    if wanted.log_y:
        is_drawn &= curve.value > 0
    values = curve.value[is_drawn]
    if not len(values):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (float(one) for one in np.quantile(values, [0.01, 0.99]))
    return Bulk(low, high, values[(values < low) | (values > high)]) if np.isfinite(high - low) else None


def axis_of(bulks: Sequence[Bulk], *, log_y: bool) -> tuple[float, float] | None:
    """The ends of the axis on which all bulks are drawn; None if there is none, or no float holds them."""
    if not bulks:
        return None
    low, high = min(one.low for one in bulks), max(one.high for one in bulks)
    more = (high - low) * _MARGIN if high > low else abs(high) or 1.0
    low, high = (low / _LOG_MARGIN, high * _LOG_MARGIN) if log_y else (low - more, high + more)
    return (low, high) if math.isfinite(high - low) else None
