"""Logger: hands each call of a training loop to all destinations that take it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from wherry.errors import ConfigError, UploadFailed, WherryError
from wherry.loggers.call_limits import CallLimits, checked_limits
from wherry.loggers.capture.exit_hooks import before_exit, before_exit_while_alive
from wherry.loggers.failures import raise_first
from wherry.loggers.handles import UploadHandles, handle_of
from wherry.loggers.legacy.old_names import Data, OldLoggerNames
from wherry.loggers.log_methods import LogMethods
from wherry.loggers.route import Destination, Listener, Route
from wherry.loggers.run.event import Event, to_event
from wherry.loggers.run.level import LogLevel, to_level
from wherry.loggers.run.settings import config_as_dict
from wherry.loggers.run.state import State, check_run_name
from wherry.loggers.values.deep_copy import deep_copy
from wherry.loggers.warn_once import WarnOnce
from wherry.spool.handle import UploadHandle
from wherry.spool.shared_snapshots import shared_snapshots

_Self = TypeVar("_Self", bound="Logger")
_Kind = TypeVar("_Kind")
#: Makes a call; the text names it.
_Make = Callable[[str, Callable[[], object]], object]
_CALLS = tuple(name for name in vars(LogMethods) if name.startswith("log_") or name == "alert")
#: What metric() logs can be taken by any of these, see LoggerDestination.log_metric().
_METRIC_CALLS = ("log_metric", "log_metrics", "log_text", "log_traces")


class Logger(LogMethods, OldLoggerNames):
    """Hands what a run logs to `destinations`, and events to them and to `callbacks`.

    It fits any loop, which tells it of the events that it has, or of none::

        with Logger(State(), [RunFolderLogger("runs"), ObjectStoreLogger("s3://bucket/runs")]) as logger:
            for batch, (inputs, labels) in enumerate(loader):
                logger.log_metrics({"train/loss": train(inputs, labels)}, step=batch)
            logger.upload_file("{run_name}/last.pt", "last.pt")

    Entering the ``with`` block tells all that the run begins (`Event.INIT`), leaving it closes them. Log calls may come from
    several threads; `step=None` is the current batch of `state`. A logger whose run has begun and that nobody closed is closed
    when its process ends, even if no variable holds it any more. What fails then is written to stderr.

    An error of a destination stops neither the others nor the training. It is written to the log "wherry", once for each kind of
    call and text, ten texts at most, and each time for upload_file(), as each time a file is lost; `LoggerDestination.on_error`
    can choose otherwise. Two kinds of error are raised, after all destinations had their turn: UploadFailed, by which a
    destination reports that accepted files did not arrive; and any error of a callback, which may stop a training on purpose.
    When several ranks (`State.world_size`) upload under one name, those that are late get a warning and no error, which would end
    all ranks.
    A log call that no destination overrides is reported once.

    Log calls reach a destination on rank 0 only, while its `rank_zero_only` is True; files and events reach it on every rank. Log
    calls for a destination that is not ready are kept and replayed in order (`LoggerDestination.is_ready`).

    `backends` is the name that Composer 0.3 gave to `destinations`. With `call_limits` the training does not wait longer for a
    destination that hangs: that is reported as an error of the call, and the destination is left out until the call returns. Then
    each destination is called in a thread of its own.
    """

    #: False in a subclass whose owner closes it when the program ends.
    closes_at_exit = True

    def __init__(
        self,
        state: State,
        destinations: Destination | Sequence[Destination] | None = None,
        callbacks: Listener | Sequence[Listener] | None = None,
        *,
        backends: Destination | Sequence[Destination] | None = None,
        call_limits: CallLimits | None = None,
    ) -> None:
        self.state = state
        given = (*_as_tuple(destinations), *_as_tuple(backends))
        self.destinations = _checked(given, Destination, "LoggerDestination")  # type: ignore[type-abstract]
        self.callbacks = _checked(_as_tuple(callbacks), Listener, "Callback")  # type: ignore[type-abstract]
        #: The exception that ended the ``with`` block or the program; None if there was none. For those who are being closed.
        self.error: BaseException | None = None
        self._warnings = WarnOnce()
        if call_limits is not None:
            checked_limits(call_limits)
        for destination in self.destinations:
            if getattr(destination, "is_closed", False):
                raise ConfigError(f"{destination!r} is closed: make a new one for this Logger")
        self._routes = tuple(Route(destination, self._warnings, call_limits) for destination in self.destinations)
        self._serving = {what: tuple(route for route in self._routes if route.serves(what)) for what in _CALLS}
        self._serving_metric = tuple(route for route in self._routes if route.serves(*_METRIC_CALLS))
        #: Destinations of Composer 0.3 override log_metric() alone. What log_metrics() is given reaches them through it.
        self._first_generation = tuple(route for route in self._serving_metric if not route.serves(*_METRIC_CALLS[1:]))
        self._listening: dict[str, tuple[tuple[Listener, ...], tuple[Route, ...]]] = {}
        self._has_begun = False
        self._closed = False
        self._last_step = 0
        self._close_by_s: float | None = None
        self._forget_exit: Callable[[], object] = lambda: None
        if self.closes_at_exit:
            self._forget_exit = before_exit_while_alive(self, Logger._close_at_exit)
        self._called: set[str] = set()

    @property
    def backends(self) -> tuple[Destination, ...]:
        """The destinations, by the name that they had in Composer 0.3."""
        return self.destinations

    def __repr__(self) -> str:
        names = ", ".join(type(one).__name__ for one in self.destinations) or "no destinations"
        return f"<Logger of {self.state.run_name!a} to {names}{' closed' if self._closed else ''}>"

    def _repr_html_(self) -> str:
        """For notebooks: a table of the run, its progress and its destinations. All texts are escaped, as users choose names."""
        state, time = self.state, self.state.timestamp
        rows = [
            ("run", state.run_name or "(no name)"),
            ("rank", f"{state.rank} of {state.world_size}"),
            ("progress", f"{state.phase}, epoch {time.epoch}, batch {time.batch}"),
            ("status", "closed" if self._closed else "logging" if self._has_begun else "not begun"),
            *(("destination", repr(destination)) for destination in self.destinations),
            *(("callback", repr(callback)) for callback in self.callbacks),
        ]
        import html  # late: notebooks only

        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows)
        return f"<table>{cells}</table>"

    def log_hyperparameters(self, hyperparameters: object = None, *, parameters: object = None) -> None:
        """Log settings that do not change during the run: a mapping, an OmegaConf config, a dataclass or an argparse Namespace.

        Each destination gets them as a dict (see `config_as_dict`); OmegaConf's ``???`` stays that text. TypeError for other
        objects. `parameters` is the name that Composer's Logger gives to `hyperparameters`.
        """
        if hyperparameters is not None and parameters is not None:
            raise TypeError("log_hyperparameters() takes hyperparameters or parameters, which are two names of the same")
        self._log_call("log_hyperparameters", config_as_dict(parameters if hyperparameters is None else hyperparameters))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics: name -> number. `step=None` is the current batch. TypeError for anything but a mapping."""
        if not isinstance(metrics, Mapping):
            raise TypeError(f"log_metrics() takes a mapping of names to numbers, and not {metrics!r:.200}")
        step = self._last_step = self._step_of(step)
        if self._first_generation:
            wanting = self._wanting(LogLevel.BATCH, self._first_generation)
            self._log_metric(LogLevel.BATCH, metrics, wanting, step)
            if not self._serving["log_metrics"]:
                return
        self._log_call("log_metrics", metrics, step)

    def metric(self, log_level: str | int | LogLevel, data: Data | Callable[[], Data]) -> None:
        """Log metrics of a level to the destinations that want that level now (`LoggerDestination.will_log`).

        `log_level` is a LogLevel, its name in any case, or its number. `data` maps names to numbers, texts, tensors, lists and
        mappings of these; or it is a function that returns such a mapping, and is called once, if any destination wants it.
        Each destination gets a deep copy (see `LoggerDestination.log_metric`). A function that raises is reported once for each
        place in the source where one was written, and nothing is logged.

        ConfigError for an unknown level, TypeError for data that is no mapping.
        """
        self.metric_at(self.state.timestamp.batch, log_level, data)

    def metric_at(self, step: int | None, log_level: str | int | LogLevel, data: Data | Callable[[], Data]) -> None:
        """As metric(), at a `step`. None: the current batch or the step of the last log_metrics(), whichever is later, for those
        who log beside the training loop and do not know its steps.
        """
        step = max(self.state.timestamp.batch, self._last_step) if step is None else step
        level = log_level if isinstance(log_level, LogLevel) else to_level(log_level)
        if not self._serving_metric:
            self._warn_nobody_can("metric")
        elif wanting := self._wanting(level, self._serving_metric):
            self._log_metric(level, data, wanting, step)

    def has_file_upload_destination(self) -> bool:
        """Whether upload_file() reaches any destination that uploads."""
        return any(route.can_upload() for route in self._routes)

    def upload_file(
        self, remote_file_name: str, file_path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> UploadHandle | UploadHandles | None:
        """Have every destination that uploads (`can_upload_files`) take the file, on every rank; it may be changed afterwards.

        Both names are templates with the fields of `State.name_fields`; ConfigError for an unknown field. A destination that
        `formats_names` gets the template of the remote name, the others get it filled.

        Returns the handle of the upload, as the destination returned it, or one for all of them; None if no destination took the
        file, or those that did return none.
        """
        return self._upload(LogLevel.FIT, remote_file_name, file_path, overwrite=overwrite)

    def _upload(
        self, level: LogLevel, remote_file_name: str, file_path: str | os.PathLike[str], *, overwrite: bool
    ) -> UploadHandle | UploadHandles | None:
        path = Path(self.state.fill(os.fspath(file_path)))
        filled = self.state.fill(remote_file_name)
        able = [route for route in self._routes if route.takes_files(path)]
        if not able:
            self._warn_nobody_can("upload_file")
        errors: list[Exception] = []
        returned: list[object] = []
        with shared_snapshots():
            for route in able:
                name = remote_file_name if route.destination.formats_names else filled
                returned.append(route.upload(self.state, level, name, path, overwrite, errors))
        self._close_first("upload_file")
        self._raise(errors)
        return handle_of(returned)

    def attempt(self, destination: Destination, what: str, call: Callable[[], object]) -> object:
        """Make another call of one of the destinations, as its own: within the limits, and with an error reported once.

        What it returns; None after an error.
        """
        errors: list[Exception] = []
        (route,) = (route for route in self._routes if route.destination is destination)
        found = route.attempt(what, call, errors)
        self._raise(errors)
        return found

    def run_event(self, event: Event | str | Enum) -> None:
        """Call the method of the event on all callbacks, then on all destinations; at INIT on the destinations first, so that the
        callbacks can log at once. `event` is an Event, its name, or a member of another library's enum (see `to_event`).

        ConfigError at INIT, before any call, if the run has no name and a destination needs one (see `State`).
        """
        event = to_event(event)
        callbacks, routes = self._listening.get(event.value) or self._find_listening(event)
        is_init = event is Event.INIT
        if is_init:
            check_run_name(self.state, (name for one in self.destinations for name in one.name_templates()))
            self._has_begun = True
        for callback in () if is_init else callbacks:
            callback.run_event(event, self.state, self)
        errors: list[Exception] = []
        self._wake(errors)
        for route in routes:
            if not route.is_disabled:
                route.attempt(event.value, partial(route.destination.run_event, event, self.state, self), errors)
        self._wake(errors)
        self._close_first(event.value)
        self._raise(errors)
        for callback in callbacks if is_init else ():
            callback.run_event(event, self.state, self)

    def time_left_s(self) -> float | None:
        """How many seconds closing may still take, at least 0; None: each destination has its own limit. For destinations."""
        return None if self._close_by_s is None else max(0.0, self._close_by_s - time.monotonic())

    def close(self, timeout_s: float | None = None) -> None:
        """Close everything, in two rounds (see `Callback`). Errors are logged. Closing again does nothing.

        With `timeout_s`, the destinations that send files wait for that many seconds at most, all together; without it, each for
        the limit of its own configuration. What is left then is listed on stderr, with the command that finishes it. No other
        work is cut short.

        Raises UploadFailed at the very end if accepted files did not arrive. Ctrl-C ends one wait; the other callbacks and
        destinations are closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._close_by_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._forget_exit()
        errors: list[Exception] = []

        def callback_failed(callback: Listener, what: str, error: Exception) -> None:
            if isinstance(error, UploadFailed):
                errors.append(error)
            else:
                self._warnings.once((id(callback), what), f"{type(callback).__name__}.{what} failed: {error}", error)

        def rounds(who: Listener, make: _Make, failed: Callable[[str, Exception], object]) -> Callable[[], object]:
            return partial(next, self._close_in_rounds(who, make, failed), None)

        callbacks = [rounds(one, lambda _, call: call(), partial(callback_failed, one)) for one in self.callbacks]
        destinations = [rounds(one.destination, one.make, partial(one.failed, errors=errors)) for one in self._routes]
        replay: Callable[[], object] = partial(self._wake, errors, even_if_not_ready=True)
        try:
            with ExitStack() as calls:  # makes all of its calls, also after a KeyboardInterrupt, the last that was added first
                for call in reversed((*callbacks, replay, *destinations, *callbacks, *destinations)):
                    calls.callback(call)
        except BaseException:
            for error in errors:
                self._warnings.each(f"at the close: {error}")
            raise
        self._raise(errors)

    def _close_in_rounds(self, who: Listener, make: _Make, failed: Callable[[str, Exception], object]) -> Iterator[None]:
        """Have `make` call close(); at the next step post_close(), if close() did not raise."""
        what = "close"
        try:
            make(what, partial(who.close, self.state, self))
            yield
            what = "post_close"
            make(what, who.post_close)
        except Exception as error:
            failed(what, error)

    def __enter__(self: _Self) -> _Self:
        try:
            if not self._has_begun:
                self.run_event(Event.INIT)
        except BaseException as error:
            Logger.__exit__(self, type(error), error, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        self.error = error
        try:
            self.close()
        except Exception as failed:  # reported, so that it does not replace the exception of the block
            self._warnings.each(f"after {type(error).__name__}, at the close: {failed}", failed)

    def _close_first(self, what: str) -> None:
        """Be the first exit function again: at the first call `what` a library such as wandb may have registered its own."""
        if self.closes_at_exit and what not in self._called and self._has_begun and not self._closed:
            self._called.add(what)
            self._forget_exit()
            self._forget_exit = before_exit(self._close_at_exit)

    def _close_at_exit(self, error: BaseException | None) -> None:
        try:
            self.__exit__(type(error) if error else None, error, None)
        except WherryError as failed:
            sys.stderr.write(f"wherry: {failed}\n")
        except KeyboardInterrupt:
            sys.stderr.write("\nwherry: interrupted while the logger was closed; what was logged last may be missing\n")

    def _step_of(self, step: int | None) -> int:
        return self.state.timestamp.batch if step is None else step

    def _log_call(self, what: str, *arguments: object) -> None:
        routes = self._serving[what]
        if not routes:
            self._warn_nobody_can(what)
        errors: list[Exception] = []
        for route in routes:
            route.log(self.state, what, arguments, errors)
        self._close_first(what)
        self._raise(errors)

    def _warn_nobody_can(self, what: str) -> None:
        if not self.destinations:
            self._warnings.once("no destinations", f"{what}() has no effect: this Logger has no destinations")
            return
        names = ", ".join(dict.fromkeys(type(destination).__name__ for destination in self.destinations))
        self._warnings.once(("nobody", what), f"{what}() has no effect: no destination can take it (there are: {names})")

    def _wanting(self, level: LogLevel, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        """The routes that want metrics of this level. Called for each metric, so it makes no list while none does."""
        state = self.state
        wanting: tuple[Route, ...] = ()
        for route in routes:
            if route.wants(state, level):
                wanting += (route,)
        return wanting

    def _log_metric(self, level: LogLevel, data: Data | Callable[[], Data], wanting: tuple[Route, ...], step: int) -> None:
        if callable(data):
            where = _where(data)
            try:
                data = data()
            except Exception as error:
                self._warnings.once(where, f"metrics of level {level.name} are missing: {where} failed: {error!r}", error)
                return
        if not isinstance(data, Mapping):
            raise TypeError(f"metrics are a mapping of names to values, or a function that returns one, and not {data!r:.200}")
        epoch = self.state.timestamp.epoch
        errors: list[Exception] = []
        for route in wanting:
            route.log(self.state, "log_metric", (epoch, step, level, deep_copy(data)), errors, is_own=True)
        self._raise(errors)

    def _find_listening(self, event: Event) -> tuple[tuple[Listener, ...], tuple[Route, ...]]:
        """Who overrides the event. Most override few, and each batch has a dozen events."""
        found = (
            tuple(one for one in self.callbacks if one._overrides(event.value) or one._overrides("run_event")),
            tuple(route for route in self._routes if route.serves(event.value, "run_event")),
        )
        self._listening[event.value] = found
        return found

    def _wake(self, errors: list[Exception], *, even_if_not_ready: bool = False) -> None:
        for route in self._routes:
            if not route.is_open:
                route.wake(self.state, errors, even_if_not_ready=even_if_not_ready)

    def _raise(self, errors: list[Exception]) -> None:
        if errors:
            is_asked_for = any(getattr(one, "on_failure", "warn") == "raise" for one in self.destinations)
            raise_first(errors, self.state, self._warnings.each, is_asked_for=is_asked_for)


def _as_tuple(given: _Kind | Sequence[_Kind] | None) -> tuple[_Kind, ...]:
    """The items, or the one; None is none."""
    if given is None:
        return ()
    return (given,) if isinstance(given, Listener) or not isinstance(given, Iterable) else tuple(given)


def _checked(items: tuple[_Kind, ...], kind: type[_Kind], name: str) -> tuple[_Kind, ...]:
    """The items. ConfigError for what is none of the kind, such as a class in the place of an object."""
    for item in items:
        if isinstance(item, type) or not isinstance(item, kind):
            raise ConfigError(f"{item!r} is no {name}: give objects whose class derives from it")
    return items


def _where(function: Callable[..., object]) -> str:
    """Where a function is written, to report its failures apart from those of others: ``<lambda> (train.py:12)``."""
    function = function.func if isinstance(function, partial) else function
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else name
