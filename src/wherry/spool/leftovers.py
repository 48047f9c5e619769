"""What programs that died have left in the spool: what no call had accepted is removed, whole files without a row are set aside.

A file that is being written has another name than a whole one (`spool.HALF`), and a call that stages files has a mark until the
journal has their rows. So a whole file without mark and row was accepted and its row is lost (a power cut took the end of the
journal's log): it is kept, listed and reported.
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
from wherry.spool.staging import mark_of, session_of

log = logging.getLogger("wherry")

_NO_ROW = (
    "these files were accepted, but the journal knows nothing of them: a power cut took the end of its log. "
    "Upload what is missing in the store with wherry put"
)


def sweep(spool: Spool, journal: Journal) -> int:
    """Clear up after clients that are gone: how many files that no job needs were removed."""
    # Listed before the rows are read: a job that is accepted in between is not taken for an orphan.
    found = [entry.name for entry in os.scandir(spool.inside("objects"))]
    living = living_sessions(spool)
    left = [name for name in found if session_of(name) not in living]
    half = [name for name in left if name.endswith(HALF)]
    whole = set(left).difference(half)
    unneeded = whole - journal.queries.referenced_objects() if whole else set()
    finished = journal.queries.known_objects(unneeded) if unneeded else set()
    lost = {name for name in unneeded - finished if _was_accepted(spool, name)}
    removed = [*(unneeded - lost), *half]  # marks last: a file that is still there without one is kept
    spool.free(removed)
    if lost:
        aside, listing = set_aside(spool, _NO_ROW, lost, {})
        log.error("%s set aside in %s: %s\n%s", count_text(len(lost), "staged file"), aside, _NO_ROW, listing)
    return len(removed)


def _was_accepted(spool: Spool, name: str) -> bool:
    """Return True for a whole file whose call has no mark any more. Another process may be removing both just now."""
    return not spool.path(mark_of(name)).exists() and spool.path(name).exists()


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
