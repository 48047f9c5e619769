"""``wherry status --watch``: the status on the terminal, renewed every second."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.cli.status import OPEN, sent_bytes, snapshot
from wherry.cli.status_text import status_lines
from wherry.quantities import age_text, rate_text, size_text
from wherry.spool.journal.jobs import Counts, Job, JobId, JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.spool import Spool

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN_TRANSFERS = 10
#: Seconds between two snapshots of --watch.
REFRESH_S = 1.0
#: Small files may be accepted and uploaded between two snapshots: so many new ids are asked for.
_NEW_JOBS = 2000


@dataclass
class Speed:
    """The speed of uploads, from one snapshot to the next: bytes and files per second, smoothed over a few snapshots."""

    bytes_per_s: float = 0.0
    files_per_s: float = 0.0
    _at_s: float | None = None
    _done: int = 0
    _newest: int = 0
    _sent: Mapping[int, int] = field(default_factory=dict)  # unfinished upload -> its bytes that have arrived

    def look(self, journal: Journal, counts: Counts, now_s: float) -> list[tuple[Job, int]]:
        """Take a snapshot at `now_s` since the epoch. Returns the running uploads, each with its bytes that have arrived."""
        jobs = journal.queries.jobs(states=OPEN, checks=False)
        leased = [(job, sent_bytes(journal, job)) for job in jobs if job.state is JobState.LEASED]
        arrived = {job.id: n_bytes for job, n_bytes in leased}
        sent = {int(job.id): arrived.get(job.id, 0) for job in jobs}
        newest = max((*sent, self._newest))
        if self._at_s is not None and now_s > self._at_s:
            moved = sum(max(0, n_bytes - self._sent.get(job_id, 0)) for job_id, n_bytes in sent.items())
            gone = [job_id for job_id in self._sent if job_id not in sent]
            fresh = range(self._newest + 1, self._newest + 1 + _NEW_JOBS)
            for job in journal.queries.jobs(
                ids=[JobId(job_id) for job_id in (*gone, *fresh)], states=[JobState.DONE], checks=False
            ):
                if (job.end.finished_s or 0.0) > self._at_s:
                    moved += job.size_bytes - self._sent.get(job.id, 0)
                newest = max(newest, job.id)
            passed_s = now_s - self._at_s
            self.bytes_per_s += (moved / passed_s - self.bytes_per_s) / 3
            self.files_per_s += (max(0, counts.done - self._done) / passed_s - self.files_per_s) / 3
        self._at_s, self._done, self._newest, self._sent = now_s, counts.done, newest, sent
        return leased


def watch(folder: Path) -> None:
    """Show the status on the terminal, renewed every second, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    speed = Speed()
    console = Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(_frame(folder, speed), refresh=True)
                time.sleep(REFRESH_S)  # the journal notifies nobody who only reads
    except KeyboardInterrupt:
        return


def _frame(folder: Path, speed: Speed) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    status = snapshot(folder)
    head = Text("\n".join(status_lines(status)), overflow="fold")
    if not status.is_made:
        return head
    with closing(Journal(Spool(folder).held_journal())) as journal:
        transfers = speed.look(journal, status.counts, time.time())
    left = status.counts.bytes_queued
    rate = f"speed    {rate_text(speed.bytes_per_s)}  {speed.files_per_s:.1f} files/s"
    if left and speed.bytes_per_s > 1:
        rate += f"  about {age_text(left / speed.bytes_per_s)} left"
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right"):
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
    for job, sent in transfers[:_SHOWN_TRANSFERS]:
        bar = ProgressBar(total=max(1, job.size_bytes), completed=sent, width=20)
        table.add_row(Text(job.uri), bar, f"{size_text(sent)} of {size_text(job.size_bytes)}")
    more = len(transfers) - _SHOWN_TRANSFERS
    return Group(head, Text(rate), table, Text(f"and {more} more" if more > 0 else "Ctrl-C ends this view, nothing else"))
