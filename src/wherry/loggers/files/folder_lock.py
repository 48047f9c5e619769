"""FolderLock: lets only one process at a time write a folder."""

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
    """Locks `folder` until release() or the end of this process, and makes it if it does not exist.

    RuntimeError, which names the other process, if the folder is locked. A forked child does not hold the lock: a DataLoader's
    worker that outlives its parent must not keep the next run out. If the file system has no locks, a warning in the log "wherry"
    is all that happens.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / _NAME
        self._has_made_folder = not folder.exists()
        self._descriptor = self._take()
        self._folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        call_in_children(self, FolderLock.forget)

    def is_held(self) -> bool:
        """Whether the folder is still locked: somebody may have removed it or the lock's file."""
        return self._descriptor >= 0 and is_same_file(self._descriptor, self._path)

    def has_folder(self) -> bool:
        """Whether the folder is still the one that was locked. That one is open, so no other has its inode number."""
        return self._folder_descriptor >= 0 and is_same_file(self._folder_descriptor, self.folder)

    def release(self) -> None:
        """Unlock. Remove the lock's file, and the folder if it is empty and was made for the lock. May be called again."""
        try:
            if self.is_held():
                self._path.unlink()  # before unlocking: a process that opens it later makes a new one
                if self._has_made_folder and not any(self.folder.iterdir()):
                    with suppress(OSError):  # another process has put a file there just now
                        self.folder.rmdir()
        finally:
            self.forget()

    def _take(self) -> int:
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                if self.folder.exists():
                    raise
                continue  # the process that released the lock has just removed the folder
            try:
                self._lock(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            if is_same_file(descriptor, self._path):  # and not a file that the process which released it has just removed
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
        """Close the descriptors. A forked child does only this: the parent keeps the lock."""
        descriptors = self._descriptor, self._folder_descriptor
        self._descriptor = self._folder_descriptor = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_folder_descriptor"):
            self.forget()
