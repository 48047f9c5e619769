"""The folder that a local store must not leave: whoever may write there could place a link to any file of the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wherry.errors import PermanentError

_O_PATH = getattr(os, "O_PATH", os.O_RDONLY)
#: What the kernel adds to the name of a folder that was removed since it was opened.
_DELETED = " (deleted)"


@dataclass(frozen=True)
class Root:
    """A folder, which need not be there yet. It may be reached through links itself; those below it must not lead out of it."""

    folder: str
    #: The remedy that errors name.
    hint: str

    @property
    def key(self) -> str:
        """The folder's own path as the start of keys."""
        return self.folder.strip("/")

    def holds(self, path: str | Path) -> bool:
        """Whether what a path leads to, through whatever links, is in the folder or the folder itself."""
        return self._contains(os.path.realpath(path))

    def require(self, path: Path) -> None:
        """Raise PermanentError unless the folder that `path` is in lies in this one."""
        if self.folder == "/":
            return
        folder, _, name = os.fspath(path).rpartition("/")
        self._require(_real(folder or "/"), name)

    def require_open(self, fd: int, path: Path) -> None:
        """Raise PermanentError unless the open file lies in the folder; `path` is how it was opened.

        The kernel tells where the open file is, so that nobody can exchange the link after a look at it.
        """
        try:
            real = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # no /proc here
            real = os.path.realpath(path)
        self._require(real)

    def _contains(self, real: str) -> bool:
        if self.folder == "/":
            return True
        folder = _real(self.folder)
        return real == folder or real.startswith(f"{folder.rstrip('/')}/")

    def _require(self, real: str, name: str = "") -> None:
        if not self._contains(real):
            leads_to = os.path.join(real, name) if name else real
            raise PermanentError(f"this leads to {leads_to}, outside of the store's folder {self.folder}", hint=self.hint)


def _real(folder: str) -> str:
    """As os.path.realpath(), which looks at each part of the path, at a third of its cost: the kernel knows where a folder is."""
    with suppress(OSError):  # not there yet, no folder, or no /proc here
        fd = os.open(folder, _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            real = os.readlink(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        if not real.endswith(_DELETED):
            return real
    return os.path.realpath(folder)
