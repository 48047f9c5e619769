"""MultiLogger: what a component of a training (model, task, trainer) logs with. Sinks: those that a run writes to."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wherry.errors import ConfigError
from wherry.loggers.own_copy import own_copy
from wherry.loggers.reports import Reports
from wherry.loggers.typed import PHASES, BaseLogger

if TYPE_CHECKING:
    from wherry.loggers.state import State

_T = TypeVar("_T")
#: Videos are logged at this rate, whatever theirs is.
FRAMES_PER_S = 12.0
#: The names that namespace_context() has put on top, of this thread or task; None where one has cleared them.
_stack: ContextVar[tuple[str, ...] | None] = ContextVar("wherry_namespaces", default=())


@contextmanager
def namespace_context(name: str | None) -> Iterator[None]:
    """Within the block, in this thread or task only, `name` is added to every namespace; None: nothing is, nor what was."""
    above = _stack.get() or ()
    token = _stack.set(None if name is None else (*above, name))
    try:
        yield
    finally:
        _stack.reset(token)


class _Once(Generic[_T]):
    """A function that is called once, at the first call; later calls give the same value, or raise the same error."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function: Callable[[], _T] | None = function
        self._value: _T
        self._error: Exception | None = None
        self._lock = threading.RLock()

    def __call__(self) -> _T:
        with self._lock:
            if self._function is not None:
                function, self._function = self._function, None  # and with it the tensors that it holds
                try:
                    self._value = function()
                except Exception as error:  # of the user; every sink is told
                    self._error = error
            if self._error is not None:
                raise self._error
            return self._value


class MultiLogger:
    """Takes values by kind and hands them, computed at most once and only if some sink writes, to all sinks.

    A value is given as it is, and then copied at once, so that nobody's later changes are seen; or as a function, which is
    called late or never, and then sees what its variables hold by then. Shapes are those of `wherry.loggers.munge`.
    Safe from several threads.
    """

    def __init__(self, default_namespace: str = "value") -> None:
        self.default_namespace = default_namespace
        self._values: dict[tuple[str, str, str], Callable[[], Any]] = {}
        self._lock = threading.Lock()
        self._reports = Reports()

    def namespace(self, namespace: str | None = None) -> str:
        """The namespace of a value that is logged now: the given or the default one, and what namespace_context() adds."""
        return "_".join([namespace or self.default_namespace, *(_stack.get() or ())])

    def log_scalar(self, key: str, value: object, *, namespace: str | None = None) -> None:
        """Log a number, or an array or tensor of one element."""
        self._log("scalar", key, value, namespace, lambda given, name: _munge().to_scalar(given, name))

    def log_string(self, key: str, value: object, *, namespace: str | None = None) -> None:
        """Log a text; anything else as its str()."""
        self._log("string", key, value, namespace, lambda given, name: str(given))

    def log_image(self, key: str, value: object, *, namespace: str | None = None, channels_last: bool | None = None) -> None:
        """Log an image: (H,W), (C,H,W) or (H,W,C)."""
        self._log("image", key, value, namespace, lambda given, name: _munge().to_image(given, name, channels_last=channels_last))

    def log_audio(self, key: str, value: object, *, namespace: str | None = None, sample_rate: int = 44_100) -> None:
        """Log a sound: (T), (C,T) or (T,C), at `sample_rate` Hz."""
        self._log("audio", key, value, namespace, lambda given, name: (_munge().to_audio(given, name), sample_rate))

    def log_video(self, key: str, value: object, *, namespace: str | None = None, fps: float = FRAMES_PER_S) -> None:
        """Log a video: (T,H,W), (T,C,H,W) or (T,H,W,C) at `fps` frames a second; frames are left out or doubled to make it 12."""
        if not fps > 0:
            raise ConfigError(f"fps is {fps!r}: it must be a number above 0")
        self._log("video", key, value, namespace, lambda given, name: _at_rate(_munge().to_video(given, name), fps))

    def log_histogram(self, key: str, value: object, *, namespace: str | None = None) -> None:
        """Log the distribution of an array of any shape."""
        self._log("histogram", key, value, namespace, lambda given, name: _munge().to_numpy(given))

    def log_point_cloud(self, key: str, value: object, *, namespace: str | None = None, max_points: int | None = 1000) -> None:
        """Log points, (N,3), (3,N), (B,N,3) ...; of more than `max_points` the same random ones of each cloud."""
        self._log(
            "point_cloud",
            key,
            value,
            namespace,
            lambda given, name: _munge().to_point_cloud(given, name, max_points=max_points),
        )

    @contextmanager
    def timer(self, key: str, *, namespace: str | None = "timers") -> Iterator[None]:
        """Log how long the block takes, in seconds; also when it raises."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self.log_scalar(key, time.perf_counter() - started_s, namespace=namespace)

    def write(self, sinks: Sequence[BaseLogger[Any]], state: State) -> None:
        """Hand what was logged since the last call to all sinks. A sink that raises is reported once; the others get theirs."""
        if state.phase not in PHASES:
            raise ConfigError(f"State.phase is {state.phase!r}: use one of {', '.join(PHASES)}")
        with self._lock:
            values, self._values = self._values, {}
        for (kind, namespace, key), value in values.items():
            for sink in sinks:
                self._hand_over(sink, kind, namespace, key, value, state)

    def _hand_over(
        self, sink: BaseLogger[Any], kind: str, namespace: str, key: str, value: Callable[[], Any], state: State
    ) -> None:
        try:
            getattr(sink, f"log_{kind}")(key, value, state, namespace)
        except Exception as error:  # of a sink, whose errors stop nobody else
            self._reports.once((id(sink), kind), f"{type(sink).__name__}.log_{kind} failed: {error}", error)

    def _log(self, kind: str, key: str, value: object, namespace: str | None, form: Callable[[Any, str], Any]) -> None:
        key, where = str(key), self.namespace(namespace)
        name = f"{where}/{key}"
        if callable(value):
            compute = value
            once: _Once[Any] = _Once(lambda: form(compute(), name))
        else:
            given = own_copy(value)
            once = _Once(lambda: form(given, name))
        with self._lock:
            self._values[kind, where, key] = once


class Sinks:
    """The sinks of a run. Call step() after each step: it hands over what was logged and has the sinks write that are due.

    The last values of a phase are written when the phase changes, and at end_phase() and close(), whether due or not.
    """

    def __init__(self, sinks: Sequence[BaseLogger[Any]]) -> None:
        self.sinks = tuple(sinks)
        self._reports = Reports()
        self._before: State | None = None

    def log_config(self, config: object) -> None:
        """Hand the settings of the run to all sinks."""
        for sink in self.sinks:
            self._attempt(sink, "log_config", lambda sink=sink: sink.log_config(config))  # type: ignore[misc]

    def step(self, state: State, *loggers: MultiLogger) -> None:
        """A step of the loop is over."""
        if self._before is not None and self._before.phase != state.phase:
            self._write_all(self._before)
        for logger in loggers:
            logger.write(self.sinks, state)
        for sink in self.sinks:
            if sink.should_write(state):
                self._attempt(sink, "write", lambda sink=sink: sink.write(state))  # type: ignore[misc]
        self._before = copy.copy(state)

    def end_phase(self, state: State, *loggers: MultiLogger) -> None:
        """The state's phase is over: everything is written."""
        for logger in loggers:
            logger.write(self.sinks, state)
        self._write_all(state)
        self._before = None

    def close(self) -> None:
        """Write what is left, and close the sinks."""
        if self._before is not None:
            self._write_all(self._before)
            self._before = None
        for sink in self.sinks:
            self._attempt(sink, "close", sink.close)

    def _write_all(self, state: State) -> None:
        for sink in self.sinks:
            self._attempt(sink, "write", lambda sink=sink: sink.write(state))  # type: ignore[misc]

    def _attempt(self, sink: BaseLogger[Any], what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # of a sink, whose errors stop neither the others nor the training
            self._reports.once((id(sink), what), f"{type(sink).__name__}.{what} failed: {error}", error)


def _at_rate(frames: Any, fps: float) -> Any:
    """The frames of a video at `fps`, so many of them, evenly spaced, that it lasts as long at 12."""
    if fps == FRAMES_PER_S:
        return frames
    n_frames = max(1, round(len(frames) * FRAMES_PER_S / fps))
    return frames[[min(len(frames) - 1, int(at * len(frames) / n_frames)) for at in range(n_frames)]]


def _munge() -> Any:
    """The module, which needs numpy, when the first value is computed."""
    from wherry.loggers import munge

    return munge
