"""ProgressBarLogger: a progress bar for the current epoch, and one for an evaluation or prediction."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TextIO

from wherry.loggers.capture.exit_hooks import before_traceback
from wherry.loggers.capture.terminal import in_notebook, is_watched, printable
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.run.level import LogLevel
from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.checks import check_counts
from wherry.posix.fork import ChildLock

if TYPE_CHECKING:
    from tqdm import tqdm

    from wherry.loggers.logger import Logger
    from wherry.loggers.run.state import State

_DEFAULT_WIDTH, _DEFAULT_HEIGHT = 80, 24


@dataclass(frozen=True)
class ProgressBarConfig:
    """What the bars show. ConfigError for values that make no sense."""

    #: The total of the bar. None: `State.n_batches`, which Composer's Trainer tells; without that, what the previous epoch
    #: (evaluation, prediction) had, and the first bar only counts.
    batches_per_epoch: int | None = None
    eval_batches: int | None = None
    predict_batches: int | None = None
    #: The metrics beside the bar. None: the first ones that are logged, up to `max_metrics`.
    metrics: tuple[str, ...] | None = None
    #: As many as fit beside a bar on 80 columns.
    max_metrics: int = 4
    #: Whether the bars of finished epochs stay on the screen.
    keep: bool = True
    #: Whether to draw even if nobody watches: into a pipe or a file.
    force: bool = False

    def __post_init__(self) -> None:
        check_counts(self, 0, "batches_per_epoch", "eval_batches", "predict_batches", "max_metrics")


class ProgressBarLogger(LoggerDestination):
    """Draws tqdm's bars on `stream`, by default on what sys.stderr is when a bar begins::

        logger = Logger(State(), ProgressBarLogger(config=ProgressBarConfig(batches_per_epoch=500)))

    The bar of an epoch advances at each ``batch_end``, to ``state.timestamp.batch_in_epoch`` if the loop counts that. The bar
    of an evaluation or prediction advances at the end of each of its batches. All bars end in close(), and when an exception
    ends the program, before its traceback is printed. In a notebook with ipywidgets, bars are widgets.

    Unless ``ProgressBarConfig(force=True)``, nothing is drawn and tqdm is not imported if the stream is neither a terminal nor
    a notebook's output. Nothing is drawn in a forked child. A stream that fails ends the bar, not the run. Any thread may call.
    """

    def __init__(self, stream: TextIO | None = None, *, config: ProgressBarConfig | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._config = config or ProgressBarConfig()
        self._lock = ChildLock()
        self._pid = os.getpid()
        self._bars: dict[str, tqdm[NoReturn]] = {}
        self._totals: dict[str, float | None] = {
            "train": self._config.batches_per_epoch,
            "eval": self._config.eval_batches,
            "predict": self._config.predict_batches,
        }
        self._are_learned = {kind for kind, total in self._totals.items() if total is None}
        self._epoch = -1
        self._texts: dict[str, str] = {}
        self._is_closed = False
        self._forget_uncaught = before_traceback(lambda _: self._close_bars())

    def __repr__(self) -> str:
        return f"<ProgressBarLogger{' closed' if self._is_closed else ''}>"

    def is_quiet(self) -> bool:
        """Whether a bar that began now would not be drawn."""
        watched = self._config.force or is_watched(self._stream if self._stream is not None else sys.stderr)
        return self._is_closed or os.getpid() != self._pid or not watched

    def will_log(self, state: State, level: LogLevel) -> bool:
        """Whether metrics of this level are shown: not VERBOSE, as bars have little room."""
        return level < LogLevel.VERBOSE

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Show the metrics beside the current bar from its next batch on."""
        if self._is_closed:
            raise RuntimeError("this ProgressBarLogger is closed: make a new one to go on logging")
        if not self._bars:
            return
        with self._lock:
            for key, value in metrics.items():
                if self._is_wanted(name := str(key)):
                    number = to_number(value)
                    text = f"{name}={value!s:.12}" if number is None else f"{name}={number:.4g}"
                    self._texts[name] = printable(text, keep="")

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Begin the epoch's bar."""
        self._begin_epoch(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Advance the epoch's bar."""
        if "train" not in self._bars or self._epoch != state.timestamp.epoch:
            self._begin_epoch(state, n=max(state.timestamp.batch_in_epoch - 1, 0))
        self._move("train", state.timestamp.batch_in_epoch)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """End the epoch's bar."""
        self._end("train")

    fit_end = epoch_end  # the training may end within an epoch

    def eval_start(self, state: State, logger: Logger) -> None:
        """Begin a bar for the evaluation."""
        self._begin("eval", "eval", state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Advance the evaluation's bar."""
        self._move("eval")

    def eval_end(self, state: State, logger: Logger) -> None:
        """End the evaluation's bar."""
        self._end("eval")

    def predict_start(self, state: State, logger: Logger) -> None:
        """Begin a bar for the prediction."""
        self._begin("predict", "predict", state)

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """Advance the prediction's bar."""
        self._move("predict")

    def predict_end(self, state: State, logger: Logger) -> None:
        """End the prediction's bar."""
        self._end("predict")

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """End all bars. Closing again does nothing."""
        self._is_closed = True
        self._forget_uncaught()
        self._close_bars()

    def _is_wanted(self, name: str) -> bool:
        if self._config.metrics is not None:
            return name in self._config.metrics
        return name in self._texts or len(self._texts) < self._config.max_metrics

    def _begin_epoch(self, state: State, n: int | None = None) -> None:
        self._epoch = state.timestamp.epoch
        self._begin("train", f"epoch {self._epoch}", state, state.timestamp.batch_in_epoch if n is None else n)

    def _begin(self, kind: str, label: str, state: State, n: int = 0) -> None:
        self._end(kind)
        if self.is_quiet():
            return
        with self._lock:
            keep = self._config.keep and not self._bars  # a bar below another one is cleared; it would stay between lines
            self._texts.clear()
            total = state.n_batches if kind in self._are_learned and state.n_batches else self._totals[kind]
            self._bars[kind] = _new_bar(self._stream, label, total, n, keep=keep)

    def _move(self, kind: str, to: int = 0) -> None:
        """Set the bar to `to` batches; 0, where the loop does not count them: advance it by one."""
        with self._lock:
            bar = self._bars.get(kind)
            if bar is None or os.getpid() != self._pid:
                return
            if self._texts:
                bar.set_postfix_str(", ".join(self._texts.values()), refresh=False)
            if to and to < bar.n:  # the loop went back to a checkpoint
                bar.n = to
                bar.refresh()
            else:
                bar.update(to - bar.n if to else 1)

    def _end(self, kind: str) -> None:
        with self._lock:
            bar = self._bars.pop(kind, None)
            if bar is None or os.getpid() != self._pid:
                return
            if kind in self._are_learned and bar.n:
                self._totals[kind] = bar.n
            bar.refresh()
            bar.close()
            self._texts.clear()

    def _close_bars(self) -> None:
        for kind in reversed(list(self._bars)):
            self._end(kind)


def _new_bar(stream: TextIO | None, label: str, total: float | None, n: int, *, keep: bool) -> tqdm[NoReturn]:
    if stream is None and in_notebook() and importlib.util.find_spec("ipywidgets"):
        from tqdm.notebook import tqdm as notebook_tqdm

        return notebook_tqdm(desc=label, total=total, initial=n, leave=keep)
    from tqdm import tqdm

    options = {"dynamic_ncols": True} if _has_width(stream or sys.stderr) else {"ncols": _DEFAULT_WIDTH, "nrows": _DEFAULT_HEIGHT}
    return tqdm(desc=label, total=total, initial=n, leave=keep, file=stream, unit="batch", **options)


def _has_width(stream: TextIO) -> bool:
    """Whether tqdm can ask for its width. A terminal without a size, as in some containers, would get bars of width 0."""
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError, AttributeError):
        return False
