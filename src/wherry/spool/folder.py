"""The spool's folder, opened safely and then held open: no other user can plant it beforehand or replace it later.

The path is walked one component at a time, and each is opened without following links. A link above the last component is
followed if root or this user made it. The folder is then reached through its descriptor (``/proc/self/fd/N``), so that whoever
may rename folders above it can take its name away but cannot lead this process into another folder.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

from wherry.errors import SpoolError

_PROC = "/proc/self/fd"
#: Opens a folder that may only be passed through (mode 0711), where the system has such a flag.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HOLD = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: What open(2) with these flags says of a symbolic link (or of what is no folder).
_LINK = (errno.ELOOP, errno.ENOTDIR)
#: As many links as the kernel follows in one path (path_resolution(7)).
_MOST_LINKS = 40


class SpoolFolder:
    """One private folder, held open. It is made if it is missing, and so are those above it, all with mode 0700.

    Raises SpoolError if it is a symbolic link, belongs to another user, or may be written by others. The mode of a folder that
    is there already is never changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._has_proc = os.path.isdir(_PROC)
        self._lock = threading.Lock()
        try:
            self._descriptor = _opened(path)
        except OSError as error:
            if isinstance(error, SpoolError):
                raise
            existing = next(folder for folder in (path, *path.parents) if folder.is_dir())
            if error.errno == errno.ENOSPC and (words := lack_of_inodes(existing)):
                raise SpoolError(error.errno, f"no room for the spool {path}: {words}") from error
            raise SpoolError(
                error.errno,
                f"the spool {path} cannot be used: {error.strerror or error}. "
                "It must be a folder that you can write: name one with spool= or $WHERRY_SPOOL",
            ) from error
        found = os.fstat(self._descriptor)
        self._identity = found.st_dev, found.st_ino

    def __del__(self) -> None:
        if getattr(self, "_identity", None) is not None and self._is_open():
            os.close(self._descriptor)

    def inside(self, *names: str) -> Path:
        """The path of something in this very folder, whatever has the folder's name by now."""
        return Path(self.name_inside(*names))

    def name_inside(self, *names: str) -> str:
        """The same as text, for what is done by the thousand."""
        base = f"{_PROC}/{self._held()}" if self._has_proc else str(self.path)
        return "/".join((base, *names))

    def descriptor(self) -> int:
        """The folder's descriptor, for the `dir_fd` of calls: a name below it takes the kernel a third of that by /proc."""
        return self._held()

    def is_deleted(self) -> bool:
        """Whether somebody has removed the folder."""
        return os.fstat(self._held()).st_nlink == 0

    def _held(self) -> int:
        """The descriptor. A program that has closed all of its descriptors (to become a daemon) has closed ours, too."""
        if not self._is_open():
            with self._lock:
                if not self._is_open():
                    descriptor = _opened(self.path)
                    found = os.fstat(descriptor)
                    if (found.st_dev, found.st_ino) != self._identity:
                        os.close(descriptor)
                        raise SpoolError(f"the spool {self.path} is not the folder that it was when it was opened")
                    self._descriptor = descriptor
        return self._descriptor

    def _is_open(self) -> bool:
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity


class HeldFile(os.PathLike[str]):
    """A file in the folder: opened through the folder's descriptor, and shown with the folder's name."""

    def __init__(self, folder: SpoolFolder, name: str) -> None:
        self._folder = folder
        self._name = name

    def __fspath__(self) -> str:
        return self._folder.name_inside(self._name)

    def __str__(self) -> str:
        return str(self._folder.path / self._name)


def _opened(path: Path) -> int:
    """Open the folder, made if it is missing, and check what was opened."""
    name, is_new = path.name or ".", False
    above = _walk(path.parent)
    try:
        try:
            descriptor = os.open(name, _HOLD, dir_fd=above)
        except FileNotFoundError:
            is_new = _make(name, above)
            descriptor = os.open(name, _HOLD, dir_fd=above)
    except OSError as error:
        if error.errno in _LINK and stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise SpoolError(
                f"the spool {path} is a symbolic link, which whoever made it could change: "
                "name the folder that it leads to with spool= or $WHERRY_SPOOL"
            ) from error
        raise
    finally:
        os.close(above)
    try:
        _check(path, os.fstat(descriptor))
        if is_new and stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777 != 0o700:
            os.fchmod(descriptor, 0o700)  # the umask has taken some of it away
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise SpoolError(
            f"the spool {path} belongs to user {user_name(found.st_uid)}, not to {user_name(os.geteuid())}: "
            "name one of your own with spool= or $WHERRY_SPOOL"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        raise SpoolError(
            f"the spool {path} can be written by other users (its mode is {mode:04o}): make it private (chmod 700), "
            "or name a folder that is not there yet with spool= or $WHERRY_SPOOL"
        )


def _walk(path: Path) -> int:
    """Open the folder `path`; what is missing of it is made, private. The links that it goes through are root's or ours."""
    left = list(path.parts[1:])
    links = 0
    at = os.open(path.anchor, _PASS)
    try:
        while left:
            name = left.pop(0)
            step = _step(at, name)
            if isinstance(step, int):
                os.close(at)
                at = step
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            left[:0] = [part for part in Path(step).parts if part != "/"]
            if step.startswith("/"):
                os.close(at)
                at = os.open("/", _PASS)
    except BaseException:
        os.close(at)
        raise
    return at


def _step(at: int, name: str) -> int | str:
    """Open the folder `name` of the folder `at`, made if it is missing; or what the link of that name says."""
    try:
        return os.open(name, _PASS, dir_fd=at)
    except FileNotFoundError:
        _make(name, at)
        return os.open(name, _PASS, dir_fd=at)
    except OSError as error:
        if error.errno not in _LINK:
            raise
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            raise
        if found.st_uid not in (0, os.geteuid()):
            raise SpoolError(
                f"the path of the spool goes through the symbolic link {name!r} of user {user_name(found.st_uid)}, "
                "who could change it: name another folder with spool= or $WHERRY_SPOOL"
            ) from error
        return os.readlink(name, dir_fd=at)


def _make(name: str, above: int) -> bool:
    """Make a private folder; whether it was not there, as another process may be faster."""
    try:
        os.mkdir(name, 0o700, dir_fd=above)
    except FileExistsError:
        return False
    return True


def lack_of_inodes(folder: Path) -> str:
    """What to say if the file system can make no more files, though it may have room for bytes; empty if it can."""
    found = os.statvfs(folder)
    if not found.f_files or found.f_favail:
        return ""
    return (
        f"its file system has no inodes left (all {found.f_files} are in use), so no file can be made there. "
        "Delete files there, also small and empty ones, or put the spool elsewhere (spool= or $WHERRY_SPOOL)"
    )


def user_name(uid: int) -> str:
    """The user's name, or the number of one that has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
