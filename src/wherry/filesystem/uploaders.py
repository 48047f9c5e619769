"""The Uploaders behind a file system: one for each bucket, shared by all file systems of this process with equal options."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from fsspec.utils import tokenize

from wherry.config import Config
from wherry.errors import UploadFailed
from wherry.filesystem.storage_options import Place
from wherry.posix.fork import ChildLock, call_in_children
from wherry.uploader import Uploader

#: (options, root) -> Uploader.
_open: dict[tuple[str, str], Uploader] = {}
_private_folders: list[Path] = []
_lock = ChildLock()


class Uploaders:
    """Makes Uploaders on first use. A forked child does not use those of its parent: it signs on by itself."""

    def __init__(
        self,
        place: Place,
        options: Mapping[str, object],
        spool: str | os.PathLike[str] | Callable[[], Path] | None,
        config: Config | None,
    ) -> None:
        """`spool` may be a function, asked when the spool is needed."""
        self._place = place
        self._options = options
        self._spool = spool
        self._config = config
        self._key = tokenize(place, options, spool, config)  # a digest: it holds no secret

    def at(self, root: str) -> Uploader:
        """The uploader to all names below a root."""
        with _lock:
            uploader = _open.get((self._key, root))
            if uploader is None:
                uri = str(self._place.store(root))
                spool = self._spool() if callable(self._spool) else self._spool
                uploader = Uploader(uri, storage_options=self._options, spool=spool, config=self._config)
                _open[self._key, root] = uploader
        return uploader

    def flush(self, timeout_s: float | None) -> None:
        """Uploader.flush() for each; `timeout_s` is for each alone."""
        for uploader in self._all().values():
            uploader.flush(timeout_s)

    def close(self, timeout_s: float | None) -> None:
        """Uploader.close() for each, `timeout_s` for all together. at() makes new ones afterwards."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with ExitStack() as stack:  # all of them are closed, also after an error
            for key, uploader in self._all().items():
                with _lock:
                    _open.pop(key, None)
                stack.callback(_close, uploader, until_s)

    def _all(self) -> dict[tuple[str, str], Uploader]:
        with _lock:
            return {key: uploader for key, uploader in _open.items() if key[0] == self._key}


def _close(uploader: Uploader, until_s: float | None) -> None:
    uploader.close(None if until_s is None else max(0.0, until_s - time.monotonic()))


def private_folder() -> Path:
    """A spool that only this process uses; removed at its end."""
    with _lock:
        if not _private_folders:
            _private_folders.append(Path(tempfile.mkdtemp(prefix="wherry-")))
        return _private_folders[0]


def _forget(_: object) -> None:
    """In a forked child: they belong to its parent."""
    _open.clear()
    _private_folders.clear()


def _remove_private() -> None:
    for uploader in [one for one in _open.values() if one.spool.folder in _private_folders]:
        with suppress(UploadFailed, TimeoutError):  # each write has raised this already, or was interrupted
            uploader.close()
    for folder in _private_folders:
        shutil.rmtree(folder, ignore_errors=True)


call_in_children(Uploaders, _forget)
atexit.register(_remove_private)  # runs before the Uploaders' own exit hook, which was registered first
