"""Notes of trials of servers that are under way, by which the objects of a killed trial are found and removed.

A note is a file in the spool's folder ``trials``, locked while its trial's process lives, with the id of the store's record and
the prefix of all that the trial makes.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wherry.posix.locks import lock, try_lock
from wherry.spool.abandoned_uploads import Tried
from wherry.store import MultipartStore, ObjectStore


class Trials:
    """The notes in `folder`, which is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def noted(self, store_id: int, prefix: str) -> Iterator[None]:
        """Note a trial before its first request; the note goes with the end of the block unless that is an error."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / secrets.token_hex(8)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            lock(fd)
            os.write(fd, json.dumps([store_id, prefix]).encode())
            yield
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)

    def left(self) -> list[tuple[Path, int, str]]:
        """The note, store and prefix of each trial whose process has ended before it; notes that are not whole are removed."""
        found = []
        for path in sorted(self._folder.glob("*")):
            with suppress(OSError), open(path, "rb") as file:  # it has just gone, or its trial is under way
                if not try_lock(file.fileno()):
                    continue
                try:
                    store_id, prefix = json.loads(file.read())
                    found.append((path, int(store_id), str(prefix)))
                except (ValueError, TypeError):
                    path.unlink(missing_ok=True)
        return found


def clean_trial(store: ObjectStore, backend: ObjectStore, prefix: str) -> None:
    """Remove all that a trial has made below `prefix`. `backend` is the innermost of `store`, which shows such objects."""
    if isinstance(backend, Tried):
        for meta in list(backend.left_by_trials(prefix)):
            store.delete(meta.key)
    if isinstance(store, MultipartStore) and store.capabilities.multipart:
        for upload in list(store.list_uploads(prefix)):
            if upload.is_ours:
                store.abort(upload.key, upload.upload_id)
