"""Files that appear whole under their names, or not at all, even if the process that writes them is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

_numbers = count()


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a small file so that every reader sees the old contents or the new, and never a part. Not synced to the disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{next(_numbers)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Put a file, or a folder and the names in it, on the disk (fsync): it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AtomicFiles:
    """Writes files in `folder` and renames them when they are whole. The folder must be on the file system of the names."""

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        self._folder = folder
        self._fsync = fsync

    @contextmanager
    def temporary(self, suffix: str) -> Iterator[Path]:
        """A path to write a file to, and then to give to replace() or put(). Whatever is left there is removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{os.getpid()}-{next(_numbers)}{suffix}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Make the file `path` of these bytes, in place of one that has the name."""
        with self.temporary(path.suffix) as temporary:
            temporary.write_bytes(data)
            self.replace(temporary, path)

    def replace(self, temporary: Path, path: Path) -> None:
        """Give the file the name `path`, in place of a file that has it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sync(temporary)
        os.replace(temporary, path)
        self._sync(path.parent)

    def put(self, temporary: Path, path: Path) -> bool:
        """Give the file the name `path`. False, if the name is taken: nothing is replaced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sync(temporary)
        try:
            os.link(temporary, path)  # which, unlike a rename, fails if there is one
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if path.exists():
                return False
            temporary.rename(path)
        self._sync(path.parent)
        return True

    def sweep(self) -> None:
        """Remove the unfinished files of processes that were killed."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder, unless something is in it."""
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _sync(self, path: Path) -> None:
        if self._fsync:
            sync(path)
