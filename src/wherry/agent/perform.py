"""Carries out one leased job: opens its store, sends its file, and writes the result into the journal.

What only the jobs of checkpoint sets need is imported by the first of them: an agent without sets starts sooner.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.agent.not_ready import NotReadyError
from wherry.agent.open_stores import OpenStore, Stores
from wherry.agent.wakeup import notify
from wherry.errors import BucketNotFoundError, NotFoundError, StoreError, TransientError, UploadFailed, WherryError, kind_of
from wherry.redact import redact
from wherry.spool.abandoned_uploads import clean_known_uploads
from wherry.spool.journal.jobs import LEASE_S, Job, JobId, JobKind, JobState, WaitsFor
from wherry.spool.journal.journal import Journal, retry_until_written
from wherry.spool.journal.queries import StoreRecord
from wherry.spool.journal.tokens import ANOTHER_PROCESS, ANOTHER_RUN, is_of_another_attempt, is_of_another_run
from wherry.spool.journal.work import TRY_AGAIN_S, Ack, Leased
from wherry.spool.spool import HELD_BYTES, Spool
from wherry.store import ObjectStore
from wherry.store.retry import NotVerifiedError, job_wait_s
from wherry.transfer.upload import Sender

if TYPE_CHECKING:
    from wherry.agent.comparing import Comparing

log = logging.getLogger("wherry.agent.worker")

#: How long a stored object that must not have replaced another waits for the end of its server's trial, to say whether it can.
_TRIAL_S = 5.0
#: Larger files are sent by threads: their bytes cost more than handing Python's lock over.
_MANY_BYTES = 256 * 1024
#: A job is written so often before it is given up as one that the store does not keep as it was sent.
_WRITES = 3
#: Before a job's last try: its deadline, which is counted less often, has passed by then.
_LEAST_LAST_WAIT_S = 1.0


@dataclass
class Performer:
    """Carries out one leased job at a time in each thread that calls perform()."""

    spool: Spool
    journal: Journal
    stores: Stores
    worker: str
    sender: Sender
    #: Whether it works in the process of the session, and not in a worker.
    in_caller: bool = False
    #: Is told of each job that is done, to write it down with others; None: it is written at once.
    ack: Callable[[Ack], object] | None = None
    #: Makes a call of the journal's while no other job is begun (see Crew); None: just makes it.
    paused: Callable[[Callable[[], list[str]]], list[str]] | None = None
    records: dict[int, StoreRecord] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    comparing: Comparing | None = None

    def record(self, store_id: int) -> StoreRecord:
        """The journal's record of a store."""
        with self.lock:
            if store_id not in self.records:
                self.records = self.journal.queries.stores()
            return self.records[store_id]

    def parts_in_flight(self, store_id: int) -> int:
        """Of one file in that store, all workers together."""
        return int(self.record(store_id).settings["transfer"]["parts_in_flight"])

    def usable_stores(self) -> set[int]:
        """The stores that this process can open. A store that is registered later is not among them until it is looked again."""
        with self.lock:
            self.records = self.journal.queries.stores()
            return set(self.records) - self.stores.unusable(self.records)

    def perform(self, job: Job, *, is_plain: bool = False) -> None:
        """Carry a job out and write down how it ended. Raises nothing but a damaged journal. `is_plain`: as of `Leased`."""
        opened: OpenStore | None = None
        secrets = self.stores.known().get(job.store_id)
        try:
            opened = self.stores.open(self.record(job.store_id))
            self._done(job, opened, *self._carry_out(job, opened, is_plain=is_plain))
            return
        except NotReadyError as error:
            self._again(job, error, wait_s=error.look_again_s, counts=False)
        except StoreError as error:
            if error.waits_for is not None and job.kind is not JobKind.CHECK:
                if secrets is not self.stores.known().get(job.store_id):  # newer ones came meanwhile, which it has not tried
                    self._again(job, error, wait_s=0.0)
                else:
                    self._again(job, error, wait_s=TRY_AGAIN_S, waits_for=WaitsFor(error.waits_for))
            elif not (isinstance(error, TransientError) or (isinstance(error, NotVerifiedError) and job.attempts < _WRITES)):
                self._fail(job, error)
            else:
                retry = opened.retry if opened is not None else None
                self._again(job, error, wait_s=job_wait_s(job.attempts, retry) if retry is not None else LEASE_S)
        except FileNotFoundError:
            self._fail(job, WherryError(f"its staged file {job.object_id} is gone from the spool"))
        except (WherryError, OSError) as error:
            self._fail(job, error)
        except Exception as error:  # the process boundary: whatever it is, this job has it and the others go on
            log.error("job %d failed in an unexpected way:\n%s", job.id, redact(traceback.format_exc()))
            self._fail(job, error)
        self.notify_sessions()

    def perform_many(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Carry out jobs of one store that `goes_with_others`, all from this thread; returns those that are for perform()."""
        left, cause = {job.id: job for job in jobs}, "the store has taken no more of them at once"
        try:
            opened = self.stores.open(self.record(jobs[0].store_id))
            is_known = self.stores.learn_endpoint(jobs[0].store_id, opened, jobs[0].key) is None
            can = opened.store.capabilities
            if not (is_known and can.puts_at_once > 1 and can.checks_crc32c):
                return jobs
            paths = [self.spool.staged_path(job.object_id) for job in jobs]
            for job, meta in self.sender.send_many(jobs, paths, opened.store):
                self._done(job, opened, meta.etag, None)
                del left[job.id]
        except Exception as error:  # perform() meets it again, and knows what to do
            cause = self._text(error)
        if left:
            log.info("%d of %d small files go one by one: %s", len(left), len(jobs), cause)
        return list(left.values())

    def _done(self, job: Job, opened: OpenStore, etag: str | None, note: str | None) -> None:
        is_free_to_replace = job.overwrite or job.schedule.replaces_earlier
        done = Ack(job.id, etag, None if is_free_to_replace else _decides_races(opened, job), note, job.size_bytes)
        if self.ack is not None:
            self.ack(done)
        else:
            self.write([done])

    def write(self, acks: Sequence[Ack]) -> None:
        """Write down that jobs are done, remove the staged files that nobody needs any more, and wake all sessions."""
        ack = partial(self.journal.work.ack_many, self.worker, acks)
        freed = retry_until_written(ack if self.paused is None else partial(self.paused, ack))
        # The caller may fork, and its child would keep the descriptors.
        is_large = not self.in_caller and any(one.size_bytes >= HELD_BYTES for one in acks)
        held = self.spool.hold_large(freed) if is_large else []
        try:
            self.spool.free(freed)
            self.notify_sessions()
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _carry_out(self, job: Job, opened: OpenStore, *, is_plain: bool) -> tuple[str | None, str | None]:
        """Do what the job is for: (the etag of its object, what the user has to be told)."""
        if job.kind is JobKind.CHECK:
            check(job, opened)
            return None, None
        if job.kind is JobKind.PUT:
            note = self._whose_it_replaces(job, opened.store) if job.schedule.looks_first else None
            return self._send(job, opened, is_plain=is_plain), note
        from wherry.agent.set_jobs import SetPlan, commit_set, wait_before_next_look_s, write_receipt
        from wherry.checkpoints.protocol.commit import IncompleteSetError

        plan = SetPlan.read(self.spool.staged_path(job.object_id))
        if job.kind is JobKind.RECEIPT:
            return write_receipt(plan, self.journal.work.requirements(job.id), opened.store), None
        passed_s = self.journal.work.time_left_s(job)[1]
        try:
            return None, commit_set(plan, passed_s, opened.store)
        except IncompleteSetError as error:
            missing = NotReadyError(error.message, operation=error.operation, uri=error.uri, hint=error.hint)
            missing.look_again_s, missing.kind = wait_before_next_look_s(passed_s), type(error).__name__
            raise missing from error

    def _whose_it_replaces(self, job: Job, store: ObjectStore) -> str | None:
        """What to tell the user if the object was made by another run, or by another process of this run that lives."""
        try:
            found = store.head(job.key).token  # whatever the capabilities say: most local folders keep it
        except TransientError:
            raise
        except StoreError:  # it is not there, or may only be written: the upload itself says what is wrong
            return None
        if is_of_another_run(found, job.token):
            note = ANOTHER_RUN
        # What an earlier attempt has left is its own; but not after this attempt has replaced it once.
        elif is_of_another_attempt(found, job.token) and self.journal.queries.has_done_another(job):
            note = ANOTHER_PROCESS
        else:
            return None
        log.warning("job %d (%s): %s", job.id, job.uri, note)
        return note

    def _send(self, job: Job, opened: OpenStore, *, is_plain: bool) -> str | None:
        """Send the staged file, unless an earlier checkpoint set has its bytes: the object's etag."""
        if not is_plain:
            self._require(job, opened)
        learn = functools.partial(self.stores.learn_endpoint, job.store_id, opened, job.key)
        trial = None if self.in_caller else learn()
        path = self.spool.staged_path(job.object_id)
        if not is_plain and self.journal.comparisons.asked(job.id) is not None:
            job, is_there = self._compared().decided(job, path, opened.store)
            if is_there:
                return None
        # A store that links a frozen file lets others write to it, which must not reach another job's bytes.
        frozen = not (opened.store.can_share(job.key, path) and self.journal.queries.is_shared(job.object_id))
        on_retry = functools.partial(opened.on_retry, job.key)
        meta = self.sender.send(
            job,
            path,
            opened.store,
            opened.transfer,
            retry=opened.retry,
            on_retry=on_retry,
            frozen=frozen,
            bytes_per_s=opened.part_bytes_per_s(),
        )
        if self.in_caller:  # a thread could outlive the caller's Uploader, and the folder that it has open
            learn(aside=False)
        elif trial is not None and not job.overwrite:  # the condition was sent: is it one that the server keeps?
            trial.join(_TRIAL_S)
        return meta.etag

    def _compared(self) -> Comparing:
        from wherry.agent.comparing import Comparing

        with self.lock:
            if self.comparing is None:
                self.comparing = Comparing(self.journal, waits=not self.in_caller)
            return self.comparing

    def _require(self, job: Job, opened: OpenStore) -> None:
        for wanted in self.journal.work.requirements(job.id):
            if wanted.state in (JobState.FAILED, JobState.DISCARDED):
                raise UploadFailed((), remedy=f"{wanted.key}, which it requires, was not uploaded")
            try:
                meta = opened.store.head(wanted.key)
            except BucketNotFoundError:
                raise
            except NotFoundError as error:
                raise NotReadyError(f"it requires {wanted.key}, which is not there yet", operation="put", uri=job.uri) from error
            if None not in (meta.crc32c, wanted.crc32c) and meta.crc32c != wanted.crc32c:
                raise NotReadyError(f"it requires {wanted.key}, which has another checksum", operation="put", uri=job.uri)

    def _again(
        self, job: Job, error: StoreError, *, wait_s: float, counts: bool = True, waits_for: WaitsFor | None = None
    ) -> None:
        """Give the job back. `waits_for`: it waits for an operator, and so do the others of its store, one of which is tried."""
        if self._is_over(job, error, wait_s if job.kind is JobKind.CHECK else 0.0):  # who asked for a check waits for it
            return
        # At most until its deadline: then it has one more try.
        wait_s = min(wait_s, max(_LEAST_LAST_WAIT_S, self.journal.work.time_left_s(job)[0]))
        text = self._text(error)
        kind = error.kind if isinstance(error, NotReadyError) else kind_of(error)
        if waits_for is not None:
            log.warning("job %d (%s) waits for an operator (%s): %s", job.id, job.uri, waits_for.value, text)
        elif counts:
            log.warning("job %d (%s), attempt %d: %s; again in %.1f s", job.id, job.uri, job.attempts, text, wait_s)
        requeue = partial(self.journal.work.requeue, job.id, self.worker, wait_s=wait_s, error=text, kind=kind)
        retry_until_written(partial(requeue, counts=counts, waits_for=waits_for))

    def _is_over(self, job: Job, error: StoreError, wait_s: float = 0.0) -> bool:
        """Whether the job's deadline has passed, or will have after `wait_s`, so that it has failed."""
        retry_until_written(self.journal.work.count_time)
        left_s, passed_s = self.journal.work.time_left_s(job)
        if wait_s < left_s:
            return False
        self._fail(job, error, prefix=f"given up after {passed_s:.0f} s: ")
        return True

    def _fail(self, job: Job, error: Exception, *, prefix: str = "") -> None:
        text = prefix + self._text(error)
        log.error("job %d (%s) failed for good: %s", job.id, job.uri, text)
        retry_until_written(lambda: self.journal.work.fail(job.id, self.worker, text, kind_of(error)))

    def _text(self, error: Exception) -> str:
        text = error.remedy if isinstance(error, UploadFailed) else str(error)
        if not isinstance(error, (WherryError, OSError)):
            text = f"{type(error).__name__}: {text}"
        return redact(text)

    def notify_sessions(self) -> None:
        """Wake all sessions, as some job has ended."""
        with suppress(FileNotFoundError), os.scandir(self.spool.inside("clients")) as entries:
            for entry in entries:
                if entry.name.endswith(".bell"):
                    _ring(Path(entry.path))

    def perform_part(self, job_id: JobId, number: int, crc32c: int | None) -> None:
        """Send a leased part of a job that another worker coordinates. Raises nothing but a damaged journal."""
        job = self.journal.queries.job(job_id)
        try:
            if job is None or job.upload_id is None:
                raise TransientError("the upload in parts was given up meanwhile")
            store = self.stores.open(self.record(job.store_id)).store
            self.sender.send_part(job, self.spool.staged_path(job.object_id), store, number, crc32c)
        except Exception as error:  # the job's own worker sends the part, and reports what is wrong with it
            log.info("part %d of job %d is given back: %s", number, job_id, self._text(error))
            retry_until_written(lambda: self.journal.parts.give_back(job_id, self.worker, number))
        if self.journal.parts.left(job_id)[0] == 0 or job is None:
            notify(self.spool.inside("bell"))  # the last ones: its own worker waits for them

    def clean(self) -> None:
        """Abort the uploads in parts that nobody is going to complete, and remove what killed trials of servers have left.

        As far as this process can open their stores.
        """
        for store_id in self.usable_stores():
            with suppress(StoreError, OSError):  # the next worker tries again
                clean_known_uploads(self.journal, store_id, lambda each: self.stores.open(self.record(each)).store)
                self.stores.clean_trials(self.record(store_id))


def _ring(path: Path) -> None:
    """Wake a session, or remove the bell of one that is gone."""
    try:
        if not notify(path):
            path.unlink(missing_ok=True)
    except OSError as error:  # a folder, or a name too long for a socket: no session has made it
        log.debug("%s is no session's: %s", path.name, error)


def goes_with_others(leased: Leased) -> bool:
    """Whether a job's file is small and its upload needs nothing but a put: perform_many() may send it."""
    job = leased.job
    is_new = job.schedule.leases_lost == 0 and job.upload_id is None and job.error is None
    is_simple = leased.is_plain and job.kind is JobKind.PUT and not (job.schedule.looks_first or job.schedule.replaces_earlier)
    return is_new and is_simple and job.crc32c is not None and job.size_bytes <= _MANY_BYTES


def _decides_races(opened: OpenStore, job: Job) -> bool:
    capabilities = opened.store.capabilities
    return capabilities.conditional_complete if job.part_size_bytes is not None else capabilities.conditional_put


def check(job: Job, opened: OpenStore) -> None:
    """Find out whether the store lets us in, by asking for an object that is not there."""
    with suppress(NotFoundError):
        try:
            opened.store.head(job.key)
        except BucketNotFoundError as error:
            raise StoreError(error.message, operation="check", uri=error.uri, hint=error.hint) from error
