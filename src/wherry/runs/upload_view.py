"""What is on its way to a run: from this machine's spool, and from other machines by their heartbeats."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from wherry.config import default_spool_folder
from wherry.errors import SpoolError
from wherry.redact import redact
from wherry.runs.objects.contents import Contents
from wherry.runs.records import QueuedUpload, UploadsView, WriterView
from wherry.spool.journal.jobs import Job, JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.overview import Wait
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool

_MOST_SHOWN = 200
#: The speed is that of so many newest uploads.
_RECENT = 50
_OPEN = (JobState.QUEUED, JobState.LEASED)
#: What needs somebody comes first.
_ORDER = (JobState.FAILED, JobState.LEASED, JobState.QUEUED)


def uploads_of(contents: Contents, uri: str, now_s: float, spool: Path | None = None) -> UploadsView:
    """The uploads of this machine's spool below `uri`, and the writers of the run's mirrors. Nothing is made or changed."""
    states = contents.writers(now_s)
    writers = [
        WriterView(name, states[name], max(0.0, now_s - one.heartbeat_s), one.lag_s, one.unsent_bytes, one.n_files)
        for name, one in sorted(contents.manifests.items())
    ]
    folder = default_spool_folder() if spool is None else spool
    if not (folder / "journal.db").exists():
        return UploadsView(str(folder), writers=writers)
    try:
        return _of_spool(Spool(folder), uri, writers)
    except SpoolError as error:
        return UploadsView(str(folder), writers=writers, trouble=redact(str(error)))


def _of_spool(spool: Spool, uri: str, writers: list[WriterView]) -> UploadsView:
    below = f"{uri.rstrip('/')}/"
    with closing(Journal(spool.held_journal())) as journal:
        jobs = journal.queries.jobs(states=(*_OPEN, JobState.FAILED), checks=False)
        mine = [job for job in jobs if job.uri.startswith(below)]
        mine.sort(key=lambda job: _ORDER.index(job.state))
        waits = journal.overview.waits([job.id for job in mine[:_MOST_SHOWN]])
        shown = [_queued(journal, job, below, waits.get(job.id)) for job in mine[:_MOST_SHOWN]]
        return UploadsView(
            spool=str(spool.folder),
            has_agent=pid_of_agent(spool) is not None,
            n_queued=sum(job.state in _OPEN for job in mine),
            n_failed=sum(job.state is JobState.FAILED for job in mine),
            spool_bytes=journal.queries.spool_bytes(),
            room_bytes=_room_bytes(spool.folder),
            bytes_per_s=_speed(journal.queries.sent(None, _RECENT)),
            queued=shown,
            writers=writers,
        )


def _queued(journal: Journal, job: Job, below: str, wait: Wait | None) -> QueuedUpload:
    sent_bytes = sum(part.size_bytes for part in journal.parts.sent(job.id)) if job.upload_id is not None else 0
    state = "uploading" if job.state is JobState.LEASED else job.state.value
    return QueuedUpload(
        int(job.id),
        job.uri[len(below) :],
        job.uri,
        state,
        job.size_bytes,
        sent_bytes,
        job.attempts,
        redact(job.error or (wait.error if wait is not None else None) or ""),
        None if wait is None else wait.next_try_in_s,
    )


def _room_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _speed(sent: list[tuple[float, float, int]]) -> float | None:
    """Bytes a second, from when the first of them was accepted until the last one was stored."""
    if not sent:
        return None
    took_s = max(end for _, end, _ in sent) - min(begin for begin, _, _ in sent)
    return sum(n_bytes for _, _, n_bytes in sent) / took_s if took_s > 0 else None
