"""A worker process: leases jobs, carries out many at once (small files mostly wait for answers), and reports the results.

The main thread leases and keeps the leases alive; jobs run in threads; the pieces of large ones in a second pool, so
that no job waits for a thread that another job holds. A worker keeps no state that matters: killed at any instant, its
leases go back to the queue.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from wherry.agent.open_stores import Stores
from wherry.agent.perform import Performer
from wherry.agent.wakeup import notify
from wherry.config import AgentConfig
from wherry.spool.journal.jobs import LEASE_S
from wherry.spool.journal.journal import Journal, retry_until_written
from wherry.spool.journal.queries import StoreRecord
from wherry.spool.journal.work import SUSPECT_AFTER
from wherry.spool.spool import Spool
from wherry.transfer.upload import POOL_THREADS, Sender

log = logging.getLogger("wherry.agent.worker")

_RENEW_S = 15.0


class Worker:
    """The loop of one worker process. `agent` is its end of a socket pair: messages come in, nothing goes out."""

    def __init__(self, spool: Spool, journal: Journal, agent: socket.socket, name: str, config: AgentConfig) -> None:
        self._agent = agent
        self._config = config
        self._name = name
        self._journal = journal
        self._stores = Stores(spool.inside("endpoints.json"), journal.work.note_error)
        self._jobs = ThreadPoolExecutor(config.jobs_in_flight, thread_name_prefix="job")
        self._pieces = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="piece")
        self._sender = Sender(
            journal, self._pieces, worker=name, n_workers=config.n_workers, call_help=lambda: notify(spool.inside("bell"))
        )
        self._performer = Performer(spool, journal, self._stores, name, self._sender)
        self._running: set[Future[None]] = set()
        #: Parts of other workers' jobs that are being sent.
        self._helping: set[Future[None]] = set()
        self._has_suspect = False
        #: Whether it has looked for what is to be cleaned since its last job.
        self._has_cleaned = False
        self._finished_read, self._finished_write = socket.socketpair()
        self._finished_read.setblocking(False)
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
                self._has_cleaned = False
                self._note_end(self._running, self._jobs.submit(self._performer.perform, job))
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

    def _note_end(self, kept: set[Future[None]], future: Future[None]) -> None:
        """Add a thread's work to those under way, and wake the main thread when it ends."""
        kept.add(future)
        future.add_done_callback(lambda _: self._finished_write.send(b"."))

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
        """Wait for a message, a finished job, or `timeout_s`. False: the agent is gone, so the worker has to end."""
        ready, _, _ = select.select([self._agent, self._finished_read], [], [], timeout_s)
        if self._finished_read in ready:
            self._finished_read.recv(2**16)  # one byte each; if there are more, the next wait ends at once
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
            self._on_message(json.loads(message))
        return True

    def _on_message(self, message: dict[str, object]) -> None:
        """Take in what the agent says: {"secrets": {store id: options}, "warm": [store ids], "is_first": True}. The agent passes
        on the messages of sessions; the first message of all has the secrets that were known before, which is no news.
        """
        self._sender.wake()
        secrets = message.get("secrets")
        if isinstance(secrets, dict):
            news = [int(store_id) for store_id, options in secrets.items() if self._stores.learn(int(store_id), options)]
            if news and "is_first" not in message:  # what failed with the older ones while these were on their way
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
