"""One worker: leases jobs, sends them, says how it went. Many at once, for small files wait for answers.

The main thread leases and keeps the leases alive; jobs run in threads; the pieces of large ones in a second pool, so
that no job waits for a thread that another job holds. A worker keeps no state that matters: killed at any instant, its
leases go back to the queue.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import select
import socket
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from wherry.agent.open_stores import OpenStore, Stores
from wherry.agent.wakeup import ring
from wherry.config import AgentConfig
from wherry.errors import BucketNotFoundError, NotFoundError, StoreError, TransientError, UploadFailed, WherryError, kind_of
from wherry.posix.thread_pool import DaemonThreadPool
from wherry.spool.abandoned_uploads import clean_known_uploads
from wherry.spool.journal.jobs import LEASE_S, Job, JobId, JobKind, JobState
from wherry.spool.journal.journal import Journal, retry_until_written
from wherry.spool.journal.queries import StoreRecord
from wherry.spool.journal.work import SUSPECT_AFTER, TRY_AGAIN_S
from wherry.spool.leftovers import sweep
from wherry.spool.presence import dead_sessions, forget, living_sessions
from wherry.spool.spool import Spool
from wherry.store import ObjectStore
from wherry.store.retry import job_wait_s
from wherry.transfer.upload import POOL_THREADS, Sender

log = logging.getLogger("wherry.agent.worker")

#: How long a stored object that must not have replaced another waits for the end of its server's trial, to say whether it can.
_TRIAL_S = 5.0
_RENEW_S = 15.0
#: Before a job's last try: its deadline, which is counted less often, has passed by then.
_LEAST_LAST_WAIT_S = 1.0
#: How often a job looks again for the objects that it requires.
_REQUIREMENT_WAIT_S = 2.0
#: Before the name of a client that does its work itself: so it leases jobs, and so nobody takes it for an agent's worker.
_CALLER = "caller:"


@dataclass
class Performer:
    """Carries out one leased job at a time in each thread that calls perform()."""

    spool: Spool
    journal: Journal
    stores: Stores
    worker: str
    sender: Sender
    #: It works in a process that is not its own.
    in_caller: bool = False
    records: dict[int, StoreRecord] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

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

    def perform(self, job: Job) -> None:
        """Carry a job out and write down how it ended. Raises nothing but a damaged journal."""
        opened: OpenStore | None = None
        n_learned = self.stores.n_learned(job.store_id)
        try:
            opened = self.stores.open(self.record(job.store_id))
            if job.kind is JobKind.CHECK:
                check(job, opened)
                etag = None
            else:
                self._require(job, opened)
                learn = functools.partial(self.stores.learn_endpoint, job.store_id, opened, job.key)
                trial = None if self.in_caller else learn()
                path = self.spool.staged_path(job.object_id)
                # A store that links a frozen file lets others write to it, which must not reach another job's bytes.
                frozen = not self.journal.queries.is_shared(job.object_id)
                on_retry = functools.partial(opened.on_retry, job.key)
                meta = self.sender.send(
                    job, path, opened.store, opened.transfer, retry=opened.retry, on_retry=on_retry, frozen=frozen
                )
                etag = meta.etag
                if self.in_caller:  # a thread could outlive the caller's Uploader, and the folder that it has open
                    learn(aside=False)
                elif trial is not None and not job.overwrite:  # the condition was sent: is it one that the server keeps?
                    trial.join(_TRIAL_S)
            exclusive = None if job.overwrite else _decides_races(opened, job)
            retry_until_written(lambda: self.spool.free(self.journal.work.ack(job.id, self.worker, etag, exclusive=exclusive)))
        except NotReadyError as error:
            self._again(job, error, wait_s=_REQUIREMENT_WAIT_S, counts=False)
        except StoreError as error:
            if error.waits_for is not None and job.kind is JobKind.PUT:
                if n_learned != self.stores.n_learned(job.store_id):  # newer secrets came meanwhile
                    self._again(job, error, wait_s=0.0)
                else:
                    self._put_off(job, error, error.waits_for)
            elif not isinstance(error, TransientError):
                self._fail(job, error)
            else:
                retry = opened.retry if opened is not None else None
                self._again(job, error, wait_s=job_wait_s(job.attempts, retry) if retry is not None else LEASE_S)
        except FileNotFoundError:
            self._fail(job, WherryError(f"its staged file {job.object_id} is gone from the spool"))
        except (WherryError, OSError) as error:
            self._fail(job, error)
        except Exception as error:  # the process boundary: whatever it is, this job has it and the others go on
            log.error("job %d failed in an unexpected way:\n%s", job.id, self.stores.scrub(traceback.format_exc()))
            self._fail(job, error)
        self._ring_clients()

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

    def _again(self, job: Job, error: StoreError, *, wait_s: float, counts: bool = True) -> None:
        if self._is_over(job, error, wait_s if job.kind is JobKind.CHECK else 0.0):  # who asked for a check waits for it
            return
        wait_s = min(wait_s, self._last_try_in_s(job))
        text = self._text(error)
        if counts:
            log.warning("job %d (%s), attempt %d: %s; again in %.1f s", job.id, job.uri, job.attempts, text, wait_s)
        requeue = partial(
            self.journal.work.requeue, job.id, self.worker, wait_s=wait_s, error=text, kind=kind_of(error), counts=counts
        )
        retry_until_written(requeue)

    def _put_off(self, job: Job, error: StoreError, waits_for: str) -> None:
        """The job waits for an operator; so do all others of its store but one at a time, which find out whether it is over."""
        if self._is_over(job, error):
            return
        wait_s = min(TRY_AGAIN_S, self._last_try_in_s(job))
        text = self._text(error)
        log.warning("job %d (%s) waits for an operator (%s): %s", job.id, job.uri, waits_for, text)
        retry_until_written(lambda: self.journal.work.put_off(job.id, self.worker, waits_for, text, kind_of(error), wait_s))

    def _last_try_in_s(self, job: Job) -> float:
        """A job waits at most until its deadline, and is tried then once more."""
        return max(_LEAST_LAST_WAIT_S, self.journal.work.time_left_s(job)[0])

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
        return self.stores.scrub(text)

    def _ring_clients(self) -> None:
        for bell in self.spool.inside("clients").glob("*.bell"):
            if not ring(bell):
                bell.unlink(missing_ok=True)

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
            ring(self.spool.inside("bell"))  # the last ones: its own worker waits for them

    def clean(self) -> None:
        """Abort the uploads in parts that nobody is going to complete, and remove what killed trials of servers have left.

        As far as this process can open their stores.
        """
        for store_id in self.usable_stores():
            with suppress(StoreError, OSError):  # the next worker tries again
                clean_known_uploads(self.journal, store_id, self._opened_store)
                self.stores.clean_trials(self.record(store_id))

    def _opened_store(self, store_id: int) -> ObjectStore:
        return self.stores.open(self.record(store_id)).store


def _decides_races(opened: OpenStore, job: Job) -> bool:
    capabilities = opened.store.capabilities
    return capabilities.conditional_complete if job.part_size_bytes is not None else capabilities.conditional_put


class NotReadyError(TransientError):
    """An object that the job requires is not there yet. Waiting for it is no failed attempt."""


def check(job: Job, opened: OpenStore) -> None:
    """Find out whether the store lets us in, by asking for an object that is not there."""
    with suppress(NotFoundError):
        try:
            opened.store.head(job.key)
        except BucketNotFoundError as error:
            raise StoreError(error.message, operation="check", uri=error.uri, hint=error.hint) from error


class Worker:
    """The loop of one worker process. `agent` is its end of a socket pair: rings and secrets come in, nothing goes out."""

    def __init__(self, spool: Spool, journal: Journal, agent: socket.socket, name: str, config: AgentConfig) -> None:
        self._agent = agent
        self._config = config
        self._name = name
        self._journal = journal
        self._stores = Stores(spool.inside("endpoints.json"), journal.work.note_error)
        self._jobs = ThreadPoolExecutor(config.jobs_in_flight, thread_name_prefix="job")
        self._pieces = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="piece")
        self._sender = Sender(
            journal,
            self._pieces,
            worker=name,
            n_workers=config.n_workers,
            call_help=lambda: ring(spool.inside("bell")),
        )
        self._performer = Performer(spool, journal, self._stores, name, self._sender)
        self._running: set[Future[None]] = set()
        #: Parts of other workers' jobs that are being sent.
        self._helping: set[Future[None]] = set()
        self._has_suspect = False
        #: Whether it has looked for what is to be cleaned since its last job.
        self._has_cleaned = False
        self._finished_ear, self._finished_mouth = socket.socketpair()
        self._finished_ear.setblocking(False)
        self._renewed_s = time.monotonic()

    def run(self) -> None:
        """Work until there is nothing to do for `worker_idle_s`, or the agent is gone."""
        idle_since_s = time.monotonic()
        usable = self._performer.usable_stores()
        while True:
            looked_s = self._journal.work.now_s()
            while len(self._running) < self._config.jobs_in_flight and not self._has_suspect:
                looked_s = self._journal.work.now_s()  # what becomes due after this is seen by ready()
                is_alone = not (self._running or self._helping)
                lease = partial(self._journal.work.lease, with_stores=usable, with_suspects=is_alone, now=looked_s)
                # On a full disk it waits: its jobs, and those of others, go on and make room.
                job = retry_until_written(partial(lease, self._name, LEASE_S))
                if job is None:
                    break
                self._has_suspect = job.schedule.leases_lost >= SUSPECT_AFTER
                self._start(job)
            if not self._has_suspect:
                self._help(usable)
            now_s = time.monotonic()
            if self._running or self._helping:
                idle_since_s = now_s
                timeout_s = _RENEW_S
            else:
                timeout_s = idle_since_s + self._config.worker_idle_s - now_s
                if not self._has_cleaned:  # now, as the agent may leave before this worker does
                    self._has_cleaned = True
                    self._note_end(self._running, self._jobs.submit(self._performer.clean))
                    timeout_s = _RENEW_S
                elif timeout_s <= 0:
                    self._performer.clean()
                    return
            if len(self._running) < self._config.jobs_in_flight and not self._has_suspect:
                _, next_s = self._journal.work.ready(now=looked_s, with_stores=usable)
                if next_s is not None:
                    timeout_s = min(timeout_s, max(0.0, next_s - self._journal.work.now_s()) + 0.01)
            if not self._wait(timeout_s):
                return
            usable = self._performer.usable_stores()
            if (self._running or self._helping) and time.monotonic() - self._renewed_s >= _RENEW_S:
                retry_until_written(partial(self._journal.work.renew, self._name, LEASE_S))
                self._renewed_s = time.monotonic()

    def _start(self, job: Job) -> None:
        self._has_cleaned = False
        self._note_end(self._running, self._jobs.submit(self._performer.perform, job))

    def _note_end(self, kept: set[Future[None]], future: Future[None]) -> None:
        """Keep what a thread does among those under way, and look again when it ends."""
        kept.add(future)
        future.add_done_callback(lambda _: self._finished_mouth.send(b"."))

    def _help(self, usable: set[int]) -> None:
        """Take parts of other workers' jobs, as many at once as those do, when no job of our own is ready."""
        most = max((self._performer.parts_in_flight(store_id) for store_id in usable), default=0) // self._config.n_workers
        while len(self._running) + len(self._helping) < max(1, most):
            lease = partial(self._journal.parts.lease_any, with_stores=usable, most_lost=SUSPECT_AFTER - 1)
            taken = retry_until_written(partial(lease, self._name, LEASE_S))
            if taken is None:
                return
            self._note_end(self._helping, self._pieces.submit(self._performer.perform_part, *taken))

    def _wait(self, timeout_s: float) -> bool:
        """Wait for a ring, a finished job or the time. False: the agent is gone, and so must we be."""
        ready, _, _ = select.select([self._agent, self._finished_ear], [], [], timeout_s)
        if self._finished_ear in ready:
            with suppress(BlockingIOError):
                while self._finished_ear.recv(4096):
                    pass
        for future in [future for future in self._running if future.done()]:
            self._running.discard(future)
            self._has_suspect = False  # it ran alone, so it was the one that ended
            future.result()
        for future in [future for future in self._helping if future.done()]:
            self._helping.discard(future)
            future.result()
        if self._agent in ready:
            try:
                message = self._agent.recv(200_000)
            except ConnectionResetError:
                return False
            if not message:
                return False
            self._hear(json.loads(message))
        return True

    def _hear(self, message: dict[str, object]) -> None:
        """Take in what the agent says: {"secrets": {store id: options}, "warm": [store ids], "hired": True}. It passes on every
        ring; the first message of all comes with the hire, and is no news.
        """
        self._sender.hear()
        secrets = message.get("secrets")
        if isinstance(secrets, dict):
            news = [int(store_id) for store_id, options in secrets.items() if self._stores.learn(int(store_id), options)]
            if news and "hired" not in message:  # what failed with the older ones while these were on their way
                retry_until_written(lambda: self._journal.work.resume(news))
        warm = message.get("warm")
        if isinstance(warm, list):
            for store_id in warm:
                with suppress(KeyError):  # it was registered in a journal that is damaged and put aside; its jobs bring it along
                    self._warm(int(store_id))

    def _warm(self, store_id: int) -> None:
        """Load the backend and open the store before its first job comes, so that its first byte leaves early."""
        record = self._performer.record(store_id)
        if record.id not in self._stores.unusable({record.id: record}):
            self._jobs.submit(self._open_quietly, record)

    def _open_quietly(self, record: StoreRecord) -> None:
        try:
            self._stores.open(record)
        except Exception as error:  # the first job that needs the store reports it
            log.info("store %s is not ready: %s", record.id, self._stores.scrub(str(error)))


class Caller:
    """An agent's work, done in the calling thread. Of no use after a fork: the threads of its pool are not there any more."""

    def __init__(self, spool: Spool, journal: Journal, stores: Stores, client: str) -> None:
        self._pieces = DaemonThreadPool(POOL_THREADS, "wherry")  # the work may be left to the end of the interpreter
        name = f"{_CALLER}{client}"
        sender = Sender(journal, self._pieces, worker=name)
        self._performer = Performer(spool, journal, stores, name, sender, in_caller=True)
        self._release_dead()

    def work(self) -> float:
        """Carry out the next job and return 0, or return in how many seconds, at most one, there may be another."""
        performer = self._performer
        usable = performer.usable_stores()
        retry_until_written(performer.journal.work.count_time)
        looked_s = performer.journal.work.now_s()
        # It cannot renew its leases while it works: they last until it is seen to be dead.
        job = performer.journal.work.lease(performer.worker, 86_400.0, with_stores=usable, now=looked_s)
        if job is not None:
            try:
                performer.perform(job)
            except BaseException:  # Ctrl-C: the job is accepted and stays so
                performer.journal.work.requeue(job.id, performer.worker, wait_s=0.0, error="interrupted", counts=False)
                raise
            return 0.0
        if self._release_dead():
            return 0.0
        _, next_s = performer.journal.work.ready(now=looked_s, with_stores=usable)
        return 1.0 if next_s is None else min(1.0, max(0.0, next_s - performer.journal.work.now_s()))

    def _release_dead(self) -> bool:
        spool, journal = self._performer.spool, self._performer.journal
        return release_dead_callers(spool, journal) or _release_dead_workers(spool, journal)

    def close(self) -> None:
        """End its threads."""
        self._pieces.shutdown()


def living_callers(spool: Spool) -> list[str]:
    """The names under which living callers lease jobs."""
    return [f"{_CALLER}{client}" for client in living_sessions(spool)]


def release_dead_callers(spool: Spool, journal: Journal) -> bool:
    """Queue what callers were sending when they died; whether there was anything. Clear up after all clients that died."""
    died = dead_sessions(spool)
    callers = {name for name in journal.work.lease_owners() if name.startswith(_CALLER)}
    dead = callers.difference(living_callers(spool)) if callers else set()
    for name in dead:
        journal.work.release(name)
    if died:
        sweep(spool, journal)
        for client in died:
            forget(spool, client)
    return bool(dead)


def _release_dead_workers(spool: Spool, journal: Journal) -> bool:
    """The same for the workers of an agent that is gone, in a spool that may never see another."""
    workers = {name for name in journal.work.lease_owners() if not name.startswith(_CALLER)}
    if workers and (lock := spool.try_lock("agent.lock")) is not None:  # held, so that no agent starts meanwhile
        try:
            journal.work.release(keep=living_callers(spool))
            return True
        finally:
            os.close(lock)
    return False
