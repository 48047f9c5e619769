"""Route: how a `Logger` calls one destination: whether it may be called now, which calls wait, what is done with its errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from wherry.errors import AlreadyExistsError, ConfigError, UploadFailed
from wherry.loggers.call_limits import CallLimits, LimitedCalls, StuckError
from wherry.loggers.legacy.old_names import leads_to_old_name
from wherry.loggers.run.event import Event
from wherry.loggers.run.level import LogLevel
from wherry.loggers.run.state import State
from wherry.loggers.values.deep_copy import deep_copy
from wherry.loggers.warn_once import WarnOnce
from wherry.posix.fork import ChildLock

OnError = Literal["warn", "raise", "disable"]
#: When so many calls are kept for a destination, somebody forgot to begin the run. They are still kept, with a warning.
MANY_KEPT_CALLS = 10_000


@runtime_checkable
class Listener(Protocol):
    """What a `Logger` calls of a `Callback`, which cannot be imported here: it imports `Logger`, which imports this."""

    def _overrides(self, method: str) -> bool: ...

    def run_event(self, event: Event, state: State, logger: Any) -> None:
        """Tell it of an event."""

    def close(self, state: State, logger: Any) -> None:
        """Have it finish writing."""

    def post_close(self) -> None:
        """Have it free what it holds."""


@runtime_checkable
class Destination(Listener, Protocol):
    """What a `Logger` calls of a `LoggerDestination`; described there."""

    formats_names: bool
    rank_zero_only: bool
    on_error: OnError

    def name_templates(self) -> Iterable[str]:
        """The templates of names that the destination fills."""

    def is_ready(self, state: State) -> bool:
        """Whether log calls can be taken now."""

    def will_log(self, state: State, level: LogLevel) -> bool:
        """Whether metrics of this level are wanted now."""

    def can_upload_files(self) -> bool:
        """Whether upload_file() uploads."""

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        """Upload a file."""

    def log_file_artifact(
        self, state: State | None, log_level: str | int | LogLevel, artifact_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        """Upload a file, by the old name of the call."""

    def note_lost(self, remote_file_name: str, error: Exception) -> None:
        """Only the log says that a file was not taken."""


class Route:
    """Calls one destination, for all threads. Errors that have to be raised are appended to the caller's list.

    States: closed, until is_ready() returns True: log calls are kept, as deep copies, in the order of their arrival. Open: log
    calls are made at once. Disabled, after an error if `on_error` is "disable": neither log calls nor events are made.

    With `limits`, a call that takes too long is an error, and the caller goes on; see `LimitedCalls`.
    """

    def __init__(self, destination: Destination, warnings: WarnOnce, limits: CallLimits | None = None) -> None:
        if destination.on_error not in get_args(OnError):
            raise ConfigError(
                f"{type(destination).__name__}.on_error is {destination.on_error!r}: use one of {get_args(OnError)}"
            )
        self.destination = destination
        self.is_open = not self.serves("is_ready")
        self.is_disabled = False
        self._warnings = warnings
        self._limited = None if limits is None else LimitedCalls(type(destination).__name__, limits, warnings.each)
        self._limits_will_log = limits is not None and self.serves("will_log")
        self._kept: deque[tuple[str, tuple[object, ...]]] = deque()
        self._is_replaying = False
        self._lock = ChildLock()  # re-entered when a destination logs while it is being called

    def serves(self, *calls: str) -> bool:
        """Whether the destination overrides any of these calls."""
        return any(self.destination._overrides(call) for call in calls)

    def wants(self, state: State, level: LogLevel) -> bool:
        """Whether a metric of this level would be taken. Called for each metric, so it is short."""
        if self.is_disabled or (state.rank and self.destination.rank_zero_only):
            return False
        try:
            if self._limits_will_log:
                return bool(self.make("will_log", partial(self.destination.will_log, state, level)))
            return self.destination.will_log(state, level)
        except Exception as error:
            if self.destination.on_error == "raise":
                raise
            self.failed("will_log", error, [])
            return False

    def log(
        self, state: State, what: str, arguments: tuple[object, ...], errors: list[Exception], *, is_own: bool = False
    ) -> None:
        """Make a log call, or keep it until the destination is ready. `is_own`: the arguments are copies already."""
        if self.is_disabled or (state.rank and self.destination.rank_zero_only):
            return
        if self.is_open or not self._keep(state, what, arguments, errors, is_own=is_own):
            self.attempt(what, partial(getattr(self.destination, what), *arguments), errors)

    def takes_files(self, path: Path) -> bool:
        """Whether the destination can upload files. One that can, but not here (for example on this rank), is reported once."""
        says_so = self._says_it_uploads()
        if says_so is False and self.serves("upload_file"):
            name = type(self.destination).__name__
            text = f"{name} says that it takes no files here (can_upload_files() is False): {path} is not handed to it"
            self._warnings.once((id(self), "takes no files"), text)
        return bool(says_so)

    def can_upload(self) -> bool:
        """Whether the destination can upload files now. One that is stuck can, so that each file that it misses is reported."""
        return bool(self._says_it_uploads())

    def _says_it_uploads(self) -> bool | None:
        """None after an error, which is reported."""
        if not self.serves("can_upload_files"):  # the base class answers: its close() may wait for a thread that asks this
            return self.destination.can_upload_files()
        if self._limited is not None and self._limited.is_stuck():
            return self.serves("upload_file")
        try:
            return bool(self.make("can_upload_files", self.destination.can_upload_files))
        except StuckError as error:
            self.failed("can_upload_files", error, [])
            return self.serves("upload_file")
        except Exception as error:
            if self.destination.on_error == "raise":
                raise
            self.failed("can_upload_files", error, [])
            return None

    def upload(self, state: State, level: LogLevel, name: str, path: Path, overwrite: bool, errors: list[Exception]) -> object:
        """Hand a file over, by the method that the destination overrides. What that returns; None after an error."""
        arguments: tuple[object, ...] = (state, name, path)
        upload: Callable[..., object] = self.destination.upload_file
        if leads_to_old_name(upload):  # it has a parameter for the level
            arguments, upload = (state, level, name, path), self.destination.log_file_artifact
        try:
            return self.make("upload_file", partial(upload, *arguments, overwrite=overwrite))
        except Exception as error:
            n_raised = len(errors)
            self.failed("upload_file", error, errors)
            if len(errors) == n_raised:
                self.destination.note_lost(name, error)
            return None

    def attempt(self, what: str, call: Callable[[], object], errors: list[Exception]) -> object:
        """Call the destination. `what` names the call in messages. What it returns; None after an error."""
        try:
            return self.make(what, call)
        except Exception as error:
            self.failed(what, error, errors)
            return None

    def make(self, what: str, call: Callable[[], object]) -> object:
        """Call the destination, within the limits if there are any. Raises what it raises, and StuckError."""
        return call() if self._limited is None else self._limited.make(what, call)

    def failed(self, what: str, error: Exception, errors: list[Exception]) -> None:
        """Treat an error as `on_error` of the destination says. UploadFailed and AlreadyExistsError are always raised: a
        destination raises them on purpose. So is what refuses a file, if failed uploads are (`Config.on_failure`).
        """
        policy = self.destination.on_error
        is_refused = what == "upload_file" and not isinstance(error, StuckError)
        is_asked_for = is_refused and getattr(self.destination, "on_failure", "warn") == "raise"
        if isinstance(error, (UploadFailed, AlreadyExistsError)) or policy == "raise" or is_asked_for:
            errors.append(error)
            return
        text = f"{type(self.destination).__name__}.{what} failed: {error}"
        if what == "upload_file":
            self._warnings.each(text, error)  # each time a file is lost
            return
        if policy == "disable" and not self.is_disabled:
            self.is_disabled = True
            text += " (it is not called any more, as its on_error is 'disable')"
        self._warnings.once_each((id(self), what), str(error), text, error)

    def wake(self, state: State, errors: list[Exception], *, even_if_not_ready: bool = False) -> None:
        """If the destination is ready, replay what was kept, in order. From then on calls are made at once."""
        with self._lock:
            if self.is_open or self._is_replaying or not (even_if_not_ready or self._is_ready(state, errors)):
                return
            self._is_replaying = True
            try:
                while self._kept:  # includes what the destination itself logs meanwhile; other threads wait for the lock
                    what, arguments = self._kept.popleft()
                    if not self.is_disabled:
                        self.attempt(what, partial(getattr(self.destination, what), *arguments), errors)
            finally:
                self._is_replaying = False
            self.is_open = True

    def _is_ready(self, state: State, errors: list[Exception]) -> bool:
        try:
            return bool(self.make("is_ready", partial(self.destination.is_ready, state)))
        except Exception as error:
            self.failed("is_ready", error, errors)
            return False

    def _keep(self, state: State, what: str, arguments: tuple[object, ...], errors: list[Exception], *, is_own: bool) -> bool:
        """Keep a call. False: the destination is ready by now, and all kept calls were made."""
        with self._lock:
            self.wake(state, errors)
            if self.is_open:
                return False
            self._kept.append((what, arguments if is_own else deep_copy(arguments)))
            if len(self._kept) == MANY_KEPT_CALLS:
                self._warnings.once(
                    (id(self), "kept"),
                    f"{type(self.destination).__name__} is not ready, and {MANY_KEPT_CALLS} log calls are kept for it in memory: "
                    "tell it that the run begins, with logger.run_event(Event.INIT) or 'with Logger(...) as logger'",
                )
            return True
