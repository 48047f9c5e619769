"""The spool: one private folder that holds the staged files, the journal, and the meeting points of its processes.

spool/
journal.db          the jobs (wherry.spool.journal.journal)
objects/            one file a snapshot, named <session>-<random>
clients/            one locked file a living session; a lock that is free means that its process is gone
bell                the agent's socket (wherry.agent.wakeup)
agent.lock          held by the agent and its workers
agent.log           what they had to say
reserve             room for the journal that accepting may not use (wherry.spool.reserve)
endpoints.json      what servers were found to honour (wherry.store.server_features)
downloads/          notes of the folders into which something was downloaded
writers/            notes of which run wrote a name last (wherry.spool.writer_notes)
restores/           where the processes of this machine meet that restore one checkpoint (wherry.checkpoints.restoring.fan_out)
quarantine/         damaged journals with the staged files they described; never deleted by us
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from wherry.config import SpoolConfig, default_spool_folder
from wherry.errors import ConfigError, SpoolError
from wherry.posix.locks import lock, try_lock
from wherry.spool.folder import HeldFile, SpoolFolder, lack_of_inodes
from wherry.spool.reserve import Reserve
from wherry.uri import absolute_path

#: What the name of a staged file ends with until it is whole.
HALF = ".half"
_T = TypeVar("_T")
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
#: Removing a smaller file takes less than a few milliseconds.
HELD_BYTES = 64 * 2**20
#: Giving back the blocks of a file of 10 GiB takes 1 s.
_FREEING_S = 5.0
_REMEDY = "It must be a folder that you can write: name one with spool= or $WHERRY_SPOOL"


class Spool:
    """One spool folder, opened by this process. Making it is safe from several processes at once."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, config: SpoolConfig | None = None) -> None:
        if folder is not None and (not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder)):
            raise ConfigError(f"spool={folder!r}: give the path of a folder, or leave it out")
        self._folder = SpoolFolder(default_spool_folder() if folder is None else absolute_path(folder))
        #: The name of the folder. For reading and writing there is inside(), which follows no name.
        self.folder = self._folder.path
        self.config = config or SpoolConfig()
        #: The room that the journal needs to finish what was accepted.
        self.reserve = Reserve(self._folder)
        self.objects = self.folder / "objects"
        self.clients = self.folder / "clients"
        self.journal_path = self.folder / "journal.db"
        with self.explained("its folders"):
            for name in ("objects", "clients"):
                self.inside(name).mkdir(mode=0o700, exist_ok=True)
            if not os.access(self.inside("objects"), os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it is not writable", str(self.inside("objects")))

    def inside(self, *names: str) -> Path:
        """The path of something in the spool, by the descriptor of its folder: nobody can lead it elsewhere."""
        return self._folder.inside(*names)

    def name_inside(self, name: str) -> str:
        """The same as text, for what is done by the thousand."""
        return self._folder.name_inside(name)

    def has(self, name: str) -> bool:
        """Whether there is something of that name in the spool."""
        try:
            os.stat(name, dir_fd=self._folder.descriptor())
        except FileNotFoundError:
            return False
        return True

    def held_journal(self) -> os.PathLike[str]:
        """The journal's file, shown by its name and opened by the folder's descriptor."""
        return HeldFile(self._folder, "journal.db")

    def path(self, object_id: str) -> Path:
        """Where a staged file lies. SpoolError for what is no name of a file in the spool: a damaged journal may say anything."""
        return Path(self.staged_name(object_id))

    def staged_name(self, object_id: str) -> str:
        """The same as text."""
        if not _is_name(object_id):
            raise SpoolError(
                f"the journal of the spool {self.folder} names a staged file {object_id!r}, which is no name of a file there: "
                "it was changed by somebody else; give the upload up with wherry discard"
            )
        return self._folder.name_inside("objects", object_id)

    def make_staged(self, object_id: str) -> int:
        """Make an empty, private file for a snapshot, named as half-made: its descriptor, for writing."""
        return self._by_descriptor(object_id, partial(os.open, _below(object_id) + HALF, _MAKE, 0o600))

    def name_whole(self, object_id: str) -> None:
        """Give a file that is whole its name: from now on nobody takes it for a half-made one."""
        name = _below(object_id)

        def rename(dir_fd: int) -> None:
            os.rename(name + HALF, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

        self._by_descriptor(object_id, rename)

    def _by_descriptor(self, object_id: str, call: Callable[..., _T]) -> _T:
        """Make a call that is given the folder's descriptor. Its errors name the staged file as those of other calls do."""
        try:
            return call(dir_fd=self._folder.descriptor())
        except OSError as error:
            if not isinstance(error, SpoolError):
                error.filename = self.staged_name(object_id + HALF)
            raise

    def open_staged(self, object_id: str) -> int:
        """Open a staged file for reading, not through a link: its descriptor. FileNotFoundError if it is gone."""
        try:
            descriptor = os.open(self.staged_name(object_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._no_staged_file(object_id) from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._no_staged_file(object_id)
        return descriptor

    def staged_path(self, object_id: str) -> Path:
        """The path of a staged file for a store that opens it itself, checked as open_staged() does."""
        path = self.path(object_id)
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise self._no_staged_file(object_id)
        return path

    def _no_staged_file(self, object_id: str) -> SpoolError:
        return SpoolError(f"{self.objects / object_id} is no regular file, so it is none that was staged there")

    def free(self, object_ids: Iterator[str] | list[str] | tuple[str, ...]) -> None:
        """Remove staged files that no job needs any more."""
        for object_id in object_ids:
            if _is_name(object_id):  # nothing else is a file of ours
                try:
                    os.unlink(_below(object_id), dir_fd=self._folder.descriptor())
                except FileNotFoundError:
                    continue
                except (IsADirectoryError, PermissionError):  # which of the two a folder gives depends on the system
                    path = self.staged_name(object_id)
                    if not os.path.isdir(path):
                        raise
                    shutil.rmtree(path)  # open_folder() made it

    def hold_large(self, object_ids: Sequence[str]) -> list[int]:
        """Open the large ones among staged files that are about to be removed: their descriptors, to be closed afterwards.

        The kernel takes 0.1 s to give back the blocks of 1 GiB, and does it when the last descriptor is closed. So whoever waits
        for an upload does not wait for that; whoever finds no room does: see await_freeing(). Where the disk has less room than a
        file takes, that file is not held.
        """
        held: list[int] = []
        for object_id in object_ids:
            with suppress(OSError, SpoolError):  # it is gone, or no file: free() says what is wrong
                name = self.staged_name(object_id)
                if HELD_BYTES <= os.lstat(name).st_size <= self.free_bytes():
                    held.append(self.open_staged(object_id))
        if held:
            with suppress(OSError, SpoolError):  # the spool itself was removed
                held.append(self._open_objects())  # the last one: its lock ends when the blocks are given back
                lock(held[-1], shared=True)
        return held

    def await_freeing(self) -> None:
        """Wait until the blocks of the large files that are being removed have been given back; at most a few seconds."""
        folder, give_up_s = self._open_objects(), time.monotonic() + _FREEING_S
        try:
            while not try_lock(folder) and time.monotonic() < give_up_s:
                time.sleep(0.01)  # a lock cannot be waited for with a time-out, and its holder may have been stopped
        finally:
            os.close(folder)

    def _open_objects(self) -> int:
        return os.open(self.inside("objects"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def free_bytes(self) -> int:
        """What the file system under the spool has left for staged files: all but the room that the journal needs."""
        found = os.statvfs(self._folder.name_inside())
        return max(0, found.f_bavail * found.f_frsize - self.reserve.missing_bytes())

    def explain(self, error: OSError, what: object, size_bytes: int | None = None) -> OSError:
        """Tell a trouble of the spool from one of the source; the source's own errors pass as they are.

        `what` was to be staged; it takes `size_bytes`, if that is known.
        """
        if self._folder.is_deleted() or not self.inside("objects").is_dir():
            return SpoolError(
                error.errno or errno.ENOENT,
                f"the spool {self.folder} was removed while it was in use, and what had been accepted there with it: "
                "open a new one (another Uploader), and let nothing else tidy up that folder",
            )
        if isinstance(error, SpoolError):
            return error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return SpoolError(error.errno, f"no room in the spool {self.folder} for {what}: {self._shortage(error, size_bytes)}")
        if error.errno == errno.EROFS or str(error.filename).startswith(str(self.inside())):
            return SpoolError(error.errno, f"the spool {self.folder} cannot be used: {error.strerror}. {_REMEDY}")
        return error

    def _shortage(self, error: OSError, size_bytes: int | None) -> str:
        if words := lack_of_inodes(self.inside()):
            return words
        if error.errno == errno.EDQUOT:
            return "your disk quota is used up. Free some space, or put the spool elsewhere (spool= or $WHERRY_SPOOL)"
        needed = "more than that is needed" if size_bytes is None else f"{size_bytes} bytes are needed"
        return (
            f"{needed}, {self.free_bytes()} are free. Free some space, or put the spool elsewhere (spool= or $WHERRY_SPOOL): "
            "where the files are, move=True takes no room"
        )

    @contextmanager
    def explained(self, what: object, size_bytes: int | None = None) -> Iterator[None]:
        """Make SpoolErrors of the errors that come from making `what` in the spool."""
        try:
            yield
        except OSError as error:
            told = self.explain(error, what, size_bytes)
            if told is error:
                raise
            raise told from error

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock file `name` in the spool, waiting for whoever has it."""
        descriptor = self._open_lock(name)
        try:
            lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _open_lock(self, name: str) -> int:
        with self.explained(f"its lock {name}"):
            return os.open(self.inside(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def try_lock(self, name: str) -> int | None:
        """The descriptor that holds the lock file `name`, until it is closed; None if somebody else does."""
        descriptor = self._open_lock(name)
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        return descriptor


def _below(object_id: str) -> str:
    """The name of a staged file below the spool's folder."""
    return f"objects/{object_id}"


def _is_name(object_id: str) -> bool:
    """Whether it can be the name of a file in a folder, and of nothing else."""
    return object_id not in ("", ".", "..") and "/" not in object_id and "\0" not in object_id
