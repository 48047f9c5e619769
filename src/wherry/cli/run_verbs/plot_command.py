"""``wherry plot``: curves in the terminal, of a live run also while it grows."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import FileOption, JsonOption, PairsOption, print_note, printable
from wherry.cli.run_verbs.run_options import (
    AlsoOption,
    ChoiceOption,
    ClipOption,
    FromOption,
    GroupOption,
    LogOption,
    LogXOption,
    RunsUri,
    SmoothOption,
    ToOption,
    XAxis,
    XOption,
    check_part,
    need_extra,
    open_runs,
)
from wherry.cli.shell.terminal_output import is_rewritten
from wherry.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    from wherry.cli.run_verbs.plot_view import PlotView
    from wherry.cli.run_verbs.terminal_chart import Screen

#: The longest wait between two looks of --follow: points of an older part of the file may come from another thread.
_LOOK_EVERY_S = 2.0
_SHORTEST_S = 0.2
#: Of a curve, for --json without --width.
_JSON_POINTS = 1000


def plot(
    uri: RunsUri,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY...", help="Metrics, or patterns such as 'train/*'.", show_default=False)
    ] = None,
    runs: ChoiceOption = None,
    also: AlsoOption = None,
    x: XOption = XAxis.STEP,
    smooth: SmoothOption = 0.0,
    log: LogOption = False,
    log_x: LogXOption = False,
    clip: ClipOption = False,
    low: FromOption = None,
    high: ToOption = None,
    group: GroupOption = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Draw again as the runs grow, until all have finished.")] = False,
    width: Annotated[int | None, typer.Option("--width", metavar="N", min=30, help="Columns; else the terminal's.")] = None,
    height: Annotated[int | None, typer.Option("--height", metavar="N", min=10, help="Lines; else the terminal's.")] = None,
    option: PairsOption = None,
    options_file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw metrics in the terminal: one chart for each, the runs over one another.

    It reads straight from where the runs are, also while they are written, and
    changes nothing. Below each chart stands what it leaves out, and below all
    how true they are. In a pipe there are no colours, and several runs are
    told apart by letters. Ctrl-C ends --follow. Needs pip install 'wherry[ui]'.
    """
    need_extra("plot", "numpy", "starlette", "tsdownsample", "plotext")
    from wherry.cli.run_verbs.plot_view import PlotView
    from wherry.cli.run_verbs.terminal_chart import Axes
    from wherry.web.drawing.chosen_runs import choose

    check_part(low, high)
    axes = Axes(x.axis, log_x, log, clip, low, high)
    with open_runs([uri, *(also or ())], option, options_file)[0] as reader:
        chosen = choose(reader, runs or (), keys or ())
        if not keys:
            raise ConfigError(f"name a metric, or a pattern such as 'train/*': {_some(chosen.keys)}")
        view = PlotView(chosen, axes, smooth, group)
        if as_json:
            from wherry.loggers.values.text import format_json

            if follow:
                raise ConfigError("--json writes what there is once: leave --follow out")
            chosen.read()
            for data in view.data(_JSON_POINTS if width is None else width):
                typer.echo(format_json(data, significant_digits=None))
            _require_points(view)
            return
        if follow:
            _follow(view, width, height)
            return
        chosen.read()
        screen = screen_of(width, height)
        for line in view.lines(screen):
            typer.echo(line, color=screen.has_colours)
        _require_points(view)


def _require_points(view: PlotView) -> None:
    if not view.has_points:
        raise NotFoundError("there is no finite point to draw", hint=view.why_empty)


def screen_of(width: int | None, height: int | None) -> Screen:
    """The terminal; of a pipe 80 x 24, or $COLUMNS x $LINES, without colours."""
    from wherry.cli.run_verbs.terminal_chart import Screen

    size = shutil.get_terminal_size()
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Screen(width or size.columns, (height or size.lines) - 1, has_colours, is_unicode)


def _follow(view: PlotView, width: int | None, height: int | None) -> None:
    """Draw whenever there is something new; on a terminal always, as ages grow and windows change."""
    is_terminal = sys.stdout.isatty()
    is_new, is_first = True, True
    try:
        while True:
            if is_new or is_terminal:
                _show(view, screen_of(width, height), in_place=is_rewritten(sys.stdout), is_first=is_first)
                is_first = False
            if view.is_over:
                return
            time.sleep(min(max(view.next_look_s, _SHORTEST_S), _LOOK_EVERY_S))  # a store tells a reader nothing by itself
            is_new = view.refresh()
    except KeyboardInterrupt:
        print_note("ended")


def _show(view: PlotView, screen: Screen, *, in_place: bool, is_first: bool) -> None:
    lines = view.lines(screen, must_fit=in_place)
    if in_place:
        begin = "\x1b[2J\x1b[H" if is_first else "\x1b[H"
        sys.stdout.write(begin + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines) + "\n")
    sys.stdout.flush()


def _some(names: object) -> str:
    every = list(map(str, names if isinstance(names, (list, tuple)) else ()))
    more = f" and {len(every) - 20:,} more" if len(every) > 20 else ""
    return printable(", ".join(every[:20]) + more) or "there are none yet"
