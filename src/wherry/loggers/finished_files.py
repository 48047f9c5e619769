"""FinishedFiles: what a destination has written and will not change, on its way to the destinations that upload."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wherry.loggers.logger import Logger


class FinishedFiles:
    """Hands each file to the logger once, as soon as that is known, or forgets it where nobody uploads. Any thread may call.

    `remote_folder` is a template (see `State.fill`). An object of that name is overwritten: it is of an earlier run that this one
    continues, or repeats from a checkpoint on.
    """

    def __init__(self, remote_folder: str, *, upload: bool = True) -> None:
        self._remote_folder = remote_folder
        self._upload = upload
        self._logger: Logger | None = None
        self._waiting: deque[tuple[str, Path]] = deque()
        self._mutex = threading.RLock()

    def see(self, logger: Logger | None) -> None:
        """Take the logger that uploads, once; the next add() gives it what has waited for it."""
        if logger is not None and self._logger is None:
            self._upload = self._upload and logger.has_file_upload_destination()
            self._logger = logger

    def add(self, files: Iterable[tuple[str, Path]]) -> None:
        """Hand over files, each with its name below the remote folder. Takes as long as snapshots of them take."""
        if not self._upload:
            self._waiting.clear()
            return
        self._waiting.extend(files)
        if self._logger is None:
            return
        with self._mutex:
            while self._waiting:
                name, path = self._waiting.popleft()
                self._logger.upload_file(f"{self._remote_folder}/{_escaped(name)}", _escaped(str(path)), overwrite=True)


def _escaped(name: str) -> str:
    """As a template that gives `name`."""
    return name.replace("{", "{{").replace("}", "}}")
