"""All that is known of one upload, for ``wherry status NAME``: from the journal, and from the log of the agents."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from wherry.checksum import format_crc32c
from wherry.cli.arguments import command, parse_target
from wherry.cli.status import OPEN, Unfinished, Waiting, unfinished, waiting_for_secrets
from wherry.cli.status_text import failure_remedy, next_try_text, secrets_remedy, unfinished_as_dict
from wherry.cli.words import word
from wherry.quantities import age_text, size_text, time_text
from wherry.spool.journal.jobs import Job, JobId, JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.queries import StoreRecord
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool

#: Of one name, the newest so many uploads are shown.
_SHOWN_JOBS = 20
_SHOWN_LOG_LINES = 20


@dataclass(frozen=True)
class Story:
    """One upload: its row, how it stands if it is not finished, its store, and what workers have logged of it."""

    spool: Path
    job: Job
    standing: Unfinished | None
    store: StoreRecord | None
    log: tuple[str, ...]
    #: How much longer it is tried, not counting the time in which nobody can try.
    left_s: float
    #: The command that helps; empty if none is needed.
    remedy: str

    def as_json(self) -> str:
        """One line of JSON."""
        job = self.job
        standing = self.standing or Unfinished(job, job.size_bytes if job.state is JobState.DONE else 0, "", None)
        return json.dumps(
            {
                **unfinished_as_dict(standing),
                "accepted_s": job.created_s,
                "finished_s": job.end.finished_s,
                "given_up_in_s": None if self.standing is None else round(self.left_s, 3),
                "owner": job.owner,
                "overwrite": job.overwrite,
                "replaces_earlier": job.schedule.replaces_earlier,
                "crc32c": None if job.crc32c is None else format_crc32c(job.crc32c),
                "etag": job.end.etag,
                "exclusive": job.end.exclusive,
                "replaced_by": job.end.superseded_by,
                "options": {} if self.store is None else dict(self.store.options),
                "log": self.log,
            }
        )


def stories(name: str, folder: Path) -> list[Story]:
    """The uploads that `name` may mean, in the order of their calls: a number, a URI, or the end of a name."""
    if not (folder / "journal.db").exists():
        return []
    spool = Spool(folder)
    with closing(Journal(spool.journal_path)) as journal:
        ids = _ids(journal, name)
        agent_pid = pid_of_agent(spool)
        waiting = waiting_for_secrets(journal, agent_pid)
        standings = {one.job.id: one for one in unfinished(journal, ids, agent_pid, waiting)}
        locked = {one.store_id: one for one in waiting}
        stores, logged = journal.queries.stores(), _logged(folder, ids)
        return [
            Story(
                *(folder, job, standings.get(job.id), stores.get(job.store_id), logged[job.id]),
                left_s=max(0.0, journal.work.time_left_s(job)[0]),
                remedy=_remedy(job, folder, locked.get(job.store_id), is_served=agent_pid is not None),
            )
            for job in journal.queries.jobs(ids=ids)
        ]


def _remedy(job: Job, folder: Path, missing: Waiting | None, *, is_served: bool) -> str:
    if job.state is JobState.FAILED:
        return failure_remedy(job, folder)
    if job.state not in OPEN:
        return ""
    if missing is not None:
        return secrets_remedy(missing, folder)
    return "" if is_served else f"start an agent and wait: {command('drain', folder)}"


def _ids(journal: Journal, name: str) -> list[JobId]:
    if name.isdecimal() and journal.queries.job(JobId(int(name))) is not None:
        return [JobId(int(name))]
    target = parse_target(name)
    return journal.overview.named(name, target.uri_for(target.prefix), _SHOWN_JOBS)


def _logged(folder: Path, ids: list[JobId]) -> Mapping[JobId, tuple[str, ...]]:
    """What workers have logged of each of the jobs, the newest lines."""
    found: dict[JobId, list[str]] = {job_id: [] for job_id in ids}
    for line in _log_lines(folder):
        match = re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\S* \d+ \S+ (?:WARNING|ERROR) job (\d+) \(.*?\)(?:,|) (.*)", line)
        if match is not None and (lines := found.get(JobId(int(match[2])))) is not None:
            at_s = datetime.fromisoformat(match[1]).timestamp()  # this machine's time, as logging writes it
            lines.append(f"{time_text(at_s)}  {match[3]}")
    return {job_id: tuple(lines[-_SHOWN_LOG_LINES:]) for job_id, lines in found.items()}


def _log_lines(folder: Path) -> Iterator[str]:
    for name in ("agent.log.1", "agent.log"):
        if (folder / name).exists():
            with open(folder / name, errors="replace") as file:
                yield from file


def story_lines(story: Story) -> list[str]:
    """The story as lines of plain text."""
    job, standing = story.job, story.standing
    arrived = f", {size_text(standing.sent_bytes)} have arrived" if standing is not None and standing.sent_bytes else ""
    rows: list[tuple[str, str | None]] = [
        (f"job {job.id}", f"{word(job.state)}{arrived}, {size_text(job.size_bytes)}"),
        ("accepted", f"{_time_text(job.created_s)} from process {job.owner.partition('-')[0]}"),
        ("attempts", str(job.attempts)),
    ]
    if standing is not None:
        next_try = "" if standing.next_try_in_s is None else next_try_text(standing).removeprefix("next try ")
        rows += [
            ("why", standing.reason),
            ("error", "" if job.error == standing.reason else job.error),
            ("next try", next_try),
            ("given up", f"if it is not stored after {age_text(story.left_s)} more, not counting waits in which nobody can try"),
        ]
    elif job.state is JobState.FAILED:
        rows += [("failed", _time_text(job.end.finished_s)), ("why", job.error or "unknown")]
    elif job.end.finished_s is not None:
        rows.append((word(job.state), f"{_time_text(job.end.finished_s)}, {age_text(job.end.finished_s - job.created_s)} later"))
        rows.append(("note", job.error if job.state is JobState.DONE else ""))
    newer, options = job.end.superseded_by, {} if story.store is None else story.store.options
    has_file = job.object_id and job.state in (*OPEN, JobState.FAILED)
    rows += [
        ("remedy", story.remedy),
        ("by", "" if newer is None else f"job {newer}, a newer upload of the name"),
        ("crc32c", "" if job.crc32c is None else format_crc32c(job.crc32c)),
        ("etag", job.end.etag),
        ("replaces", _replaces(job)),
        ("options", " ".join(f"{key}={value}" for key, value in options.items())),
        ("file", f"{story.spool / 'objects' / job.object_id}" if has_file else ""),
    ]
    lines = [job.uri, *(f"  {what:<9} {text}" for what, text in rows if text)]
    if story.log:
        lines += ["  log:", *(f"    {line}" for line in story.log)]
    return lines


def _time_text(at_s: float | None) -> str:
    if at_s is None:
        return "at an unknown time"
    passed_s = time.time() - at_s
    distance = f"{age_text(passed_s)} ago" if passed_s >= 0 else f"in {age_text(-passed_s)}"
    return f"{time_text(at_s)} ({distance})"


def _replaces(job: Job) -> str:
    if job.overwrite:
        return "what has the name by then"
    if job.schedule.replaces_earlier:
        return "what an earlier attempt of its run has left: it fails if another has the name"
    return "nothing: it fails if the name is taken"
