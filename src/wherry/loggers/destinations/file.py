"""FileLogger: what a run logs and prints, in order, in one text file for each rank."""

from __future__ import annotations

import atexit
import os
import string
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

from wherry.errors import ConfigError
from wherry.loggers.capture.capture import Capture
from wherry.loggers.capture.exit_hooks import before_traceback
from wherry.loggers.capture.terminal import printable
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.destinations.handover import Handover
from wherry.loggers.destinations.remote_names import FreeNames
from wherry.loggers.logger import Logger
from wherry.loggers.run.level import LogLevel, to_level
from wherry.loggers.run.state import State, sample_state
from wherry.loggers.values.checks import check_amounts, check_counts
from wherry.loggers.values.tables import check_table
from wherry.loggers.values.text import format_json, format_log_data_value, pandas_json
from wherry.loggers.warn_once import WarnOnce

_Self = TypeVar("_Self", bound="FileLogger")


@dataclass(frozen=True)
class FileConfig:
    """How a FileLogger works. ConfigError for values that make no sense."""

    #: Whether the file also gets what the process and its children print, which is still shown where it was shown before.
    capture_stdout: bool = True
    capture_stderr: bool = True
    #: Lines are in the file at once, so they survive the process. Every so many batches the file is synced to the disk, so
    #: that they survive the machine. The training loop does not wait for that.
    flush_every_n_batches: int = 100
    #: A file of this size is closed, and uploaded if a destination uploads; the next lines go to ``name.0001.txt``. 16 MiB is
    #: what editors open quickly, about 100,000 lines. 0: one file of any size.
    roll_size_bytes: int = 16 * 2**20
    #: The last level of `Logger.metric` that is written. log_metrics() is not filtered.
    log_level: LogLevel | str | int = LogLevel.EPOCH
    every_n_epochs: int = 1
    every_n_batches: int = 1
    #: "json": strict JSON with six significant digits. "composer": Composer's format, in which 3e-6 is 0.0000.
    values: Literal["json", "composer"] = "json"
    #: "composer": each line as Composer's FileLogger writes it, a line for each metric; it includes values="composer". For
    #: programs that read such files.
    lines: Literal["wherry", "composer"] = "wherry"
    #: Whether only rank 0 has a file. By default each rank has one, as what the others print can show why a run hangs.
    rank_zero_only: bool = False
    #: Whether ranks other than 0 also write metrics, settings, tables and texts, which are usually the same on all ranks.
    metrics_of_all_ranks: bool = False
    #: Whether an uploaded file replaces an object of its name. Else it gets the next number that is free in the store. On the
    #: disk, no file is ever replaced.
    overwrite: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_level", to_level(self.log_level))
        check_counts(self, 1, "flush_every_n_batches", "every_n_epochs", "every_n_batches")
        check_amounts(self, "roll_size_bytes", may_be_zero=True)
        if self.values not in ("json", "composer"):
            raise ConfigError(f"FileConfig.values is {self.values!r}: use 'json' or 'composer'")
        if self.lines not in ("wherry", "composer"):
            raise ConfigError(f"FileConfig.lines is {self.lines!r}: use 'wherry' or 'composer'")


class FileLogger(LoggerDestination):
    """Writes metrics, settings, tables, traces and texts to the file `filename` in `folder`, line by line::

        log = FileLogger("{run_name}/logs-rank{rank}.txt", folder="logs")

    What the file holds::

        [hyperparameter]: lr: 3e-06
        [stdout]: epoch 0
        [metric][step=1]: {"loss": 0.25}
        [BATCH][step=1]: {"loss": 0.25}                  from Logger.metric
        [table][step=1]: {"name": "Table", "columns": ["a"], "data": [[1]]}
        [text][step=1] Prompt: a line of the text
        [trace]: grad: [0.1, 0.2]
        [exception]: ValueError: no                       the last lines of a run that failed

    `filename` is a template (see `State.fill`), filled with `state` or the state of the first event; lines logged before that
    wait, in order. Existing files are kept, on the disk and in the stores: the run goes on in ``name.0001.txt``. Images, sound,
    videos, point clouds and histograms are left out; RunFolderLogger keeps them.

    **Capture.** From here to the close, it captures what this process, its C code and its child processes write to the
    descriptors 1 and 2, and shows it where it was shown before. What Python prints elsewhere, as in a notebook, is captured
    too. A progress bar is one line, its last state; colours are removed. Each line is in the file as soon as it is printed:
    SIGKILL, a crash in C code or ``os._exit`` right after loses none. A separate process writes the file (see
    `capture/writer_process.py`). Training waits neither for the disk nor for that process, unless a terminal is stopped.

    **At the end** (in close(), or when an exception ends the program, or when the interpreter exits) the descriptors are
    restored, an incomplete last line is kept, and the file is closed. An uncaught exception, or in close() one that is being
    handled by a ``finally``, is the last thing in the file. SIGTERM ends Python without these steps: what was printed is in
    the file, but the file is not uploaded and has no traceback. To get both, turn it into an exception:
    ``signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))``. To see a file in the store while it grows, use a `Mirror`.

    Children that outlive this process can still print to where its output went. In a forked child, log calls raise
    RuntimeError and close() does nothing; what the child prints is captured. A full disk loses lines but does not stop the
    run: one warning is logged, and the file says how many lines are missing. Any thread may call. Raises RuntimeError if the
    process that writes cannot be started.
    """

    def __init__(
        self,
        filename: str = "{run_name}/logs-rank{rank}.txt",
        *,
        folder: str | os.PathLike[str] = ".",
        config: FileConfig | None = None,
        state: State | None = None,
    ) -> None:
        super().__init__()
        self._config = config or FileConfig()
        self._level = to_level(self._config.log_level)  # read at every metric
        self._filename = filename
        self._folder = Path(folder).absolute()
        self.rank_zero_only = not self._config.metrics_of_all_ranks  # of log calls, for the router
        filled = sample_state().fill(filename)  # find a bad template now and not after the first epoch
        if not filled or filled.endswith("/") or ".." in Path(filled).parts:
            raise ConfigError(f"FileLogger's filename {filename!r} names no file below its folder")
        self._pid = os.getpid()
        self._is_composers = self._config.lines == "composer"
        is_json = self._config.values == "json" and not self._is_composers
        self._format = format_json if is_json else format_log_data_value
        self._logger: Logger | None = None
        self._remote_name = ""
        self._is_named = False
        self._is_closed = False
        self._is_off = False
        self._calls = count()
        self._warnings = WarnOnce()
        self._finished = Handover(FreeNames(overwrite=self._config.overwrite))
        streams = [name for name in ("stdout", "stderr") if getattr(self._config, f"capture_{name}")]
        try:  # where lines go if the process is killed before the run has a name
            fallback = str(self._folder / State().fill(filename))
        except ConfigError:
            fallback = ""
        self._capture = Capture(streams, roll_bytes=self._config.roll_size_bytes, fallback=fallback)
        self._forget_uncaught = before_traceback(self._end)
        atexit.register(self._end)
        if state is not None or not _fields(filename):
            self._name(state or State())

    def __repr__(self) -> str:
        return f"<FileLogger {self._folder / self._filename}{' closed' if self._is_closed else ''}>"

    # what is logged

    def will_log(self, state: State, level: LogLevel) -> bool:
        """Whether a metric of this level is written now, by the config's `log_level`, `every_n_epochs` and `every_n_batches`.

        FIT is always written, as in Composer 0.3. With `every_n_batches` of 10, the tenth of every ten batches is written.
        """
        if level > self._level:
            return False
        config = self._config
        if level >= LogLevel.EPOCH and state.timestamp.epoch % config.every_n_epochs:
            return False
        return level < LogLevel.BATCH or (state.timestamp.batch + 1) % config.every_n_batches == 0

    def log_metric(self, epoch: int, step: int, log_level: LogLevel, data: Mapping[str, object]) -> None:
        """Write one line with all of `data`, nested or not."""
        self._write(f"[{to_level(log_level).name}][step={step}]: ", self._format(data))

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Write a line for each."""
        end = " " if self._is_composers else ""
        self._write("[hyperparameter]: ", *(f"{name}: {self._format(value)}{end}" for name, value in hyperparameters.items()))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write one line with all metrics; `step=None` counts the calls."""
        if metrics and self._is_composers:
            lines = (f"{name}: {self._format(value)} " for name, value in metrics.items())
            self._write(f"[metric]{self._at(step).replace('step', 'batch')}: ", *lines)
        elif metrics:
            self._write(f"[metric]{self._at(step)}: ", self._format(metrics))

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Write the table as one line of JSON, whatever the config says. ValueError for rows of another length than `columns`."""
        if self._is_composers:
            self._write("[table]: ", f"{name}: {pandas_json(columns, check_table(columns, rows, name))}")
            return
        table = {"name": name, "columns": [str(column) for column in columns], "data": check_table(columns, rows, name)}
        self._write(f"[table]{self._at(step)}: ", format_json(table))

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Write a line for each."""
        space = "" if self._is_composers else " "
        self._write("[trace]: ", *(f"{name}:{space}{self._format(value)}" for name, value in traces.items()))

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Write each line of the text, with the name before it."""
        self._write(f"[text]{self._at(step)} {name}: ", *str(text).splitlines())

    def alert(self, title: str, text: str = "", level: str = "WARN") -> None:
        """Write a line of the level and the title, and one for each line of the text."""
        self._write(f"[alert][{level}]: ", title, *text.splitlines())

    def flush(self) -> None:
        """Sync everything logged and printed so far to the disk. If the file has no name yet, the template is filled now."""
        self._check_open()
        self._name(State())
        if not self._is_off:
            self._capture.sync()

    # events

    def is_ready(self, state: State) -> bool:
        """True. `Logger` asks this before its first call, so the file gets its name now."""
        self._name(state)
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Take the name from `state`."""
        self._see(state, logger)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Hand over closed files, and every `flush_every_n_batches` have the file synced to the disk."""
        self._see(state, logger, is_due=state.timestamp.batch % self._config.flush_every_n_batches == 0)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Have the file synced to the disk, and hand over closed files."""
        self._see(state, logger, is_due=True)

    eval_end = fit_end = predict_end = eval_standalone_end = epoch_end

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """End the capture, close the file and hand it over for upload. Closing again does nothing."""
        if state is not None:
            self._name(state)
        self._logger = logger or self._logger
        self._end((logger.error if logger is not None else None) or sys.exc_info()[1])

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # inside

    def _write(self, prefix: str, *lines: str) -> None:
        self._check_open()
        if lines and not self._is_off:
            if self._is_composers:  # which writes a value of several lines as such, each with the prefix
                lines = tuple(part for line in lines for part in line.splitlines())
            # printable: nothing that was logged controls the terminal in which the file is shown
            self._capture.add("".join(printable(prefix + line, keep="\t") + "\n" for line in lines))

    def _check_open(self) -> None:
        self._capture.check_process()
        if self._is_closed:
            raise RuntimeError(f"the FileLogger of {self._filename!r} is closed: make a new one to go on logging")

    def _at(self, step: int | None) -> str:
        return f"[step={next(self._calls) if step is None else step}]"

    def _name(self, state: State) -> None:
        """Fill the template. If that fails, a warning is logged, so that the run goes on."""
        if self._is_named or self._is_closed or self._is_foreign():
            return
        self._is_named = True
        if self._config.rank_zero_only and state.rank:
            self._turn_off()
            return
        try:
            filled = state.fill(self._filename)
        except ConfigError as error:
            self._turn_off()
            self._warnings.once("name", f"{self!r} writes no file: {error}")
            return
        self._remote_name = Path(filled).name if Path(filled).is_absolute() else filled
        self._capture.name(str(self._folder / filled))

    def _turn_off(self) -> None:
        """Write no file and restore the descriptors; log calls do nothing from now on."""
        self._is_off = True
        self._capture.discard()
        self._capture.close()

    def _see(self, state: State, logger: Logger, *, is_due: bool = False) -> None:
        if self._is_closed or self._is_foreign():
            return
        self._logger = logger
        self._name(state)
        if is_due and not self._is_off:
            self._capture.sync(wait=False)
        self._hand_over()

    def _is_foreign(self) -> bool:
        """Whether this is a forked child, which does not write to the file."""
        return os.getpid() != self._pid

    def _hand_over(self) -> None:
        logger, paths = self._logger, self._capture.take_rolled()
        if paths and (logger is None or not logger.has_file_upload_destination()):
            paths = []
        n_ranks = logger.state.world_size if logger is not None else 1
        if paths and n_ranks > 1 and not (self._config.rank_zero_only or _tells_ranks_apart(self._filename)):
            self._warnings.once(
                "ranks",
                f"{self!r}: the files of all {n_ranks} ranks would have the name {self._remote_name!r} in the store, "
                "so none is uploaded: put {rank} into the filename, or set FileConfig.rank_zero_only",
            )
            paths = []
        self._finished.see(logger)
        self._finished.add((str(Path(self._remote_name).with_name(path.name)), path) for path in paths)

    def _end(self, error: BaseException | None = None) -> None:
        """Close, with `error` as the last thing in the file. The interpreter calls this too when it exits."""
        if self._is_closed or self._is_foreign():
            return
        if not self._is_named and not self._is_off:
            self._name(State())
        self._is_closed = True
        self._forget_uncaught()
        atexit.unregister(self._end)
        if not self._is_off:
            # These end the program, or a generator, without a traceback.
            is_quiet = isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))
            is_loud = error is not None and not is_quiet
            lines = "".join(traceback.format_exception(error)).splitlines() if is_loud else []
            self._capture.close("".join(f"[exception]: {line}\n" for line in lines))
            try:
                self._hand_over()
            finally:
                self._finished.finish(in_haste=is_loud)


def _fields(filename: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(filename) if name}


def _tells_ranks_apart(filename: str) -> bool:
    return "rank" in _fields(filename) or {"local_rank", "node_rank"} <= _fields(filename)
