"""What is in a spool: read for ``wherry status``, written as text or JSON, and as a table that renews itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.cli_arguments import command
from wherry.jobs import Counts, Job, JobId, JobKind, JobState
from wherry.journal import Journal
from wherry.spool import Spool

if TYPE_CHECKING:
    from rich.console import RenderableType

_OPEN = (JobState.QUEUED, JobState.LEASED)
#: An agent that knows a store's secrets leases its next job at once.
_LEASED_WITHIN_S = 5.0
_SHOWN_FAILURES = 20
_SHOWN_TRANSFERS = 10
#: How often --watch looks.
REFRESH_S = 1.0
#: Small files may be accepted and uploaded between two looks: so many new ids are asked for.
_NEW_JOBS = 2000


@dataclass(frozen=True)
class Waiting:
    """Uploads to one store that nobody can make, because its secret options were in the memory of processes that are gone."""

    store_id: int
    store: str
    missing: tuple[str, ...]
    n_jobs: int


@dataclass(frozen=True)
class Quarantine:
    """A damaged journal that was put aside: why, and a line for each staged file that went with it."""

    folder: Path
    reason: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class SpoolStatus:
    """One look at a spool. `is_made`: there is a journal; without one nothing was ever uploaded from here."""

    spool: Path
    is_made: bool = False
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0, 0, 0, 0, 0.0, 0))
    agent_pid: int | None = None
    failures: tuple[Job, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    quarantine: tuple[Quarantine, ...] = ()
    warnings: tuple[str, ...] = ()

    def as_json(self) -> str:
        """One line of JSON."""
        counts = self.counts
        return json.dumps(
            {
                "spool": str(self.spool),
                "queued": counts.queued,
                "leased": counts.leased,
                "done": counts.done,
                "failed": counts.failed,
                "superseded": counts.superseded,
                "bytes_queued": counts.bytes_queued,
                "bytes_failed": counts.bytes_failed,
                "oldest_age_s": round(counts.oldest_age_s, 3),
                "retries": counts.retries,
                "agent_pid": self.agent_pid,
                "waiting_for_secrets": [
                    {"store_id": one.store_id, "store": one.store, "missing": one.missing, "jobs": one.n_jobs}
                    for one in self.waiting
                ],
                "failures": [
                    {"job": job.id, "uri": job.uri, "attempts": job.attempts, "size_bytes": job.size_bytes, "error": job.error}
                    for job in self.failures
                ],
                "quarantine": [{"folder": str(q.folder), "reason": q.reason, "files": q.files} for q in self.quarantine],
                "warnings": self.warnings,
            }
        )


def look(folder: Path) -> SpoolStatus:
    """Look at the spool in `folder`, which is neither made nor changed. JournalDamaged, JournalError, SpoolError."""
    if not (folder / "journal.db").exists():
        return SpoolStatus(folder)
    spool = Spool(folder)
    journal = Journal(spool.held_journal())
    try:
        agent_pid = spool.agent_pid()
        return SpoolStatus(
            folder,
            True,
            journal.counts(),
            agent_pid,
            tuple(journal.jobs(states=[JobState.FAILED], kind=JobKind.PUT)),
            tuple(waiting_for_secrets(journal, agent_pid)),
            tuple(_quarantine(folder)),
            tuple(spool.warnings()),
        )
    finally:
        journal.close()


def waiting_for_secrets(journal: Journal, agent_pid: int | None, given: Iterable[int] = ()) -> list[Waiting]:
    """The stores whose uploads wait for secret options, except those in `given`.

    Without an agent these are all stores with secret options. What a living agent was told is in its memory only: there, a store
    counts as waiting when none of its uploads was begun although they have been there for seconds.
    """
    stores = {store.id: store for store in journal.stores().values() if store.secret_names and store.id not in set(given)}
    jobs: dict[int, list[Job]] = {}
    if stores:
        for job in journal.jobs(states=_OPEN):
            jobs.setdefault(job.store_id, []).append(job)
    found = []
    for store_id in sorted(stores.keys() & jobs.keys()):
        mine = jobs[store_id]
        is_moving = any(job.state is JobState.LEASED or job.attempts for job in mine)
        is_young = time.time() - mine[0].created_s < _LEASED_WITHIN_S
        if agent_pid is None or not (is_moving or is_young):
            store = stores[store_id]
            found.append(Waiting(store_id, f"{store.scheme}://{store.root}", store.secret_names, len(mine)))
    return found


def _quarantine(folder: Path) -> list[Quarantine]:
    found = []
    for aside in sorted((folder / "quarantine").glob("*")):
        reason, files = aside / "REASON", aside / "FILES"
        listed = files.read_text().splitlines() if files.exists() else []
        found.append(
            Quarantine(aside, reason.read_text().strip() if reason.exists() else "", tuple(line.strip() for line in listed))
        )
    return found


def size_text(n_bytes: float) -> str:
    """A size for people, in decimal units: ``12.3 MB``."""
    from rich.filesize import decimal

    return decimal(int(n_bytes)).replace("bytes", "B")


def age_text(age_s: float) -> str:
    """A duration for people, in its largest unit: ``12 s``, ``3 min``, ``5 h``, ``2 days``."""
    for unit, seconds in (("days", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f} {unit}"
    return f"{age_s:.0f} s"


def failure_lines(failures: Iterable[Job]) -> list[str]:
    """Two lines a failed upload: what, and why."""
    lines = []
    for job in failures:
        attempts = "1 attempt" if job.attempts == 1 else f"{job.attempts} attempts"
        lines += [f"  job {job.id}  {job.uri}  ({size_text(job.size_bytes)}, {attempts})", f"      {job.error}"]
    return lines


def waiting_lines(waiting: Iterable[Waiting], spool: Path) -> list[str]:
    """Which secret options are missing, and how to supply them."""
    lines = []
    for one in waiting:
        uploads = "1 upload waits" if one.n_jobs == 1 else f"{one.n_jobs} uploads wait"
        example = ", ".join(f'"{name}": "..."' for name in one.missing)
        lines += [
            f"{uploads} for secret options of {one.store} (store {one.store_id}), which are kept in memory only:",
            f"      {', '.join(one.missing)}",
            f"  Start a program that gives them again, or: {command('drain', spool)} --options-file FILE",
            f"  where FILE holds {{{example}}}",
        ]
    return lines


def status_lines(status: SpoolStatus) -> list[str]:
    """The status as lines of plain text."""
    spool, counts = status.spool, status.counts
    if not status.is_made:
        return [f"nothing was ever uploaded from here: {spool} has no journal"]
    states = ("queued", "leased", "done", "failed", "superseded")
    lines = [
        f"spool    {spool}",
        f"agent    {'none' if status.agent_pid is None else f'pid {status.agent_pid}'}",
        "uploads  " + "  ".join(f"{getattr(counts, state)} {state}" for state in states),
    ]
    if counts.queued + counts.leased:
        retries = f", {counts.retries} retries so far" if counts.retries else ""
        lines.append(
            f"to send  {size_text(counts.bytes_queued)}, the oldest accepted {age_text(counts.oldest_age_s)} ago{retries}"
        )
        if status.agent_pid is None and counts.queued + counts.leased > sum(one.n_jobs for one in status.waiting):
            lines.append(f"         nobody is sending it: {command('drain', spool)}")
    if status.failures:
        n = len(status.failures)
        lines += ["", f"{n} failed upload{'s' * (n > 1)}, kept in the spool ({size_text(counts.bytes_failed)}):"]
        lines += failure_lines(status.failures[:_SHOWN_FAILURES])
        if n > _SHOWN_FAILURES:
            lines.append(f"  and {n - _SHOWN_FAILURES} more: {command('status', spool)} --json lists all")
        lines.append(f"  try again: {command('retry', spool)} --all    give up: {command('discard', spool)} --all")
    if status.waiting:
        lines += ["", *waiting_lines(status.waiting, spool)]
    for aside in status.quarantine:
        lines += ["", f"a damaged journal was put aside in {aside.folder}:", f"  {aside.reason}"]
        lines += [f"  {file}" for file in aside.files]
        lines.append("  Upload what is needed by hand, then remove that folder.")
    for warning in status.warnings:
        lines += ["", f"warning: {warning}"]
    return lines


@dataclass
class Speed:
    """How fast uploads go, from one look to the next: bytes and files in a second, smoothed over a few looks."""

    bytes_per_s: float = 0.0
    files_per_s: float = 0.0
    _at_s: float | None = None
    _done: int = 0
    _newest: int = 0
    _sent: Mapping[int, int] = field(default_factory=dict)  # unfinished upload -> its bytes that have arrived

    def look(self, journal: Journal, counts: Counts, now_s: float) -> list[tuple[Job, int]]:
        """Take one look, at `now_s` since the epoch; returns the uploads under way, each with the bytes that arrived."""
        jobs = journal.jobs(states=_OPEN, kind=JobKind.PUT)
        leased = [(job, _sent_bytes(journal, job)) for job in jobs if job.state is JobState.LEASED]
        arrived = {job.id: n_bytes for job, n_bytes in leased}
        sent = {int(job.id): arrived.get(job.id, 0) for job in jobs}
        newest = max((*sent, self._newest))
        if self._at_s is not None and now_s > self._at_s:
            moved = sum(max(0, n_bytes - self._sent.get(job_id, 0)) for job_id, n_bytes in sent.items())
            gone = [job_id for job_id in self._sent if job_id not in sent]
            fresh = range(self._newest + 1, self._newest + 1 + _NEW_JOBS)
            for job in journal.jobs(ids=[JobId(job_id) for job_id in (*gone, *fresh)], states=[JobState.DONE], kind=JobKind.PUT):
                if (job.finished_s or 0.0) > self._at_s:
                    moved += job.size_bytes - self._sent.get(job.id, 0)
                newest = max(newest, job.id)
            passed_s = now_s - self._at_s
            self.bytes_per_s += (moved / passed_s - self.bytes_per_s) / 3
            self.files_per_s += (max(0, counts.done - self._done) / passed_s - self.files_per_s) / 3
        self._at_s, self._done, self._newest, self._sent = now_s, counts.done, newest, sent
        return leased


def _sent_bytes(journal: Journal, job: Job) -> int:
    return sum(part.size_bytes for part in journal.parts.sent(job.id)) if job.upload_id is not None else 0


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
                time.sleep(REFRESH_S)  # the journal rings nobody for a mere look
    except KeyboardInterrupt:
        return


def _frame(folder: Path, speed: Speed) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    status = look(folder)
    head = Text("\n".join(status_lines(status)), overflow="fold")
    if not status.is_made:
        return head
    journal = Journal(Spool(folder).held_journal())
    try:
        transfers = speed.look(journal, status.counts, time.time())
    finally:
        journal.close()
    left = status.counts.bytes_queued - sum(sent for _, sent in transfers)
    rate = f"speed    {size_text(speed.bytes_per_s)}/s  {speed.files_per_s:.1f} files/s"
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
