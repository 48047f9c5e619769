"""Attached: a Logger that lives as long as a trainer of somebody else's needs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from wherry.loggers.capture.exit_hooks import before_traceback
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.logger import Logger
from wherry.loggers.run.event import Event
from wherry.loggers.run.state import State
from wherry.loggers.run.timestamp import Timestamp


class Attached:
    """Makes the logger when the trainer begins, as only then the ranks are known, and closes it by whichever comes first:

    close(); an exception that ends the program; the end of the process, as `Logger` does. A trainer that has fitted may
    still be asked to evaluate or to predict, so the end of the training flushes only.
    """

    def __init__(
        self, *destinations: LoggerDestination, run_name: str = "", remote_folder: str = "{run_name}/checkpoints"
    ) -> None:
        self.destinations = destinations
        self.remote_folder = remote_folder
        #: As given, else the trainer's, else of the environment or made up, as `State` does; all ranks have rank 0's.
        self.run_name = run_name
        self._logger: Logger | None = None
        self._undo: Callable[[], None] | None = None
        self._uploaded: dict[str, str] = {}  # name in the remote folder -> the local path that has it

    @property
    def logger(self) -> Logger:
        """To log more than the trainer does. RuntimeError before it has begun."""
        if self._logger is None:
            raise RuntimeError("the trainer has not begun, so there is no logger yet: call this from its hooks, or after them")
        return self._logger

    def begin(self, rank: int, local_rank: int, world_size: int, broadcast: Callable[[str], str], run_name: str = "") -> None:
        """Make the logger, and tell all that the run begins; again, it does nothing.

        All ranks call it: `broadcast` gives each of them rank 0's text. `run_name` is for want of one that was given.
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
        """Tell all of an event, and how far the run is."""
        self.logger.state.timestamp, self.logger.state.phase = timestamp, phase
        self.logger.run_event(event)

    def upload_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Upload a file or folder to the remote folder, under a name that no other local path has there.

        The first path of a name gets it. Another one of that name has its folder's name in front, and more parents where that is
        taken, too: ``best.ckpt``, then ``by_acc/best.ckpt``. A path that is written again replaces its own object. Names are
        known as long as this object lives.
        """
        local = os.path.abspath(path)
        name = self._name_for(local)
        self.logger.upload_file(f"{self.remote_folder}/{_escaped(name)}", _escaped(local), overwrite=True)

    def _name_for(self, local: str) -> str:
        parts = Path(local).parts[1:]  # without the root
        names = ("/".join(parts[-n:]) for n in range(1, len(parts) + 1))  # the last of them is the path itself
        return next(name for name in names if self._uploaded.setdefault(name, local) == local)

    def close(self, error: BaseException | None = None) -> None:
        """Close all destinations; `error` is what ended the run. Again, it does nothing."""
        if self._undo is None or self._logger is None:
            return
        self._undo()
        self._undo = None
        self._logger.__exit__(type(error) if error else None, error, None)


def _escaped(name: str) -> str:
    """As a template that gives `name`."""
    return name.replace("{", "{{").replace("}", "}}")
