"""What is in a spool, as ``wherry status`` and ``wherry drain`` read it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from wherry.quantities import age_text, count_text
from wherry.spool.file_system import file_system_warnings
from wherry.spool.journal.jobs import Counts, Job, JobId, JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.overview import Reason, StoreWait
from wherry.spool.journal.queries import StoreRecord, secrets_here
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.store.environment import variables_of
from wherry.store.governor import PresentLimit, address_of, present_limits

OPEN = (JobState.QUEUED, JobState.LEASED)
_REASONS = {
    Reason.SECRETS: "",  # the agent is just being given the secrets
    Reason.CREDENTIALS: "it waits for new credentials: {error}",
    Reason.CLOCK: "it waits until this machine's clock is right: {error}",
    Reason.DESTINATION: "it waits until the destination can be written: {error}",
    Reason.OLDER: "it waits for the end of job {job}, an older upload of its name",
    Reason.REQUIRED: "it waits for the end of job {job}, which it requires",
    Reason.RETRY: "{error}",
    Reason.TURN: "{error}",
}
_SHOWN_UNFINISHED = 10
#: In JSON: nobody reads a million.
_LISTED_UNFINISHED = 100
#: An upload that was accepted so long ago and is not stored counts as stuck: the backoff between two attempts is minutes at most.
STUCK_AFTER_S = 3600.0


@dataclass(frozen=True)
class Waiting:
    """Uploads to one store that cannot be made, because its secret options were in the memory of processes that ended."""

    store_id: int
    store: str
    missing: tuple[str, ...]
    n_jobs: int
    #: The environment variables that gave them; empty if a program or an options file did.
    variables: tuple[str, ...] = ()
    #: Whether this process has those variables.
    is_here: bool = False


@dataclass(frozen=True)
class Unfinished:
    """An unfinished upload: how many of its bytes have arrived, and why it does not progress.

    `reason` is empty if it progresses or is next. `next_try_in_s` is None while it is being uploaded.
    """

    job: Job
    sent_bytes: int
    reason: str
    next_try_in_s: float | None


@dataclass(frozen=True)
class Quarantine:
    """Staged files that were set aside, with or without a damaged journal: the reason, and a line for each file."""

    folder: Path
    reason: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class SpoolStatus:
    """A snapshot of a spool. `is_made`: it has a journal; without one nothing was ever uploaded from it."""

    spool: Path
    is_made: bool = False
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0, 0, 0, 0, 0.0, 0))
    agent_pid: int | None = None
    failures: tuple[Job, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    quarantine: tuple[Quarantine, ...] = ()
    warnings: tuple[str, ...] = ()
    #: The oldest unfinished uploads.
    unfinished: tuple[Unfinished, ...] = ()
    #: Uploads that failed before and wait for their next attempt: how many, and the oldest.
    n_tried_in_vain: int = 0
    tried_in_vain: tuple[Unfinished, ...] = ()
    #: Uploads that are retried after an error, and have not progressed since: how many, and the oldest.
    n_retrying: int = 0
    retrying: tuple[Unfinished, ...] = ()
    n_stuck: int = 0
    #: The stores to which nothing can be sent before an operator mends something.
    refusing: tuple[tuple[StoreWait, str], ...] = ()
    stuck_after_s: float = STUCK_AFTER_S
    #: How fast this user's processes on this node may go just now.
    limits: tuple[PresentLimit, ...] = ()

    @property
    def trouble(self) -> str:
        """What needs an operator, in words; empty if nothing does."""
        n_aside = sum(len(one.files) for one in self.quarantine)
        found = [
            f"{self.counts.failed} failed" if self.counts.failed else "",
            f"{self.n_stuck} stuck (accepted more than {age_text(self.stuck_after_s)} ago, or waiting for an operator)"
            if self.n_stuck
            else "",
            f"{count_text(n_aside, 'staged file')} put aside" if n_aside else "",
        ]
        return ", ".join(filter(None, found))


def snapshot(folder: Path, *, stuck_after_s: float = STUCK_AFTER_S) -> SpoolStatus:
    """Read the spool in `folder`, which is neither made nor changed. Raises JournalDamaged, JournalError, SpoolError.

    Unfinished uploads count as stuck when they were accepted `stuck_after_s` ago, and when they wait for secret options.
    """
    if not (folder / "journal.db").exists():
        return SpoolStatus(folder)
    spool = Spool(folder)
    with closing(Journal(spool.held_journal())) as journal:
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
            tuple(journal.queries.jobs(states=[JobState.FAILED], checks=False)),
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
            tuple(_limits(stores.values())),
        )


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
        where, names = f"{store.scheme}://{store.root}", store.secret_names
        variables = tuple(variables_of(store.scheme, names)) if "secrets" in store.settings else ()
        is_here = store.id in secrets_here([store], os.environ)
        found.append(Waiting(store.id, where, names, counts[store.id], variables, is_here))
    return found


def unfinished(journal: Journal, ids: Sequence[JobId], agent_pid: int | None, waiting: Iterable[Waiting]) -> list[Unfinished]:
    """The state of those of these uploads that are unfinished."""
    missing = {one.store_id: one.missing for one in waiting}
    waits = journal.overview.waits(ids)
    found = []
    for job in journal.queries.jobs(ids=ids, states=OPEN) if ids else []:
        reason, next_try_in_s = "", None
        if (wait := waits.get(job.id)) is not None:
            next_try_in_s = wait.next_try_in_s
            if job.store_id in missing:
                reason, next_try_in_s = f"it waits for the secret options {', '.join(missing[job.store_id])}", None
            else:
                reason = _REASONS[wait.reason].format(error=wait.error or "", job=wait.blocked_by)
            if not reason and agent_pid is None:
                reason = "nobody is sending it: no agent is running"
        elif job.error:
            reason = f"it is being tried again after: {job.error}"
        found.append(Unfinished(job, sent_bytes(journal, job), reason, next_try_in_s))
    return found


def _limits(stores: Iterable[StoreRecord]) -> list[PresentLimit]:
    """Those of the node, and of these stores."""
    addresses = [address_of(one.scheme, one.root, one.options, one.environment or {}) for one in stores]
    return [one for one in present_limits() if any(address.startswith(one.store) for address in addresses)]


def _quarantine(folder: Path) -> list[Quarantine]:
    found = []
    for aside in sorted((folder / "quarantine").glob("*")):
        reason, files = (path.read_text().strip() if path.exists() else "" for path in (aside / "REASON", aside / "FILES"))
        found.append(Quarantine(aside, reason, tuple(line.strip() for line in files.splitlines())))
    return found


def sent_bytes(journal: Journal, job: Job) -> int:
    """The bytes of an upload in parts that have arrived; 0 for any other."""
    return sum(part.size_bytes for part in journal.parts.sent(job.id)) if job.upload_id is not None else 0
