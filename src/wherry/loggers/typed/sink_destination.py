"""SinkDestination: a sink of the typed API as a LoggerDestination."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from wherry.loggers.logger import Logger
from wherry.loggers.run.state import State
from wherry.loggers.typed.multi import at_rate
from wherry.loggers.typed.sink import BaseLogger
from wherry.loggers.value_destination import ValueDestination
from wherry.loggers.values.checks import to_step
from wherry.loggers.values.deep_copy import deep_copy
from wherry.loggers.values.kinds import Audio, Histogram, Images, PointCloud, Table, Text, Value, Video
from wherry.loggers.values.lazy import Lazy
from wherry.loggers.values.text import as_text, markdown_table
from wherry.loggers.warn_once import WarnOnce
from wherry.posix.fork import ChildLock


class SinkDestination(ValueDestination):
    """Passes what a run logs to a sink of the typed API, which writes after batches, epochs and evaluations when it is due::

        logger = Logger(state, SinkDestination(PrintSink(BaseLoggerConfig())))

    A name is split at its first slash into namespace and key; without one the namespace is "value". In evaluations the phase is
    "valid" and in predictions "test", unless the state has another. Everything of a phase is written when it ends, at the end of
    training and at the close. Give it a `state` if it is used without a `Logger`.

    Several images of a call are logged as ``name_0``, ``name_1`` and so on, tables as Markdown texts, traces as JSON texts. Sinks
    have no kind for masks; they are dropped with one warning. The sink is called by one thread at a time. After close() log calls
    raise RuntimeError.
    """

    needs: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __init__(self, sink: BaseLogger[Any], state: State | None = None) -> None:
        super().__init__(state)
        self.sink = sink
        self._phase = "train"
        self._last: State | None = None
        self._last_step: int | None = None  # the last that was given
        self._has_news = False
        self._warnings = WarnOnce()
        self._lock = ChildLock()

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Log them as the run's settings."""
        with self._lock:
            self._check_open()
            self.sink.log_config(deep_copy(dict(hyperparameters)))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log each as a scalar."""
        for name, value in deep_copy(dict(metrics)).items():
            self._log(self.sink.log_scalar, name, partial(_to_scalar, value, str(name)), step)

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Log each as a string: texts as they are, the rest as JSON."""
        for name, trace in traces.items():
            self.log_text(as_text(trace), name)

    def _log_call(self, method: str, *arguments: Any) -> None:
        if method == "log_images":
            _, name, _, _, masks, *_ = arguments
            if masks:
                self._warnings.once("masks", f"{name}: {type(self.sink).__name__} gets the images without their masks")
            arguments = (*arguments[:4], None, None, True)
        super()._log_call(method, *arguments)

    def _put(self, value: Value, step: int | None) -> None:
        sink, name = self.sink, value.name
        match value:
            case Text():
                self._log(sink.log_string, name, lambda: value.text, step)
            case Table():
                text = markdown_table(value.columns, value.rows)
                self._log(sink.log_string, name, lambda: text, step)
            case Images():
                for number in range(len(value.shapes)):
                    one = name if len(value.shapes) == 1 else f"{name}_{number}"
                    self._log(sink.log_image, one, partial(lambda at: value.images[at], number), step)
            case Histogram():
                self._log(sink.log_histogram, name, lambda: value.values, step)
            case Audio():
                self._log(sink.log_audio, name, lambda: (value.samples, value.sample_rate_hz), step)
            case Video():
                self._log(sink.log_video, name, Lazy(lambda: at_rate(value.frames, value.frames_per_s)), step)
            case PointCloud():
                self._log(sink.log_point_cloud, name, lambda: value.clouds, step)

    def write(self, value: Value, step: int) -> None:
        """Hand a value to the sink, as of that step."""
        self._put(value, step)

    def init(self, state: State, logger: Logger) -> None:
        """Take the state."""
        self._see(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write if it is due."""
        self._write_if_due(state)

    epoch_end = eval_batch_end = predict_batch_end = batch_end

    def eval_start(self, state: State, logger: Logger) -> None:
        """Write what was logged so far. The phase is "valid" from now on."""
        self._begin("valid", state)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write what was logged so far. The phase is "train" from now on."""
        self._begin("train", state)

    predict_end = fit_end = eval_end

    def predict_start(self, state: State, logger: Logger) -> None:
        """Write what was logged so far. The phase is "test" from now on."""
        self._begin("test", state)

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write everything, and close the sink. Closing again does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._see(state)
            try:
                self.sink.write(self._now())
            finally:
                self.sink.close()

    def _log(self, call: Callable[..., None], name: object, value: Callable[[], Any], step: int | None) -> None:
        namespace, _, key = str(name).partition("/")
        if not namespace or not key:
            namespace, key = "value", str(name)
        with self._lock:
            self._check_open()
            if step is not None and (at := to_step(step, str(name))) != self._last_step:
                if self._has_news:  # the previous step is over, also in a loop without batch_end events
                    self._write_if_due(self._now())
                self._last_step = at
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
        """Write all of the last phase, and begin this one."""
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
        """A copy of the state, with the phase. If the phase is new, what is left of the last one is written first."""
        now = copy.copy(self._known_state())
        if self._last_step is not None:
            now.timestamp = replace(now.timestamp, batch=self._last_step)
        now.phase = self._phase if now.phase == "train" else now.phase
        last, self._last = self._last, now
        if last is not None and last.phase != now.phase:
            self.sink.write(last)
        return now

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"SinkDestination of {type(self.sink).__name__} is closed: make a new one to go on logging")


def _to_scalar(value: object, name: str) -> float:
    if isinstance(value, float):
        return value
    from wherry.loggers.values.canonical import to_scalar

    return to_scalar(value, name)
