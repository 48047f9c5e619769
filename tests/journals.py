"""What the tests of the journal share."""

from __future__ import annotations

from support import store_id
from wherry.spool.journal.jobs import Job, JobId, JobState
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.submit import NewJob


def submit(journal: Journal, *new: NewJob, owner: str = "me") -> list[JobId]:
    return journal.uploads.submit(owner, store_id(journal), new)[0]


def lease(journal: Journal, worker: str = "w", **options: float) -> Job:
    job = journal.work.lease(worker, 60.0, **options)  # type: ignore[arg-type]
    assert job is not None
    return job


def state(journal: Journal, job_id: JobId) -> JobState:
    job = journal.queries.job(job_id)
    assert job is not None
    return job.state


def fail(journal: Journal, *new: NewJob) -> list[JobId]:
    """Submit jobs and have them all fail."""
    ids = submit(journal, *new)
    for _ in ids:
        journal.work.fail(lease(journal).id, "w", "no")
    return ids
