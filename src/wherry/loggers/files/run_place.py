"""RunPlace: which folder this process writes a run's files to: the run's own, or as a forked child one of its own in that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from wherry.loggers.files.run_files import RunFiles


class RunPlace:
    """Makes the files of `find_folder()` when they are asked for, once. Any thread may call.

    The folder belongs to the process that made this object, or else that the run began in: begin_here(). A process that
    is forked from that one never takes it, also when it writes first: a DataLoader's worker must not shut the training out.
    """

    def __init__(self, find_folder: Callable[[], Path], *, fsync: bool = False) -> None:
        self._find_folder = find_folder
        self._fsync = fsync
        self._mutex = threading.RLock()
        self._folder: Path | None = None
        self.is_child = False
        self.files: RunFiles | None = None

    @property
    def folder(self) -> Path:
        """The run's folder: as it is found now, until it is taken."""
        return self._folder or self._find_folder()

    def begin_here(self) -> bool:
        """The run begins in this process: its folder is this one's, unless the parent has it. Whether that changes anything."""
        begins = self.is_child and self._folder is None
        self.is_child = self.is_child and not begins
        return begins

    def take(self) -> RunFiles:
        """The files to write to. RuntimeError while another process has the folder."""
        with self._mutex:
            if self.files is None:
                folder = self.folder
                make = RunFiles.of_child if self.is_child else RunFiles.of_run
                self.files, self._folder = make(folder, fsync=self._fsync), folder
            return self.files

    def start_afresh(self) -> None:
        """In a fork's child: another thread may have held the lock, and what is open is the parent's."""
        self._mutex = threading.RLock()
        self.files = None
        self.is_child = True
