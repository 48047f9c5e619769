"""Attached: a Logger that lives as long as the trainer of another library needs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from wherry.loggers.capture.exit_hooks import before_traceback
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.logger import Logger
from wherry.loggers.run.event import Event
from wherry.loggers.run.state import State, escaped
from wherry.loggers.run.timestamp import Timestamp


class Attached:
    """Makes the logger when the trainer begins, as the ranks are not known earlier. The first of three events closes it:

    close(); an exception that ends the program; the end of the process. The end of the training only flushes, as a trainer may
    evaluate or predict after it.
    """

    def __init__(
        self, *destinations: LoggerDestination, run_name: str = "", remote_folder: str = "{run_name}/checkpoints"
    ) -> None:
        self.destinations = destinations
        self.remote_folder = remote_folder
        #: The given name, or the trainer's, or that of `State()`. All ranks have the name of rank 0.
        self.run_name = run_name
        self._logger: Logger | None = None
        self._undo: Callable[[], None] | None = None
        self._uploaded: dict[str, str] = {}  # name in the remote folder -> local path

    @property
    def logger(self) -> Logger:
        """The logger, to log more than the trainer does. RuntimeError before the trainer has begun."""
        if self._logger is None:
            raise RuntimeError("the trainer has not begun, so there is no logger yet: call this from its hooks, or after them")
        return self._logger

    def begin(self, rank: int, local_rank: int, world_size: int, broadcast: Callable[[str], str], run_name: str = "") -> None:
        """Make the logger and begin the run. Calling it again does nothing.

        All ranks must call it: `broadcast` returns the text of rank 0 on each. `run_name` is used if none was given before.
        """
        if self._logger is not None:
            return
        name = self.run_name or run_name or State(rank=0, world_size=1).run_name
        self.run_name = broadcast(name) if world_size > 1 else name
        state = State(self.run_name, rank=rank, local_rank=local_rank, world_size=world_size)
        self._logger = Logger(state, self.destinations)
        self._undo = before_traceback(self.close)
        self._logger.run_event(Event.INIT)

    def notify(self, event: Event, timestamp: Timestamp, phase: str = "train") -> None:
        """Set the timestamp and the phase, and run an event."""
        self.logger.state.timestamp, self.logger.state.phase = timestamp, phase
        self.logger.run_event(event)

    def upload_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Upload a file or folder to the remote folder, under a name that no other local path has there.

        The first path with a file name gets that name. Another path with the same file name gets its folder's name in front, or
        more parents if that is taken: ``best.ckpt``, then ``by_acc/best.ckpt``. A path that is written again replaces its own
        object. The names are remembered as long as this object lives.
        """
        local = os.path.abspath(path)
        name = self._name_for(local)
        self.logger.upload_file(f"{self.remote_folder}/{escaped(name)}", escaped(local), overwrite=True)

    def _name_for(self, local: str) -> str:
        parts = Path(local).parts[1:]  # without the root
        names = ("/".join(parts[-n:]) for n in range(1, len(parts) + 1))  # the last of them is the path itself
        return next(name for name in names if self._uploaded.setdefault(name, local) == local)

    def close(self, error: BaseException | None = None) -> None:
        """Close all destinations. `error` is the exception that ended the run. Closing again does nothing."""
        if self._undo is None or self._logger is None:
            return
        self._undo()
        self._undo = None
        self._logger.__exit__(type(error) if error else None, error, None)
