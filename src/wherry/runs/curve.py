"""Curves for the eye: smoothing over x, and the points that keep a line's shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wherry.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: MinMaxLTTB takes so many least and greatest values for each point that it keeps (https://arxiv.org/abs/2305.00332).
_RATIO = 4
#: Points of a row in _decaying_sums(): so many steps in Python, each for all rows.
_ROW = 256


@dataclass(frozen=True, eq=False)
class Downsampled:
    """The `indices` of the points to draw, in order, and how many points are left out as they cannot be drawn."""

    indices: NDArray[np.int64]
    n_nan: int = 0
    n_inf: int = 0


def smooth(
    step: NDArray[np.generic], value: NDArray[np.float64], factor: float, reference_step: float = 1.0
) -> NDArray[np.float64]:
    """The debiased exponential moving average of `value` over the distance in `step`.

    What is one `reference_step` ago counts `factor` (0 to below 1; 0: no smoothing), however many points lie between. A constant
    stays equal to the last bit, and a point that is added changes none before it. Where `value` is NaN or infinite the average is
    NaN, and goes on behind it. A step that is not greater than the one before counts as one `reference_step` further.

    Give all points, before downsample(): what is left out would be missing in the average. ConfigError for a wrong factor.
    A million points take some 0.1 s.
    """
    import numpy as np

    if not 0 <= factor < 1 or not reference_step > 0:
        raise ConfigError(
            f"factor={factor!r}, reference_step={reference_step!r}: use a factor from 0 to below 1, and a step above 0"
        )
    drawn = np.flatnonzero(np.isfinite(value))
    smoothed = np.full(len(value), np.nan)
    if not len(drawn):
        return smoothed
    values = value[drawn].astype(np.float64)
    if not factor:
        smoothed[drawn] = values
        return smoothed
    distance = np.diff(step[drawn].astype(np.float64), prepend=np.nan)
    distance[~(distance > 0)] = reference_step
    log_weight = distance * (math.log(factor) / reference_step)
    total = -np.expm1(np.cumsum(log_weight))  # the weights of all points so far, without bias
    mean = _decaying_sums(np.exp(log_weight), -np.expm1(log_weight) * values) / total
    # An average lies between its values. So rounding moves none out of them, and a constant stays equal to the last bit.
    smoothed[drawn] = np.clip(mean, np.minimum.accumulate(values), np.maximum.accumulate(values))
    return smoothed


def _decaying_sums(weight: NDArray[np.float64], gain: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum[i] = weight[i] * sum[i - 1] + gain[i], with sum[-1] = 0: in rows of one length, side by side, then from row to row.

    The length does not depend on how many points there are: so a sum never changes when points are added behind it.
    """
    import numpy as np

    n_rows = -(-len(gain) // _ROW)
    shape = (n_rows, _ROW)
    padding = n_rows * _ROW - len(gain)
    weights = np.ascontiguousarray(np.pad(weight, (0, padding)).reshape(shape).T)
    sums = np.ascontiguousarray(np.pad(gain, (0, padding)).reshape(shape).T)
    carried = np.empty(n_rows)
    for at in range(1, _ROW):
        sums[at] += weights[at] * sums[at - 1]
        weights[at] *= weights[at - 1]
    before = 0.0
    for row, (own, weight_of_row) in enumerate(zip(sums[-1].tolist(), weights[-1].tolist(), strict=True)):
        carried[row] = before
        before = weight_of_row * before + own
    sums += weights * carried
    return sums.T.ravel()[: len(gain)]


def downsample(x: NDArray[np.generic], y: NDArray[np.float64], n: int) -> Downsampled:
    """At most `n` (4 at least) points that keep the least and the greatest of each part of the curve: MinMaxLTTB.

    NaN and infinite points are taken out before, and counted. `x` should not go back; where it does, parts have equally many
    points. MissingExtraError without tsdownsample.
    """
    import numpy as np

    if n < 4:
        raise ConfigError(f"n={n!r}: ask for 4 points at least")
    n_nan, n_inf = int(np.isnan(y).sum()), int(np.isinf(y).sum())
    known = ~np.isnan(x) if x.dtype.kind == "f" else np.ones(len(x), np.bool_)
    drawn = np.flatnonzero(np.isfinite(y) & known)
    if len(drawn) <= n:
        return Downsampled(drawn.astype(np.int64), n_nan, n_inf)
    if find_spec("tsdownsample") is None:
        raise MissingExtraError("curves need tsdownsample, which is not installed: pip install 'wherry[ui]'")
    import tsdownsample

    xs, ys = np.ascontiguousarray(x[drawn]), np.ascontiguousarray(y[drawn])
    given = (xs, ys) if bool((np.diff(xs) >= 0).all()) else (ys,)
    sampler = tsdownsample.MinMaxLTTBDownsampler()  # type: ignore[no-untyped-call]
    chosen = sampler.downsample(*given, n_out=n, minmax_ratio=_RATIO).astype(np.int64)
    return Downsampled(drawn[chosen].astype(np.int64), n_nan, n_inf)
