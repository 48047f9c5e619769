"""Sinks of the typed API: they take lazily computed values by kind, and write them at intervals.

The interface is that of ml-starter's loggers. A `MultiLogger` passes functions to all sinks, and a sink calls those whose values
it writes. Each kind of value has one form, see `wherry.loggers.values.canonical`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

from wherry.errors import ConfigError
from wherry.loggers.run.state import State
from wherry.loggers.run.timestamp import Timestamp
from wherry.loggers.warn_once import WarnOnce
from wherry.posix.fork import ChildLock

Aggregate = Literal["last", "mean", "min", "max"]
#: From so many batches on, a run is long and its curves need fewer points than one a second.
_MANY_BATCHES = 5_000


@dataclass(frozen=True)
class BaseLoggerConfig:
    """How often a sink writes: seconds of the run; 0: at every step; None: see `BaseLogger.should_write`."""

    name: str = "???"
    write_every_n_seconds: float | None = None
    write_train_every_n_seconds: float | None = None
    write_val_every_n_seconds: float | None = None
    #: What becomes of the scalars of one key between two writes, also of several in one step. All but "last" compute every
    #: value, also lazy ones; a NaN among them makes NaN.
    aggregate: Aggregate = field(default="last", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("write_every_n_seconds", "write_train_every_n_seconds", "write_val_every_n_seconds"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
                raise ConfigError(
                    f"{type(self).__name__}.{name} is {value!r}: it must be a number of seconds, at least 0, or None"
                )
        if self.aggregate not in (known := get_args(Aggregate)):
            raise ConfigError(f"{type(self).__name__}.aggregate is {self.aggregate!r}: use one of {', '.join(known)}")


ConfigT = TypeVar("ConfigT", bound=BaseLoggerConfig)


class BaseLogger(ABC, Generic[ConfigT]):
    """A sink. Override write() and the log_ methods of the kinds that the sink can take; the others do nothing::

        class PrintSink(CollectingLogger[BaseLoggerConfig]):
            def write(self, state: State) -> None:
                print(state.timestamp.batch, self.take(state.phase).scalars)

    `value` is a function that computes the value, at most once for all sinks. It may raise any error of the user's function. Call
    it in write(), so that only values that are written are computed. Do not change what it returns: other sinks get the same
    object. `CollectingLogger` keeps the values until write().
    """

    #: The folder for the files of a sink. The working directory, until it is set.
    log_directory: Path

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self.log_directory = Path()
        self._last_write_s: dict[str, float] = {}

    def log_scalar(self, key: str, value: Callable[[], int | float | Any], state: State, namespace: str) -> None:
        """Log a number."""
        self._log_value("scalars", key, value, state, namespace)

    def log_string(self, key: str, value: Callable[[], str], state: State, namespace: str) -> None:
        """Log a text."""
        self._log_value("strings", key, value, state, namespace)

    def log_image(self, key: str, value: Callable[[], Any], state: State, namespace: str) -> None:
        """Log an image, (C,H,W) uint8."""
        self._log_value("images", key, value, state, namespace)

    def log_audio(self, key: str, value: Callable[[], tuple[Any, int]], state: State, namespace: str) -> None:
        """Log a sound: (samples (T,) float32 within -1..1, sample rate in Hz)."""
        self._log_value("audios", key, value, state, namespace)

    def log_video(self, key: str, value: Callable[[], Any], state: State, namespace: str) -> None:
        """Log a video, (T,C,H,W) uint8 at 12 frames a second."""
        self._log_value("videos", key, value, state, namespace)

    def log_histogram(self, key: str, value: Callable[[], Any], state: State, namespace: str) -> None:
        """Log the distribution of an array of any shape."""
        self._log_value("histograms", key, value, state, namespace)

    def log_point_cloud(self, key: str, value: Callable[[], Any], state: State, namespace: str) -> None:
        """Log points, (B,N,3) float32."""
        self._log_value("point_clouds", key, value, state, namespace)

    def _log_value(self, kind: str, key: str, value: Callable[[], Any], state: State, namespace: str) -> None:
        """Every log_ method leads here; `kind` is a field of `Collected`."""

    def log_config(self, config: Any) -> None:
        """Log the settings of the run: an OmegaConf DictConfig, any mapping, or a dataclass (see `config_as_dict`)."""

    def default_write_every_n_seconds(self, state: State) -> float:
        """The interval where the configuration has none: 1 s; 10 s when the run is long or has several ranks."""
        return 10.0 if state.world_size > 1 or state.timestamp.batch >= _MANY_BATCHES else 1.0

    def should_write(self, state: State) -> bool:
        """Whether a write in the state's phase is due. Call it once a step: True counts as a write.

        The first write of a phase is due at once, the next ones when the interval has passed. It is the train interval in the
        phase "train" and the val interval in others; without it the common one, and without that
        default_write_every_n_seconds().
        """
        config, now_s, last_s = self.config, state.elapsed_s, self._last_write_s.get(state.phase)
        own_s = config.write_train_every_n_seconds if state.phase == "train" else config.write_val_every_n_seconds
        interval_s = config.write_every_n_seconds if own_s is None else own_s
        if interval_s is None:
            interval_s = self.default_write_every_n_seconds(state)
        if last_s is not None and 0 <= now_s - last_s < interval_s:
            return False
        self._last_write_s[state.phase] = now_s
        return True

    @abstractmethod
    def write(self, state: State) -> None:
        """Write what was logged since the last write in the state's phase."""

    def close(self) -> None:
        """End. Values that were not written are lost, unless the sink writes them here, as a `CollectingLogger` does."""


@dataclass
class Collected:
    """The computed values of one phase, by kind and (namespace, key)."""

    scalars: dict[tuple[str, str], float] = field(default_factory=dict)
    strings: dict[tuple[str, str], str] = field(default_factory=dict)
    images: dict[tuple[str, str], Any] = field(default_factory=dict)
    audios: dict[tuple[str, str], tuple[Any, int]] = field(default_factory=dict)
    videos: dict[tuple[str, str], Any] = field(default_factory=dict)
    histograms: dict[tuple[str, str], Any] = field(default_factory=dict)
    point_clouds: dict[tuple[str, str], Any] = field(default_factory=dict)


KINDS = tuple(one.name for one in dataclasses.fields(Collected))


class CollectingLogger(BaseLogger[ConfigT]):
    """A sink that keeps the newest value of each key until it writes; for scalars `BaseLoggerConfig.aggregate` decides.

    Override write() and call take() in it. A value whose function raises is reported once, and the others are written.
    Safe from several threads. What it still holds at the close is written then: one that overrides close() calls this one first.
    """

    def __init__(self, config: ConfigT) -> None:
        super().__init__(config)
        self._held: dict[str, _Held] = {}  # by phase
        self._warnings = WarnOnce()
        self._lock = ChildLock()

    def take(self, phase: str, *, kinds: Collection[str] = KINDS) -> Collected:
        """Compute and return what was logged in the phase since the last call. Values of other kinds than `kinds` are dropped."""
        with self._lock:
            held = self._held.pop(phase, None)
        collected = Collected()
        for (kind, namespace, key), value in held.values.items() if held else ():
            if kind in kinds:
                try:
                    getattr(collected, kind)[namespace, key] = value()
                except Exception as error:  # of the user's function, or a shape that is no such value; the others are written
                    self._report(namespace, key, value, error)
        return collected

    def kept_kinds(self, phase: str) -> set[str]:
        """The kinds (see `Collected`) of the values that were logged in the phase since the last take()."""
        with self._lock:
            return {kind for kind, _, _ in self._held[phase].values} if phase in self._held else set()

    def close(self) -> None:
        """Write the values of each phase that were not written, at the step of its last value. Closing again does nothing.

        Of several errors of write() the first is raised, after all phases were tried.
        """
        with self._lock:
            left = list(self._held.items())
        errors: list[Exception] = []
        for phase, held in left:
            if phase not in self._held:  # written with another one
                continue
            last = copy.copy(held.state)
            last.phase, last.timestamp = phase, held.timestamp
            try:
                self.write(last)
            except Exception as error:  # write the other phases
                errors.append(error)
        for later in errors[1:]:
            self._warnings.each(f"{type(self).__name__}.write failed: {later}", later)
        if errors:
            raise errors[0]

    def _log_value(self, kind: str, key: str, value: Callable[[], Any], state: State, namespace: str) -> None:
        where, number = (kind, namespace, key), None
        if kind == "scalars" and self.config.aggregate != "last":
            try:
                number = float(value())
            except Exception as error:  # of the user's function
                self._report(namespace, key, value, error)
                return
        with self._lock:
            held = self._held.setdefault(state.phase, _Held(state, state.timestamp))
            held.state, held.timestamp = state, state.timestamp
            if number is not None:
                before = held.values.get(where)
                running = before if isinstance(before, _Running) else _Running(self.config.aggregate)
                running.add(number)
                value = running
            held.values[where] = value

    def _report(self, namespace: str, key: str, value: Callable[[], Any], error: Exception) -> None:
        if not getattr(value, "reports_itself", False):  # a MultiLogger reports the error once for all sinks
            self._warnings.once((namespace, key), f"{namespace}/{key} is not logged: {type(error).__name__}: {error}", error)


@dataclass
class _Held:
    """What was logged in a phase, and how far the loop was at the last value: it changes the state itself."""

    state: State
    timestamp: Timestamp
    values: dict[tuple[str, str, str], Callable[[], Any]] = field(default_factory=dict)


@dataclass
class _Running:
    """The mean, minimum or maximum of the numbers so far. If one of them is NaN, it is NaN."""

    aggregate: Aggregate
    n: int = 0
    so_far: float = 0.0

    def add(self, number: float) -> None:
        self.n += 1
        if self.n == 1:
            self.so_far = number
        elif self.aggregate == "mean":
            self.so_far += number
        elif math.isnan(number) or (number < self.so_far if self.aggregate == "min" else number > self.so_far):
            self.so_far = number  # NaN stays: no comparison with it is true

    def __call__(self) -> float:
        return self.so_far / self.n if self.aggregate == "mean" else self.so_far
