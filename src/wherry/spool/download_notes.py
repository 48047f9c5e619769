"""Notes of the folders into which something was downloaded: broken downloads leave files there, to be removed some day."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from wherry.spool.spool import Spool

#: What a broken download leaves is stale after a week; in this time an agent has seen it.
_DOWNLOADS_KEEP_S = 30 * 86_400.0


def note_download(spool: Spool, folder: Path) -> None:
    """Remember that a download writes into `folder`, where a broken one leaves files that are to be cleaned away some day."""
    notes = spool.inside("downloads")
    note = notes / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
    try:
        os.utime(note)
    except FileNotFoundError:
        with suppress(OSError):  # a full disk is no reason not to download
            notes.mkdir(mode=0o700, exist_ok=True)
            note.write_bytes(os.fsencode(folder))


def download_folders(spool: Spool) -> list[Path]:
    """The folders into which something was downloaded lately and that are still there."""
    found: list[Path] = []
    for note in spool.inside("downloads").glob("*"):
        folder = Path(os.fsdecode(note.read_bytes()))
        if os.access(folder, os.R_OK | os.W_OK | os.X_OK) and time.time() - note.stat().st_mtime < _DOWNLOADS_KEEP_S:
            found.append(folder)
        else:
            note.unlink(missing_ok=True)
    return sorted(found)
