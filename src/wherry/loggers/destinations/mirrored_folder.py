"""MirrorLogger: a run's folder in an object store, while the run goes on. The destination for files that others write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.run.state import State, sample_state
from wherry.mirror import Mirror, MirrorConfig

if TYPE_CHECKING:
    from wherry.loggers.logger import Logger

_Self = TypeVar("_Self", bound="MirrorLogger")


class MirrorLogger(LoggerDestination):
    """Mirrors the folder into which other loggers (FileLogger, TensorBoardLogger, RunFolderLogger ...) or anybody else write.

    `folder` and `uri` are templates, filled with the state that begins the run: ``{run_name} {rank}`` and other fields of
    `State.name_fields`. The rest is what `wherry.Mirror` takes. One mirror a folder: of ranks that share one, one begins it.

    It begins with the run (init), sends at once at the end of every phase, without waiting, and makes plain objects of the
    files in post_close(), when all other loggers have written their last line. Without a trainer use it as a context manager.
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
        self._storage_options = storage_options
        self._spool = spool
        self._writer = writer
        self._config = config
        self._state = state
        self._mirror: Mirror | None = None
        self._time_left_s: Callable[[], float | None] = lambda: None
        for template in (self._folder, self._uri):  # a bad one is found now and not when the run begins
            sample_state().fill(template)

    def __repr__(self) -> str:
        return f"<MirrorLogger {self._folder} -> {self._uri}>"

    @property
    def mirror(self) -> Mirror:
        """The mirror, which begins with this if it has not yet."""
        return self._begin(self._state)

    def _begin(self, state: State | None) -> Mirror:
        if self._mirror is None:
            state = state or State()
            self._mirror = Mirror(
                state.fill(self._folder),
                state.fill(self._uri),
                storage_options=self._storage_options,
                spool=self._spool,
                writer=self._writer,
                config=self._config,
            )
        return self._mirror

    def init(self, state: State, logger: Logger) -> None:
        """Begin."""
        self._begin(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin, for a loop that has no init."""
        self._begin(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Have all sent that is complete."""
        self._begin(state).send_now()

    fit_end = eval_end = eval_standalone_end = predict_end = epoch_end

    def close(self, state: State, logger: Logger) -> None:
        """Take how long post_close() may wait: other loggers may still write until then."""
        self._time_left_s = logger.time_left_s

    def post_close(self, timeout_s: float | None = None) -> None:
        """Send the rest, make plain objects of the files, and end. What the store does not take stays for the next mirror.

        It waits for `timeout_s`, else for what `Logger.close()` was given, else as `Mirror.close()`.
        """
        if self._mirror is not None:
            self._mirror.close(self._time_left_s() if timeout_s is None else timeout_s)

    def __enter__(self: _Self) -> _Self:
        self._begin(self._state)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.post_close()
