"""Opening a journal that may be damaged: the damaged one is put aside with its staged files, and nothing is deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from wherry.database import JournalDamaged
from wherry.journal import Journal, readable_jobs
from wherry.spool import Spool, quarantine

log = logging.getLogger("wherry")


def open_journal(spool: Spool, *, keep: Sequence[str] = ()) -> Journal:
    """Open the spool's journal; a damaged one is quarantined first, which is logged with a list of the staged files.

    `keep` are staged files of uploads that are just being accepted: they stay where they are.
    """
    try:
        return _opened(spool)
    except JournalDamaged as damage:
        with spool.locked("quarantine.lock"):
            try:
                return _opened(spool)  # another process was faster
            except JournalDamaged:
                log.error("%s", _put_aside(spool, str(damage), keep))
                return _opened(spool)


def _opened(spool: Spool) -> Journal:
    journal = Journal(spool.journal_path, spool.config.durability)
    try:
        journal.check()
    except JournalDamaged:
        journal.close()
        raise
    return journal


def _put_aside(spool: Spool, reason: str, keep: Sequence[str]) -> str:
    known = {object_id: (uri, size) for object_id, uri, size in readable_jobs(spool.journal_path)}
    aside = quarantine(spool, reason, time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 1_000_000:06d}")
    for object_id in keep:
        (aside / "objects" / object_id).rename(spool.path(object_id))
    lines = []
    for file in sorted((aside / "objects").iterdir()):
        uri = known.get(file.name, ("an unknown name", 0))[0]
        lines.append(f"  {file} ({file.stat().st_size} bytes) was to become {uri}")
    listing = "\n".join(lines) if lines else "  (none)"
    (aside / "FILES").write_text(listing + "\n")
    return f"{reason}. It was put aside in {aside}, and a new one is in use. Staged files, none deleted:\n{listing}"
