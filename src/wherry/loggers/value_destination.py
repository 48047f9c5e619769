"""ValueDestination: a destination that gets each logged text, table, image, sound and so on as a value in one form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import count
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.logger import Logger
from wherry.loggers.run.state import State
from wherry.loggers.values import encode
from wherry.loggers.values.checks import to_step
from wherry.loggers.values.kinds import Audio, Histogram, Images, PointCloud, Table, Text, Value, Video

_Self = TypeVar("_Self", bound="ValueDestination")
#: Log method -> the kind of value that it makes, and the places of `name` and `step` among its arguments.
_KINDS: dict[str, tuple[Any, int, int]] = {
    "log_images": (Images, 1, 3),
    "log_table": (Table, 2, 3),
    "log_text": (Text, 1, 2),
    "log_histogram": (Histogram, 1, 2),
    "log_audio": (Audio, 1, 3),
    "log_video": (Video, 1, 3),
    "log_point_cloud": (PointCloud, 1, 2),
}


class ValueDestination(LoggerDestination, ABC):
    """Has one method for all media, `write`; metrics, settings and traces are left to the subclass::

        class PrintDestination(ValueDestination):
            def write(self, value: Value, step: int) -> None:
                match value:
                    case Text():
                        print(step, value.name, value.text)
                    case Images():
                        print(step, value.name, [image.mean() for image in value.images])

    A log call checks and copies what it is given (see `kinds.py`), so that a ValueError is raised by the call itself and
    `write` may keep the value. Images are written without the masks that do not fit, and then ValueError is raised. Without a
    step, the calls of a kind and a name are counted from 0; a call that is refused is not counted.
    """

    #: Kind -> (module, package) of the library that encodes it. The thread that logs imports it, see `encode.require`.
    needs: ClassVar[Mapping[str, tuple[str, str]]] = {"images": ("PIL.Image", "Pillow"), "video": ("av", "PyAV")}
    #: Larger clouds of points are reduced to so many points.
    max_points: int | None = None

    def __init__(self, state: State | None = None) -> None:
        super().__init__()
        self._state = state
        self._is_closed = False
        self._counts: dict[str, Iterator[int]] = {}

    def is_ready(self, state: State) -> bool:
        """Take the state, which names the run; True."""
        self._see(state)
        return True

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Write what is left. Closing again does nothing."""
        self._is_closed = True

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def write(self, value: Value, step: int) -> None:
        """Write a value, or have a thread write it. The value is not changed by anybody else."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"{self!r}: make a new one to go on logging")

    def _is_taking(self) -> bool:
        """Whether values are written here: False on a rank that writes nothing. RuntimeError after the close."""
        self._check_open()
        return True

    def _see(self, state: State | None) -> None:
        self._state = state or self._state

    def _known_state(self) -> State:
        self._state = self._state or State()  # kept, as it may have generated a run name
        return self._state

    def _step(self, step: int | None, counter: str) -> int:
        """The step as an int; for None, how many calls `counter` has seen."""
        return next(self._counts.setdefault(counter, count())) if step is None else to_step(step, counter)

    def _put(self, value: Value, step: int | None) -> None:
        self.write(value, self._step(step, f"{value.kind} {value.name}"))

    def _overrides(self, method: str) -> bool:
        return method in _KINDS or super()._overrides(method)

    def _log_call(self, method: str, *arguments: Any) -> None:
        """Make a value of what a log call was given, and put it."""
        if method not in _KINDS or not self._is_taking():
            return
        (kind, name_at, step_at), given = _KINDS[method], list(arguments)
        given[name_at], step = str(given[name_at]), given.pop(step_at)
        if kind.kind in self.needs:
            encode.require(*self.needs[kind.kind])
        more = (self.max_points,) if kind is PointCloud else ()
        made = kind.of(*given, *more)
        value, wrong = made if kind is Images else (made, None)
        self._put(value, step)
        if wrong is not None:  # masks that do not fit
            raise wrong
