"""InMemoryLogger: keeps what was logged as numpy arrays, to be looked at in a notebook or a test."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from wherry.errors import MissingExtraError
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.typed.lazy import Once
from wherry.loggers.values.checks import check_counts
from wherry.loggers.values.deep_copy import own_copy
from wherry.loggers.values.steps import to_step
from wherry.loggers.values.tables import check_table
from wherry.posix.fork import ChildLock

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from wherry.loggers.logger import Logger
    from wherry.loggers.run.state import State
    from wherry.loggers.values.canonical import HistogramData

_T = TypeVar("_T")


@dataclass(frozen=True)
class InMemoryLoggerConfig:
    """How much an InMemoryLogger keeps. ConfigError for values that make no sense."""

    #: Of each figure the newest so many; None: all. A point is 16 bytes, so a million steps of 20 figures are 320 MB.
    max_points: int | None = None
    #: Of tables, images, texts and so on the newest so many of each name; None: all. Images are large, and nobody looks at a
    #: thousand. Until they are read, they take what was given: of float32 four times the bytes of the pictures that they become.
    max_kept: int | None = 100

    def __post_init__(self) -> None:
        check_counts(self, 1, "max_points", "max_kept")


@dataclass(frozen=True, eq=False)
class Series:
    """A figure over time, in the order of the calls: a step may come again, or go back."""

    #: (n,) int64
    steps: NDArray[np.int64]
    #: (n,) float64
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Kept(Generic[_T]):
    """What was logged at a step."""

    step: int
    value: _T


@dataclass(frozen=True, eq=False)
class Table:
    """A table: `rows` is n x len(columns), the values copies of what was logged."""

    columns: list[str]
    rows: list[list[object]]


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one call, each (C,H,W) uint8 with C of 1, 3 or 4; for each name of a mask one (H,W) an image."""

    images: list[NDArray[np.uint8]]
    masks: dict[str, list[NDArray[np.integer]]] = field(default_factory=dict)
    mask_class_labels: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Audio:
    """Sound: `samples` is (T,) float32 within -1..1."""

    samples: NDArray[np.float32]
    sample_rate_hz: int


@dataclass(frozen=True, eq=False)
class Video:
    """A video: `frames` is (T,C,H,W) uint8."""

    frames: NDArray[np.uint8]
    frames_per_s: float


class _Shelf(Generic[_T]):
    """Things by name, the newest few of each, perhaps still to be made."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._things: dict[str, list[Callable[[], Kept[_T]]]] = {}

    def add(self, name: object, thing: Callable[[], Kept[_T]]) -> None:
        things = self._things.setdefault(str(name), [])
        things.append(thing)
        if self._most is not None and len(things) > self._most:
            del things[0]

    def all(self) -> dict[str, list[Callable[[], Kept[_T]]]]:
        return {name: list(things) for name, things in self._things.items()}


class InMemoryLogger(LoggerDestination):
    """Keeps everything, in shapes that are always the same (those of `values/canonical.py`), and independent of what was given.

    Figures are read by series(), `most_recent_values` and to_pandas(); the rest by `hyperparameters`, `traces`, and by
    `tables`, `images`, `texts`, `histograms`, `audio`, `videos` and `point_clouds`: name -> list of `Kept`, oldest first.
    What is returned is the caller's own, and can be read also after the close. Safe from several threads. Images, sounds and
    videos are checked and copied when they are logged, and brought into their shape when they are first read.

    A value that cannot be kept, such as a figure of many elements, is a ValueError, after the rest of the call was kept.
    """

    def __init__(self, *, config: InMemoryLoggerConfig | None = None) -> None:
        super().__init__()
        self._config = config or InMemoryLoggerConfig()
        self._lock = ChildLock()
        self._steps: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}
        self._hyperparameters: dict[str, object] = {}
        most = self._config.max_kept
        self._traces: _Shelf[object] = _Shelf(most)
        self._tables: _Shelf[Table] = _Shelf(most)
        self._images: _Shelf[Images] = _Shelf(most)
        self._texts: _Shelf[str] = _Shelf(most)
        self._histograms: _Shelf[HistogramData] = _Shelf(most)
        self._audio: _Shelf[Audio] = _Shelf(most)
        self._videos: _Shelf[Video] = _Shelf(most)
        self._point_clouds: _Shelf[NDArray[np.float32]] = _Shelf(most)
        self._n_calls = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<InMemoryLogger of {len(self._steps)} figures{' closed' if self._is_closed else ''}>"

    # reading

    def keys(self) -> list[str]:
        """The names of all figures, in the order of their first values."""
        with self._lock:
            return list(self._steps)

    def series(self, key: str) -> Series:
        """All values of a figure, and their steps. KeyError for one that was never logged."""
        import numpy as np

        with self._lock:
            if key not in self._steps:
                raise KeyError(f"no figure {key!r} was logged; there are {', '.join(map(repr, self._steps)) or 'none'}")
            last = slice(-self._config.max_points if self._config.max_points else None, None)
            steps, values = np.array(self._steps[key][last], np.int64), np.array(self._values[key][last], np.float64)
        return Series(steps, values)

    @property
    def most_recent_values(self) -> dict[str, float]:
        """The last value of each figure."""
        with self._lock:
            return {key: values[-1] for key, values in self._values.items()}

    @property
    def most_recent_steps(self) -> dict[str, int]:
        """The step of the last value of each figure."""
        with self._lock:
            return {key: steps[-1] for key, steps in self._steps.items()}

    @property
    def hyperparameters(self) -> dict[str, object]:
        """All settings; of a name that was logged again, the last value."""
        with self._lock:
            return dict(self._hyperparameters)

    @property
    def traces(self) -> dict[str, list[Kept[object]]]:
        """Traces by name; their step counts the calls."""
        return self._read(self._traces)

    @property
    def tables(self) -> dict[str, list[Kept[Table]]]:
        """Tables by name."""
        return self._read(self._tables)

    @property
    def images(self) -> dict[str, list[Kept[Images]]]:
        """Images by name, with their masks."""
        return self._read(self._images)

    @property
    def texts(self) -> dict[str, list[Kept[str]]]:
        """Texts by name."""
        return self._read(self._texts)

    @property
    def histograms(self) -> dict[str, list[Kept[HistogramData]]]:
        """Histograms by name."""
        return self._read(self._histograms)

    @property
    def audio(self) -> dict[str, list[Kept[Audio]]]:
        """Sounds by name."""
        return self._read(self._audio)

    @property
    def videos(self) -> dict[str, list[Kept[Video]]]:
        """Videos by name."""
        return self._read(self._videos)

    @property
    def point_clouds(self) -> dict[str, list[Kept[NDArray[np.float32]]]]:
        """Point clouds by name, each (B,N,3) float32."""
        return self._read(self._point_clouds)

    def to_pandas(self) -> pd.DataFrame:
        """All figures as a table: a row a step in ascending order (index "step"), a column a figure, NaN where there is no
        value.

        Of several values of a figure at one step the last counts. MissingExtraError without pandas.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("InMemoryLogger.to_pandas() needs pandas: pip install pandas") from error
        columns = {}
        for key in self.keys():
            series = self.series(key)
            column = pd.Series(series.values, pd.Index(series.steps, name="step"), dtype="float64")
            columns[key] = column[~column.index.duplicated(keep="last")]
        if not columns:
            return pd.DataFrame(index=pd.Index([], dtype="int64", name="step"))
        return pd.concat(columns, axis=1).sort_index()

    # logging

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Keep a copy of the settings."""
        copies = {str(name): own_copy(value) for name, value in hyperparameters.items()}
        self._check_open()
        with self._lock:
            self._hyperparameters.update(copies)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a value to each figure's series; `step=None` counts the calls."""
        from wherry.loggers.values.canonical import to_scalar

        self._check_open()
        at = self._at(step)
        wrong: list[ValueError] = []
        for key, value in metrics.items():
            try:
                self._add_point(str(key), at, to_scalar(value, str(key)))
            except ValueError as error:  # noqa: PERF203  the others are kept
                wrong.append(error)
        if wrong:
            raise ValueError("; ".join(map(str, wrong))) from wrong[0]

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
        """Keep the images as (C,H,W) uint8 each, and the masks as (H,W) each. ValueError for shapes that do not fit."""
        from wherry.loggers.values.canonical import copy_images, to_images
        from wherry.loggers.values.masks import masks_of

        self._check_open()
        copies = copy_images(images, name, channels_last=channels_last or None)
        kept_masks, wrong = masks_of(masks, copies, name)
        labels = dict(mask_class_labels or {})
        self._keep_for_later(self._images, name, step, lambda: Images(to_images(copies, name), kept_masks, labels))
        if wrong is not None:
            raise wrong

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Keep a copy of the table. ValueError for rows that are not as long as there are columns."""
        self._check_open()
        checked = [[own_copy(value) for value in row] for row in check_table(columns, rows, name)]
        self._keep(self._tables, name, step, Table([str(column) for column in columns], checked))

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Keep copies of the traces."""
        self._check_open()
        at = self._at(None)
        for name, value in traces.items():
            self._keep(self._traces, name, at, own_copy(value))

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Keep the text."""
        self._check_open()
        self._keep(self._texts, name, step, str(text))

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Keep how the values are distributed, in 64 bins."""
        from wherry.loggers.values.canonical import to_histogram

        self._check_open()
        self._keep(self._histograms, name, step, to_histogram(values, name))

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Keep the sound as (T,) float32."""
        from wherry.loggers.values.canonical import copy_audio, to_audio

        self._check_open()
        samples = copy_audio(audio, name)
        self._keep_for_later(self._audio, name, step, lambda: Audio(to_audio(samples, name), sample_rate_hz))

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = 12.0, step: int | None = None) -> None:
        """Keep the video as (T,C,H,W) uint8."""
        from wherry.loggers.values.canonical import copy_video, to_video

        self._check_open()
        frames = copy_video(video, name)
        self._keep_for_later(self._videos, name, step, lambda: Video(to_video(frames, name), frames_per_s))

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Keep the points as (B,N,3) float32."""
        from wherry.loggers.values.canonical import to_point_cloud

        self._check_open()
        self._keep(self._point_clouds, name, step, to_point_cloud(points, name))

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Take no more; what was kept can still be read. Closing again does nothing."""
        self._is_closed = True

    # inside

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this InMemoryLogger is closed: make a new one to go on logging")

    def _at(self, step: int | None) -> int:
        if step is not None:
            return to_step(step, "log")
        with self._lock:
            self._n_calls += 1
            return self._n_calls - 1

    def _add_point(self, key: str, step: int, value: float) -> None:
        most = self._config.max_points
        with self._lock:
            steps, values = self._steps.setdefault(key, array("q")), self._values.setdefault(key, array("d"))
            steps.append(step)
            values.append(value)
            if most is not None and len(steps) >= 2 * most:  # moving the rest up once in so many calls costs next to nothing
                del steps[:-most]
                del values[:-most]

    def _keep(self, shelf: _Shelf[_T], name: object, step: int | None, value: _T) -> None:
        with self._lock:
            shelf.add(name, partial(_itself, Kept(self._at(step), value)))

    def _keep_for_later(self, shelf: _Shelf[_T], name: object, step: int | None, make: Callable[[], _T]) -> None:
        with self._lock:
            at = self._at(step)
            shelf.add(name, Once(lambda: Kept(at, make())))

    def _read(self, shelf: _Shelf[_T]) -> dict[str, list[Kept[_T]]]:
        with self._lock:
            found = shelf.all()
        return {name: [thing() for thing in things] for name, things in found.items()}  # log calls need not wait for this


def _itself(value: _T) -> _T:
    return value
