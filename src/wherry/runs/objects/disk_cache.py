"""What was read from stores, kept on the disk of this machine: immutable bytes by a name that has their version in it."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from wherry.posix.atomic_write import write_atomically

MOST_BYTES = 2 * 2**30
#: When it is full, it is emptied down to this part, so that this is rare.
_KEPT = 0.8
#: Another user must not read what the bucket's rights keep from him.
_FOLDER_MODE = 0o700


def default_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """``$XDG_CACHE_HOME/wherry``, else ``~/.cache/wherry`` (XDG Base Directory Specification); None for a user without a home."""
    given = environ.get("XDG_CACHE_HOME", "")
    folder = given if os.path.isabs(given) else os.path.expanduser("~/.cache")
    return Path(folder) / "wherry" if os.path.isabs(folder) else None


class DiskCache:
    """Files by name, of at most `most_bytes` together: the ones that were not used for longest go first. Any thread may call.

    Several processes may share `folder`. Whatever cannot be written or read (a full disk, a read-only home) is as if it were not
    there: the store is asked instead.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._size_bytes: int | None = None  # not known before the first put: a look at all files

    def open(self, name: str) -> BinaryIO | None:
        """The file of that name, for reading; None if there is none."""
        path = self._path(name)
        try:
            file = open(path, "rb")  # noqa: SIM115  the caller closes it
        except OSError:
            return None
        with suppress(OSError):
            os.utime(path)  # used just now
        return file

    def get(self, name: str) -> bytes | None:
        """The bytes of that name; None if there are none."""
        file = self.open(name)
        if file is None:
            return None
        with file:
            return file.read()

    def has(self, name: str) -> bool:
        """Whether there are bytes of that name; another process may remove them at any time."""
        return self._path(name).exists()

    def put(self, name: str, data: bytes) -> None:
        """Keep `data` under that name."""
        path = self._path(name)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
            path.parent.mkdir(exist_ok=True, mode=_FOLDER_MODE)
            write_atomically(path, data, mode=0o600)
        except OSError:
            return
        with self._lock:
            if self._size_bytes is None:
                self._size_bytes = sum(size for _, size, _ in self._files())
            else:
                self._size_bytes += len(data)
            if self._size_bytes > self._most_bytes:
                self._make_room()

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
        return self._folder / digest[:2] / digest[2:]

    def _files(self) -> list[tuple[float, int, str]]:
        """(last use, size, path) of each."""
        found = []
        for base, _, names in os.walk(self._folder):
            for name in names:
                path = os.path.join(base, name)
                with suppress(OSError):  # another process makes room, too
                    status = os.stat(path)
                    found.append((status.st_mtime, status.st_size, path))
        return found

    def _make_room(self) -> None:
        files = sorted(self._files())
        left = sum(size for _, size, _ in files)
        for _, size, path in files:
            if left <= self._most_bytes * _KEPT:
                break
            with suppress(OSError):
                os.unlink(path)
            left -= size
        self._size_bytes = left


class RecentBytes:
    """The bytes that were asked for last, in memory, `most_bytes` at most. Any thread may call."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._found: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0

    def get(self, name: str) -> bytes | None:
        """The bytes of that name; None if they are not here any more."""
        with self._lock:
            if (data := self._found.get(name)) is not None:
                self._found.move_to_end(name)
            return data

    def put(self, name: str, data: bytes) -> None:
        """Keep `data` under that name."""
        with self._lock:
            self._size_bytes += len(data) - len(self._found.pop(name, b""))
            self._found[name] = data
            while self._size_bytes > self._most_bytes:
                self._size_bytes -= len(self._found.popitem(last=False)[1])
