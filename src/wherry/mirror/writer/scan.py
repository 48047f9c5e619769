"""What the folder holds now: one pass over it with nothing but stat; and whether a file is open for writing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """A regular file, by its path below the folder. A tuple, for there are ten thousand of them in each pass."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Scan:
    """One pass. `trouble`: what could not be read, with the reason. `symlinks` are not followed, wherever they lead."""

    files: dict[str, Found]
    symlinks: tuple[str, ...]
    trouble: dict[str, str]


def scan(folder: Path) -> Scan | None:
    """All regular files below the folder; None if it is not there (yet), or a file is. What vanishes meanwhile is not there."""
    files: dict[str, Found] = {}
    symlinks: list[str] = []
    trouble: dict[str, str] = {}
    pending = [""]
    is_there = True
    while pending:
        below = pending.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    path = f"{below}{entry.name}"
                    if entry.is_symlink():
                        symlinks.append(path)
                    elif entry.is_dir(follow_symlinks=False):
                        pending.append(f"{path}/")
                    else:
                        try:
                            found = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        if stat.S_ISREG(found.st_mode):
                            files[path] = Found(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            is_there = is_there and bool(below)
        except OSError as error:
            trouble[below.rstrip("/") or "."] = error.strerror or str(error)
    return Scan(files, tuple(symlinks), trouble) if is_there else None


def is_being_written(path: Path) -> bool:
    """Whether some process, this one included, has the file open for writing. False where that cannot be told.

    It cannot be told of another user's file, on network file systems, and on systems other than Linux. Linux grants a read lease
    on a file that no process has open for writing (fcntl(2), "Leases"): it is asked for and given back at once.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # it is gone, or not ours to read: that is found out, and said, where it is read
        return False
    try:
        # Who opens it for writing in this very instant waits for the lease to end, and we get a signal. SIGIO, which that
        # would be, ends a process; SIGURG is ignored.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        with contextlib.suppress(OSError):  # it was broken already
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    else:
        return False
    finally:
        os.close(file)
