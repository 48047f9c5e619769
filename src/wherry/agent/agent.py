"""The agent: one process a spool, which keeps workers alive while there is work, and outlives the training process.

It holds the spool's lock, receives the messages of sessions, passes secrets on to workers from memory, takes the leases of
dead workers away, and leaves when nobody needs it. It is single-threaded and imports no vendor library and no torch, so that it
can fork its workers.
"""

from __future__ import annotations

import logging
import select
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from wherry.agent.in_process import living_callers, release_dead_callers
from wherry.agent.open_stores import Stores, by_environment
from wherry.agent.trial_notes import Trials
from wherry.agent.wakeup import Listener
from wherry.agent.worker import Worker
from wherry.agent.worker_pool import WorkerPool
from wherry.clock import Clock
from wherry.config import AgentConfig
from wherry.errors import JournalError
from wherry.posix.priority import give_way
from wherry.spool.abandoned_uploads import stores_with_known_uploads
from wherry.spool.download_notes import download_folders
from wherry.spool.journal.database import JournalDamaged
from wherry.spool.journal.jobs import LEASE_S, JobId
from wherry.spool.journal.journal import retry_until_written
from wherry.spool.journal.queries import StoreRecord, secrets_here
from wherry.spool.leftovers import sweep
from wherry.spool.presence import living_sessions
from wherry.spool.recovery import open_journal, remove_unneeded_reserve
from wherry.spool.spool import Spool
from wherry.transfer.resume import clean_stale_downloads

log = logging.getLogger("wherry.agent.agent")
_T = TypeVar("_T")

#: Without sessions and without work: long enough for the next of a row of short commands.
_IDLE_EXIT_S = 2.0
#: Housekeeping: sessions that died, leases that expired. Messages and deaths of workers are events and come at once.
_LOOK_AROUND_S = 5.0
#: What messages ask for beyond waking the workers is done this often at most.
_ROUND_S = 0.02
#: For fewer missing parts than this it does not pay to start another worker.
_PARTS_TO_SHARE = 4
#: How often the time that passes is written down, by which deadlines are measured.
_KEEP_BOOKS_S = 1.0
#: An agent starts with everybody's priority: to load its libraries takes long beside a training that uses every core.
_START_S = 3.0
_FULL_DISK_WAIT_S = 30.0
#: It does not leave before what was given up is aborted in the store, if that succeeds; else the next agent does it.
_CLEANING_S = 30.0
#: A wait that ends this much too late means that the process was stopped meanwhile.
_STOPPED_S = 15.0


class Agent:
    """The agent's loop. Its workers are forked from it and share its lock, which is free only when all of them are gone."""

    def __init__(self, spool: Spool, config: AgentConfig, *, stay: bool, environ: Mapping[str, str], clock: Clock | None) -> None:
        self._spool = spool
        self._config = config
        self._stay = stay
        self._environ = environ
        self._journal = open_journal(spool, checkpoints=True, thorough=True, clock=clock)
        self._listener = Listener(spool.inside("bell"))
        self._stores = Stores()
        self._workers = WorkerPool(config.n_workers, self._be_worker)
        #: When time was counted and old jobs were forgotten; until when nobody's lease is judged.
        self._kept_s = 0.0
        self._lenient_until_s = 0.0
        #: When the last wait ended, and when all workers were woken.
        self._waited_s = 0.0
        self._woken_s = 0.0
        self._has_woken_one = False
        self._stopping = False
        #: Jobs to be given up when the worker that has them is dead; until when the agent stays to clean up after them.
        self._given_up: dict[str, set[JobId]] = {}
        self._cleans_until_s = 0.0
        self._signal_read, self._signal_write = socket.socketpair()
        for end in (self._signal_read, self._signal_write):
            end.setblocking(False)

    def run(self) -> int:
        """Work until nobody needs the agent, or SIGTERM or SIGINT come."""
        signal.set_wakeup_fd(self._signal_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm warns all processes of a job with it, and now is the time to send
        self._recover()
        log.info("agent of %s is up", self._spool.folder)
        alone_since_s: float | None = None
        gives_way_s: float | None = time.monotonic() + _START_S
        try:
            while not self._stopping:
                if gives_way_s is not None and time.monotonic() >= gives_way_s:
                    give_way(self._config.nice, self._workers.pids(), idle_io=self._config.idle_io)  # training goes first
                    gives_way_s = None
                self._keep_books()
                self._journal.shorten_log()
                due, next_s = self._scale()
                self._wake_the_others()
                sessions = living_sessions(self._spool)
                # Jobs that nobody here can do are no reason to stay: their secrets are missing, or the receipts of ranks whose
                # programs have ended. On other nodes there may be some: then their agents commit the set.
                sending = bool(self._workers) and self._workers.names() & self._journal.work.lease_owners()
                now_s = time.monotonic()
                work = due > 0 or next_s is not None or bool(sending)
                work = work and (bool(sessions) or not self._journal.overview.left_to_others(sessions))
                work = work or (now_s < self._cleans_until_s and bool(stores_with_known_uploads(self._journal)))
                alone_since_s = None if sessions or self._stay else (alone_since_s if alone_since_s is not None else now_s)
                timeout_s = _LOOK_AROUND_S if gives_way_s is None else max(0.01, gives_way_s - now_s)
                if next_s is not None:
                    timeout_s = min(timeout_s, max(0.01, next_s - self._journal.work.now_s()))
                if alone_since_s is not None:
                    leave_s = alone_since_s + (self._config.linger_s if work else _IDLE_EXIT_S)
                    if now_s >= leave_s and self._leave(abandon=work):
                        return 0
                    timeout_s = min(timeout_s, max(0.01, leave_s - now_s))
                self._wait(timeout_s)
        finally:
            self._end()
        return 0

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _recover(self) -> None:
        """Take over from an agent that may have been killed: no worker of it lives any more, for we have the lock."""
        queued, _ = self._insist(lambda: self._journal.work.release(keep=living_callers(self._spool))) or (0, [])
        n_removed = sweep(self._spool, self._journal)
        for left in self._spool.inside("scratch").glob("verify-*"):
            left.unlink(missing_ok=True)
        self._note(self._journal.work.resume)  # whoever starts an agent may have mended what was wrong
        for folder in download_folders(self._spool):
            clean_stale_downloads(folder)
        trials = {store_id for _, store_id, _ in Trials(self._spool.inside("trials")).left()}
        self._see_to_workers(stores_with_known_uploads(self._journal) | trials)  # which clean them away before they leave
        if queued or n_removed:
            log.info("recovered: jobs queued again: %d, files that no job needs removed: %d", queued, n_removed)

    def _scale(self) -> tuple[int, float | None]:
        """Keep workers for the jobs that are due, in the environment of their stores: as `ready()`, of all usable stores."""
        n_due, later = 0, []
        for environment, store_ids in by_environment(self._stores, self._usable()).items():
            due, next_s = self._journal.work.ready(with_stores=store_ids)
            # A large file is sent by all workers together.
            is_large = self._journal.parts.missing(store_ids) >= _PARTS_TO_SHARE
            self._workers.scale(self._config.n_workers if is_large else due, self._greeting, environment)
            n_due += due
            later += [] if next_s is None else [next_s]
        return n_due, min(later, default=None)

    def _see_to_workers(self, store_ids: Collection[int]) -> None:
        """Start a worker for each environment of these stores that has none. Unknown ids are passed over."""
        records = self._journal.queries.stores() if store_ids else {}
        for environment in by_environment(self._stores, {each: records[each] for each in store_ids if each in records}):
            self._workers.scale(1, self._greeting, environment)

    def _usable(self) -> dict[int, StoreRecord]:
        """The stores whose secrets are known here, or that need none. The journal is told which are not."""
        records = self._journal.queries.stores()
        if (locked := self._stores.locked(records)) and self._environ:
            self._learn(secrets_here((records[store_id] for store_id in locked), self._environ))
            locked = self._stores.locked(records)
        if locked != {record.id for record in records.values() if record.is_locked}:
            self._note(lambda: self._journal.work.note_locked(locked))
        return {store_id: record for store_id, record in records.items() if store_id not in locked}

    def _keep_books(self) -> None:
        """Count the time while there is something to count it for, and forget what was finished long ago."""
        if (now_s := time.monotonic()) - self._kept_s >= _KEEP_BOOKS_S:
            self._kept_s = now_s
            if self._journal.queries.unfinished():
                self._note(self._journal.work.count_time)
            self._note(self._journal.work.prune)

    def _note(self, write: Callable[[], object]) -> None:
        """Write what can wait: the agent goes on when its disk is full, and tries again later."""
        try:
            write()
        except JournalDamaged:
            raise
        except JournalError as error:
            log.warning("%s", error)
            self._kept_s = time.monotonic() + _FULL_DISK_WAIT_S

    def _insist(self, write: Callable[[], _T]) -> _T | None:
        """Write what must not be lost, trying until the journal's disk has room. None: this process is asked to end meanwhile."""
        try:
            return None if self._stopping else retry_until_written(write, self._pause)
        except InterruptedError:
            return None

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # not until a signal: that of a worker's end, which _wait() is to see, would end all waits at once
        if self._stopping:
            raise InterruptedError

    def _leave(self, *, abandon: bool) -> bool:
        """Stop listening, then look once more: whoever calls from now on starts the next agent. False: we are needed after all.

        With `abandon` the work that is left stays in the journal.
        """
        self._listener.close()
        due, _ = self._journal.work.ready(with_stores=self._usable())
        if (due and not abandon) or living_sessions(self._spool):
            self._listener = Listener(self._spool.inside("bell"))
            return False
        return True

    def _greeting(self) -> dict[str, object]:
        """The first message to a worker: all secrets that are known. Later ones bring what is new."""
        known = {str(store_id): dict(options) for store_id, options in self._stores.known().items()}
        return {"is_first": True, "secrets": known}

    def _be_worker(self, name: str, channel: socket.socket) -> None:
        """In a worker's process."""
        self._listener.close_inherited()
        self._signal_read.close()
        self._signal_write.close()
        Worker(self._spool, self._journal, channel, name, self._config).run()

    def _wait(self, timeout_s: float) -> None:
        """Wait for a signal, a message or `timeout_s`, and look after sessions and workers.

        Messages are passed on at once. While there are workers, which look for jobs themselves, not each message ends the wait.
        """
        started_s = time.monotonic()
        until_s, not_before_s = started_s + timeout_s, self._waited_s + _ROUND_S
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            ready, _, _ = select.select([self._listener.fileno(), self._signal_read.fileno()], [], [], left_s)
            if self._listener.fileno() in ready:
                self._on_messages(self._listener.receive())
            if self._signal_read.fileno() in ready:
                self._signal_read.recv(2**16)  # one byte each; if there are more, the next wait ends at once
                break
            if not ready or not self._workers or time.monotonic() >= not_before_s:
                break
            until_s = min(until_s, not_before_s)
        self._waited_s = time.monotonic()
        self._reap()
        self._insist(lambda: release_dead_callers(self._spool, self._journal))
        now_s = time.monotonic()
        if now_s - started_s - timeout_s > _STOPPED_S:
            # This process was stopped, or its machine: so were its workers, which need their time to renew their leases.
            self._lenient_until_s = now_s + LEASE_S
        for name in self._journal.work.expired() if now_s >= self._lenient_until_s else ():
            self._workers.kill(name, "does not renew its leases")

    def _on_messages(self, messages: list[dict[str, object]]) -> None:
        """Do, or pass on, what messages carry: {"secrets": {store id: options}, "warm": [store ids], "let_go": [job ids]}."""
        news: dict[int, Mapping[str, object]] = {}
        warm: list[object] = []
        for carried in messages:
            secrets = carried.get("secrets")
            if isinstance(secrets, dict):
                news.update({int(store_id): options for store_id, options in secrets.items()})
            wanted = carried.get("warm")
            if isinstance(wanted, list):
                warm += wanted
            given_up = carried.get("let_go")
            if isinstance(given_up, list):
                self._let_go(given_up)
        self._learn(news, warm)

    def _let_go(self, ids: Sequence[JobId]) -> None:
        """Kill the workers that are sending these jobs: nothing else ends a call that a silent server does not answer."""
        for name, theirs in self._journal.work.workers_on(ids).items():
            if name in self._workers.names():
                self._given_up.setdefault(name, set()).update(theirs)
                self._workers.kill(name, f"is sending {', '.join(f'job {job_id}' for job_id in theirs)}, which is given up")

    def _learn(self, secrets: Mapping[int, Mapping[str, object]], warm: Sequence[object] = ()) -> None:
        """Take secrets in, and wake the workers, with what of it is new. Jobs that waited for new ones are tried at once."""
        news = {store_id: options for store_id, options in secrets.items() if self._stores.learn(store_id, options)}
        message: dict[str, object] = {}
        if news:
            message["secrets"] = {str(store_id): dict(options) for store_id, options in news.items()}
            self._note(lambda: self._journal.work.resume(news))  # before the workers look
        if warm:
            self._see_to_workers([store_id for store_id in warm if isinstance(store_id, int)])
            message["warm"] = list(warm)
        if not message and time.monotonic() < self._woken_s + _ROUND_S:
            self._workers.send_one(message)  # in a burst: the others are woken soon
            self._has_woken_one = True
            return
        self._woken_s = time.monotonic()
        self._workers.send_all(message)

    def _wake_the_others(self) -> None:
        """Wake all workers if only one was: the message may be for another, whose file's last parts a helper has sent."""
        if self._has_woken_one:
            self._workers.send_all({})
        self._has_woken_one = False

    def _reap(self) -> None:
        """Queue the jobs of workers that have died."""
        for name, cause in self._workers.reap():
            if given_up := self._given_up.pop(name, set()):
                give_up = partial(self._journal.uploads.give_up, sorted(given_up), of_dead=name)
                self._spool.free((self._insist(give_up) or (0, []))[1])
                self._see_to_workers(stores_with_known_uploads(self._journal))  # which abort what was begun of them
                self._cleans_until_s = time.monotonic() + _CLEANING_S
            release = partial(self._journal.work.release, name, blames=not given_up)
            queued, doomed = self._insist(release) or (0, [])
            log.warning("worker %s died (%s): jobs queued again: %d, given up: %d", name, cause, queued, len(doomed))
            self._workers.send_all({})  # the parts that it was sending for the others are missing again

    def _end(self) -> None:
        for name in self._workers.kill_all():
            self._note(partial(self._journal.work.release, name))  # else the next agent does it
        remove_unneeded_reserve(self._spool, self._journal)
        self._listener.close()
        self._journal.close()
        signal.set_wakeup_fd(-1)
        self._signal_read.close()
        self._signal_write.close()
        log.info("agent of %s has left", self._spool.folder)
