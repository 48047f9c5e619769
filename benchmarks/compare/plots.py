"""A picture of each table, for light and for dark pages, as SVG and PNG: `python plots.py IMAGES RESULT...`. Needs matplotlib.

Of the tables of scripts it draws those that SHOWN names.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from results import Result, load

mpl.use("agg")
mpl.rcParams.update({"svg.hashsalt": "wherry", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})

#: Text, faint lines, wherry, bare sockets, the others.
LIGHT = ("#1f2328", "#d1d9e0", "#0969da", "#afb8c1", "#8c959f")
DARK = ("#f0f6fc", "#3d444d", "#4493f8", "#656c76", "#9198a1")
PAGES = {"light": ("#ffffff", LIGHT), "dark": ("#0d1117", DARK)}
FLOOR = "Python sockets"
#: The script's name, and of its first table the columns that are drawn.
SHOWN = {"training": (1, 2, 4)}

Panel = tuple[str, Callable[[dict[str, float]], float], str]
#: The median, the least and the most.
Spread = tuple[float, float, float]


@dataclass(frozen=True)
class Bars:
    """One picture: a bar a row in each of its panels, which have a title, a way to write figures and a figure a row."""

    name: str
    title: str
    rows: Sequence[str]
    ours: frozenset[str]
    panels: Sequence[tuple[str, str, Sequence[Spread]]]


def bars_of_result(path: Path) -> Bars:
    result = load(path)
    rows = sorted((row for row in result.rows if row.rounds and not row.error), key=lambda row: -(row.median("wall_s") or 0))

    def figures(take: Callable[[dict[str, float]], float]) -> list[Spread]:
        every = [[take(found) for found in row.rounds] for row in rows]
        return [(statistics.median(values), min(values), max(values)) for values in every]

    ours = frozenset(row.name for row in rows if row.is_ours and row.name != FLOOR)
    shown = [(title, shape, figures(take)) for title, take, shape in panels(result)]
    return Bars(result.table, result.title, [row.name for row in rows], ours, shown)


def bars_of_script(path: Path) -> Bars | None:
    """None where there is nothing to draw."""
    told = json.loads(path.read_text())
    if told["script"] not in SHOWN or not told["tables"]:
        return None
    table = told["tables"][0]
    rows = sorted(table["rows"], key=lambda cells: -_spread(cells[SHOWN[told["script"]][0]])[0])
    shown = [(table["header"][n], "{:.2f}", [_spread(cells[n]) for cells in rows]) for n in SHOWN[told["script"]]]
    ours = frozenset(cells[0] for cells in rows if cells[0].startswith("wherry"))
    return Bars(told["script"], table["title"].partition(" (")[0], [cells[0] for cells in rows], ours, shown)


def _spread(cell: str) -> Spread:
    """What measure.spread() has written."""
    found = re.fullmatch(r"(-?[\d.]+) \[(-?[\d.]+)-(-?[\d.]+)\]", cell)
    assert found is not None, cell
    return float(found[1]), float(found[2]), float(found[3])


def panels(result: Result) -> list[Panel]:
    """Each panel's title, what it takes from a round, and how its figures are written."""
    n, gib = result.n_files, result.total_bytes / 2**30
    memory: Panel = ("memory, peak, MiB", lambda found: found["peak_bytes"] / 2**20, "{:,.0f}")
    if result.do == "many":
        return [
            ("files/s", lambda found: n / found["wall_s"], "{:,.0f}"),
            ("CPU, ms a file", lambda found: 1000 * found["cpu_s"] / n, "{:.2f}"),
            memory,
        ]
    return [
        ("seconds", lambda found: found["wall_s"], "{:.2f}"),
        ("CPU, s/GiB", lambda found: found["cpu_s"] / gib, "{:.2f}"),
        memory,
    ]


def color(row: str, bars: Bars, colors: Sequence[str]) -> str:
    if row == FLOOR:
        return colors[3]
    return colors[2] if row in bars.ours else colors[4]


def draw(bars: Bars, page: str, colors: Sequence[str]) -> Any:
    text, faint, *_ = colors
    rows, places = bars.rows, range(len(bars.rows))
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 1.0 + 0.27 * len(rows)), sharey=True, layout="constrained", facecolor=page)
    figure.suptitle(bars.title, x=0.01, ha="left", color=text, fontsize=10, fontweight="bold")
    for axis, (title, shape, figures) in zip(axes, bars.panels, strict=True):
        middles = [middle for middle, _, _ in figures]
        errors = [[middle - low for middle, low, _ in figures], [high - middle for middle, _, high in figures]]
        axis.barh(places, middles, color=[color(row, bars, colors) for row in rows], height=0.66)
        axis.errorbar(middles, places, xerr=errors, fmt="none", ecolor=text, elinewidth=0.8, capsize=2)
        top, bottom = max(high for _, _, high in figures), min(0.0, *(low for _, low, _ in figures))
        for place, (middle, _, high) in zip(places, figures, strict=True):
            axis.text(max(high, 0) + 0.02 * top, place, shape.format(middle), va="center", color=text, fontsize=8)
        axis.set_xlim(1.1 * bottom, 1.2 * top)
        axis.set_title(title, loc="left", color=text, fontsize=9)
        axis.set_facecolor(page)
        axis.tick_params(colors=text, length=0)
        axis.grid(axis="x", color=faint, linewidth=0.6)
        axis.set_axisbelow(True)
        for side in axis.spines.values():
            side.set_visible(False)
    axes[0].set_yticks(places, rows)
    for label, row in zip(axes[0].get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row in bars.ours else "normal")
    return figure


def main() -> None:
    images = Path(sys.argv[1])
    for path in map(Path, sys.argv[2:]):
        bars = bars_of_script(path) if "script" in json.loads(path.read_text()) else bars_of_result(path)
        if bars is None:
            continue
        for theme, (page, colors) in PAGES.items():
            figure = draw(bars, page, colors)
            for kind in ("svg", "png"):
                at = images / f"performance-{bars.name}-{theme}.{kind}"
                figure.savefig(at, dpi=110, facecolor=page, metadata={"Date": None} if kind == "svg" else None)
            plt.close(figure)


if __name__ == "__main__":
    main()
