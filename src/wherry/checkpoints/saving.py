"""What save() takes: the files of a folder, or an empty folder in the spool that its caller fills."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from wherry.checkpoints.handle import CheckpointHandle
from wherry.errors import ConfigError
from wherry.spool.sources import sources_of
from wherry.uploader import Uploader

_RESERVED = "_ranks"


def object_names(path: Path) -> list[str]:
    """The names in the set of a file, or of the files of a folder. ConfigError for a name that is ours."""
    names = [name.partition("/")[2] for _, name in sources_of(path, "set")] if path.is_dir() else [path.name]
    for name in names:
        if name.partition("/")[0] == _RESERVED:
            raise ConfigError(f"{name!r} in {path}: {_RESERVED} is where the receipts of a set lie, use another name")
    return names


class SetFolder:
    """``with checkpoints.save(step) as folder``: an empty folder in the spool, handed over at the end of the block.

    After an exception in the block nothing is handed over. `handle` is the set's, after the block.
    """

    def __init__(self, uploader: Uploader, hand_over: Callable[[Path], CheckpointHandle]) -> None:
        self._uploader = uploader
        self._hand_over = hand_over
        self._folder: Path | None = None
        self._pid = 0
        self.handle: CheckpointHandle | None = None

    def __enter__(self) -> Path:
        with self._uploader.spool.explained("a folder for a checkpoint"):
            drafts = self._uploader.spool.folder / "drafts"
            drafts.mkdir(mode=0o700, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=drafts))
        self._pid = os.getpid()
        return self._folder

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._folder is not None, "the block was entered"
        if os.getpid() != self._pid:  # a forked child: the folder is its parent's
            return
        try:
            if error is None:
                self.handle = self._hand_over(self._folder)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
