"""What ``wherry discard`` and ``wherry retry`` share: the journal of a spool, and the plan of a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.cli.arguments import tell
from wherry.errors import ConfigError
from wherry.quantities import size_text

if TYPE_CHECKING:
    from wherry.spool.journal.jobs import Job
    from wherry.spool.journal.journal import Journal
    from wherry.spool.spool import Spool

NO_JOURNAL = "nothing was ever uploaded from here"


def open_existing(folder: Path) -> tuple[Spool, Journal]:
    """Open a spool and its journal. ConfigError where there is none."""
    from wherry.spool.recovery import open_journal
    from wherry.spool.spool import Spool

    if not (folder / "journal.db").exists():
        raise ConfigError(f"{NO_JOURNAL}: {folder} has no journal; is it the right --spool?")
    spool = Spool(folder)
    return spool, open_journal(spool)


def plan_jobs(done: str, jobs: Sequence[Job], *, as_json: bool) -> None:
    """Say which uploads would be queued again, or given up."""
    for job in jobs:
        what = {"job": job.id, "uri": job.uri, "size_bytes": job.size_bytes}
        tell(done, what, f"{size_text(job.size_bytes):>10}  job {job.id}  {job.uri}", as_json=as_json, dry_run=True)
