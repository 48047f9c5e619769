"""Notes of which run writes a name, so that two runs of one spool that overwrite one object are told."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from wherry.posix.atomic_write import write_atomically
from wherry.spool.presence import living_sessions
from wherry.spool.spool import Spool

#: A name that nobody has written for so long is as good as new.
_KEEP_S = 30 * 86_400.0


@dataclass(frozen=True)
class Writer:
    """Who writes: a rank of a run, in the process of a session."""

    run: str
    rank: int
    session: str


def other_writer(spool: Spool, what: str, mine: Writer) -> Writer | None:
    """Note that `mine` writes `what`, a URI. Returns who else does: another run that wrote it last, whether it still runs or not,
    or another living process with the same run and rank.
    """
    notes = spool.inside("writers")
    note = notes / hashlib.sha256(what.encode()).hexdigest()[:32]
    try:
        last = Writer(**json.loads(note.read_text()))
    except (OSError, ValueError, TypeError):  # there is none, or a crash of the machine has left half of one
        last = None
    if last == mine:
        return None
    with suppress(OSError):  # a full disk is no reason not to upload
        notes.mkdir(mode=0o700, exist_ok=True)
        if last is None:
            _remove_old(notes)
        write_atomically(note, json.dumps(asdict(mine)).encode())
    if last is None or (last.run, last.rank) == (mine.run, mine.rank):
        return last if last is not None and last.session in living_sessions(spool) else None
    return last if last.run != mine.run else None


def _remove_old(notes: Path) -> None:
    for note in notes.iterdir():
        with suppress(FileNotFoundError):  # another process does the same
            if time.time() - note.stat().st_mtime > _KEEP_S:
                note.unlink()
