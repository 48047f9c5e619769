"""Smoothing and downsampling keep their promises to the eye."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from wherry.errors import ConfigError
from wherry.runs import downsample, smooth

RNG = np.random.default_rng(15)


def test_a_constant_stays_bit_equal() -> None:
    step = np.cumsum(RNG.integers(1, 50, 10_000))
    for value in (0.1, 1 / 3, 1e300, -7e-12):
        assert (smooth(step, np.full(10_000, value), 0.99, 10.0) == value).all()


@pytest.mark.parametrize("factor", [0.01, 0.9, 0.99999])
def test_the_past_never_moves(factor: float) -> None:
    step = np.cumsum(RNG.integers(1, 9, 20_000))
    value = RNG.normal(size=20_000)
    whole = smooth(step, value, factor, 5.0)
    for n in (1, 2, 100, 255, 256, 257, 1999, 19_999):
        assert (smooth(step[:n], value[:n], factor, 5.0) == whole[:n]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(-1e9, 1e9)), min_size=1, max_size=700),
    st.floats(1e-6, 1 - 1e-9),
    st.floats(0.01, 1e5),
)
def test_it_is_the_average_by_its_definition(points: list[tuple[int, float]], factor: float, reference_step: float) -> None:
    """Point by point: what is one reference step ago counts `factor`; the weights of all points so far make one."""
    step, value = np.cumsum([distance for distance, _ in points]), np.array([one for _, one in points])
    mean = total = 0.0
    for at, found in enumerate(smooth(step, value, factor, reference_step)):
        weight = factor ** ((float(step[at] - step[at - 1]) if at else reference_step) / reference_step)
        gain = -math.expm1(math.log(factor) * ((float(step[at] - step[at - 1]) if at else reference_step) / reference_step))
        total = weight * total + gain
        mean += gain / total * (value[at] - mean)
        assert found == pytest.approx(mean, rel=1e-6, abs=1e-6 * float(np.abs(value[: at + 1]).max()))


def test_a_spike_leaves_no_trace_behind() -> None:
    value = np.full(5000, 0.5)
    value[0], value[7] = 1e300, -1e308
    assert smooth(np.arange(5000), value, 0.5)[-1] == 0.5


def test_density_of_points_does_not_matter() -> None:
    """A line drawn with ten times as many points is smoothed to about the same curve: distance in x counts."""
    x = np.arange(0, 2000.0)
    dense = np.arange(0, 2000.0, 0.1)
    coarse, fine = smooth(x, np.sin(x / 200), 0.98), smooth(dense, np.sin(dense / 200), 0.98)
    assert np.abs(coarse[100:] - fine[::10][100:]).max() < 0.01


def test_nan_and_inf_are_passed_over() -> None:
    value = np.array([1.0, np.nan, 3.0, np.inf, 5.0])
    smoothed = smooth(np.arange(5), value, 0.5)
    assert np.isnan(smoothed[[1, 3]]).all()
    assert np.isfinite(smoothed[[0, 2, 4]]).all()
    assert smooth(np.arange(3), np.full(3, np.nan), 0.5).shape == (3,)


def test_factor_zero_is_the_line_itself() -> None:
    value = RNG.normal(size=50)
    assert (smooth(np.arange(50), value, 0.0) == value).all()


@pytest.mark.parametrize(("factor", "reference_step"), [(1.0, 1.0), (-0.1, 1.0), (0.5, 0.0), (float("nan"), 1.0)])
def test_a_wrong_factor_is_refused(factor: float, reference_step: float) -> None:
    with pytest.raises(ConfigError, match="use a factor from 0"):
        smooth(np.arange(3), np.ones(3), factor, reference_step)


def test_spikes_are_kept_and_undrawable_points_counted() -> None:
    value = RNG.normal(size=100_000)
    spikes = RNG.choice(100_000, 50, replace=False)
    value[spikes] = 1000.0
    value[::1000] = np.nan
    value[1::5000] = -np.inf
    found = downsample(np.arange(100_000), value, 2000)
    kept = value[found.indices]
    assert np.isfinite(kept).all()
    assert len(kept) <= 2000
    assert (found.n_nan, found.n_inf) == (100, 20)
    left = int((value == 1000.0).sum())
    assert (kept == 1000.0).sum() >= left * 0.8  # two of them may share a place that is one pixel wide
    assert (np.diff(found.indices) > 0).all()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300), st.integers(4, 50))
def test_any_points_are_downsampled(values: list[float], n: int) -> None:
    value = np.array(values, np.float64)
    found = downsample(RNG.integers(0, 100, len(values)), value, n)
    assert len(found.indices) <= max(n, 4)
    assert np.isfinite(value[found.indices]).all()
    assert found.n_nan == np.isnan(value).sum()
