"""What a copy of a mirror cannot hold: names that no file can have, places that something else has taken, more than its disk."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from wherry.errors import ConfigError, StoreError
from wherry.mirror.reader.pull_state import FOLDER
from wherry.mirror.report import printable
from wherry.store.wrappers import WrappedStore
from wherry.uri import check_name

#: A file system's limit for one part of a path, in bytes (Linux, limits.h).
_NAME_MAX = 255
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def folders_of(path: str) -> list[str]:
    """The folders that a path goes through, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def file_name_problem(path: str) -> str:
    """Why no local file can have this name; empty if one can."""
    try:
        if check_name(path).partition("/")[0] == FOLDER:
            return f"the folder {FOLDER} is the pull's own: rename it in the store"
    except ConfigError as error:
        return str(error)
    longest = max(len(part.encode()) for part in path.split("/"))
    return f"a part of the name has {longest} bytes, a file's may have {_NAME_MAX}" if longest > _NAME_MAX else ""


def check_local_path(folder: Path, name: str, *, is_folder_too: bool) -> None:
    """FileExistsError where something is that is no file, or a file where a folder must be. Links are not followed."""
    remedy = "move it away, or pull into another folder"
    for above in folders_of(name):
        if os.path.lexists(folder / above) and not (folder / above).is_dir():
            words = f"{printable(above)} is a folder in the store, and none here: {remedy}"
            raise FileExistsError(errno.EEXIST, words, str(folder / name))
    try:
        mode = os.lstat(folder / name).st_mode
    except FileNotFoundError:
        mode = stat.S_IFDIR if is_folder_too else stat.S_IFREG  # the folder comes, if it is not there yet
    if stat.S_ISREG(mode):
        return
    words = f"is a file in the store, and none here: {remedy}"
    if stat.S_ISLNK(mode):
        words = f"is a symbolic link here, which is neither followed nor replaced: {remedy}"
    elif is_folder_too:
        words = "is a file and a folder in the store, which no folder can hold: fetch the file with wherry cat"
    raise FileExistsError(errno.EEXIST, words, str(folder / name))


def full_disk(error: BaseException, place: Path) -> OSError | None:
    """The error to raise if this one, or its cause, says that the disk of `place` is full; None for any other.

    It is reported as such: an error of the store would be waited out.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            reason = "is read-only" if cause.errno == errno.EROFS else "has no room left"
            words = f"the disk {reason}: mend that, and the same command goes on where it was"
            return OSError(cause.errno, words, str(place))
        cause = cause.__cause__
    return None


class DiskRoomStore(WrappedStore):
    """Raises OSError for a get that fails as the file could not be written here. To be put below a RetryStore."""

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the inner store's."""
        try:
            return super().get_file(key, path, start=start, end=end, if_match=if_match)
        except StoreError as error:
            if (told := full_disk(error, path.parent)) is not None:
                raise told from error
            raise
