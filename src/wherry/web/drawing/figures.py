"""Pictures that need no script: parallel coordinates and histograms over steps, as shapes of SVG that a template draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wherry.runs import Histogram, RunRow
from wherry.web.table import text_of, value_of
from wherry.web.words import number

WIDTH, HEIGHT = 900, 260
_TOP, _BOTTOM, _SIDE = 34, 24, 60
_MOST_AXES = 12
_MOST_STEPS = 200
_MOST_BINS = 64


@dataclass(frozen=True)
class AxisShape:
    """An upright axis at `x`: its name, and the texts at its upper and lower end."""

    name: str
    x: float
    top: str
    bottom: str


@dataclass(frozen=True)
class Parallel:
    """Axes, and of each run the points of its line."""

    axes: Sequence[AxisShape]
    lines: Mapping[str, str]


def parallel(rows: Sequence[RunRow], names: Sequence[str]) -> Parallel | None:
    """Parallel coordinates of the runs over the columns `names`; None where there is nothing to compare."""
    scales = [(name, scale) for name in names[:_MOST_AXES] if (scale := _Scale.of([value_of(row, name) for row in rows]))]
    if len(scales) < 2 or len(rows) < 2:
        return None
    gap = (WIDTH - 2 * _SIDE) / (len(scales) - 1)
    axes = [AxisShape(name, _SIDE + at * gap, scale.top, scale.bottom) for at, (name, scale) in enumerate(scales)]
    lines = {}
    for row in rows:
        heights = [(_SIDE + at * gap, scale.height(value_of(row, name))) for at, (name, scale) in enumerate(scales)]
        lines[row.id] = " ".join(f"{x:.1f},{_y(height):.1f}" for x, height in heights if height is not None)
    return Parallel(axes, lines)


def _y(height: float) -> float:
    return HEIGHT - _BOTTOM - height * (HEIGHT - _TOP - _BOTTOM)


@dataclass(frozen=True)
class _Scale:
    """From a value to a height between 0 and 1: numbers by size, logarithmic over more than two decades; texts side by side."""

    places: Mapping[str, float]
    low: float
    high: float
    is_log: bool
    top: str
    bottom: str

    @classmethod
    def of(cls, values: Sequence[object]) -> _Scale | None:
        given = [value for value in values if value is not None]
        numbers = [_float(value) for value in given if _is_number(value)]
        if len(numbers) == len(given) and numbers:
            low, high = min(numbers), max(numbers)
            is_log = low > 0 and high / low > 100
            return cls({}, low, high, is_log, number(high), number(low))
        texts = sorted({text_of(value) for value in given})
        if not texts:
            return None
        places = {text: at / max(1, len(texts) - 1) for at, text in enumerate(texts)}
        return cls(places, 0.0, 1.0, False, texts[-1], texts[0])

    def height(self, value: object) -> float | None:
        if value is None:
            return None
        if self.places:
            return self.places[text_of(value)]
        low, high, at = self.low, self.high, _float(value)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return 0.5 if high == low else (at - low) / (high - low)


def _float(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Tile:
    """A rectangle of a heat map; `level` from 0 to 9 says how many values are in it."""

    x: float
    y: float
    width: float
    height: float
    level: int


@dataclass(frozen=True)
class Heat:
    """Histograms over steps: a column a step, from the least edge to the greatest."""

    tiles: Sequence[Tile]
    first_step: int
    last_step: int
    low: str
    high: str


def heat(histograms: Sequence[Histogram]) -> Heat | None:
    """The heat map of one name's histograms; at most 200 steps of them, evenly chosen. None if none can be drawn."""
    good = [one for one in histograms if len(one.edges) == len(one.counts) + 1 and all(map(math.isfinite, one.edges))]
    good = [one for one in good if one.counts and one.edges[-1] > one.edges[0]]
    if not good:
        return None
    chosen = good if len(good) <= _MOST_STEPS else [good[at * (len(good) - 1) // (_MOST_STEPS - 1)] for at in range(_MOST_STEPS)]
    low, high = min(one.edges[0] for one in chosen), max(one.edges[-1] for one in chosen)
    width, scale = WIDTH / len(chosen), HEIGHT / (high - low)
    tiles = []
    for column, one in enumerate(chosen):
        most = max(one.counts)
        if not most > 0 or len(one.counts) > 4 * _MOST_BINS:
            continue
        for left, right, count in zip(one.edges[:-1], one.edges[1:], one.counts, strict=True):
            if count > 0 and right > left:
                tile = (column * width, HEIGHT - (right - low) * scale, width, (right - left) * scale)
                tiles.append(Tile(*tile, min(9, int(10 * count / most))))
    return Heat(tiles, chosen[0].step, chosen[-1].step, number(float(low)), number(float(high)))
