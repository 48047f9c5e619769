"""UploadHandle: what put() and upload_file() return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from wherry.errors import JobFailure, UploadFailed, upload_failed
from wherry.spool.journal.jobs import Job, JobId, JobState
from wherry.spool.journal.journal import Journal
from wherry.store import ObjectMeta

#: The state of a folder is that of its least finished file.
_LEAST_FINISHED = (JobState.LEASED, JobState.QUEUED, JobState.FAILED, JobState.DISCARDED, JobState.SUPERSEDED, JobState.DONE)


def least_finished(states: Iterable[JobState]) -> JobState:
    """The state of several uploads together."""
    return min(states, key=_LEAST_FINISHED.index)


class UploadHandle:
    """One accepted upload: a file, or a folder of files under one name::

        handle = uploader.put("model.pt", "model.pt")
        handle.wait(timeout_s=60.0)  # True: verified in the store
        print(handle.result().size_bytes)

    Reading it never starts anything, and dropping it cancels nothing. It can be used from any thread.
    """

    def __init__(
        self,
        uri: str,
        ids: Sequence[JobId],
        journal: Journal,
        wait: Callable[[Sequence[JobId], float | None], bool],
        *,
        made: ObjectMeta | None = None,
    ) -> None:
        """`made`: the object, where the file was uploaded without the spool; then there are no jobs."""
        self.uri = uri
        self._made = made
        self.ids = tuple(ids)
        self._journal = journal
        self._wait = wait

    def __repr__(self) -> str:
        return f"<UploadHandle {self.uri} {self.state.value}>"

    def _jobs(self) -> list[Job]:
        """The jobs; a superseded one is replaced by the job that superseded it."""
        found = self._journal.queries.jobs(ids=self.ids)
        newest: list[Job] = []
        for job in found:
            while job.state is JobState.SUPERSEDED and job.end.superseded_by is not None:
                newer = self._journal.queries.job(JobId(job.end.superseded_by))
                if newer is None:
                    break
                job = newer
            newest.append(job)
        return newest

    @property
    def state(self) -> JobState:
        """queued, leased, done, failed, superseded or discarded; of a folder, the least finished of its files."""
        if self._made is not None:
            return JobState.DONE
        states = {job.state for job in self._journal.queries.jobs(ids=self.ids)} or {JobState.FAILED}  # see result()
        return least_finished(states)

    @property
    def is_exclusive(self) -> bool | None:
        """For a finished upload without `overwrite`: whether the store itself ensured that the name was free.

        False: the store cannot, so the name was looked up first and written second. Another writer at the same moment may
        have lost its object, or replaced this one. None: not done yet, or overwriting was allowed.
        """
        found = [job.end.exclusive for job in self._jobs()]
        return None if not found or None in found else all(found)

    def notes(self) -> list[str] | None:
        """What is to be said of uploads that are done all the same (see `Attempt.looks_first`); None while one is not final."""
        jobs = self._jobs()
        if not all(job.state.is_final for job in jobs):
            return None
        return [job.error for job in jobs if job.state is JobState.DONE and job.error]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the upload is verified in the store. True: it is, and the local file is no longer needed. False: it is not
        yet after `timeout_s` seconds, and goes on in the background. With `None` it waits as long as it takes.

        Raises UploadFailed as result() does.
        """
        return self._made is not None or self._stored(timeout_s) is not None

    def result(self, timeout_s: float | None = None) -> ObjectMeta:
        """Wait, and describe the verified object; of a folder the sum of its files.

        For a superseded upload it is the object of the newer version. Raises UploadFailed, which flush() and close() then do not
        raise again for it, and which is an AlreadyExistsError, too, if the name was taken; TimeoutError after `timeout_s`.
        """
        if self._made is not None:
            return self._made
        if (jobs := self._stored(timeout_s)) is None:
            raise TimeoutError(f"{self.uri} is not uploaded after {timeout_s} s; it goes on in the background")
        if len(jobs) == 1:
            return ObjectMeta(
                jobs[0].key, jobs[0].size_bytes, etag=jobs[0].end.etag, crc32c=jobs[0].crc32c, modified_s=jobs[0].end.finished_s
            )
        return ObjectMeta(self.uri, sum(job.size_bytes for job in jobs))

    def _stored(self, timeout_s: float | None) -> list[Job] | None:
        """Wait for the jobs, or for those that superseded them, and return them; None if time is up. Raises UploadFailed."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        jobs: list[Job] = []
        pending: Sequence[JobId] = self.ids
        while pending:  # a job may be superseded while we wait for it
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not self._wait(pending, left_s):
                return None
            jobs = self._jobs()
            pending = [job.id for job in jobs if not job.state.is_final]
        if len(jobs) < len(self.ids) or any(job.state is JobState.SUPERSEDED for job in jobs):
            why = "the journal does not know it: it was damaged and put aside (see quarantine in the spool), or a week has passed"
            raise UploadFailed([JobFailure(self.ids[0], self.uri, 0, why, "JournalError")])
        if bad := [job for job in jobs if job.state is not JobState.DONE]:
            self._journal.uploads.mark_reported([job.id for job in bad])
            failures = (JobFailure(job.id, job.uri, job.attempts, job.error or "it was discarded", job.error_kind) for job in bad)
            raise upload_failed(list(failures))
        return jobs
