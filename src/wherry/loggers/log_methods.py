"""LogMethods: the log methods of `Logger` that only pass their arguments on, with their defaults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from wherry.loggers.run.level import LogLevel
from wherry.loggers.run.state import State

Data = Mapping[str, object]


class LogMethods(ABC):
    """Log methods on top of `metric` and of `_log`, which gets the name of the destinations' method and its arguments."""

    state: State

    @abstractmethod
    def _log(self, what: str, *arguments: object) -> None: ...

    def _step(self, step: int | None) -> int:
        return self.state.timestamp.batch if step is None else step

    @abstractmethod
    def metric(self, log_level: str | int | LogLevel, data: Data | Callable[[], Data]) -> None:
        """Log metrics of a level."""

    def metric_fit(self, data: Data | Callable[[], Data]) -> None:
        """metric() of the level FIT."""
        self.metric(LogLevel.FIT, data)

    def metric_epoch(self, data: Data | Callable[[], Data]) -> None:
        """metric() of the level EPOCH."""
        self.metric(LogLevel.EPOCH, data)

    def metric_batch(self, data: Data | Callable[[], Data]) -> None:
        """metric() of the level BATCH."""
        self.metric(LogLevel.BATCH, data)

    def metric_microbatch(self, data: Data | Callable[[], Data]) -> None:
        """metric() of the level MICROBATCH."""
        self.metric(LogLevel.MICROBATCH, data)

    def metric_verbose(self, data: Data | Callable[[], Data]) -> None:
        """metric() of the level VERBOSE."""
        self.metric(LogLevel.VERBOSE, data)

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Log settings that do not change during the run."""
        self._log("log_hyperparameters", hyperparameters)

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Log the distribution of the numbers in an array or tensor."""
        self._log("log_histogram", values, name, self._step(step))

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
        """Log images as `LoggerDestination.log_images` describes."""
        self._log("log_images", images, name, channels_last, self._step(step), masks, mask_class_labels, use_table)

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table; `rows` is n x len(columns)."""
        self._log("log_table", columns, rows, name, self._step(step))

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Log values for debugging."""
        self._log("log_traces", traces)

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Log a text."""
        self._log("log_text", text, name, self._step(step))

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Log a sound as `LoggerDestination.log_audio` describes."""
        self._log("log_audio", audio, name, sample_rate_hz, self._step(step))

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = 12.0, step: int | None = None) -> None:
        """Log a video as `LoggerDestination.log_video` describes."""
        self._log("log_video", video, name, frames_per_s, self._step(step))

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Log points in space as `LoggerDestination.log_point_cloud` describes."""
        self._log("log_point_cloud", points, name, self._step(step))
