"""MultiLogger: a component of a training (model, task, trainer) logs values with it, which sinks write."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from wherry.errors import ConfigError
from wherry.loggers.run.state import State
from wherry.loggers.typed.sink import BaseLogger
from wherry.loggers.values.deep_copy import deep_copy
from wherry.loggers.values.lazy import Lazy
from wherry.loggers.warn_once import WarnOnce
from wherry.posix.fork import ChildLock

#: Videos are converted to this rate.
FRAMES_PER_S = 12.0
#: Sinks that aggregate get the newest so many values of a scalar: a loop that never writes must not fill the memory.
MOST_REPLACED = 10_000
#: The names that namespace_context() adds in this thread or task; None inside namespace_context(None).
_stack: ContextVar[tuple[str, ...] | None] = ContextVar("wherry_namespaces", default=())
#: The MultiLoggers without a call of write() so far. Closing `Sinks` reports the values that they hold.
_never_written: weakref.WeakSet[MultiLogger] = weakref.WeakSet()
_never_written_lock = threading.Lock()


@contextmanager
def namespace_context(name: str | None) -> Iterator[None]:
    """Within the block, in this thread or task only, add `name` to every namespace. None: add none."""
    above = _stack.get() or ()
    token = _stack.set(None if name is None else (*above, name))
    try:
        yield
    finally:
        _stack.reset(token)


def never_written() -> list[str]:
    """The names of the values in MultiLoggers without a call of write()."""
    with _never_written_lock:
        loggers = list(_never_written)
    return [name for logger in loggers for name in logger._names()]


class MultiLogger:
    """Takes values by kind and passes them to all sinks. Each is computed at most once, and only if a sink writes it::

        from wherry.loggers.typed import DestinationSink, Sinks

        log, sinks = MultiLogger("model"), Sinks([DestinationSink(RunFolderLogger("runs"))])
        for batch in loader:
            log.log_scalar("loss", train(batch))
            log.log_histogram("weights", lambda: model.weight)
            sinks.step(state, log)
        sinks.close()

    A value is given as an object, which is copied at once; or as a function, which is called later or never, and then uses what
    its variables hold at that time. Give large and expensive values as functions: an array is copied at every call, even if no
    sink will write it. A function that raises is reported once for its name, and so is a value without the shape of its kind
    (see `wherry.loggers.values.canonical`); they are not logged.

    Of several values of a name between two calls of write() the last one counts, and the others are not computed. Sinks with
    another `BaseLoggerConfig.aggregate` get all values of a scalar, at most the newest `MOST_REPLACED`. So these, and what their
    functions refer to, stay in memory until write().

    Values belong to the phase that the state has in write(). Threads may share a MultiLogger.
    """

    def __init__(self, default_namespace: str = "value") -> None:
        self.default_namespace = default_namespace
        self._values: dict[tuple[str, str, str], Callable[[], Any]] = {}
        #: Those of scalars that a later one has replaced since the last write(), oldest first.
        self._replaced: dict[tuple[str, str, str], deque[Callable[[], Any]]] = {}
        self._lock = ChildLock()
        self._warnings = WarnOnce()
        with _never_written_lock:
            _never_written.add(self)

    def namespace(self, namespace: str | None = None) -> str:
        """The namespace of a value that is logged now: the given or default one, with the names of namespace_context()."""
        return "_".join([namespace or self.default_namespace, *(_stack.get() or ())])

    def log_scalar(self, key: str, value: object, *, namespace: str | None = None) -> None:
        """Log a number, or an array or tensor of one element."""
        self._log("scalar", key, value, namespace, lambda given, name: _canonical().to_scalar(given, name))

    def log_string(self, key: str, value: object, *, namespace: str | None = None) -> None:
        """Log a text; anything else as its str()."""
        self._log("string", key, value, namespace, lambda given, name: str(given))

    def log_image(self, key: str, value: object, *, namespace: str | None = None, channels_last: bool | None = None) -> None:
        """Log an image: (H,W), (C,H,W) or (H,W,C)."""
        self._log(
            "image", key, value, namespace, lambda given, name: _canonical().to_image(given, name, channels_last=channels_last)
        )

    def log_audio(self, key: str, value: object, *, namespace: str | None = None, sample_rate_hz: int = 44_100) -> None:
        """Log a sound: (T), (C,T) or (T,C), with `sample_rate_hz`."""
        self._log("audio", key, value, namespace, lambda given, name: (_canonical().to_audio(given, name), sample_rate_hz))

    def log_video(self, key: str, value: object, *, namespace: str | None = None, frames_per_s: float = FRAMES_PER_S) -> None:
        """Log a video: (T,H,W), (T,C,H,W) or (T,H,W,C). Frames are dropped or doubled to make `frames_per_s` 12."""
        check_rate(frames_per_s)
        self._log("video", key, value, namespace, lambda given, name: at_rate(_canonical().to_video(given, name), frames_per_s))

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

        (B,H,W), (B,C,H,W) or (B,H,W,C). If there are more than `max_images`, so many are taken, evenly spaced.
        """

        def form(given: object, name: str) -> Any:
            return _grid().image_grid(_canonical().to_images(given, name, channels_last=channels_last), max_images, sep)

        self._log("image", key, value, namespace, form)

    def log_audios(
        self,
        key: str,
        value: object,
        *,
        namespace: str | None = None,
        sample_rate_hz: int = 44_100,
        max_audios: int | None = None,
        sep_ms: float = 0.0,
    ) -> None:
        """Log a batch or sequence of sounds as one, with `sep_ms` milliseconds of silence between them.

        (B,T), (B,C,T) or (B,T,C). If there are more than `max_audios`, so many are taken, evenly spaced.
        """

        def form(given: object, name: str) -> Any:
            return _grid().joined_audio(given, name, max_audios, round(sep_ms / 1000 * sample_rate_hz)), sample_rate_hz

        self._log("audio", key, value, namespace, form)

    def log_videos(
        self,
        key: str,
        value: object,
        *,
        namespace: str | None = None,
        frames_per_s: float = FRAMES_PER_S,
        max_videos: int | None = None,
        sep: int = 0,
    ) -> None:
        """Log a batch or sequence of videos as one: a grid as in log_images(). Shorter videos repeat their last frame.

        (B,T,C,H,W) or (B,T,H,W,C). If there are more than `max_videos`, so many are taken, evenly spaced.
        """
        check_rate(frames_per_s)

        def form(given: object, name: str) -> Any:
            return at_rate(_grid().video_grid(given, name, max_videos, sep), frames_per_s)

        self._log("video", key, value, namespace, form)

    def log_histogram(self, key: str, value: object, *, namespace: str | None = None) -> None:
        """Log the distribution of an array of any shape."""
        self._log("histogram", key, value, namespace, lambda given, name: _canonical().to_values(given, name))

    def log_point_cloud(self, key: str, value: object, *, namespace: str | None = None, max_points: int | None = 1000) -> None:
        """Log points, (N,3), (3,N), (B,N,3) ... Of more than `max_points`, the same random ones of each cloud are taken."""
        self._log(
            "point_cloud",
            key,
            value,
            namespace,
            lambda given, name: _canonical().to_point_cloud(given, name, max_points=max_points),
        )

    @contextmanager
    def timer(self, key: str, *, namespace: str | None = "timers") -> Iterator[None]:
        """Log how many seconds the block takes, also when it raises."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self.log_scalar(key, time.perf_counter() - started_s, namespace=namespace)

    def write(self, sinks: Sequence[BaseLogger[Any]], state: State) -> None:
        """Pass what was logged since the last call to all sinks. A sink that raises is reported once; the others go on."""
        with _never_written_lock:
            _never_written.discard(self)
        # A configuration of somebody else may lack the field.
        aggregating = {id(sink) for sink in sinks if getattr(getattr(sink, "config", None), "aggregate", "last") != "last"}
        with self._lock:
            values, self._values = self._values, {}
            replaced, self._replaced = self._replaced, {}
        for where, value in values.items():
            before = replaced.get(where, ())
            if aggregating and len(before) == MOST_REPLACED:
                text = f"was logged more than {MOST_REPLACED} times before a step: only the newest of them are aggregated"
                self._warnings.once(("many", where), f"{where[1]}/{where[2]} {text}; call step() more often")
            for sink in sinks:
                for one in (*before, value) if id(sink) in aggregating else (value,):
                    self._hand_over(sink, *where, one, state)

    def has_values(self) -> bool:
        """Whether anything was logged since the last write()."""
        return bool(self._names())

    def _names(self) -> list[str]:
        with self._lock:
            return [f"{namespace}/{key}" for _, namespace, key in self._values]

    def _hand_over(
        self, sink: BaseLogger[Any], kind: str, namespace: str, key: str, value: Callable[[], Any], state: State
    ) -> None:
        try:
            getattr(sink, f"log_{kind}")(key, value, state, namespace)
        except Exception as error:  # of a sink; the others go on
            self._warnings.once((id(sink), kind), f"{type(sink).__name__}.log_{kind} failed: {error}", error)

    def _log(self, kind: str, key: str, value: object, namespace: str | None, form: Callable[[Any, str], Any]) -> None:
        key, where = str(key), self.namespace(namespace)
        name = f"{where}/{key}"
        given = value if callable(value) else deep_copy(value)

        def report(error: Exception) -> None:
            self._warnings.once(("value", name), f"{name} is not logged: {type(error).__name__}: {error}", error)

        lazy: Lazy[Any] = Lazy(lambda: form(given() if callable(given) else given, name), report)
        with self._lock:
            replaced = self._values.get((kind, where, key))
            if replaced is not None and kind == "scalar":
                self._replaced.setdefault((kind, where, key), deque(maxlen=MOST_REPLACED)).append(replaced)
            self._values[kind, where, key] = lazy


def at_rate(frames: Any, frames_per_s: float) -> Any:
    """Evenly spaced frames of a video at `frames_per_s`: as many as last equally long at `FRAMES_PER_S`."""
    if frames_per_s == FRAMES_PER_S:
        return frames
    n_frames = max(1, round(len(frames) * FRAMES_PER_S / frames_per_s))
    return frames[[min(len(frames) - 1, int(at * len(frames) / n_frames)) for at in range(n_frames)]]


def check_rate(frames_per_s: float) -> None:
    """ConfigError unless `frames_per_s` is a positive number."""
    if not 0 < frames_per_s < math.inf:
        raise ConfigError(f"frames_per_s is {frames_per_s!r}: it must be a number above 0")


def _grid() -> Any:
    _canonical()  # its ImportError names what to install if numpy is missing
    from wherry.loggers.values import grid

    return grid


def _canonical() -> Any:
    """The module, which needs numpy, when the first value is computed."""
    from wherry.loggers.values import canonical

    return canonical
