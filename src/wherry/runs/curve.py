"""Curves for the eye: smoothing over x, and the points that keep a line's shape."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wherry.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: MinMaxLTTB takes so many least and greatest values for each point that it keeps (https://arxiv.org/abs/2305.00332).
_RATIO = 4


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
    if not factor:
        smoothed[drawn] = value[drawn]
        return smoothed
    distance = np.diff(step[drawn].astype(np.float64), prepend=np.nan)
    distance[~(distance > 0)] = reference_step
    weights = np.power(factor, distance / reference_step)
    mean, total, found = float(value[drawn[0]]), 0.0, []
    for one, weight in zip(value[drawn].tolist(), weights.tolist(), strict=True):
        total = weight * total + (1.0 - weight)
        mean += (1.0 - weight) / total * (one - mean)  # this form, as a constant adds 0 exactly
        found.append(mean)
    smoothed[drawn] = found
    return smoothed


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
