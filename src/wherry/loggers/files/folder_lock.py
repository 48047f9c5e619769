"""FolderLock: one process writes a folder at a time."""

from __future__ import annotations

import errno
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from wherry.loggers.files.json_lines import is_same_file
from wherry.posix.fork import call_in_children
from wherry.posix.locks import lock_and_sign

log = logging.getLogger("wherry")

_NAME = ".lock"
_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class FolderLock:
    """Locks `folder`, which it makes if there is none, until release(), or until this process ends in whatever way.

    RuntimeError, which names the other process, if there is one. The child of a fork does not hold the lock, so that
    a loader's worker that outlives its parent does not keep the next run out. Where the file system has no locks, that is said
    in the log "wherry", and there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / _NAME
        self._has_made_folder = not folder.exists()
        self._descriptor = self._take()
        self._folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        call_in_children(self, FolderLock.forget)

    def is_held(self) -> bool:
        """Whether the folder is still locked; it, or the lock's file, may have been removed."""
        return self._descriptor >= 0 and is_same_file(self._descriptor, self._path)

    def has_folder(self) -> bool:
        """Whether the folder is still the one that was locked, which is open, so that no other has its number."""
        return self._folder_descriptor >= 0 and is_same_file(self._folder_descriptor, self.folder)

    def release(self) -> None:
        """Unlock, and leave no trace: a folder that it has made and that is empty is removed. Again, it does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            try:
                if is_same_file(descriptor, self._path):
                    self._path.unlink()  # first, for who finds it afterwards makes a new one
                    if self._has_made_folder and not any(self.folder.iterdir()):
                        with suppress(OSError):  # somebody has put something there just now
                            self.folder.rmdir()
            finally:
                os.close(descriptor)
        self._close_folder()

    def _close_folder(self) -> None:
        descriptor, self._folder_descriptor = self._folder_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _take(self) -> int:
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                if self.folder.exists():
                    raise
                continue  # who released it just now has removed the folder
            try:
                self._lock(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            if is_same_file(descriptor, self._path):  # and not one that was removed by who released it just now
                return descriptor
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            who = lock_and_sign(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n")
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            log.warning("%s: its file system has no locks (%s), so make sure that only one run writes it", self.folder, error)
            return
        if who is not None:
            text = f"the folder {self.folder} is being written by {who}: end that first, or give this run another name"
            raise RuntimeError(text)

    def forget(self) -> None:
        """Close the descriptor that a fork's child got; the lock stays its parent's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._close_folder()

    def __del__(self) -> None:
        if hasattr(self, "_folder_descriptor"):
            self.forget()
