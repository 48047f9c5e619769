"""Pictures that need no script: parallel coordinates and histograms over steps, as shapes of SVG that a template draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from wherry.runs import Histogram, RunRow
from wherry.web.table import text_of, value_of
from wherry.web.words import number

WIDTH, HEIGHT = 900, 260
_TOP, _BOTTOM, _SIDE = 34, 24, 60
_DASH = 4
#: Infinities stand at the ends of an axis, this part of its height away from the numbers.
_TO_INFINITY = 0.1
_MOST_AXES = 12
#: So many times its least number is the greatest of an axis that is logarithmic, as learning rates are chosen.
_LOG_FROM = 50
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
    """Axes, and of each run the points of its line, in pieces between the axes where it has no value."""

    axes: Sequence[AxisShape]
    lines: Mapping[str, Sequence[str]]


def parallel(rows: Sequence[RunRow], names: Sequence[str]) -> Parallel | None:
    """Parallel coordinates of the runs over the columns `names`; None where there is nothing to compare."""
    scales = [(name, scale) for name in names[:_MOST_AXES] if (scale := _Scale.of([value_of(row, name) for row in rows]))]
    if len(scales) < 2 or len(rows) < 2:
        return None
    gap = (WIDTH - 2 * _SIDE) / (len(scales) - 1)
    axes = [
        AxisShape(f"{name}, log" if scale.is_log else name, _SIDE + at * gap, scale.top, scale.bottom)
        for at, (name, scale) in enumerate(scales)
    ]
    lines = {}
    for row in rows:
        heights = [(_SIDE + at * gap, scale.height(value_of(row, name))) for at, (name, scale) in enumerate(scales)]
        pieces = [list(piece) for is_there, piece in groupby(heights, lambda one: one[1] is not None) if is_there]
        lines[row.id] = [_points([(x, _y(height)) for x, height in piece if height is not None]) for piece in pieces]
    return Parallel(axes, lines)


def _points(piece: Sequence[tuple[float, float]]) -> str:
    if len(piece) == 1:  # a line of one point is not drawn
        ((x, y),) = piece
        piece = [(x - _DASH, y), (x + _DASH, y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)


def _y(height: float) -> float:
    return HEIGHT - _BOTTOM - height * (HEIGHT - _TOP - _BOTTOM)


@dataclass(frozen=True)
class _Scale:
    """From a value to a height between 0 and 1: numbers by size, logarithmic over many times the least one; texts side
    by side.

    Infinities are at the ends, where `top` and `bottom` name them before the greatest and the least number.
    """

    places: Mapping[str, float]
    low: float
    high: float
    is_log: bool
    top: str
    bottom: str
    has_top: bool = False
    has_bottom: bool = False

    @classmethod
    def of(cls, values: Sequence[object]) -> _Scale | None:
        given = [value for value in values if not _is_missing(value)]
        if given and all(map(_is_number, given)):
            numbers = [_float(value) for value in given]
            finite = [value for value in numbers if math.isfinite(value)]
            low, high = min(finite, default=0.0), max(finite, default=0.0)
            has_top, has_bottom = math.inf in numbers, -math.inf in numbers
            top = ["inf"] * has_top + [number(high)] * bool(finite)
            bottom = ["-inf"] * has_bottom + [number(low)] * bool(finite)
            is_log = low > 0 and high / low >= _LOG_FROM
            return cls({}, low, high, is_log, ", ".join(top), ", ".join(bottom), has_top, has_bottom)
        texts = sorted({text_of(value) for value in given})
        if not texts:
            return None
        places = {text: at / max(1, len(texts) - 1) for at, text in enumerate(texts)}
        return cls(places, 0.0, 1.0, False, texts[-1], texts[0])

    def height(self, value: object) -> float | None:
        if _is_missing(value):
            return None
        if self.places:
            return self.places[text_of(value)]
        low, high, at = self.low, self.high, _float(value)
        if math.isinf(at):
            return 1.0 if at > 0 else 0.0
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        part = 0.5 if high == low else (at / 2 - low / 2) / (high / 2 - low / 2)  # halves, as the difference may overflow
        least, most = _TO_INFINITY * self.has_bottom, 1 - _TO_INFINITY * self.has_top
        return least + part * (most - least)


def _is_missing(value: object) -> bool:
    return value is None or (_is_number(value) and math.isnan(_float(value)))


def _float(value: object) -> float:
    """As a float; a whole number that none can hold is as good as infinite."""
    try:
        return float(value) if isinstance(value, (int, float)) else float(str(value))
    except OverflowError:
        return math.copysign(math.inf, 1 if str(value)[0] != "-" else -1)


def _is_number(value: object) -> bool:
    """Also one that a run's hyperparameters have as a word, as JSON has no number for it."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in ("Infinity", "-Infinity", "NaN")


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
