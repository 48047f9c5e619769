"""ConsoleLogger: prints metrics, settings and tables to the terminal."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TextIO

from wherry.loggers.capture.terminal import is_terminal, is_watched, printable
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.run.level import LogLevel, to_level
from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.checks import check_amounts, check_counts, to_step
from wherry.loggers.values.tables import check_table
from wherry.loggers.values.text import as_text, format_json
from wherry.loggers.warn_once import WarnOnce
from wherry.posix.fork import ChildLock

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from wherry.loggers.logger import Logger
    from wherry.loggers.run.state import State

#: The width of tables where the stream is not a terminal.
_DEFAULT_WIDTH = 120

_ALERT_STYLES = {"WARN": "bold yellow", "ERROR": "bold red"}


@dataclass(frozen=True)
class ConsoleConfig:
    """What a ConsoleLogger shows, and how often. ConfigError for values that make no sense."""

    #: Metrics are printed at steps that are a multiple of this.
    every_n_batches: int = 1
    #: Metrics are printed at most once in so many seconds, as nobody reads more than a line a second. The newest values of those
    #: that were left out are printed at the end of an epoch or evaluation, and at the close.
    every_s: float = 1.0
    #: The last level of `Logger.metric` that is printed.
    log_level: LogLevel | str | int = LogLevel.BATCH
    show_hyperparameters: bool = True
    show_tables: bool = True
    show_texts: bool = True
    #: Off, as traces are many, and for debugging.
    show_traces: bool = False
    #: Of longer tables, the number of other rows is printed.
    max_table_rows: int = 20
    #: Longer values and texts are cut.
    max_value_chars: int = 200
    #: Whether to print even if nobody watches: into a pipe or a file.
    force: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", to_level(self.log_level))
        check_counts(self, 1, "every_n_batches", "max_table_rows", "max_value_chars")
        check_amounts(self, "every_s", may_be_zero=True)


class ConsoleLogger(LoggerDestination):
    """Prints to `stream`, by default to what sys.stdout is at each call::

        log = ConsoleLogger(config=ConsoleConfig(every_s=10))
        log.log_metrics({"loss": 0.25, "lr": 3e-06}, step=12)  # step 12  loss 0.25  lr 3e-06

    Unless ``ConsoleConfig(force=True)``, it prints nothing if the stream is neither a terminal nor a notebook's output; then
    metrics are not even computed (`will_log` returns False). If the stream is closed or fails, it logs one warning and prints
    nothing more. tqdm's progress bars are moved aside while it prints.

    The metrics of a step are one line. Of metrics that the interval leaves out, the newest value is printed, not a mean.
    Settings and tables are printed as tables, texts as text. Images and other media are not shown. Any thread may call.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        config: ConsoleConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._config = config or ConsoleConfig()
        self._level = to_level(self._config.log_level)  # read at every metric
        self._clock = clock
        self._lock = ChildLock()
        self._waiting: dict[str, tuple[int, object]] = {}
        self._shown_step: int | None = None
        self._shown_at = float("-inf")
        self._calls = count()
        self._is_broken = False
        self._is_closed = False
        self._warnings = WarnOnce()

    def __repr__(self) -> str:
        return f"<ConsoleLogger{' closed' if self._is_closed else ''}>"

    def is_quiet(self) -> bool:
        """Whether nothing would be printed now."""
        return self._is_broken or not (self._config.force or is_watched(self._where()))

    def will_log(self, state: State, level: LogLevel) -> bool:
        """Whether metrics of this level may be printed."""
        return level <= self._level and not self.is_quiet()

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Print a table of names and values."""
        self._check_open()
        if hyperparameters and self._config.show_hyperparameters and not self.is_quiet():
            rows = [[name, value] for name, value in hyperparameters.items()]
            self._print_table("hyperparameters", ["name", "value"], rows, None)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Print the metrics, if it is time; `step=None` counts the calls."""
        self._check_open()
        step = self._step(step)
        if metrics and not self.is_quiet():
            with self._lock:
                self._waiting.update((str(name), (step, value)) for name, value in metrics.items())
                is_time = step % self._config.every_n_batches == 0 and self._clock() - self._shown_at >= self._config.every_s
                if step == self._shown_step or is_time:
                    self._show()

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Print them, if `show_traces` says so."""
        self._check_open()
        if traces and self._config.show_traces and not self.is_quiet():
            self._print(*(self._line("trace", {str(name): value}) for name, value in traces.items()))

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Print the table. ValueError for rows that are not as long as there are columns."""
        self._check_open()
        checked = check_table(columns, rows, name)
        if self._config.show_tables and not self.is_quiet():
            self._print_table(f"{name}, step {self._step(step)}", columns, checked, self._config.max_table_rows)

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Print the text below its name."""
        self._check_open()
        if self._config.show_texts and not self.is_quiet():
            self._print(_text(f"{name}, step {self._step(step)}", "bold"), _text(self._short(str(text))))

    def alert(self, title: str, text: str = "", level: str = "WARN") -> None:
        """Print one line of the level and the title, and the text below it."""
        self._check_open()
        if not self.is_quiet():
            lines = [_text(f"{level}: {title}", _ALERT_STYLES.get(level, "bold"))]
            self._print(*lines, *([_text(self._short(text))] if text else []))

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Print the metrics that have been left out."""
        self._show()

    eval_end = fit_end = predict_end = eval_standalone_end = epoch_end

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Print the metrics that have been left out. Closing again does nothing."""
        self._show()
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this ConsoleLogger is closed: make a new one to go on logging")

    def _step(self, step: int | None) -> int:
        return next(self._calls) if step is None else to_step(step, "log")

    def _where(self) -> TextIO | None:
        return self._stream if self._stream is not None else sys.stdout

    def _show(self) -> None:
        """Print the metrics that wait, a line for each step."""
        with self._lock:
            if not self._waiting or self.is_quiet():
                return
            steps: dict[int, dict[str, object]] = {}
            for name, (step, value) in self._waiting.items():
                steps.setdefault(step, {})[name] = value
            self._waiting.clear()
            self._shown_step, self._shown_at = max(steps), self._clock()
            self._print(*(self._line(f"step {step}", values) for step, values in sorted(steps.items())))

    def _line(self, head: str, values: Mapping[str, object]) -> RenderableType:
        line = _text(head, "bold")
        for name, value in values.items():
            line.append_text(_text(f"  {name} ", "cyan")).append_text(_text(self._value(value), "default"))
        return line

    def _value(self, value: object) -> str:
        number = to_number(value)
        if number is not None and not isinstance(number, bool):
            return f"{number:.5g}" if isinstance(number, float) else self._short(format_json(number))
        return self._short(as_text(value))

    def _short(self, text: str) -> str:
        most = self._config.max_value_chars
        return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"

    def _print_table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], max_rows: int | None) -> None:
        from rich.table import Table

        table = Table(title=_text(title), title_justify="left")
        for column in columns:
            table.add_column(_text(str(column)))
        shown = rows[:max_rows]
        for row in shown:
            table.add_row(*(_text(self._value(value)) for value in row))
        more = [] if len(shown) == len(rows) else [_text(f"... {len(rows) - len(shown)} more rows")]
        self._print(table, *more)

    def _print(self, *things: RenderableType) -> None:
        stream = self._where()
        if stream is None:
            return
        text = _rendered(things, stream)
        with self._lock:
            try:
                with _bars_aside(stream):
                    stream.write(text)
                    stream.flush()
            except (OSError, ValueError) as error:  # ValueError: it is closed
                self._is_broken = True
                self._warnings.once("broken", f"ConsoleLogger: nothing more is printed, as the console is gone: {error}")


def _text(text: str, style: str = "") -> Text:
    """The text for rich. All that is logged goes through this, so that none of it is a command to the terminal."""
    from rich.text import Text

    return Text(printable(text.replace("\r\n", "\n")), style)


def _rendered(things: Sequence[RenderableType], stream: TextIO) -> str:
    """What rich would write. It does not write to the console itself, as it ends the program if that fails."""
    from rich.console import Console

    encoding = getattr(stream, "encoding", None) or "utf-8"  # from this, rich decides whether to draw tables with ASCII
    rendered = io.BytesIO()
    page = io.TextIOWrapper(rendered, encoding, "backslashreplace", newline="")
    watched = is_terminal(stream)
    width = None if watched else _DEFAULT_WIDTH
    console = Console(file=page, force_terminal=watched, force_jupyter=False, width=width, highlight=False)
    for thing in things:
        console.print(thing, soft_wrap=not watched)
    page.flush()
    return rendered.getvalue().decode(encoding)


def _bars_aside(stream: TextIO) -> AbstractContextManager[None]:
    """Clear tqdm's bars, if there are any, and draw them again below what is printed."""
    tqdm: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return tqdm.external_write_mode(file=stream) if getattr(tqdm, "_instances", None) else nullcontext()
