"""What the commands that draw runs share: which runs and metrics, over which part of which axes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli.arguments import parse_target, storage_options
from wherry.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from wherry.runs import Runs
    from wherry.web.drawing.curves import Axis

RunsUri = Annotated[str, typer.Argument(metavar="URI", help="A prefix of runs, a run, or a folder.", show_default=False)]
AlsoOption = Annotated[
    list[str] | None, typer.Option("--also", metavar="URI", help="One more prefix, of the same scheme; may be given again.")
]
ChoiceOption = Annotated[
    list[str] | None, typer.Option("--runs", metavar="NAME", help="Only this run, or those that match; may be given again.")
]
SmoothOption = Annotated[
    float,
    typer.Option("--smooth", metavar="STEPS", min=0.0, help="Half-life of a debiased exponential average over steps; 0: none."),
]
LogOption = Annotated[bool, typer.Option("--log", help="Logarithmic y axis; values not above 0 are left out, and counted.")]
LogXOption = Annotated[bool, typer.Option("--log-x", help="Logarithmic x axis.")]
ClipOption = Annotated[bool, typer.Option("--clip", help="The y axis spans 98 % of the points; the others are counted.")]
FromOption = Annotated[float | None, typer.Option("--from", metavar="X", help="Only from here on.")]
ToOption = Annotated[float | None, typer.Option("--to", metavar="X", help="Only up to here.")]
GroupOption = Annotated[
    str, typer.Option("--group", metavar="NAME", help="Mean and range of the runs that share this hyperparameter, not each run.")
]


class XAxis(str, Enum):
    """What is on the x axis. `wall` is the time of day, `relative` the time since the first point."""

    STEP = "step"
    EPOCH = "epoch"
    WALL = "wall"
    RELATIVE = "relative"

    @property
    def axis(self) -> Axis:
        """The name of the axis in an address of the page."""
        return "time" if self is XAxis.WALL else self.value


XOption = Annotated[XAxis, typer.Option("--x", help="What is on the x axis.")]


def open_runs(uris: Sequence[str], option: Sequence[str] | None, options_file: str | None) -> tuple[Runs, dict[str, object]]:
    """A reader of the runs below the URIs, and the storage options. ConfigError for URIs of several schemes."""
    from wherry.runs import Runs

    schemes = {parse_target(uri).scheme for uri in uris}
    if len(schemes) > 1:
        raise ConfigError(f"the URIs are of several schemes, {', '.join(sorted(schemes))}: show them one after another")
    options = storage_options(schemes.pop(), option, options_file)
    return Runs(*(str(parse_target(uri)) for uri in uris), options=options), options


def check_part(low: float | None, high: float | None) -> None:
    """ConfigError for a part of the x axis that ends before it begins."""
    if low is not None and high is not None and low >= high:
        raise ConfigError(f"--from {low:g} must be less than --to {high:g}")


def need_extra(verb: str, *modules: str) -> None:
    """MissingExtraError if one of the libraries is not installed."""
    from importlib import import_module

    try:
        for module in modules:
            import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"wherry {verb} needs {error.name}, which is not installed: pip install 'wherry[ui]'") from error
