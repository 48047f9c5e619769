"""Metrics with the time at which they were logged, as Composer's InMemoryLogger shows them."""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wherry.loggers.run.timestamp import Timestamp
from wherry.posix.fork import ChildLock

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Points:
    """What is kept of a metric; all three have the same length. Metrics of one batch share their timestamp."""

    steps: array[int]
    values: array[float]
    timestamps: list[Timestamp]


class TimedPoints:
    """The part of `InMemoryLogger` that reads metrics by the names of Composer's class."""

    _lock: ChildLock
    _points: dict[str, Points]
    _most_points: int | None

    @property
    def data(self) -> dict[str, list[tuple[Timestamp, float]]]:
        """Of each metric when it was logged and its values, oldest first; copies, which are made at each call."""
        with self._lock:
            pairs = {key: list(zip(points.timestamps, points.values, strict=True)) for key, points in self._points.items()}
        return {key: kept[-(self._most_points or 0) :] for key, kept in pairs.items()}

    @property
    def most_recent_timestamps(self) -> dict[str, Timestamp]:
        """When the last value of each metric was logged."""
        with self._lock:
            return {key: points.timestamps[-1] for key, points in self._points.items()}

    def get_timeseries(self, metric: str) -> dict[str, NDArray[Any]]:
        """A metric's values under its own name, and for each count of a `Timestamp` (epoch, batch ...) its value at that time.

        All arrays have one length. ValueError for a metric that was never logged.
        """
        import numpy as np

        if metric not in (data := self.data):
            raise ValueError(f"no metric {metric!r} was logged; there are {', '.join(map(repr, data)) or 'none'}")
        counts = [asdict(timestamp) for timestamp, _ in data[metric]]
        times = {name: np.array([each[name] for each in counts], np.int64) for name in counts[0]}
        return {metric: np.array([value for _, value in data[metric]], np.float64), **times}
