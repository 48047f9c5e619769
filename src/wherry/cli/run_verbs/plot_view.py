"""PlotView: the charts of one ``wherry plot``, and below them how true they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wherry.cli.arguments import printable
from wherry.cli.run_verbs.terminal_chart import LEAST_HEIGHT, Axes, Screen, chart_lines, has_points, in_ascii
from wherry.redact import redact
from wherry.runs import Run
from wherry.web import words
from wherry.web.drawing.chart_data import chart_data
from wherry.web.drawing.chosen_runs import Choice
from wherry.web.drawing.curves import Wanted
from wherry.web.drawing.said import said

#: A chart with its name, legend and note.
_LEAST_LINES = LEAST_HEIGHT + 3
#: A character of braille is two points wide; twice that for the least and the greatest.
_POINTS_PER_COLUMN = 4
_MOST_CHARTS = 50


@dataclass
class PlotView:
    """One or several charts of the chosen runs. `smooth`: half-life in steps."""

    chosen: Choice
    axes: Axes
    smooth: float = 0.0
    group: str = ""
    #: Whether the last lines() had anything to draw, and if not what it had to say.
    has_points: bool = field(default=False, init=False)
    why_empty: str = field(default="", init=False)

    def lines(self, screen: Screen, *, must_fit: bool = False) -> list[str]:
        """All that is shown. `must_fit`: no more than the screen has room for; what is left out is said."""
        below = [line for run in self.chosen.runs for line in _truth(run, len(self.chosen.rows) > 1)]
        room = screen.height - min(len(below), screen.height // 4)
        keys, n_left = list(self.chosen.keys[:_MOST_CHARTS]), max(0, len(self.chosen.keys) - _MOST_CHARTS)
        if must_fit:
            n_left += max(0, len(keys) - max(1, room // _LEAST_LINES))
            keys = keys[: max(1, room // _LEAST_LINES)]
        height = max(_LEAST_LINES, room // len(keys)) if must_fit or len(keys) == 1 else max(16, room // len(keys))
        above = self._charts(keys, Screen(screen.width, height, screen.has_colours, screen.has_unicode))
        if n_left:
            above.append(f"{n_left:,} more metrics are not drawn: name fewer, or make the window higher")
        shown = [*above, *below][: screen.height if must_fit else None]
        return shown if screen.has_unicode else list(map(in_ascii, shown))

    def data(self, n_points: int) -> Iterator[dict[str, object]]:
        """Each metric of each run, or of each group, in plain values, with about so many points: for programs."""
        axes = self.axes
        wanted = Wanted(axes.x, n_points, self.smooth, axes.low, axes.high, axes.log_y)
        self.has_points = False
        notes: dict[str, None] = {}
        for key in self.chosen.keys:
            data = chart_data(self.chosen, self.chosen.ids, key, wanted, group=self.group)
            self.has_points |= has_points(data)
            notes |= dict.fromkeys(said(data))
            yield {name: data[name] for name in ("key", "runs", "bands", "clip")}
        self.why_empty = "; ".join(notes)

    def _charts(self, keys: Sequence[str], screen: Screen) -> list[str]:
        axes = self.axes
        wanted = Wanted(axes.x, _POINTS_PER_COLUMN * screen.width, self.smooth, axes.low, axes.high, axes.log_y)
        shown: list[str] = []
        notes: dict[str, None] = {}
        self.has_points = False
        for key in keys:
            data = chart_data(self.chosen, self.chosen.ids, key, wanted, group=self.group)
            self.has_points |= has_points(data)
            notes |= dict.fromkeys(said(data))
            shown += chart_lines(data, axes, screen)
        self.why_empty = "; ".join(notes)
        return shown

    def refresh(self) -> bool:
        """Look for what is new, where it is time to; True if something is."""
        return max(run.refresh() for run in self.chosen.runs)  # each of them: any() would stop at the first

    @property
    def next_look_s(self) -> float:
        """In how many seconds refresh() may find something."""
        return min(run.next_look_s for run in self.chosen.runs)

    @property
    def is_over(self) -> bool:
        """Whether all runs have finished, and are read whole."""
        return all(run.truth().writer == "finished" for run in self.chosen.runs) and not any(
            run.series(key).tail_only for run in self.chosen.runs for key in set(self.chosen.keys) & set(run.keys())
        )


def _truth(run: Run, has_name: bool) -> list[str]:
    said_of = " · ".join(one.text for one in words.truth(run.truth()))
    return [printable(redact(f"{f'{run.id}: ' if has_name else ''}{said_of}"))]
