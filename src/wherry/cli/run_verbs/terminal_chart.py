"""Curves as lines of text, drawn by plotext on a unit square: what its axes say is worked out here, for numbers of any size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

from wherry.cli.arguments import printable
from wherry.web import words
from wherry.web.drawing.colours import RGB
from wherry.web.drawing.curves import Axis
from wherry.web.drawing.said import said

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ASCII = str.maketrans("┌┐└┘─│┤├┬┴┼━·", "++++-|+++++-.")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: plotext draws no smaller chart.
LEAST_HEIGHT = 8
_LEAST_WIDTH = 30
#: Values that are drawn as they are.
_LEAST, _MOST = 1e-290, 1e300


@dataclass(frozen=True)
class Screen:
    """Where a chart is drawn. Without colours, and without Unicode, lines differ by letters."""

    width: int = 80
    height: int = 24
    has_colours: bool = False
    has_unicode: bool = True


@dataclass(frozen=True)
class Axes:
    """How both axes look. `low`, `high`: the part of x that is shown."""

    x: Axis = "step"
    log_x: bool = False
    log_y: bool = False
    clip: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class _Line:
    name: str
    kind: str
    colour: int
    x: NDArray[np.float64]
    y: NDArray[np.float64]


@dataclass(frozen=True)
class _Scale:
    """From values to 0 ... 1. Numbers beyond 1e300 are drawn there, so that no distance overflows."""

    low: float
    high: float
    is_log: bool

    def place(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        low, high = self._ends()
        at = np.log10(np.clip(value, _LEAST, _MOST)) if self.is_log else np.clip(value, -_MOST, _MOST)
        return (at - low) / (high - low)

    def _ends(self) -> tuple[float, float]:
        low, high = max(-_MOST, min(self.low, _MOST)), max(-_MOST, min(self.high, _MOST))
        if self.is_log:
            low, high = math.log10(max(low, _LEAST)), math.log10(max(high, _LEAST))
        if high - low > 1e-13 * max(abs(low), abs(high), _LEAST):
            return low, high
        more = abs(low) / 2 if abs(low) > _LEAST and not self.is_log else 0.5
        return low - more, high + more

    def ticks(self, most: int) -> list[float]:
        """Round values between the ends: 1, 2 or 5 times a power of ten."""
        low, high = self._ends()
        if self.is_log and high - low >= 2:
            every = max(1, math.ceil((high - low) / most))
            return [10.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)]
        if self.is_log:
            low, high = 10**low, min(10**high, _MOST)
        rough = (high - low) / most
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def has_points(data: Mapping[str, object]) -> bool:
    """Whether there is anything to draw."""
    runs: Any = data["runs"]
    bands: Any = data["bands"]
    return any(line["x"] for run in runs for line in run.get("lines", ())) or any(band["x"] for band in bands)


def chart_lines(data: Mapping[str, object], axes: Axes, screen: Screen) -> list[str]:
    """One metric: its name, its curves, which is which, and what is left out. As high as the screen, or a little less."""
    lines, n_left = _lines(data, axes)
    notes = said(data, has_part=axes.low is not None or axes.high is not None, has_clip=axes.clip)
    if n_left:
        notes.append(f"{n_left:,} at x not above 0, not drawn")
    names = dict.fromkeys(sorted((line.name, line.colour) for line in lines))
    letters = dict(zip(names, cycle(_LETTERS), strict=False))
    text = [printable(str(data["key"]))[: screen.width]]
    unit = ""
    if lines:
        divisor, unit = words.unit_of(str(data["key"]), _ends(lines, "y")[1])
        lines = [replace(line, y=line.y / divisor) for line in lines]
        below = (len(names) if len(names) > 1 else 0) + 1
        place = replace(screen, height=max(LEAST_HEIGHT, screen.height - 1 - below))
        clip: Any = data["clip"] if axes.clip else None
        ends: tuple[float, float] = _ends(lines, "y") if clip is None else (clip[0] / divisor, clip[1] / divisor)
        scale = _Scale(*ends, axes.log_y)
        text += _drawn(lines, axes, scale, place, letters if _by_letter(screen, names) else {}, unit)
    if len(names) > 1:
        text += [_legend(line, screen, letters[line.name, line.colour], names) + unit for line in _firsts(lines)]
    said_text = printable(" · ".join(notes or ["no points to draw"]))
    return [*text, said_text]


def in_ascii(line: str) -> str:
    """The line for a terminal that shows nothing else."""
    return line.translate(_ASCII).encode("ascii", "replace").decode()


def _by_letter(screen: Screen, names: Mapping[tuple[str, int], object]) -> bool:
    return not screen.has_unicode or (
        len(names) > 1 and (not screen.has_colours or len({colour for _, colour in names}) < len(names))
    )


def _lines(data: Mapping[str, object], axes: Axes) -> tuple[list[_Line], int]:
    """The lines, the paler ones first, and how many points a logarithmic x leaves out."""
    import numpy as np

    found: list[tuple[str, str, int, list[float], list[float]]] = []
    runs: Any = data["runs"]
    bands: Any = data["bands"]
    for run in runs:
        has_smooth = any(line["kind"] == "smooth" for line in run.get("lines", ()))
        for line in run.get("lines", ()):
            kind = "pale" if line["kind"] == "older" or (line["kind"] == "raw" and has_smooth) else "line"
            found.append((run["id"], kind, run["colour"], line["x"], line["y"]))
    for number, band in enumerate(bands):
        for kind, name in (("pale", "low"), ("pale", "high"), ("line", "mean")):
            found.append((str(band["group"]), kind, number % len(RGB), band["x"], band[name]))
    lines, n_left = [], 0
    for name, kind, colour, xs, ys in sorted(found, key=lambda one: one[1], reverse=True):
        x, y = np.asarray(xs, np.float64), np.asarray(ys, np.float64)
        kept = x > 0 if axes.log_x else np.ones(len(x), np.bool_)
        n_left += int((~kept).sum())
        if kept.any():
            lines.append(_Line(name, kind, colour, x[kept], y[kept]))
    return lines, n_left


def _firsts(lines: Sequence[_Line]) -> list[_Line]:
    """Of each name the line that is not pale, if it has one."""
    found: dict[tuple[str, int], _Line] = {}
    for line in lines:
        found[line.name, line.colour] = line  # pale ones come first
    return sorted(found.values(), key=lambda line: line.name)


def _drawn(
    lines: Sequence[_Line], axes: Axes, scale_y: _Scale, screen: Screen, letters: Mapping[tuple[str, int], str], unit: str
) -> list[str]:
    import plotext

    scale_x = _Scale(*_ends(lines, "x", axes.low, axes.high), axes.log_x)
    width, height = max(_LEAST_WIDTH, screen.width), screen.height
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plot_size(width, height)
    for line in lines:
        x, y = scale_x.place(line.x), scale_y.place(line.y)
        shown = (x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)
        look: dict[str, object] = {"color": _code(line.colour)} if screen.has_colours else {}
        if line.kind == "pale":
            plotext.scatter(x[shown].tolist(), y[shown].tolist(), marker="·" if screen.has_unicode else ".", **look)
        else:
            marker = letters.get((line.name, line.colour), "braille")
            plotext.plot(x[shown].tolist(), y[shown].tolist(), marker=marker, **look)
    plotext.xlim(0, 1)
    plotext.ylim(0, 1)
    span = scale_x.high - scale_x.low
    _set_ticks(plotext.xticks, scale_x, max(2, width // 16), lambda value: _x_text(value, axes.x, span))
    _set_ticks(plotext.yticks, scale_y, max(2, height // 3), lambda value: f"{value:.4g}{unit}")
    built = plotext.build()
    built = built if screen.has_colours else plotext.uncolorize(built)
    return [line.rstrip() for line in built.rstrip().split("\n")]


def _set_ticks(tell: Any, scale: _Scale, most: int, text: Any) -> None:
    import numpy as np

    ticks = scale.ticks(most)
    tell(scale.place(np.asarray(ticks, np.float64)).tolist(), [text(one) for one in ticks])


def _ends(lines: Sequence[_Line], name: str, low: float | None = None, high: float | None = None) -> tuple[float, float]:
    every = [getattr(line, name) for line in lines]
    least, most = min(float(one.min()) for one in every), max(float(one.max()) for one in every)
    return (least if low is None or low > most else low), (most if high is None or high < least else high)


def _legend(line: _Line, screen: Screen, letter: str, names: Mapping[tuple[str, int], object]) -> str:
    mark = letter * 2 if _by_letter(screen, names) else "━━"
    if screen.has_colours:
        mark = f"\x1b[38;5;{_code(line.colour)}m{mark}\x1b[0m"
    return f"{mark} {printable(line.name)[: max(10, screen.width - 24)]}  {line.y[-1]:.6g}"


def _x_text(value: float, axis: Axis, span: float) -> str:
    if axis == "time":
        return words.moment(value)[11:19] if span < 600 else words.moment(value)[5:16]
    if axis == "relative":
        return words.age(value) if value >= 120 else f"{value:.3g} s"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"


def _code(colour: int) -> int:
    """The nearest of a terminal's 216 colours."""
    red, green, blue = (round(part / 255 * 5) for part in RGB[colour % len(RGB)])
    return 16 + 36 * red + 6 * green + blue
