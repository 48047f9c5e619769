"""What programs that died have left in the spool: half-made snapshots are removed, whole ones without a row are set aside.

A file that is being written has another name than a whole one (`spool.HALF`). A whole one is always followed by its row, so one
without a row was accepted and its row is lost (a power cut took the end of the journal's log), or its program was killed in
between. Nobody can tell which, so it is kept, listed and reported.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from wherry.quantities import count_text
from wherry.spool.journal.journal import Journal
from wherry.spool.presence import living_sessions
from wherry.spool.spool import HALF, Spool

log = logging.getLogger("wherry")

_NO_ROW = (
    "these files were staged whole, but the journal knows nothing of them: a power cut took the end of its log, "
    "or their program was killed while it handed them over. Upload what is missing in the store with wherry put"
)


def sweep(spool: Spool, journal: Journal) -> int:
    """Clear up after clients that are gone: how many half-made snapshots and files of finished jobs were removed."""
    # Listed before the rows are read: a job that is accepted in between is not taken for an orphan.
    found = [entry.name for entry in os.scandir(spool.inside("objects"))]
    living = living_sessions(spool)
    left = [name for name in found if name.rpartition("-")[0] not in living]
    half = [name for name in left if name.endswith(HALF)]
    whole = set(left).difference(half)
    unneeded = whole - journal.queries.referenced_objects() if whole else set()
    finished = journal.queries.known_objects(unneeded) if unneeded else set()
    spool.free([*half, *finished])
    if lost := sorted(unneeded - finished):
        aside, listing = set_aside(spool, _NO_ROW, lost, {})
        log.error("%s set aside in %s: %s\n%s", count_text(len(lost), "staged file"), aside, _NO_ROW, listing)
    return len(half) + len(finished)


def set_aside(
    spool: Spool, reason: str, names: Iterable[str], uris: dict[str, str], *, journal: bool = False
) -> tuple[Path, str]:
    """Move staged files, and the journal if it is damaged, into a folder of their own: (that folder, a line for each file)."""
    stamp = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 1_000_000_000:09d}"
    shown, aside = spool.folder / "quarantine" / stamp, spool.inside("quarantine", stamp)
    for folder in (aside.parent, aside, aside / "objects"):
        folder.mkdir(mode=0o700, exist_ok=True)
    (aside / "REASON").write_text(reason + "\n")
    lines = []
    for name in sorted(names):  # one by one: who stages a file just now needs the folder
        moved = aside / "objects" / name
        with suppress(FileNotFoundError):  # freed meanwhile
            os.rename(spool.path(name), moved)
            size, uri = moved.lstat().st_size, uris.get(name, "an unknown name")
            lines.append(f"  {shown / 'objects' / name} ({size} bytes) was to become {uri}")
    for name in ("journal.db", "journal.db-wal", "journal.db-shm") if journal else ():
        if spool.inside(name).exists():
            os.rename(spool.inside(name), aside / name)
    listing = "\n".join(lines) if lines else "  (none)"
    (aside / "FILES").write_text(listing + "\n")
    return shown, listing
