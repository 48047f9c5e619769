"""What is in a spool: read for ``wherry status``, written as text or JSON, and as a table that renews itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.cli.arguments import command
from wherry.errors import AlreadyExistsError
from wherry.spool.file_system import file_system_warnings
from wherry.spool.journal.jobs import Counts, Job, JobId, JobKind, JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.overview import Reason, StoreWait, Wait
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.store.environment import secrets_here, variables_of

if TYPE_CHECKING:
    from rich.console import RenderableType

_OPEN = (JobState.QUEUED, JobState.LEASED)
#: What users call a state, where the journal has a name of its own for it.
_WORDS = {JobState.LEASED: "uploading", JobState.SUPERSEDED: "replaced"}
#: An agent that knows a store's secrets leases its next job at once.
_LEASED_WITHIN_S = 5.0
_SHOWN_FAILURES = 20
_SHOWN_TRANSFERS = 10
_NAMED_JOBS = 5
_SHOWN_UNFINISHED = 10
#: In JSON: a million of them would be read by nobody.
_LISTED_UNFINISHED = 100
#: What was accepted so long ago and is not stored is worth a look: the backoff between two tries is minutes at most.
STUCK_AFTER_S = 3600.0
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
    #: The environment variables that gave them. Empty: a program, or an options file, did.
    variables: tuple[str, ...] = ()
    #: Whether this process has those variables.
    is_here: bool = False


@dataclass(frozen=True)
class Unfinished:
    """An upload that is not finished: the bytes of it that have arrived, and why it does not move.

    No reason: it does, or is next. `next_try_in_s` is None while it is being uploaded.
    """

    job: Job
    sent_bytes: int
    reason: str
    next_try_in_s: float | None


@dataclass(frozen=True)
class Quarantine:
    """Staged files that were set aside, with a damaged journal or without: why, and a line for each file."""

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
    #: The oldest of them.
    unfinished: tuple[Unfinished, ...] = ()
    #: Those that have failed before and wait for their next try: how many, and the oldest of them.
    n_tried_in_vain: int = 0
    tried_in_vain: tuple[Unfinished, ...] = ()
    #: Those that are being uploaded after an error, and have not moved since.
    n_retrying: int = 0
    retrying: tuple[Unfinished, ...] = ()
    n_stuck: int = 0
    #: The stores to which nothing can be sent before somebody has mended something.
    refusing: tuple[tuple[StoreWait, str], ...] = ()
    stuck_after_s: float = STUCK_AFTER_S

    @property
    def trouble(self) -> str:
        """What somebody must look after, in words; empty if there is nothing."""
        n_aside = sum(len(one.files) for one in self.quarantine)
        found = [
            f"{self.counts.failed} failed" if self.counts.failed else "",
            f"{self.n_stuck} stuck (accepted more than {age_text(self.stuck_after_s)} ago, or waiting for an operator)"
            if self.n_stuck
            else "",
            f"{n_aside} staged file(s) put aside" if n_aside else "",
        ]
        return ", ".join(filter(None, found))

    def as_json(self) -> str:
        """One line of JSON."""
        counts = self.counts
        return json.dumps(
            {
                "spool": str(self.spool),
                "queued": counts.queued,
                "uploading": counts.leased,
                "done": counts.done,
                "failed": counts.failed,
                "replaced": counts.superseded,
                "stuck": self.n_stuck,
                "bytes_queued": counts.bytes_queued,
                "bytes_failed": counts.bytes_failed,
                "oldest_age_s": round(counts.oldest_age_s, 3),
                "retries": counts.retries,
                "agent_pid": self.agent_pid,
                "waiting_for_secrets": [
                    {
                        "store_id": one.store_id,
                        "store": one.store,
                        "missing": one.missing,
                        "jobs": one.n_jobs,
                        "remedy": secrets_remedy(one, self.spool),
                    }
                    for one in self.waiting
                ],
                "waiting_for_operator": [
                    {
                        "store_id": one.store_id,
                        "store": store,
                        "reason": one.reason.value,
                        "jobs": one.n_jobs,
                        "error": one.error,
                        "next_try_in_s": one.next_try_in_s,
                    }
                    for one, store in self.refusing
                ],
                "retrying": self.n_retrying,
                "waiting_for_retry": self.n_tried_in_vain,
                "unfinished": [unfinished_as_dict(one) for one in self.unfinished],
                "failures": [
                    {"job": job.id, "uri": job.uri, "attempts": job.attempts, "size_bytes": job.size_bytes, "error": job.error}
                    for job in self.failures
                ],
                "quarantine": [{"folder": str(q.folder), "reason": q.reason, "files": q.files} for q in self.quarantine],
                "warnings": self.warnings,
            }
        )


def look(folder: Path, *, stuck_after_s: float = STUCK_AFTER_S) -> SpoolStatus:
    """Look at the spool in `folder`, which is neither made nor changed. JournalDamaged, JournalError, SpoolError.

    Unfinished uploads count as stuck when they were accepted `stuck_after_s` ago, and when they wait for secret options.
    """
    if not (folder / "journal.db").exists():
        return SpoolStatus(folder)
    spool = Spool(folder)
    journal = Journal(spool.held_journal())
    try:
        agent_pid = pid_of_agent(spool)
        waiting = tuple(waiting_for_secrets(journal, agent_pid))
        refusing = [one for one in journal.overview.waiting_stores() if one.reason is not Reason.SECRETS]
        stores = journal.queries.stores()
        n_tried, tried = journal.overview.tried_in_vain(_SHOWN_UNFINISHED)
        n_retrying, retrying = journal.overview.retrying(_SHOWN_UNFINISHED)
        return SpoolStatus(
            folder,
            True,
            journal.queries.counts(),
            agent_pid,
            tuple(journal.queries.jobs(states=[JobState.FAILED], kind=JobKind.PUT)),
            waiting,
            tuple(_quarantine(folder)),
            tuple(file_system_warnings(spool)),
            tuple(unfinished(journal, journal.overview.oldest(_LISTED_UNFINISHED), agent_pid, waiting)),
            n_tried,
            tuple(unfinished(journal, tried, agent_pid, waiting)),
            n_retrying,
            tuple(unfinished(journal, retrying, agent_pid, waiting)),
            journal.overview.n_stuck(stuck_after_s, [*(one.store_id for one in waiting), *(one.store_id for one in refusing)]),
            tuple((one, f"{stores[one.store_id].scheme}://{stores[one.store_id].root}") for one in refusing),
            stuck_after_s,
        )
    finally:
        journal.close()


def waiting_for_secrets(journal: Journal, agent_pid: int | None, given: Iterable[int] = ()) -> list[Waiting]:
    """The stores whose uploads wait for secret options, except those in `given`.

    Without an agent these are all stores with secret options. A living agent notes which ones it was not told.
    """
    known = set(given)
    counts = journal.overview.by_store()
    found = []
    for store in journal.queries.stores().values():
        is_locked = store.is_locked if agent_pid is not None else bool(store.secret_names)
        if not is_locked or store.id not in counts or store.id in known:
            continue
        was_there = "secrets" in store.settings
        found.append(
            Waiting(
                store.id,
                f"{store.scheme}://{store.root}",
                store.secret_names,
                counts[store.id],
                tuple(variables_of(store.scheme, store.secret_names)) if was_there else (),
                store.id in secrets_here([store], os.environ),
            )
        )
    return found


def unfinished(journal: Journal, ids: Sequence[JobId], agent_pid: int | None, waiting: Iterable[Waiting]) -> list[Unfinished]:
    """How these uploads stand, those of them that are not finished."""
    missing = {one.store_id: one.missing for one in waiting}
    waits = journal.overview.waits(ids)
    found = []
    for job in journal.queries.jobs(ids=ids, states=_OPEN) if ids else []:
        reason, next_try_in_s = "", None
        if (wait := waits.get(job.id)) is not None:
            next_try_in_s = wait.next_try_in_s
            if job.store_id in missing:
                reason, next_try_in_s = f"it waits for the secret options {', '.join(missing[job.store_id])}", None
            else:
                reason = _reason_text(wait)
            if not reason and agent_pid is None:
                reason = "nobody is sending it: no agent is running"
        elif job.error:
            reason = f"it is being tried again after: {job.error}"
        found.append(Unfinished(job, _sent_bytes(journal, job), reason, next_try_in_s))
    return found


def _reason_text(wait: Wait) -> str:
    error = wait.error or ""
    texts = {
        Reason.SECRETS: "",  # of a store that the agent is just being told the secrets of
        Reason.CREDENTIALS: f"it waits for new credentials: {error}",
        Reason.CLOCK: f"it waits until this machine's clock is right: {error}",
        Reason.DESTINATION: f"it waits until the destination can be written: {error}",
        Reason.OLDER: f"it waits for the end of job {wait.blocked_by}, an older upload of its name",
        Reason.REQUIRED: f"it waits for the end of job {wait.blocked_by}, which it requires",
        Reason.RETRY: error,
        Reason.TURN: error,
    }
    return texts[wait.reason]


def unfinished_as_dict(one: Unfinished) -> dict[str, object]:
    """For JSON."""
    job = one.job
    return {
        "job": job.id,
        "uri": job.uri,
        "state": word(job.state),
        "size_bytes": job.size_bytes,
        "sent_bytes": one.sent_bytes,
        "attempts": job.attempts,
        "age_s": round(max(0.0, time.time() - job.created_s), 3),
        "reason": one.reason,
        "error": job.error,
        "next_try_in_s": None if one.next_try_in_s is None else round(one.next_try_in_s, 3),
    }


def _quarantine(folder: Path) -> list[Quarantine]:
    found = []
    for aside in sorted((folder / "quarantine").glob("*")):
        reason, files = aside / "REASON", aside / "FILES"
        listed = files.read_text().splitlines() if files.exists() else []
        found.append(
            Quarantine(aside, reason.read_text().strip() if reason.exists() else "", tuple(line.strip() for line in listed))
        )
    return found


def word(state: JobState) -> str:
    """The state in the words of `wherry status`: queued, uploading, done, failed, replaced, discarded."""
    return _WORDS.get(state, state.value)


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


def attempts_text(attempts: int) -> str:
    """``1 attempt``, ``7 attempts``."""
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def next_try_text(one: Unfinished) -> str:
    """When it is tried next."""
    if one.job.state is JobState.LEASED:
        return "being tried now"
    if one.next_try_in_s is None:
        return "next try then"
    return "next try now" if not one.next_try_in_s else f"next try in {age_text(one.next_try_in_s)}"


def unfinished_lines(shown: Iterable[Unfinished]) -> list[str]:
    """Two lines an upload: what, and why it does not move."""
    lines = []
    for one in shown:
        job = one.job
        details = f"{size_text(job.size_bytes)}, {attempts_text(job.attempts)}, {next_try_text(one)}"
        reason = one.reason if job.state is JobState.QUEUED else job.error  # the heading says that it is being tried again
        lines += [f"  job {job.id}  {job.uri}  ({details})", f"      {reason}"]
    return lines


def failure_lines(failures: Iterable[Job]) -> list[str]:
    """Two lines a failed upload: what, and why."""
    lines = []
    for job in failures:
        details = f"{size_text(job.size_bytes)}, {attempts_text(job.attempts)}"
        lines += [f"  job {job.id}  {job.uri}  ({details})", f"      {job.error}"]
    return lines


def failure_remedy(job: Job, spool: Path) -> str:
    """What to do about one failed upload: what works for it."""
    give_up = f"give up: {command('discard', spool)} {job.id}"
    if job.error_kind == AlreadyExistsError.__name__:
        return f"its name is taken. To replace what has it: {command('retry', spool)} --overwrite {job.id}    {give_up}"
    return f"try again: {command('retry', spool)} {job.id}    {give_up}"


def failures_remedy(failures: Sequence[Job], spool: Path) -> list[str]:
    """What to do about all failed uploads."""
    taken = [job for job in failures if job.error_kind == AlreadyExistsError.__name__]
    retry, discard = command("retry", spool), command("discard", spool)
    lines = []
    if len(taken) < len(failures):
        lines.append(f"  try again: {retry} --all    give up: {discard} --all")
    if taken:
        jobs = " ".join(str(job.id) for job in taken) if len(taken) <= _NAMED_JOBS else "JOB..."
        lines.append(f"  names that are taken stay so. To replace what has them: {retry} --overwrite {jobs}")
        lines.append(f"  or give up: {discard} {jobs}")
    return lines


def waiting_lines(waiting: Iterable[Waiting], spool: Path) -> list[str]:
    """Which secret options are missing, and how to supply them."""
    lines = []
    for one in waiting:
        uploads = "1 upload waits" if one.n_jobs == 1 else f"{one.n_jobs} uploads wait"
        lines += [
            f"{uploads} for secret options of {one.store} (store {one.store_id}), which are kept in memory only:",
            f"      {', '.join(one.missing)}",
            f"  {secrets_remedy(one, spool)}",
        ]
        if not one.variables:
            example = ", ".join(f'"{name}": "..."' for name in one.missing)
            lines.append(f"  where FILE holds {{{example}}}")
    return lines


def refusing_lines(refusing: Iterable[tuple[StoreWait, str]]) -> list[str]:
    """What stores wait for, and when they are tried next."""
    wanted = {
        Reason.CREDENTIALS: "new credentials: those they have are refused or expired",
        Reason.CLOCK: "this machine's clock: it differs too much from the server's (NTP)",
        Reason.DESTINATION: "the destination: it cannot be written",
    }
    lines = []
    for one, store in refusing:
        uploads = "1 upload" if one.n_jobs == 1 else f"{one.n_jobs} uploads"
        again = age_text(one.next_try_in_s or 0.0)
        lines += [
            f"{uploads} to {store} ({size_text(one.size_bytes)}), waiting for {wanted[one.reason]}:",
            f"      {one.error}",
            f"  One is tried again in {again}, and when an agent is started or is given new secrets; the rest follows.",
        ]
    return lines


def secrets_remedy(one: Waiting, spool: Path) -> str:
    """The shortest way to give the missing options again."""
    drain = command("drain", spool)
    if one.is_here:
        return f"This shell's environment has them: {drain}"
    if one.variables:
        return f"Set {', '.join(one.variables)} as before, then: {drain}"
    return f"Start a program that gives them again, or: {drain} --options-file FILE"


def status_lines(status: SpoolStatus) -> list[str]:
    """The status as lines of plain text."""
    spool, counts = status.spool, status.counts
    if not status.is_made:
        return [f"nothing was ever uploaded from here: {spool} has no journal"]
    lines = [
        f"spool    {spool}",
        f"agent    {'none' if status.agent_pid is None else f'pid {status.agent_pid}'}",
        f"uploads  {counts.queued} queued  {counts.leased} uploading  {counts.done} done  {counts.failed} failed  "
        f"{counts.superseded} replaced",
    ]
    if counts.queued + counts.leased:
        retries = f", {counts.retries} retries so far" if counts.retries else ""
        lines.append(
            f"to send  {size_text(counts.bytes_queued)}, the oldest accepted {age_text(counts.oldest_age_s)} ago{retries}"
        )
        if status.agent_pid is None and counts.queued + counts.leased > sum(one.n_jobs for one in status.waiting):
            lines.append(f"         nobody is sending it: {command('drain', spool)}")
    if n := status.n_retrying:
        lines += ["", f"{n} upload{'s are' if n > 1 else ' is'} being tried again:", *unfinished_lines(status.retrying)]
        if n > len(status.retrying):
            lines.append(f"  and {n - len(status.retrying)} more: {command('status', spool)} NAME tells of one")
    if n := status.n_tried_in_vain:
        lines += ["", f"{n} upload{'s wait' if n > 1 else ' waits'} for the next try:", *unfinished_lines(status.tried_in_vain)]
        if n > len(status.tried_in_vain):
            lines.append(f"  and {n - len(status.tried_in_vain)} more: {command('status', spool)} NAME tells of one")
    if status.failures:
        n = len(status.failures)
        lines += ["", f"{n} failed upload{'s' * (n > 1)}, kept in the spool ({size_text(counts.bytes_failed)}):"]
        lines += failure_lines(status.failures[:_SHOWN_FAILURES])
        if n > _SHOWN_FAILURES:
            lines.append(f"  and {n - _SHOWN_FAILURES} more: {command('status', spool)} --json lists all")
        lines += failures_remedy(status.failures, spool)
    if status.refusing:
        lines += ["", *refusing_lines(status.refusing)]
    if status.waiting:
        lines += ["", *waiting_lines(status.waiting, spool)]
    for aside in status.quarantine:
        lines += ["", f"staged files were set aside in {aside.folder}:", f"  {aside.reason}"]
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
        jobs = journal.queries.jobs(states=_OPEN, kind=JobKind.PUT)
        leased = [(job, _sent_bytes(journal, job)) for job in jobs if job.state is JobState.LEASED]
        arrived = {job.id: n_bytes for job, n_bytes in leased}
        sent = {int(job.id): arrived.get(job.id, 0) for job in jobs}
        newest = max((*sent, self._newest))
        if self._at_s is not None and now_s > self._at_s:
            moved = sum(max(0, n_bytes - self._sent.get(job_id, 0)) for job_id, n_bytes in sent.items())
            gone = [job_id for job_id in self._sent if job_id not in sent]
            fresh = range(self._newest + 1, self._newest + 1 + _NEW_JOBS)
            for job in journal.queries.jobs(
                ids=[JobId(job_id) for job_id in (*gone, *fresh)], states=[JobState.DONE], kind=JobKind.PUT
            ):
                if (job.end.finished_s or 0.0) > self._at_s:
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
    left = status.counts.bytes_queued
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
