"""Between the two interfaces: a LoggerDestination as a sink of the typed API, and a sink as a LoggerDestination."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.logger import Destination, Logger
from wherry.loggers.run.event import Event
from wherry.loggers.sink import BaseLogger, BaseLoggerConfig, CollectingLogger, config_as_dict
from wherry.loggers.typed.multi import FRAMES_PER_S, at_rate, check_rate
from wherry.loggers.values.deep_copy import own_copy
from wherry.loggers.values.lazy import Once
from wherry.loggers.values.steps import to_step
from wherry.loggers.values.text import format_json
from wherry.loggers.warn_once import Reports
from wherry.posix.fork import ChildLock

if TYPE_CHECKING:
    from wherry.loggers.run.state import State

#: Kind of value, see `Collected` -> the calls of which a destination must have one to take it.
_CALLS = {
    "scalars": ("log_metrics", "log_metric"),
    "strings": ("log_text",),
    "images": ("log_images",),
    "audios": ("log_audio",),
    "videos": ("log_video",),
    "histograms": ("log_histogram",),
    "point_clouds": ("log_point_cloud",),
}


class DestinationSink(CollectingLogger[BaseLoggerConfig]):
    """Has a destination, or a `Logger` with several, log what a `MultiLogger` hands over.

    Names are ``namespace/key``, in the phases "valid" and "test" with the phase in front; the step is the batch. Figures go in
    one call. Values that no destination takes, or takes on this rank, are not computed.

    A destination that is given alone gets a `Logger` of its own, which begins with the first state that is seen, and is closed
    with the sink. One that is a `Logger`'s already is given by that `Logger`, which stays open.
    """

    def __init__(self, destination: LoggerDestination | Logger, config: BaseLoggerConfig | None = None) -> None:
        super().__init__(config or BaseLoggerConfig(name=type(destination).__name__))
        self._destination = destination
        self._logger = destination if isinstance(destination, Logger) else None
        self._settings: list[dict[str, Any]] = []  # until there is a Logger

    def log_config(self, config: Any) -> None:
        """Log the settings as hyperparameters; before any state was seen, they are kept until then."""
        settings = config_as_dict(config)
        if self._logger is not None:
            self._logger.log_hyperparameters(settings)
        else:
            self._settings.append(own_copy(settings))

    def write(self, state: State) -> None:
        """Log everything that was collected. An error that its `Logger` lets through is raised when all was logged."""
        logger = self._begun(state)
        wanting = [one for one in logger.destinations if not (state.rank and one.rank_zero_only)]
        for kind in self.kept_kinds(state.phase) - _served(logger.destinations):
            names = ", ".join(type(one).__name__ for one in logger.destinations) or "there is none"
            self._reports.once(kind, f"{kind.replace('_', ' ')} are not logged: no destination takes them ({names})")
        found, step = self.take(state.phase, kinds=_served(wanting)), state.timestamp.batch

        def name(where: tuple[str, str]) -> str:
            return "/".join(where if state.phase == "train" else (state.phase, *where))

        calls: list[Callable[[], None]] = []
        if found.scalars:
            calls.append(partial(logger.log_metrics, {name(where): value for where, value in found.scalars.items()}, step))
        calls += [partial(logger.log_text, text, name(where), step) for where, text in found.strings.items()]
        calls += [partial(logger.log_images, image, name(where), step=step) for where, image in found.images.items()]
        calls += [partial(logger.log_audio, one, name(where), rate, step) for where, (one, rate) in found.audios.items()]
        calls += [partial(logger.log_video, video, name(where), FRAMES_PER_S, step) for where, video in found.videos.items()]
        calls += [partial(logger.log_histogram, values, name(where), step) for where, values in found.histograms.items()]
        calls += [partial(logger.log_point_cloud, points, name(where), step) for where, points in found.point_clouds.items()]
        errors = [error for error in map(_error_of, calls) if error is not None]
        for error in errors[1:]:
            self._reports.each(f"{type(error).__name__}: {error}", error)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Write what is still held, and close the destination if it was given alone; a second time nothing is done."""
        try:
            super().close()
        finally:
            if not isinstance(self._destination, Logger):
                self._end()

    def _end(self) -> None:
        if self._settings:
            from wherry.loggers.run.state import State

            self._begun(State())  # no step was ever made: the settings are logged all the same
        if self._logger is not None:
            self._logger.close()

    def _begun(self, state: State) -> Logger:
        """The Logger, which has seen the state and has been given the settings."""
        if isinstance(self._destination, Logger):
            return self._destination
        if self._logger is None:
            self._logger = Logger(state, self._destination)
            self._logger.run_event(Event.INIT)
        self._logger.state = state
        settings, self._settings = self._settings, []
        for one in settings:
            self._logger.log_hyperparameters(one)
        return self._logger


class SinkDestination(LoggerDestination):
    """Hands what a run logs to a sink of the typed API, which writes after batches, epochs and evaluations when it is due.

    A name is split at its first slash into namespace and key; without one the namespace is "value". In evaluations the phase is
    "valid" and in predictions "test", unless the state says otherwise. Everything of a phase is written when it ends, and at the
    end of training and at the close. Without a `Logger` in front give it a `state`.

    Tables are Markdown texts, traces JSON texts; masks are left out, for which sinks have no kind, and that is said once. What
    is given is checked and copied; images, sounds and videos get their form when the sink computes them. The sink is called by
    one thread at a time. After close() all calls that log raise RuntimeError.
    """

    def __init__(self, sink: BaseLogger[Any], state: State | None = None) -> None:
        super().__init__()
        self.sink = sink
        self._state = state
        self._phase = "train"
        self._last: State | None = None
        self._step: int | None = None  # the last that was given
        self._has_news = False
        self._is_closed = False
        self._reports = Reports()
        self._lock = ChildLock()

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Log them as the run's settings."""
        with self._lock:
            self._check_open()
            self.sink.log_config(own_copy(dict(hyperparameters)))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log each as a scalar."""
        for name, value in own_copy(dict(metrics)).items():
            self._log(self.sink.log_scalar, name, partial(_to_scalar, value, str(name)), step)

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
        """Log an image, or each of several, ``name_0``, ``name_1`` and so on."""
        from wherry.loggers.values.canonical import copy_images, to_images

        if masks:
            self._reports.once("masks", f"{name}: {type(self.sink).__name__} gets the images without their masks")
        given = copy_images(images, str(name), channels_last=channels_last or None)
        made = Once(partial(to_images, given, str(name)))  # all at once, as they share a scale
        for number in range(len(given)):
            self._log(self.sink.log_image, name if len(given) == 1 else f"{name}_{number}", partial(_item, made, number), step)

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log it as a string, in Markdown."""
        from wherry.loggers.values.markdown import markdown_table

        self.log_text(markdown_table(columns, rows, name), name, step)

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Log each as a string: texts as they are, the rest as JSON."""
        for name, trace in traces.items():
            self.log_text(trace if isinstance(trace, str) else format_json(trace), name)

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Log a string."""
        self._log(self.sink.log_string, name, partial(_given, str(text)), step)

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Log values of any shape."""
        from wherry.loggers.values.canonical import to_values

        self._log(self.sink.log_histogram, name, partial(_given, to_values(values, str(name))), step)

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Log a sound."""
        from wherry.loggers.values.canonical import copy_audio, to_audio

        given = copy_audio(audio, str(name))
        self._log(self.sink.log_audio, name, Once(lambda: (to_audio(given, str(name)), sample_rate_hz)), step)

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = FRAMES_PER_S, step: int | None = None) -> None:
        """Log a video, at 12 frames a second."""
        from wherry.loggers.values.canonical import copy_video, to_video

        check_rate(frames_per_s)
        given = copy_video(video, str(name))
        self._log(self.sink.log_video, name, Once(lambda: at_rate(to_video(given, str(name)), frames_per_s)), step)

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Log points."""
        from wherry.loggers.values.canonical import to_point_cloud

        self._log(self.sink.log_point_cloud, name, partial(_given, to_point_cloud(points, str(name))), step)

    # events

    def is_ready(self, state: State) -> bool:
        """Take the state; True."""
        self._state = state
        return True

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
        """Write what was logged so far; from here on the phase is "valid"."""
        self._begin("valid", state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Write if it is due."""
        self._write_if_due(state)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write what the evaluation has logged."""
        self._begin("train", state)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Write what was logged so far; from here on the phase is "test"."""
        self._begin("test", state)

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """Write if it is due."""
        self._write_if_due(state)

    def predict_end(self, state: State, logger: Logger) -> None:
        """Write what the prediction has logged."""
        self._begin("train", state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write everything."""
        self._begin("train", state)

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write everything, and close the sink. Closing again does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._state = state or self._state
            try:
                self.sink.write(self._now())
            finally:
                self.sink.close()

    # inside

    def _log(self, call: Callable[..., None], name: object, value: Callable[[], Any], step: int | None) -> None:
        namespace, key = _split(str(name))
        with self._lock:
            self._check_open()
            if step is not None and (at := to_step(step, str(name))) != self._step:
                if self._has_news:  # the step before is over, also in a loop that tells of no batch's end
                    self._write_if_due(self._now())
                self._step = at
            self._has_news = True
            call(key, value, self._now(), namespace)

    def _write_if_due(self, state: State) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._state = state
            now = self._now()
            if self.sink.should_write(now):
                self._has_news = False
                self.sink.write(now)

    def _begin(self, phase: str, state: State) -> None:
        """Write all of the phase that was, and go over to this one."""
        with self._lock:
            if self._is_closed:
                return
            self._state = state
            try:
                self.sink.write(self._now())
            finally:
                self._phase = phase
                self._last = None

    def _now(self) -> State:
        """A copy of the state, in its phase. Where the loop has set another one, what is left of the last one is written."""
        if self._state is None:
            from wherry.loggers.run.state import State

            self._state = State()
        now = copy.copy(self._state)
        if self._step is not None:
            now.timestamp = replace(now.timestamp, batch=self._step)
        now.phase = self._phase if now.phase == "train" else now.phase
        last, self._last = self._last, now
        if last is not None and last.phase != now.phase:
            self.sink.write(last)
        return now

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"SinkDestination of {type(self.sink).__name__} is closed: make a new one to go on logging")


def _served(destinations: Sequence[Destination]) -> set[str]:
    """The kinds that any of them takes."""
    return {kind for kind, calls in _CALLS.items() if any(one._overrides(call) for one in destinations for call in calls)}


def _error_of(call: Callable[[], None]) -> Exception | None:
    try:
        call()
    except Exception as error:  # of a destination whose on_error is "raise"; the rest is logged all the same
        return error
    return None


def _given(value: Any) -> Any:
    return value


def _item(made: Callable[[], Sequence[Any]], number: int) -> Any:
    return made()[number]


def _to_scalar(value: object, name: str) -> float:
    if isinstance(value, float):
        return value
    from wherry.loggers.values.canonical import to_scalar

    return to_scalar(value, name)


def _split(name: str) -> tuple[str, str]:
    namespace, slash, key = name.partition("/")
    return (namespace, key) if slash and namespace and key else ("value", name)
