"""TensorBoardLogger: everything a run logs, in files that TensorBoard shows, and without TensorBoard or TensorFlow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.event_files import summaries
from wherry.loggers.event_files.event_file import EventFile
from wherry.loggers.files.background import Background
from wherry.loggers.run.state import State
from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.checks import check_amounts, check_counts
from wherry.loggers.values.markdown import code_block, markdown_table
from wherry.loggers.values.steps import to_step
from wherry.loggers.values.text import format_json

if TYPE_CHECKING:
    from wherry.loggers.logger import Logger

_Self = TypeVar("_Self", bound="TensorBoardLogger")
_HYPERPARAMETERS = "hyperparameters"


@dataclass(frozen=True)
class TensorBoardConfig:
    """How a TensorBoardLogger works. ConfigError for values that make no sense."""

    #: Whether only rank 0 logs. Curves of all ranks are mostly the same one; with False each rank has its folder.
    rank_zero_only: bool = True
    #: A file of this size is closed, and uploaded once. 16 MiB are some 300,000 scalars, and seconds on a slow line.
    max_file_bytes: int = 16 * 2**20
    #: So is a file of this age, if some destination uploads: that is how late a store is, and makes 288 files a day.
    max_file_age_s: float = 300.0
    #: Whether closed files are handed to the destinations that upload; if a `Mirror` keeps the folder, they need not be.
    upload: bool = True
    #: The folder of uploaded files, a template (see `State.fill`).
    remote_folder: str = "{run_name}/tb/rank{rank}"
    #: Whether flush() and the end of a file wait for the disk, to survive a loss of power, and not only the process's end.
    fsync: bool = False
    #: Enough for a shape; TensorBoard's own default is 30.
    n_histogram_bins: int = 64
    #: Longer tables are cut: TensorBoard shows all of a text at once, in one page. RunFolderLogger keeps them whole.
    max_table_rows: int = 1000
    #: Of larger clouds so many points are shown, picked at random: TensorBoard's server makes Python lists of all.
    max_points: int = 20_000

    def __post_init__(self) -> None:
        check_amounts(self, "max_file_bytes", "max_file_age_s")
        check_counts(self, 1, "n_histogram_bins", "max_table_rows", "max_points")
        _sample_state().fill(self.remote_folder)


class TensorBoardLogger(LoggerDestination):
    """Writes event files below `folder`, a template (see `State.fill`), one folder a rank: ``tensorboard --logdir runs``.

    | call | dashboard |
    | --- | --- |
    | log_metrics | scalars, under the metric's name |
    | log_hyperparameters | hparams, and a table in text under "hyperparameters" |
    | log_images | images, several under "name/0", "name/1" ...; each mask drawn over its image under "name/mask", with a legend |
    | log_video | images, as an animated GIF |
    | log_histogram, log_audio, log_point_cloud | histograms and distributions, audio, mesh |
    | log_text, log_table, log_traces | text, as Markdown; traces under "traces/name" |

    Guarantees: figures, texts, tables and hyperparameters are in the file when the call returns, and SIGKILL loses none of them.
    Media are copied, and encoded by a thread of ours; flush() returns when they too are in the file, and raises that thread's
    first error. A file has its name for ever, and is handed over for upload once, when it is closed (see `TensorBoardConfig`).
    What torch's SummaryWriter can write is written as it does, for tools that read event files.

    Without a step, calls for a name are counted from 0 (log_metrics: all calls). TensorBoard's fast loader, its default, takes
    a step that goes back for a restart: it drops the points of that name from there on, and of two for one step the earlier. The
    hparams dashboard has what log_hyperparameters() was given before the first other call, or flush: TensorBoard reads one record
    of it. A name belongs to the kind that used it first: a histogram "loss" next to a metric "loss" is "loss (histogram)".

    Any thread may call. The child of a fork writes to files of its own in the same folder. A metric that is no number is a
    ValueError, after the others of its call were written. After close() all calls that log raise RuntimeError.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = "runs/{run_name}/tb",
        *,
        config: TensorBoardConfig | None = None,
        state: State | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._config = config or TensorBoardConfig()
        self.rank_zero_only = self._config.rank_zero_only
        self._folder = os.fspath(folder)
        _sample_state().fill(self._folder)
        self._state = state
        self._now = now
        self._background = Background("tensorboard")
        self._files: dict[str, EventFile] = {}  # one, under its folder, as soon as that is known
        self._kinds: dict[str, str] = {}
        self._counts: dict[str, Iterator[int]] = {}
        self._hyperparameters: dict[str, summaries.HParam] = {}
        self._session_is_due = False
        self._session_has_begun = False
        self._uploads: bool | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<TensorBoardLogger {self._folder}{' closed' if self._is_closed else ''}>"

    # what is logged

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Add settings to the table of all; nested names are joined by "/"."""
        events = self._events()
        self._hyperparameters.update(summaries.hparams(hyperparameters))
        rows = list(self._hyperparameters.items())
        if rows:
            tag = self._tag(_HYPERPARAMETERS, "text")
            events.add_values([summaries.text(tag, markdown_table(("name", "value"), rows))], 0)
            self._session_is_due = not self._session_has_begun

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a point to each curve; `step=None` counts the calls."""
        events = self._events(begin_session=True)
        at = self._step(step, "metrics")
        kinds = self._kinds
        values: Mapping[str, object] = metrics
        scalars: dict[str, float] = {}
        wrong: list[str] = []
        for key, value in values.items():
            tag = key if kinds.get(key) == "scalar" else self._tag(key, "scalar")
            number = value if isinstance(value, (float, int)) else to_number(value)
            if number is None:
                wrong.append(f"{key} is of {type(value).__name__} {getattr(value, 'shape', '')}".rstrip())
            else:
                scalars[tag] = number
        events.add_scalars(scalars, at)
        if wrong:
            raise ValueError(f"{', '.join(wrong)}; a metric is a number, or an array or tensor of one")

    def log_images(
        self,
        images: object,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: Mapping[str, object] | None = None,
        mask_class_labels: Mapping[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Add images, and under "name/mask" each mask drawn over them. ValueError for shapes that are none; of masks once the
        images are accepted.
        """
        from wherry.loggers.values.canonical import copy_images, to_images
        from wherry.loggers.values.encode import png_bytes, require
        from wherry.loggers.values.masks import mask_legend, mask_overlay, masks_of

        self._check_open()
        require("PIL.Image", "Pillow")
        given = copy_images(images, name, channels_last=channels_last or None)
        fitting, wrong = masks_of(masks, given, name)
        drawings = {f"{name}/{mask_name}": drawn for mask_name, drawn in fitting.items()}
        labels = dict(mask_class_labels or {})
        tags = {shown: self._image_tags(shown, len(given)) for shown in (name, *drawings)}

        def encode() -> list[bytes]:
            pictures = to_images(given, name)
            values = [summaries.image(tag, one.shape, png_bytes(one)) for tag, one in zip(tags[name], pictures, strict=True)]
            for drawn_name, drawn in drawings.items():
                for tag, one, mask in zip(tags[drawn_name], pictures, drawn, strict=True):
                    over = mask_overlay(one, mask, labels)
                    values.append(summaries.image(tag, over.shape, png_bytes(over), mask_legend(labels)))
            return values

        size_bytes = sum(one.nbytes for one in (*given, *(mask for drawn in drawings.values() for mask in drawn)))
        self._write_later(encode, self._step(step, f"images {name}"), size_bytes, name)
        if wrong is not None:
            raise wrong

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Add a table, as text. ValueError for rows that are not as long as there are columns."""
        self.log_text(markdown_table(columns, rows, name, max_rows=self._config.max_table_rows), name, step)

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Add each as text, as it is."""
        for name, trace in traces.items():
            text = trace if isinstance(trace, str) else format_json(trace)
            self.log_text(code_block(text), f"traces/{name}")

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Add a text, which is shown as Markdown."""
        value = summaries.text(self._tag(name, "text"), str(text))
        self._events(begin_session=True).add_values([value], self._step(step, f"text {name}"))

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Add a distribution of the finite ones of the values."""
        from wherry.loggers.values.canonical import to_histogram, to_values

        self._check_open()
        array = to_values(values, name)
        tag = self._tag(name, "histogram")

        def encode() -> list[bytes]:
            found = to_histogram(array, name, n_bins=self._config.n_histogram_bins)
            return [summaries.histogram(tag, found)]

        self._write_later(encode, self._step(step, f"histogram {name}"), array.nbytes, name)

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Add a sound clip, as WAV."""
        from wherry.loggers.values.canonical import copy_audio, to_audio
        from wherry.loggers.values.encode import wav_bytes

        self._check_open()
        if sample_rate_hz <= 0:
            raise ValueError(f"{name}: sample_rate_hz is {sample_rate_hz}: it must be above 0")
        given = copy_audio(audio, name)
        tag = self._tag(name, "audio")

        def encode() -> list[bytes]:
            samples = to_audio(given, name)
            return [summaries.audio(tag, wav_bytes(samples, sample_rate_hz), sample_rate_hz, len(samples))]

        self._write_later(encode, self._step(step, f"audio {name}"), given.nbytes, name)

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = 12.0, step: int | None = None) -> None:
        """Add a video, as an animated GIF, which is all that TensorBoard can show of videos."""
        from wherry.loggers.values.canonical import copy_video, to_video
        from wherry.loggers.values.encode import gif_bytes, require

        self._check_open()
        require("PIL.Image", "Pillow")
        if frames_per_s <= 0:
            raise ValueError(f"{name}: frames_per_s is {frames_per_s}: it must be above 0")
        given = copy_video(video, name)
        tag = self._tag(name, "image")

        def encode() -> list[bytes]:
            return [summaries.image(tag, given.shape[1:], gif_bytes(to_video(given, name), frames_per_s))]

        self._write_later(encode, self._step(step, f"video {name}"), given.nbytes, name)

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Add a cloud of points, or a batch of them; those that are not finite are not shown."""
        from wherry.loggers.values.canonical import to_point_cloud

        self._check_open()
        clouds = to_point_cloud(points, name, max_points=self._config.max_points)
        tag = self._tag(name, "mesh")
        self._write_later(lambda: [summaries.point_cloud(tag, clouds)], self._step(step, f"points {name}"), clouds.nbytes, name)

    def flush(self) -> None:
        """Return when all that was logged before is in the file. Raises the first error of encoding that was not raised yet."""
        if self._is_closed:
            return
        try:
            self._background.flush()
        finally:
            if self._session_is_due:
                self._events(begin_session=True)
            for events in self._files.values():
                events.flush()

    # events

    def is_ready(self, state: State) -> bool:
        """Take the state, which names the folder; True."""
        self._see(state)
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Take the state."""
        self._hand_over(state, logger)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Write the hyperparameters logged so far for the hparams dashboard."""
        self._hand_over(state, logger)
        if self._session_is_due and not self._is_closed:
            self._events(begin_session=True)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Hand closed files over for upload."""
        self._hand_over(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Hand closed files over for upload."""
        self._hand_over(state, logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Hand closed files over for upload."""
        self._hand_over(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Flush, and hand closed files over for upload."""
        self._flush_and_hand_over(state, logger)

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Flush, and hand closed files over for upload."""
        self._flush_and_hand_over(state, logger)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Flush, and hand closed files over for upload."""
        self._flush_and_hand_over(state, logger)

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what is left, close the file and hand it over for upload. Closing again does nothing."""
        if self._is_closed:
            return
        self._see(state)
        try:
            self._background.close()
        finally:
            try:
                self._end_session(failed=logger is not None and logger.error is not None)
            finally:
                self._is_closed = True
                for events in self._files.values():
                    events.close()
                if logger is not None:
                    self._hand_over(state, logger)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # inside

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"{self!r}: make a new one to go on logging")

    def _see(self, state: State | None) -> None:
        if state is not None:
            self._state = state

    def _events(self, *, begin_session: bool = False) -> EventFile:
        self._check_open()
        events = next(iter(self._files.values()), None) or self._open()
        if begin_session and self._session_is_due:
            self._session_is_due, self._session_has_begun = False, True
            events.add_values([summaries.session_start(self._hyperparameters, self._now())], 0)
        return events

    def _end_session(self, *, failed: bool) -> None:
        if self._session_is_due:
            self._events(begin_session=True)
        if self._session_has_begun:
            self._events().add_values([summaries.session_end(self._now(), failed=failed)], 0)

    def _open(self) -> EventFile:
        state = self._state or State()
        folder = Path(state.fill(self._folder)) / f"rank{state.rank}"
        events = EventFile(folder, max_file_bytes=self._config.max_file_bytes, fsync=self._config.fsync, now=self._now)
        return self._files.setdefault("events", events)  # atomic: of several threads one wins; no file was made yet

    def _tag(self, name: object, kind: str) -> str:
        """The name in the file: readers drop what comes under a tag of another kind, so it gets another tag."""
        tag = str(name)
        while self._kinds.setdefault(tag, kind) != kind:
            tag = f"{tag} ({kind})"
        return tag

    def _image_tags(self, name: str, n_images: int) -> list[str]:
        """A tag an image: a tag has one image a step."""
        return [self._tag(name if n_images == 1 else f"{name}/{number}", "image") for number in range(n_images)]

    def _step(self, step: int | None, counter: str) -> int:
        return next(self._counts.setdefault(counter, count())) if step is None else to_step(step, counter)

    def _write_later(self, encode: Callable[[], list[bytes]], step: int, size_bytes: int, name: str) -> None:
        events = self._events(begin_session=True)
        logged_at_s = self._now()
        self._background.submit(lambda: events.add_values(encode(), step, logged_at_s), pending_bytes=size_bytes, what=name)

    def _flush_and_hand_over(self, state: State, logger: Logger) -> None:
        self._see(state)
        try:
            self.flush()
        finally:
            self._hand_over(state, logger)

    def _hand_over(self, state: State | None, logger: Logger) -> None:
        self._see(state)
        if self._uploads is None:
            self._uploads = self._config.upload and logger.has_file_upload_destination()
        for events in self._files.values():
            events.max_file_age_s = self._config.max_file_age_s if self._uploads else None
            events.roll_if_due()
            for path in events.take_closed():
                if self._uploads:
                    logger.upload_file(f"{self._config.remote_folder}/{_escaped(path.name)}", _escaped(str(path)))


def _sample_state() -> State:
    """To find a bad template now and not after the first epoch."""
    return State("run", rank=0, local_rank=0, world_size=1, local_world_size=1, node_rank=0)


def _escaped(name: str) -> str:
    """As a template that gives `name`."""
    return name.replace("{", "{{").replace("}", "}}")
