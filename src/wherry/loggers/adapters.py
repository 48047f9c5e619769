"""Between the two interfaces: a LoggerDestination as a sink of the typed API, and a sink as a LoggerDestination."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.multi import FRAMES_PER_S
from wherry.loggers.state import State
from wherry.loggers.typed import BaseLogger, BaseLoggerConfig, CollectingLogger, config_as_dict

if TYPE_CHECKING:
    from wherry.loggers.logger import Logger


class DestinationSink(CollectingLogger[BaseLoggerConfig]):
    """Has a destination, or a `Logger` with several, log what a `MultiLogger` hands over.

    Names are ``namespace/key``, in the phases "valid" and "test" with the phase in front; the step is the batch.
    """

    def __init__(self, destination: LoggerDestination | Logger, config: BaseLoggerConfig | None = None) -> None:
        super().__init__(config or BaseLoggerConfig(name=type(destination).__name__))
        self._destination = destination

    def log_config(self, config: Any) -> None:
        """Log the settings as hyperparameters."""
        self._destination.log_hyperparameters(config_as_dict(config))

    def write(self, state: State) -> None:
        """Log everything that was collected; figures in one call."""
        found, to, step = self.take(state.phase), self._destination, state.timestamp.batch

        def name(where: tuple[str, str]) -> str:
            return "/".join(where if state.phase == "train" else (state.phase, *where))

        if found.scalars:
            to.log_metrics({name(where): value for where, value in found.scalars.items()}, step)
        for where, text in found.strings.items():
            to.log_text(text, name(where), step)
        for where, image in found.images.items():
            to.log_images(image, name(where), channels_last=False, step=step)
        for where, (audio, sample_rate_hz) in found.audios.items():
            to.log_audio(audio, name(where), sample_rate_hz, step)
        for where, video in found.videos.items():
            to.log_video(video, name(where), FRAMES_PER_S, step)
        for where, values in found.histograms.items():
            to.log_histogram(values, name(where), step)
        for where, points in found.point_clouds.items():
            to.log_point_cloud(points, name(where), step)


class SinkDestination(LoggerDestination):
    """Hands what a run logs to a sink of the typed API, which writes after batches, epochs and evaluations when it is due.

    A name is split at its first slash into namespace and key; without one the namespace is "value". Everything is written at the
    end of training and at close. During evaluations the phase is "valid". Without a `Logger` in front give it a `state`.
    """

    def __init__(self, sink: BaseLogger[Any], state: State | None = None) -> None:
        super().__init__()
        self.sink = sink
        self._state = state or State()
        self._is_evaluating = False

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Log them as the run's settings."""
        self.sink.log_config(hyperparameters)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log each as a scalar."""
        from wherry.loggers.munge import to_scalar

        state = self._at(step)
        for name, value in metrics.items():
            namespace, key = _split(name)
            self.sink.log_scalar(key, lambda value=value, name=name: to_scalar(value, str(name)), state, namespace)  # type: ignore[misc]

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
        """Log each image under a key of its own; masks are left out, for which this interface has no kind."""
        from wherry.loggers.munge import to_images

        found = to_images(images, name, channels_last=channels_last or None)
        namespace, key = _split(name)
        for number, image in enumerate(found):
            one = key if len(found) == 1 else f"{key}_{number}"
            self.sink.log_image(one, lambda image=image: image, self._at(step), namespace)  # type: ignore[misc]

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log it as a Markdown text."""
        from wherry.loggers.markdown import markdown_table

        self.log_text(markdown_table(columns, rows), name, step)

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Log it as a string."""
        namespace, key = _split(name)
        self.sink.log_string(key, lambda: text, self._at(step), namespace)

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Log it."""
        from wherry.loggers.munge import to_numpy

        namespace, key = _split(name)
        own = to_numpy(values)
        self.sink.log_histogram(key, lambda: own, self._at(step), namespace)

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Log it."""
        from wherry.loggers.munge import to_audio

        namespace, key = _split(name)
        own = to_audio(audio, name)
        self.sink.log_audio(key, lambda: (own, sample_rate_hz), self._at(step), namespace)

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = FRAMES_PER_S, step: int | None = None) -> None:
        """Log it, at 12 frames a second."""
        from wherry.loggers.multi import _at_rate
        from wherry.loggers.munge import to_video

        namespace, key = _split(name)
        own = _at_rate(to_video(video, name), frames_per_s)
        self.sink.log_video(key, lambda: own, self._at(step), namespace)

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Log it."""
        from wherry.loggers.munge import to_point_cloud

        namespace, key = _split(name)
        own = to_point_cloud(points, name)
        self.sink.log_point_cloud(key, lambda: own, self._at(step), namespace)

    def init(self, state: State, logger: Logger) -> None:
        """Take the state."""
        self._state = state

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write if it is due."""
        self._write_if_due(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write if it is due."""
        self._write_if_due(state)

    def eval_start(self, state: State, logger: Logger) -> None:
        """From here on the phase is "valid"; what was logged in training is written."""
        self._state = state
        self.sink.write(self._at(None))
        self._is_evaluating = True

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write what the evaluation has logged."""
        self._state = state
        self.sink.write(self._at(None))
        self._is_evaluating = False

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write everything."""
        self._state = state
        self.sink.write(self._at(None))

    def close(self, state: State, logger: Logger) -> None:
        """Write everything, and close the sink."""
        self._state = state
        self.sink.write(self._at(None))
        self.sink.close()

    def _write_if_due(self, state: State) -> None:
        self._state = state
        at = self._at(None)
        if self.sink.should_write(at):
            self.sink.write(at)

    def _at(self, step: int | None) -> State:
        state = copy.copy(self._state)
        if self._is_evaluating:
            state.phase = "valid"
        if step is not None:
            state.timestamp = replace(state.timestamp, batch=step)
        return state


def _split(name: object) -> tuple[str, str]:
    namespace, slash, key = str(name).partition("/")
    return (namespace, key) if slash and namespace and key else ("value", str(name))
