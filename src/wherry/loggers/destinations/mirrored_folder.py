"""MirrorLogger: copies a run's folder to an object store while the run writes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TypeVar

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.logger import Logger
from wherry.loggers.run.state import State, sample_state
from wherry.mirror import Mirror, MirrorConfig

_Self = TypeVar("_Self", bound="MirrorLogger")


class MirrorLogger(LoggerDestination):
    """Mirrors the folder to which other loggers (FileLogger, TensorBoardLogger, RunFolderLogger ...) or anybody else write::

        Logger(State(), [RunFolderLogger("runs/{run_name}"), MirrorLogger("runs/{run_name}", "s3://bucket/{run_name}")])

    `folder` and `uri` are templates, filled with the state at the start of the run (see `State.name_fields`). The other
    arguments are those of `wherry.Mirror`. A folder has one mirror: of the ranks that share it, only one may make it.

    The mirror begins with the run (init). At the end of every phase it sends what is complete, without waiting. In post_close(),
    when all other loggers have written their last line, it stores the files as plain objects. Without a trainer use it as a
    context manager.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        spool: str | os.PathLike[str] | None = None,
        writer: str = "",
        config: MirrorConfig | None = None,
        state: State | None = None,
    ) -> None:
        super().__init__()
        self._folder = os.fspath(folder)
        self._uri = os.fspath(uri)
        self._make = partial(Mirror, storage_options=storage_options, spool=spool, writer=writer, config=config)
        self._state = state
        self._mirror: Mirror | None = None
        self._time_left_s: Callable[[], float | None] = lambda: None
        for template in (self._folder, self._uri):  # an error in one is raised now, and not when the run begins
            sample_state().fill(template)

    def __repr__(self) -> str:
        return f"<MirrorLogger {self._folder} -> {self._uri}>"

    @property
    def mirror(self) -> Mirror:
        """The mirror. It begins now if it has not begun."""
        return self._begin(self._state)

    def _begin(self, state: State | None) -> Mirror:
        if self._mirror is None:
            state = state or State()
            self._mirror = self._make(state.fill(self._folder), state.fill(self._uri))
        return self._mirror

    def init(self, state: State, logger: Logger) -> None:
        """Begin."""
        self._begin(state)

    fit_start = init  # for a loop that sends no init

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Send what is complete, in the background."""
        self._begin(state).send_now()

    fit_end = eval_end = eval_standalone_end = predict_end = epoch_end

    def close(self, state: State, logger: Logger) -> None:
        """Take how long post_close() may wait. Other loggers may still write until then."""
        self._time_left_s = logger.time_left_s

    def post_close(self, timeout_s: float | None = None) -> None:
        """Send the rest, store the files as plain objects, and end. The next mirror sends what the store did not take.

        It waits for `timeout_s`, else for what `Logger.close()` was given, else as `Mirror.close()`.
        """
        if self._mirror is not None:
            self._mirror.close(self._time_left_s() if timeout_s is None else timeout_s)

    def __enter__(self: _Self) -> _Self:
        self._begin(self._state)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.post_close()
