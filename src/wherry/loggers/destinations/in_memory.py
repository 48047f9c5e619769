"""InMemoryLogger: keeps what was logged as numpy arrays, for notebooks and tests."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from wherry.errors import MissingExtraError
from wherry.loggers.destinations.timed_points import Points, TimedPoints
from wherry.loggers.run.timestamp import Timestamp
from wherry.loggers.value_destination import ValueDestination
from wherry.loggers.values.checks import check_counts
from wherry.loggers.values.deep_copy import deep_copy
from wherry.loggers.values.kinds import Audio, Histogram, Images, PointCloud, Table, Text, Value, Video
from wherry.posix.fork import ChildLock

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from wherry.loggers.values.canonical import HistogramData

_T = TypeVar("_T")
#: Of what is logged without a state.
_START = Timestamp()


@dataclass(frozen=True)
class InMemoryConfig:
    """How much an InMemoryLogger keeps. ConfigError for values that make no sense."""

    #: How many of the newest values of a metric are kept; None: all. A value takes 24 bytes, and each batch 300 for its
    #: timestamp: a million steps of 20 metrics are 780 MB.
    max_points: int | None = None
    #: How many of the newest tables, images, texts and so on of a name are kept; None: all. Images are large, and nobody looks
    #: at a thousand. An image that was logged as float32 takes four times its final size until it is read.
    max_kept: int | None = 100

    def __post_init__(self) -> None:
        check_counts(self, 1, "max_points", "max_kept")


@dataclass(frozen=True, eq=False)
class Series:
    """The values of a metric in the order of the calls; a step may repeat or go back."""

    #: (n,) int64
    steps: NDArray[np.int64]
    #: (n,) float64
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Kept(Generic[_T]):
    """What was logged at a step."""

    step: int
    value: _T


class InMemoryLogger(TimedPoints, ValueDestination):
    """Keeps copies of everything, in one form a kind (see `values/canonical.py`)::

        memory = InMemoryLogger()
        memory.log_metrics({"loss": 0.5}, step=1)
        memory.series("loss").values  # array([0.5])

    Metrics are read by series(), `most_recent_values` and to_pandas(), or as Composer's class of this name shows them: by `data`,
    get_timeseries() and `most_recent_timestamps`. Anything else is read by `hyperparameters`, `traces`,
    `tables`, `images`, `texts`, `histograms`, `audio`, `videos` and `point_clouds`: name -> list of `Kept`, oldest first.
    Reading works after the close too, and returns copies of the lists. Any thread may call. Images, sounds and videos are
    checked and copied when they are logged, and converted when they are first read.

    A metric that is not a number raises ValueError after the other metrics of the call were kept.
    """

    needs: ClassVar[Mapping[str, tuple[str, str]]] = {}  # nothing is encoded

    def __init__(self, *, config: InMemoryConfig | None = None) -> None:
        super().__init__()
        self._config = config or InMemoryConfig()
        self._most_points = self._config.max_points
        self._lock = ChildLock()
        self._points: dict[str, Points] = {}
        self._hyperparameters: dict[str, object] = {}
        self._kept: dict[str, dict[str, deque[Kept[Any]]]] = {}  # kind -> name -> oldest first

    def __repr__(self) -> str:
        return f"<InMemoryLogger of {len(self._points)} metrics{' closed' if self._is_closed else ''}>"

    # reading

    def keys(self) -> list[str]:
        """The names of all metrics, in the order of their first values."""
        with self._lock:
            return list(self._points)

    def series(self, key: str) -> Series:
        """All values of a metric, and their steps. KeyError for a metric that was never logged."""
        import numpy as np

        with self._lock:
            if key not in self._points:
                raise KeyError(f"no metric {key!r} was logged; there are {', '.join(map(repr, self._points)) or 'none'}")
            last = slice(-self._config.max_points if self._config.max_points else None, None)
            points = self._points[key]
            return Series(np.array(points.steps[last], np.int64), np.array(points.values[last], np.float64))

    @property
    def most_recent_values(self) -> dict[str, float]:
        """The last value of each metric."""
        with self._lock:
            return {key: points.values[-1] for key, points in self._points.items()}

    @property
    def most_recent_steps(self) -> dict[str, int]:
        """The step of the last value of each metric."""
        with self._lock:
            return {key: points.steps[-1] for key, points in self._points.items()}

    @property
    def hyperparameters(self) -> dict[str, object]:
        """All settings; for a name that was logged several times, the last value."""
        with self._lock:
            return dict(self._hyperparameters)

    @property
    def traces(self) -> dict[str, list[Kept[object]]]:
        """Traces by name; their step counts the calls."""
        return self._read("traces")

    @property
    def tables(self) -> dict[str, list[Kept[Table]]]:
        """Tables by name."""
        return self._read(Table.kind)

    @property
    def images(self) -> dict[str, list[Kept[Images]]]:
        """Images by name, with their masks."""
        return self._read(Images.kind)

    @property
    def texts(self) -> dict[str, list[Kept[str]]]:
        """Texts by name."""
        return self._read(Text.kind)

    @property
    def histograms(self) -> dict[str, list[Kept[HistogramData]]]:
        """Histograms by name."""
        return self._read(Histogram.kind)

    @property
    def audio(self) -> dict[str, list[Kept[Audio]]]:
        """Sounds by name."""
        return self._read(Audio.kind)

    @property
    def videos(self) -> dict[str, list[Kept[Video]]]:
        """Videos by name."""
        return self._read(Video.kind)

    @property
    def point_clouds(self) -> dict[str, list[Kept[NDArray[np.float32]]]]:
        """Point clouds by name, each (B,N,3) float32."""
        return self._read(PointCloud.kind)

    def to_pandas(self) -> pd.DataFrame:
        """All metrics as a table: a row for each step, ascending (index "step"), a column for each metric, NaN for no value.

        The last of several values of a metric at one step counts. MissingExtraError without pandas.
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
        copies = {str(name): deep_copy(value) for name, value in hyperparameters.items()}
        self._check_open()
        with self._lock:
            self._hyperparameters.update(copies)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a value to each metric's series; `step=None` counts the calls."""
        from wherry.loggers.values.canonical import to_scalar

        self._check_open()
        at = self._step(step, "metrics")
        wrong: list[ValueError] = []
        for key, value in metrics.items():
            try:
                self._add_point(str(key), at, to_scalar(value, str(key)))
            except ValueError as error:  # noqa: PERF203  the others are kept
                wrong.append(error)
        if wrong:
            raise ValueError("; ".join(map(str, wrong))) from wrong[0]

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Keep copies of the traces."""
        self._check_open()
        at = self._step(None, "traces")
        for name, value in traces.items():
            self._keep("traces", str(name), at, deep_copy(value))

    def write(self, value: Value, step: int) -> None:
        """Keep the value."""
        match value:
            case Text():
                self._keep(value.kind, value.name, step, value.text)
            case Histogram():
                self._keep(value.kind, value.name, step, value.data())
            case PointCloud():
                self._keep(value.kind, value.name, step, value.clouds)
            case _:
                self._keep(value.kind, value.name, step, value)

    # inside

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this InMemoryLogger is closed: make a new one to go on logging")

    def _step(self, step: int | None, counter: str) -> int:
        """Without a step, all calls are counted together."""
        return super()._step(step, counter if step is not None else "calls")

    def _put(self, value: Value, step: int | None) -> None:
        with self._lock:  # of two threads, who counts first is kept first
            super()._put(value, step)

    def _add_point(self, key: str, step: int, value: float) -> None:
        most = self._config.max_points
        with self._lock:
            points = self._points.get(key)
            if points is None:
                points = self._points[key] = Points(array("q"), array("d"), [])
            points.steps.append(step)
            points.values.append(value)
            points.timestamps.append(_START if self._state is None else self._state.timestamp)
            if most is not None and len(points.steps) >= 2 * most:  # once in `most` calls, so that moving the rest costs little
                for kept in (points.steps, points.values, points.timestamps):
                    del kept[:-most]

    def _keep(self, kind: str, name: str, step: int, value: object) -> None:
        with self._lock:
            kept = self._kept.setdefault(kind, {}).setdefault(name, deque(maxlen=self._config.max_kept))
            kept.append(Kept(step, value))

    def _read(self, kind: str) -> dict[str, list[Kept[Any]]]:
        with self._lock:
            return {name: list(kept) for name, kept in self._kept.get(kind, {}).items()}
