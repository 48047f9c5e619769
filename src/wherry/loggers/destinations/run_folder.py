"""RunFolderLogger: everything a run logs, in one folder of standard formats. Neither a server nor wherry is needed to read it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wherry.loggers.destinations.handover import Handover
from wherry.loggers.destinations.remote_names import RunNames
from wherry.loggers.files.background import Background
from wherry.loggers.files.json_lines import json_line
from wherry.loggers.files.media_index import Media
from wherry.loggers.files.run_files import RunFiles, RunPlace
from wherry.loggers.files.run_summary import EVERY_S, FIRST_AFTER_S
from wherry.loggers.logger import Logger
from wherry.loggers.run.run_environment import environment
from wherry.loggers.run.state import State, sample_state
from wherry.loggers.value_destination import ValueDestination
from wherry.loggers.values import encode
from wherry.loggers.values.arrays import to_float
from wherry.loggers.values.checks import check_amounts, check_counts
from wherry.loggers.values.kinds import Audio, Histogram, Images, PointCloud, Table, Text, Value, Video
from wherry.loggers.values.safe_name import safe_name
from wherry.loggers.values.tables import free_name
from wherry.posix.fork import call_in_children

log = logging.getLogger("wherry")

#: The fields that every line has. A metric or column with such a name gets a "_" appended.
_OURS = frozenset({"t", "step", "phase"})
#: Larger integers are written as floats, as pandas cannot read them.
_MOST_WHOLE = 2**63 - 1


@dataclass(frozen=True)
class RunFolderConfig:
    """How a RunFolderLogger works. ConfigError for values that make no sense."""

    #: Whether only rank 0 logs, as the metrics of all ranks are usually the same. With False, each rank has its own subfolder.
    rank_zero_only: bool = True
    #: Whether metrics and tables are also written as Parquet at the close, if pyarrow is installed: a fifth of the size.
    parquet: bool = True
    #: Whether files are handed to the destinations that upload: media at once, the others at the close. Not needed where a
    #: `Mirror` uploads the folder.
    upload: bool = True
    #: The remote folder, a template (see `State.fill`). If it holds the files of another local folder, its subfolder
    #: ``attempt-2`` is used, and so on.
    remote_folder: str = "{run_name}"
    #: Whether flush() calls fsync, so that the files survive a power failure, and not only the end of the process.
    fsync: bool = False
    #: Enough to see the shape of a distribution.
    n_histogram_bins: int = 64
    #: Whether a run that has begun writes ``environment.json`` when it logs first.
    environment: bool = True
    #: A longer difference between the code and its git commit is cut in ``environment.json``. 0: none is written.
    max_diff_bytes: int = 256 * 2**10
    #: The memory of media that wait to be encoded, a few seconds of video. While it is exceeded, log calls wait.
    max_pending_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        check_counts(self, 1, "n_histogram_bins")
        check_amounts(self, "max_pending_bytes")
        check_amounts(self, "max_diff_bytes", may_be_zero=True)
        sample_state().fill(self.remote_folder)


class RunFolderLogger(ValueDestination):
    """Writes to `folder`, a template (see `State.fill`), which is filled when the run begins, or at the first log call::

        with RunFolderLogger("runs/{run_name}") as log:
            log.log_metrics({"loss": 0.5}, step=1)  # a line in runs/.../metrics.jsonl

    | file | holds |
    | --- | --- |
    | ``environment.json`` | git commit and diff, command line, packages, machine; then ``environment-2.json`` |
    | ``hparams.json`` | hyperparameters; later calls replace those of the same name |
    | ``wherry-summary.json`` | hyperparameters, and the last, least and greatest number of each metric; once a minute |
    | ``metrics.jsonl`` | a line for each log_metrics: ``t`` (s since 1970), ``step``, ``phase`` (eval, predict) and the metrics |
    | ``tables/<name>.jsonl`` | a line for each row: ``t``, ``step`` and the columns |
    | ``metrics.parquet``, ``tables/<name>.parquet`` | the same as Parquet, written at the close |
    | ``text.jsonl``, ``traces.jsonl``, ``histograms.jsonl`` | a line for each; its name is ``key`` |
    | ``media/images/<name>/<step>.png`` | an image; ``<step>-<number>.png`` if the step has several |
    | ``media/masks/<name>/<mask>/<step>.png`` | a mask: the index of a pixel is its label |
    | ``media/masks/<name>/classes.json`` | the names of labels |
    | ``media/audio/<name>/<step>.wav``, ``media/video/..mp4``, ``media/pointclouds/..ply`` | sound, videos, points |
    | ``.wherry-run.json`` | which remote folder belongs to this one (see `RunNames`) |
    | ``media/index.jsonl`` | of each: ``t``, ``step``, ``key``, ``kind``, ``path``, ``sha256``, ``size_bytes``, ``shape`` |
    | ``children/<process>/`` | what a forked child logged, such as a DataLoader's worker: the same files again |

    Names are kept as they are given; in paths, `safe_name` replaces what file systems refuse. A metric or column called
    ``t``, ``step`` or ``phase`` gets a ``_`` appended. JSON has neither NaN nor infinities: they are the strings "NaN",
    "Infinity" and "-Infinity", which pandas reads as numbers, and DuckDB with ``::DOUBLE``. In Parquet they are numbers.

    Guarantees: metrics, texts, traces and hyperparameters are in their file when the call returns; SIGKILL loses none of them.
    Media, histograms and tables are copied by the call and written by a background thread. flush() returns when they are
    written too, and raises the first error. Each media file appears whole, and before its line in the index.

    The folder of an earlier run is continued. Nothing that was logged is replaced or removed, except a last line that a killed
    process left incomplete; steps may go back. While one process writes a folder, calls of other processes raise RuntimeError. If
    somebody removes the folder, the next call makes it again, with the hyperparameters, and logs a warning.

    The folder belongs to the process that gets the event INIT, or else to the process that made the logger. A forked child
    writes to its own folder below ``children``, even if it logs first. The parent uploads at its close what its children have
    written by then.

    Without a step, the calls for a name are counted from 0 (log_metrics: all calls). Any thread may call. After close(), log
    calls raise RuntimeError.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = "runs/{run_name}",
        *,
        config: RunFolderConfig | None = None,
        state: State | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(state)
        self._config = config or RunFolderConfig()
        self.rank_zero_only = self._config.rank_zero_only
        self._folder = os.fspath(folder)
        sample_state().fill(self._folder)
        self._seen: State | None = state  # while `_state` may be a default one
        self._now = now
        self._phase: str | None = None
        self._background = Background("run folder", max_pending_bytes=self._config.max_pending_bytes)
        self._mutex = threading.RLock()
        self._place = RunPlace(self._fill_folder, fsync=self._config.fsync)
        self._has_logged = False
        #: Whether the next log call writes ``environment.json``: a run that logs nothing leaves no file.
        self._owes_environment = False
        #: When the next summary is due, by `now`; None before the first metrics.
        self._summary_due_s: float | None = None
        self._finished = self._make_finished()
        call_in_children(self, RunFolderLogger._start_afresh)

    def __repr__(self) -> str:
        return f"<RunFolderLogger {self._folder}{' closed' if self._is_closed else ''}>"

    @property
    def folder(self) -> Path:
        """The folder of this run and rank, as the template is filled now."""
        return self._place.folder

    # what is logged

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Add settings to those logged before. ValueError if ``hparams.json`` is no longer a JSON object."""
        if run := self._open_run():
            run.merge_json("hparams.json", hyperparameters)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a line; `step=None` counts the calls."""
        if run := self._open_run():
            now_s = self._now()
            line = self._line(self._step(step, "metrics"), now_s)
            if "epoch" not in metrics and (epoch := self._epoch()) is not None:
                line["epoch"] = epoch
            for key, value in metrics.items():
                if type(value) is int and not -_MOST_WHOLE <= value <= _MOST_WHOLE:
                    value = to_float(value)
                is_free = type(key) is str and key not in _OURS and key not in line  # asked at every call
                line[key if is_free else free_name(str(key), _OURS, line)] = value
            run.lines("metrics.jsonl").append(json_line(line))
            if self._summary_due_s is None:
                self._summary_due_s = now_s + FIRST_AFTER_S
            elif now_s >= self._summary_due_s:
                self._summary_due_s = now_s + EVERY_S
                self._background.submit(partial(self._write_summary, run, "live"))

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Add a line for each; a large array is written as its shape only."""
        if run := self._open_run():
            start: dict[str, object] = {"t": self._now()}
            if self._seen is not None:
                start["step"] = self._seen.timestamp.batch
            lines = [json_line({**start, "key": str(key), "trace": trace}) for key, trace in traces.items()]
            if lines:
                run.lines("traces.jsonl").append(b"".join(lines))

    def write(self, value: Value, step: int) -> None:
        """Write a text now; the background thread writes anything else."""
        t = self._now()
        line = self._line(step, t)
        match value:
            case Text():
                if run := self._open_run():
                    run.lines("text.jsonl").append(json_line({**line, "key": value.name, "text": value.text}))
            case Table():
                self._later(partial(_write_table, table=value, line=line), value)
            case Histogram():
                line |= {"key": value.name}
                n_bins = self._config.n_histogram_bins
                self._later(lambda run: run.lines("histograms.jsonl").append(json_line(line | value.record(n_bins))), value)
            case _:
                self._later(partial(self._write_media, value=value, step=step, t=t), value)

    def flush(self) -> None:
        """Return when everything logged so far is in its file.

        Raises the first error of writing that was not raised yet.
        """
        if self._is_closed:
            return
        try:
            self._background.flush()
        finally:
            if self._place.files is not None:
                self._place.files.flush()

    # events

    def init(self, state: State, logger: Logger) -> None:
        """Take the state and the logger, and the folder, so that a child that is forked later cannot take it."""
        if self._place.begin_here():
            self._finished = self._make_finished()
        self._see(state, logger)
        self._take_folder()
        self._owes_environment = self._config.environment and not self._has_logged

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Flush."""
        self._see(state, logger)
        self.flush()

    fit_end = epoch_end

    def eval_start(self, state: State, logger: Logger) -> None:
        """Give the metrics from now on the phase "eval"."""
        self._see(state, logger)
        self._phase = "eval"

    def predict_start(self, state: State, logger: Logger) -> None:
        """Give the metrics from now on the phase "predict"."""
        self._see(state, logger)
        self._phase = "predict"

    def eval_end(self, state: State, logger: Logger) -> None:
        """End the phase, and flush."""
        self._phase = None
        self.epoch_end(state, logger)

    eval_standalone_end = predict_end = eval_end

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what is left and the Parquet files, hand the files over for upload, and unlock the folder. Again: nothing."""
        with self._mutex:
            if self._is_closed:
                return
            self._see(state, logger)
            self._is_closed = True
        with ExitStack() as stack:  # makes all calls even if some raise, the last one added first
            if (run := self._place.files) is not None:
                stack.callback(run.close)
                stack.callback(self._finished.finish, in_haste=logger is not None and logger.error is not None)
                stack.callback(lambda: self._finished.add((run.name_of(path), path) for path in run.all_but_media()))
                stack.callback(self._write_summary, run, "finished")
                if self._config.parquet:
                    stack.callback(run.write_parquet)
                stack.callback(run.flush)
            self._background.close()

    # inside

    def _see(self, state: State | None, logger: Logger | None = None) -> None:
        super()._see(state)
        self._seen = state or self._seen
        self._finished.see(logger)

    def _open_run(self) -> RunFiles | None:
        """The files to write to; None on a rank that writes none. RuntimeError after close()."""
        if self._has_logged and not self._is_closed:  # asked at every call
            return self._place.files
        run = self._take_folder()
        if run is not None:
            self._finished.begin()
            self._has_logged = True
            if self._owes_environment and not self._place.is_child:
                self._background.submit(partial(self._write_environment, run, self._now()))
            self._owes_environment = False
        return run

    def _take_folder(self) -> RunFiles | None:
        self._check_open()
        is_left_out = self._config.rank_zero_only and self._known_state().rank > 0
        return None if is_left_out else self._place.take()

    def _fill_folder(self) -> Path:
        state = self._known_state()
        folder = Path(state.fill(self._folder))
        return folder if self._config.rank_zero_only else folder / f"rank{state.rank}"

    def _is_taking(self) -> bool:
        return self._open_run() is not None

    def _write_summary(self, run: RunFiles, state: str) -> None:
        run.write_summary(self._known_state().run_name, state, self._now())

    def _write_environment(self, run: RunFiles, t: float) -> None:
        try:
            found = environment(max_diff_bytes=self._config.max_diff_bytes)
        except Exception as error:  # a broken package, a removed working folder: no reason for flush() to fail
            log.warning("environment.json is not written: %r", error)
            return
        run.write_environment({"t": t, **found})

    def _line(self, step: int, t: float) -> dict[str, object]:
        line: dict[str, object] = {"t": t, "step": step}
        if self._phase is not None:
            line["phase"] = self._phase
        return line

    def _epoch(self) -> int | None:
        """The epoch that the training loop is in; None if it has never said where it is."""
        timestamp = None if self._seen is None else self._seen.timestamp
        return timestamp.epoch if timestamp is not None and (timestamp.epoch or timestamp.batch) else None

    def _later(self, write: Callable[[RunFiles], object], value: Value) -> None:
        if run := self._open_run():
            self._background.submit(partial(write, run), pending_bytes=value.size_bytes, what=value.name)

    def _write_media(self, run: RunFiles, value: Images | Audio | Video | PointCloud, step: int, t: float) -> None:
        media = partial(Media, key=value.name, step=step, t=t)
        match value:
            case Images():
                self._write_images(run, value, media)
            case Audio():
                sound = media("audio", shape=value.samples.shape, more={"sample_rate_hz": value.sample_rate_hz})
                self._add(run, sound, encode.wav_bytes(value.samples, value.sample_rate_hz))
            case Video():
                video = media("video", shape=value.shape, more={"frames_per_s": value.frames_per_s})
                self._add(run, video, partial(encode.write_mp4, value.frames, value.frames_per_s))
            case PointCloud(clouds=clouds):
                for cloud in clouds:
                    one = media("point_cloud", shape=cloud.shape, is_one_of_several=len(clouds) > 1)
                    self._add(run, one, encode.ply_bytes(cloud))

    def _write_images(self, run: RunFiles, value: Images, media: Callable[..., Media]) -> None:
        media = partial(media, is_one_of_several=len(value.shapes) > 1)
        folder, labels = safe_name(value.name), value.mask_class_labels
        paths = [self._add(run, media("image", shape=image.shape), encode.png_bytes(image)) for image in value.images]
        for name, masks in value.masks.items():
            for mask, path in zip(masks, paths, strict=True):
                one = media(
                    "mask",
                    key=f"{value.name}/{name}",
                    shape=mask.shape,
                    folder=f"{folder}/{safe_name(name)}",
                    more={"image": run.name_of(path), "mask": name},
                )
                self._add(run, one, encode.mask_png_bytes(mask, labels))
        if value.masks and labels:
            run.merge_json(f"media/masks/{folder}/classes.json", {str(label): name for label, name in labels.items()})

    def _add(self, run: RunFiles, media: Media, content: bytes | Callable[[Path], object]) -> Path:
        path = run.media.add(media, content if callable(content) else lambda temporary: temporary.write_bytes(content))
        self._finished.add([(run.name_of(path), path)])  # in this thread: a snapshot of a video takes its time
        return path

    def _make_finished(self) -> Handover:
        remote = self._config.remote_folder if self._config.rank_zero_only else f"{self._config.remote_folder}/rank{{rank}}"
        upload = self._config.upload and not self._place.is_child  # the owner of the run's folder uploads what is in it
        return Handover(RunNames(remote, lambda: self.folder), upload=upload)

    def _start_afresh(self) -> None:
        """In a forked child: another thread may have held a lock, and the folder belongs to the parent."""
        self._mutex = threading.RLock()
        self._place.start_afresh()
        self._finished = self._make_finished()
        self._has_logged = False
        self._summary_due_s = None


def _write_table(run: RunFiles, table: Table, line: Mapping[str, object]) -> None:
    names = dict.fromkeys(line)
    for column in table.columns:
        names[free_name(column, _OURS, names)] = None
    columns = list(names)[len(line) :]
    lines = (json_line({**line, **dict(zip(columns, row, strict=True))}) for row in table.rows)
    if text := b"".join(lines):
        run.append_table(table.name, text)
