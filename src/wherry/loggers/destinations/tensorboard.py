"""TensorBoardLogger: everything a run logs, in files that TensorBoard shows. It needs neither TensorBoard nor TensorFlow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

from wherry.loggers.event_files import summaries
from wherry.loggers.event_files.event_file import EventFile
from wherry.loggers.files.background import Background
from wherry.loggers.logger import Logger
from wherry.loggers.run.state import State, escaped, sample_state
from wherry.loggers.value_destination import ValueDestination
from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.checks import check_amounts, check_counts
from wherry.loggers.values.encode import gif_bytes, png_bytes, wav_bytes
from wherry.loggers.values.kinds import Audio, Histogram, Images, PointCloud, Table, Text, Value, Video
from wherry.loggers.values.masks import mask_legend, mask_overlay
from wherry.loggers.values.text import as_text, code_block, markdown_table


@dataclass(frozen=True)
class TensorBoardConfig:
    """How a TensorBoardLogger works. ConfigError for values that make no sense."""

    #: Whether only rank 0 logs, as the metrics of all ranks are usually the same. With False, each rank has its own folder.
    rank_zero_only: bool = True
    #: A file of this size is closed and uploaded; the next event starts another. 16 MiB hold about 300,000 scalars.
    max_file_bytes: int = 16 * 2**20
    #: A file of this age is closed too if a destination uploads. So the store is at most this late; 300 s are 288 files a day.
    max_file_age_s: float = 300.0
    #: Whether closed files are handed to the destinations that upload. Not needed where a `Mirror` uploads the folder.
    upload: bool = True
    #: The remote folder, a template (see `State.fill`).
    remote_folder: str = "{run_name}/tb/rank{rank}"
    #: Whether flush() and the end of a file call fsync, so that events survive a power failure, and not only the process.
    fsync: bool = False
    #: Enough to see the shape of a distribution; TensorBoard's own default is 30.
    n_histogram_bins: int = 64
    #: Longer tables are cut, as TensorBoard shows a whole text on one page. RunFolderLogger keeps all rows.
    max_table_rows: int = 1000
    #: Larger clouds are reduced to so many random points, as TensorBoard's server converts every point to Python lists.
    max_points: int = 20_000

    def __post_init__(self) -> None:
        check_amounts(self, "max_file_bytes", "max_file_age_s")
        check_counts(self, 1, "n_histogram_bins", "max_table_rows", "max_points")
        sample_state().fill(self.remote_folder)


class TensorBoardLogger(ValueDestination):
    """Writes event files below `folder`, a template (see `State.fill`), one folder a rank: ``tensorboard --logdir runs``::

        with TensorBoardLogger("runs/{run_name}/tb") as board:
            board.log_metrics({"loss": 0.5}, step=1)

    | call | dashboard |
    | --- | --- |
    | log_metrics | scalars |
    | log_hyperparameters | hparams, and a table under "hyperparameters" in text |
    | log_images | images, several under "name/0", "name/1" ...; each mask drawn over its image under "name/mask", with a legend |
    | log_video | images, as an animated GIF |
    | log_histogram, log_audio, log_point_cloud | histograms and distributions, audio, mesh |
    | log_text, log_table, log_traces | text, as Markdown; traces under "traces/name" |

    Guarantees: metrics, texts, tables and hyperparameters are in the file when the call returns; SIGKILL loses none of them.
    Media are copied by the call and encoded by a background thread. flush() returns when they are in the file too, and raises
    that thread's first error. A file is never renamed, and is handed over for upload once, when it is closed (see
    `TensorBoardConfig`). Kinds that torch's SummaryWriter knows are written as it writes them, for tools that read event files.

    Without a step, the calls for a name are counted from 0 (log_metrics: all calls). When a step goes back, TensorBoard's
    default loader assumes a restart: it drops the points of that name from that step on; of two points of one step it drops the
    earlier one. The hparams dashboard shows what log_hyperparameters() was given before the first other log call or flush, as
    TensorBoard reads only one such record. A name belongs to the kind that used it first: a histogram "loss" beside a metric
    "loss" becomes "loss (histogram)".

    Any thread may call. A forked child writes to its own files in the same folder. A metric that is not a number raises
    ValueError after the other metrics of the call were written. After close(), log calls raise RuntimeError.
    """

    needs: ClassVar[Mapping[str, tuple[str, str]]] = dict.fromkeys(("images", "video"), ("PIL.Image", "Pillow"))

    def __init__(
        self,
        folder: str | os.PathLike[str] = "runs/{run_name}/tb",
        *,
        config: TensorBoardConfig | None = None,
        state: State | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(state)
        self._config = config or TensorBoardConfig()
        self.rank_zero_only = self._config.rank_zero_only
        self.max_points = self._config.max_points
        self._folder = os.fspath(folder)
        sample_state().fill(self._folder)
        self._now = now
        self._background = Background("tensorboard")
        self._files: dict[str, EventFile] = {}  # none or one; a dict, as its setdefault() is atomic
        self._kinds: dict[str, str] = {}
        self._hyperparameters: dict[str, summaries.HParam] = {}
        self._session_is_due = False
        self._session_has_begun = False
        self._uploads: bool | None = None

    def __repr__(self) -> str:
        return f"<TensorBoardLogger {self._folder}{' closed' if self._is_closed else ''}>"

    # what is logged

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Add settings to the table of all settings; nested names are joined by "/"."""
        events = self._events()
        self._hyperparameters.update(summaries.hparams(hyperparameters))
        rows = list(self._hyperparameters.items())
        if rows:
            tag = self._tag("hyperparameters", "text")
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

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Add each trace as a text, shown verbatim."""
        for name, trace in traces.items():
            self.log_text(code_block(as_text(trace)), f"traces/{name}")

    def write(self, value: Value, step: int) -> None:
        """Write a text now, which is shown as Markdown; the background thread encodes anything else."""
        match value:
            case Text():
                text = summaries.text(self._tag(value.name, "text"), value.text)
                self._events(begin_session=True).add_values([text], step)
            case Images():
                # A tag for each image, and for each image with a mask over it, as a tag has one image a step.
                names = (value.name, *(f"{value.name}/{mask}" for mask in value.masks))
                numbers = [""] if len(value.shapes) == 1 else [f"/{number}" for number in range(len(value.shapes))]
                tags = [self._tag(f"{name}{number}", "image") for name in names for number in numbers]
                self._write_later(value, step, partial(_image_values, value, tags))
            case Histogram():
                n_bins, tag = self._config.n_histogram_bins, self._tag(value.name, "histogram")
                self._write_later(value, step, lambda: [summaries.histogram(tag, value.data(n_bins))])
            case Audio():
                tag, rate_hz = self._tag(value.name, "audio"), value.sample_rate_hz
                wav = partial(wav_bytes, sample_rate_hz=rate_hz)
                self._write_later(value, step, lambda: [summaries.audio(tag, wav(value.samples), rate_hz, len(value.samples))])
            case Video():
                tag = self._tag(value.name, "image")
                self._write_later(
                    value, step, lambda: [summaries.image(tag, value.shape[1:], gif_bytes(value.frames, value.frames_per_s))]
                )
            case PointCloud():
                tag = self._tag(value.name, "mesh")
                self._write_later(value, step, lambda: [summaries.point_cloud(tag, value.clouds)])

    def flush(self) -> None:
        """Return when everything logged so far is in the file. Raises the first error of encoding that was not raised yet."""
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

    def init(self, state: State, logger: Logger) -> None:
        """Take the state, and hand closed files over for upload."""
        self._hand_over(state, logger)

    batch_end = epoch_end = eval_end = init

    def fit_start(self, state: State, logger: Logger) -> None:
        """Write the hyperparameters logged so far for the hparams dashboard."""
        self._hand_over(state, logger)
        if self._session_is_due and not self._is_closed:
            self._events(begin_session=True)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Flush, and hand closed files over for upload."""
        self._see(state)
        try:
            self.flush()
        finally:
            self._hand_over(state, logger)

    eval_standalone_end = predict_end = fit_end

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

    # inside

    def _events(self, *, begin_session: bool = False) -> EventFile:
        self._check_open()
        if not self._files:
            state = self._known_state()
            folder = Path(state.fill(self._folder)) / f"rank{state.rank}"
            new = EventFile(folder, max_file_bytes=self._config.max_file_bytes, fsync=self._config.fsync, now=self._now)
            self._files.setdefault("events", new)  # atomic: of several threads one wins; no file exists yet
        events = self._files["events"]
        if begin_session and self._session_is_due:
            self._session_is_due, self._session_has_begun = False, True
            events.add_values([summaries.session_start(self._hyperparameters, self._now())], 0)
        return events

    def _end_session(self, *, failed: bool) -> None:
        if self._session_is_due:
            self._events(begin_session=True)
        if self._session_has_begun:
            self._events().add_values([summaries.session_end(self._now(), failed=failed)], 0)

    def _tag(self, name: object, kind: str) -> str:
        """The tag for a name. Readers drop values under a tag of another kind, so a name of two kinds gets two tags."""
        tag = str(name)
        while self._kinds.setdefault(tag, kind) != kind:
            tag = f"{tag} ({kind})"
        return tag

    def _write_later(self, value: Value, step: int, encode: Callable[[], list[bytes]]) -> None:
        events, logged_at_s = self._events(begin_session=True), self._now()
        self._background.submit(
            lambda: events.add_values(encode(), step, logged_at_s), pending_bytes=value.size_bytes, what=value.name
        )

    def _put(self, value: Value, step: int | None) -> None:
        if isinstance(value, Table):  # shown, and counted, as a text
            value = Text(value.name, markdown_table(value.columns, value.rows, max_rows=self._config.max_table_rows))
        super()._put(value, step)

    def _hand_over(self, state: State | None, logger: Logger) -> None:
        self._see(state)
        if self._uploads is None:
            self._uploads = self._config.upload and logger.has_file_upload_destination()
        for events in self._files.values():
            events.max_file_age_s = self._config.max_file_age_s if self._uploads else None
            events.roll_if_due()
            for path in events.take_closed():
                if self._uploads:
                    logger.upload_file(f"{self._config.remote_folder}/{escaped(path.name)}", escaped(str(path)))


def _image_values(value: Images, tags: Sequence[str]) -> list[bytes]:
    """The images, then for each mask the images with the mask drawn over them."""
    images, labels = value.images, value.mask_class_labels
    pairs = (pair for masks in value.masks.values() for pair in zip(images, masks, strict=True))
    overlays = ((mask_overlay(*pair, labels), mask_legend(labels)) for pair in pairs)
    pictures = chain(((image, "") for image in images), overlays)
    return [summaries.image(tag, one.shape, png_bytes(one), text) for tag, (one, text) in zip(tags, pictures, strict=True)]
