"""MultiLogger: what a component of a training (model, task, trainer) logs with. Sinks: those that a run writes to."""

from __future__ import annotations

import copy
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from wherry.errors import ConfigError, UploadFailed
from wherry.loggers.sink import BaseLogger
from wherry.loggers.values.deep_copy import own_copy
from wherry.loggers.values.lazy import Once
from wherry.loggers.warn_once import Reports
from wherry.posix.fork import ChildLock

if TYPE_CHECKING:
    from wherry.loggers.run.state import State

_T = TypeVar("_T")
#: Videos are logged at this rate, whatever theirs is.
FRAMES_PER_S = 12.0
#: So many values of one scalar wait for a write, for sinks that aggregate: a loop that never writes must not fill the memory.
MOST_REPLACED = 10_000
#: A message names so many values.
_MOST_NAMES = 5
#: The names that namespace_context() has put on top, of this thread or task; None where one has cleared them.
_stack: ContextVar[tuple[str, ...] | None] = ContextVar("wherry_namespaces", default=())
#: The MultiLoggers that nobody has called write() of yet: a close says what they hold.
_never_written: weakref.WeakSet[MultiLogger] = weakref.WeakSet()
_never_written_lock = threading.Lock()


@contextmanager
def namespace_context(name: str | None) -> Iterator[None]:
    """Within the block, in this thread or task only, `name` is added to every namespace; None: nothing is, nor what was."""
    above = _stack.get() or ()
    token = _stack.set(None if name is None else (*above, name))
    try:
        yield
    finally:
        _stack.reset(token)


class MultiLogger:
    """Takes values by kind and hands them, computed at most once and only if some sink writes, to all sinks.

    A value is given as it is, and then copied at once, so that nobody's later changes are seen; or as a function, which is
    called late or never, and then sees what its variables hold by then. So what is large or takes long is best given as a
    function: the copy of an array is made at every call, also of one that no sink will write. A function that raises, and a
    value that has not the shape of its kind (see `wherry.loggers.values.canonical`), is reported once for its name, and left out.

    Of several values of a name between two calls of write() the last counts, and the others are not computed. A sink whose
    `BaseLoggerConfig.aggregate` says otherwise gets all of a scalar's, the newest `MOST_REPLACED` of them: so all, and what
    functions hold, stay in memory until then.

    Values are of the phase that the state has in write(). Safe from several threads.
    """

    def __init__(self, default_namespace: str = "value") -> None:
        self.default_namespace = default_namespace
        self._values: dict[tuple[str, str, str], Callable[[], Any]] = {}
        #: Those of scalars that a later one has replaced since the last write(), oldest first.
        self._replaced: dict[tuple[str, str, str], deque[Callable[[], Any]]] = {}
        self._lock = ChildLock()
        self._reports = Reports()
        with _never_written_lock:
            _never_written.add(self)

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
        check_rate(fps)
        self._log("video", key, value, namespace, lambda given, name: at_rate(_munge().to_video(given, name), fps))

    def log_images(
        self,
        key: str,
        value: object,
        *,
        namespace: str | None = None,
        channels_last: bool | None = None,
        max_images: int | None = None,
        sep: int = 0,
    ) -> None:
        """Log a batch or sequence of images as one: a grid, with `sep` pixels between them.

        (B,H,W), (B,C,H,W) or (B,H,W,C). Of more than `max_images`, so many are shown, evenly spaced.
        """

        def form(given: object, name: str) -> Any:
            return _mosaic().image_grid(_munge().to_images(given, name, channels_last=channels_last), max_images, sep)

        self._log("image", key, value, namespace, form)

    def log_audios(
        self,
        key: str,
        value: object,
        *,
        namespace: str | None = None,
        sample_rate: int = 44_100,
        max_audios: int | None = None,
        sep_ms: float = 0.0,
    ) -> None:
        """Log a batch or sequence of sounds as one, with `sep_ms` milliseconds of silence between them.

        (B,T), (B,C,T) or (B,T,C). Of more than `max_audios`, so many are taken, evenly spaced.
        """

        def form(given: object, name: str) -> Any:
            return _mosaic().joined_audio(given, name, max_audios, round(sep_ms / 1000 * sample_rate)), sample_rate

        self._log("audio", key, value, namespace, form)

    def log_videos(
        self,
        key: str,
        value: object,
        *,
        namespace: str | None = None,
        fps: float = FRAMES_PER_S,
        max_videos: int | None = None,
        sep: int = 0,
    ) -> None:
        """Log a batch or sequence of videos as one: a grid as in log_images(); shorter ones stay at their last frame.

        (B,T,C,H,W) or (B,T,H,W,C). Of more than `max_videos`, so many are shown, evenly spaced.
        """
        check_rate(fps)

        def form(given: object, name: str) -> Any:
            return at_rate(_mosaic().video_grid(given, name, max_videos, sep), fps)

        self._log("video", key, value, namespace, form)

    def log_histogram(self, key: str, value: object, *, namespace: str | None = None) -> None:
        """Log the distribution of an array of any shape."""
        self._log("histogram", key, value, namespace, lambda given, name: _munge().to_values(given, name))

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
        with _never_written_lock:
            _never_written.discard(self)
        aggregating = {id(sink) for sink in sinks if _aggregates(sink)}
        with self._lock:
            values, self._values = self._values, {}
            replaced, self._replaced = self._replaced, {}
        for where, value in values.items():
            before = replaced.get(where, ())
            if aggregating and len(before) == MOST_REPLACED:
                text = f"was logged more than {MOST_REPLACED} times before a step: only the newest of them are aggregated"
                self._reports.once(("many", where), f"{where[1]}/{where[2]} {text}; call step() more often")
            for sink in sinks:
                for one in (*before, value) if id(sink) in aggregating else (value,):
                    self._hand_over(sink, *where, one, state)

    def has_values(self) -> bool:
        """Whether anything was logged since the last write()."""
        with self._lock:
            return bool(self._values)

    def _names(self) -> list[str]:
        with self._lock:
            return [f"{namespace}/{key}" for _, namespace, key in self._values]

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
        compute = value if callable(value) else partial(_identity, own_copy(value))

        def report(error: Exception) -> None:
            self._reports.once(("value", name), f"{name} is not logged: {type(error).__name__}: {error}", error)

        once: Once[Any] = Once(lambda: form(compute(), name), report)
        with self._lock:
            replaced = self._values.get((kind, where, key))
            if replaced is not None and kind == "scalar":
                self._replaced.setdefault((kind, where, key), deque(maxlen=MOST_REPLACED)).append(replaced)
            self._values[kind, where, key] = once


class Sinks:
    """The sinks of a run. Call step() after each step: it hands over what was logged and has the sinks write that are due.

    The last values of a phase are written when the phase changes, and at end_phase() and close(), whether due or not. A sink
    that raises is reported, once for each kind of call, and stops neither the others nor the training. UploadFailed comes
    through, after all had their turn: by it a destination says on purpose that accepted files did not arrive.

    ``with Sinks([...]) as sinks:`` closes at the end. One thread calls; values may be logged by any.
    """

    def __init__(self, sinks: Sequence[BaseLogger[Any]]) -> None:
        self.sinks = tuple(sinks)
        self._reports = Reports()
        self._loggers: dict[int, MultiLogger] = {}  # all that were seen: at the close their last values are written, too
        self._last: State | None = None
        self._has_open_phase = False
        self._is_closed = False

    def log_config(self, config: object) -> None:
        """Hand the settings of the run to all sinks: a mapping, an OmegaConf DictConfig, a dataclass or an argparse Namespace."""
        self._each("log_config", lambda sink: sink.log_config(config))

    def step(self, state: State, *loggers: MultiLogger) -> None:
        """A step of the loop is over; what was logged belongs to the phase of `state`."""
        self._end_other_phase(state)
        self._see(loggers)
        self._hand_over(state, loggers)
        self._each("write", lambda sink: sink.write(state) if sink.should_write(state) else None)

    def end_phase(self, state: State, *loggers: MultiLogger) -> None:
        """The state's phase is over: everything is written, also what was logged since the last step by any logger of a step."""
        self._end_other_phase(state)
        self._see(loggers)
        self._hand_over(state, tuple(self._loggers.values()))
        self._write_all(state)
        self._has_open_phase = False

    def close(self) -> None:
        """Write what is left, also what was logged after the last step, and close the sinks. Closing again does nothing.

        What a MultiLogger holds that was never given to step() or end_phase() is of no known state: it is reported, not written.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as stack:  # closes them all, also after Ctrl-C
            stack.callback(self._each, "close", lambda sink: sink.close())
            if self._last is not None:
                self._has_open_phase |= any(logger.has_values() for logger in self._loggers.values())
                for logger in self._loggers.values():
                    logger.write(self.sinks, self._last)
                if self._has_open_phase:
                    self._write_all(self._last)
            self._report_lost()

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except UploadFailed as failed:
            if error is None:
                raise
            self._reports.each(f"after {type(error).__name__}, at the close: {failed}", failed)

    def _see(self, loggers: Sequence[MultiLogger]) -> None:
        self._loggers.update((id(logger), logger) for logger in loggers)

    def _end_other_phase(self, state: State) -> None:
        if self._has_open_phase and self._last is not None and self._last.phase != state.phase:
            self._write_all(self._last)

    def _hand_over(self, state: State, loggers: Sequence[MultiLogger]) -> None:
        self._last, self._has_open_phase = copy.copy(state), True
        for logger in loggers:
            logger.write(self.sinks, state)

    def _report_lost(self) -> None:
        with _never_written_lock:
            names = [name for logger in list(_never_written) for name in logger._names()]
        if names:
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            self._reports.each(
                f"at the close of Sinks, not written: {', '.join(names[:_MOST_NAMES])}{more}. No step was made with the "
                "MultiLogger that has it, so the state is unknown: call step(state, logger) or end_phase() before close()"
            )

    def _write_all(self, state: State) -> None:
        self._each("write", lambda sink: sink.write(state))

    def _each(self, what: str, call: Callable[[BaseLogger[Any]], object]) -> None:
        """Make a call to every sink; after Ctrl-C in a close() the others are closed, too."""
        uploads: list[UploadFailed] = []
        with ExitStack() as stack:
            for sink in reversed(self.sinks):
                stack.callback(self._attempt, sink, what, call, uploads)
        if uploads:
            raise uploads[0]

    def _attempt(
        self, sink: BaseLogger[Any], what: str, call: Callable[[BaseLogger[Any]], object], uploads: list[UploadFailed]
    ) -> None:
        try:
            call(sink)
        except UploadFailed as error:
            uploads.append(error)
        except Exception as error:  # of a sink, whose errors stop neither the others nor the training
            self._reports.once((id(sink), what), f"{type(sink).__name__}.{what} failed: {error}", error)


def at_rate(frames: Any, fps: float) -> Any:
    """The frames of a video at `fps`, so many of them, evenly spaced, that it lasts as long at `FRAMES_PER_S`."""
    if fps == FRAMES_PER_S:
        return frames
    n_frames = max(1, round(len(frames) * FRAMES_PER_S / fps))
    return frames[[min(len(frames) - 1, int(at * len(frames) / n_frames)) for at in range(n_frames)]]


def check_rate(fps: float) -> None:
    """ConfigError for what is no rate of frames."""
    if not 0 < fps < math.inf:
        raise ConfigError(f"fps is {fps!r}: it must be a number above 0")


def _aggregates(sink: BaseLogger[Any]) -> bool:
    """Whether it wants all values of a scalar; one whose configuration has no such field does not."""
    return getattr(getattr(sink, "config", None), "aggregate", "last") != "last"


def _identity(value: _T) -> _T:
    return value


def _mosaic() -> Any:
    _munge()  # says what to install where there is no numpy
    from wherry.loggers.values import grid as mosaic

    return mosaic


def _munge() -> Any:
    """The module, which needs numpy, when the first value is computed."""
    from wherry.loggers.values import canonical as munge

    return munge
