"""The method names of Composer 0.6 to 0.10, log_file_artifact and others, tied to those of today."""

from __future__ import annotations

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from os import PathLike
from typing import TYPE_CHECKING, Any

from wherry.loggers.run.level import LogLevel, to_level

if TYPE_CHECKING:
    from pathlib import Path

    from wherry.loggers.run.state import State

Data = Mapping[str, object]
#: The overrides that are running in this thread: (object, class, name).
_running: ContextVar[frozenset[tuple[int, type, str]]] = ContextVar("_running", default=frozenset())


def tie_old_names(kind: type) -> None:
    """Make both names of each method call the one that `kind` overrides. For ``__init_subclass__`` of the base class.

    Of all overrides by either name, the one in the most derived class runs for both names. An override that calls ``super()`` by
    either name, or the other name on ``self``, gets the method that it has overridden.
    """
    for new, old, call_old, call_new in _PAIRS:
        if _depth(kind, old) < _depth(kind, new):
            _tie(kind, new, old, call_old, leads_to_old=True)
        elif _depth(kind, new) < _depth(kind, old):
            _tie(kind, old, new, call_new, leads_to_old=False)


def leads_to_old_name(method: object) -> bool:
    """Whether a method of today's name runs an override of the old one."""
    return hasattr(method, "is_tied_to_old_name")


def warn_of_old_name(old: str, new: str) -> None:
    """Warn the caller's caller."""
    warnings.warn(f"{old}() is the old name of {new}(): call that", DeprecationWarning, stacklevel=3)


def _depth(kind: type, name: str) -> int:
    """The position in the MRO of `kind` of the class that defines the method."""
    return next(depth for depth, one in enumerate(kind.__mro__) if name in vars(one))


def _tie(kind: type, name: str, overridden: str, call: Callable[..., Any], *, leads_to_old: bool) -> None:
    override = getattr(kind, overridden)

    @functools.wraps(override)
    def marked(self: Any, *arguments: Any, **options: Any) -> Any:
        token = _running.set(_running.get() | {(id(self), kind, name)})
        try:
            return override(self, *arguments, **options)
        finally:
            _running.reset(token)

    @functools.wraps(getattr(kind, name))
    def tied(self: Any, *arguments: Any, **options: Any) -> Any:
        if (id(self), kind, name) in _running.get():  # called by the override itself
            return getattr(super(kind, self), name)(*arguments, **options)
        if not leads_to_old:
            warn_of_old_name(name, overridden)
        return call(functools.partial(marked, self), *arguments, **options)

    if leads_to_old:
        tied.is_tied_to_old_name = True  # type: ignore[attr-defined]
    setattr(kind, overridden, marked)
    setattr(kind, name, tied)


class OldLoggerNames(ABC):
    """The methods of `Logger` that Composer had in versions 0.3 to 0.10."""

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

    @abstractmethod
    def has_file_upload_destination(self) -> bool:
        """Whether upload_file() reaches any destination that uploads."""

    @abstractmethod
    def _upload(self, level: LogLevel, remote_file_name: str, file_path: str | PathLike[str], *, overwrite: bool) -> object: ...

    def file_artifact(
        self, log_level: str | int | LogLevel, artifact_name: str, file_path: str | PathLike[str], *, overwrite: bool = False
    ) -> None:
        """The old name of upload_file(); only destinations that override log_file_artifact() are told the level."""
        warn_of_old_name("file_artifact", "upload_file")
        self._upload(to_level(log_level), artifact_name, file_path, overwrite=overwrite)

    def has_file_artifact_destination(self) -> bool:
        """The old name of has_file_upload_destination()."""
        warn_of_old_name("has_file_artifact_destination", "has_file_upload_destination")
        return self.has_file_upload_destination()


def _upload_by_old_name(
    call: Callable[..., Any], state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool = False
) -> None:
    call(state, LogLevel.FIT, remote_file_name, file_path, overwrite=overwrite)


def _upload_by_new_name(
    call: Callable[..., Any],
    state: State | None,
    log_level: str | int | LogLevel,
    artifact_name: str,
    file_path: Path,
    *,
    overwrite: bool = False,
) -> None:
    call(state, artifact_name, file_path, overwrite=overwrite)


def _download_by_old_name(
    call: Callable[..., Any], remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
) -> None:
    call(remote_file_name, destination, overwrite, progress_bar)


def _download_by_new_name(
    call: Callable[..., Any], artifact_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
) -> None:
    call(artifact_name, destination, overwrite, progress_bar)


def _ask(call: Callable[[], bool]) -> bool:
    return call()


#: The new and the old name of a method, and functions that call the old (the new) one with the arguments of the other.
_PAIRS: tuple[tuple[str, str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("upload_file", "log_file_artifact", _upload_by_old_name, _upload_by_new_name),
    ("download_file", "get_file_artifact", _download_by_old_name, _download_by_new_name),
    ("can_upload_files", "can_log_file_artifacts", _ask, _ask),
)
