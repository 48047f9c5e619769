"""A worker process: leases jobs, carries out many at once (small files mostly wait for answers), and reports the results.

The main thread leases jobs in batches, acknowledges them in groups and keeps the leases alive. Jobs run in threads, and the
pieces of large ones in a second pool, so that no job waits for a thread that another job holds. A worker keeps no state that
matters: killed at any instant, its leases go back to the queue, and the next worker finds in the store what was not acknowledged.
"""

from __future__ import annotations

import json
import logging
import math
import select
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from wherry.agent.crew import GROUP_S, Crew
from wherry.agent.open_stores import Stores
from wherry.agent.perform import Performer, goes_with_others
from wherry.agent.wakeup import notify
from wherry.config import AgentConfig
from wherry.redact import redact
from wherry.spool.journal.jobs import LEASE_S, Job
from wherry.spool.journal.journal import Journal, retry_until_written
from wherry.spool.journal.queries import StoreRecord
from wherry.spool.journal.work import SUSPECT_AFTER
from wherry.spool.spool import Spool
from wherry.transfer.upload import POOL_THREADS, Sender

log = logging.getLogger("wherry.agent.worker")

_RENEW_S = 15.0
#: Small jobs that a worker leases before it has places for them: enough for a few groups.
_AHEAD = 24
#: So few small files are sent as soon by a thread each.
_LEAST_TOGETHER = 4
#: One thread sends small files while another waits for its last answers; more would only take turns.
_MOST_TOGETHER = 2
#: Unless it takes that long: then something is slow, and others must not wait for it.
_SLOW_S = 0.5


class Worker:
    """The loop of one worker process. `agent` is its end of a socket pair: messages come in, nothing goes out."""

    def __init__(self, spool: Spool, journal: Journal, agent: socket.socket, name: str, config: AgentConfig) -> None:
        self._agent = agent
        self._config = config
        self._name = name
        self._journal = journal
        self._stores = Stores(spool.inside("endpoints.json"), journal.work.note_error)
        self._pieces = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="piece")
        self._sender = Sender(
            journal, self._pieces, worker=name, n_workers=config.n_workers, call_help=lambda: notify(spool.inside("bell"))
        )
        self._finished_read, self._finished_write = socket.socketpair()
        for end in (self._finished_read, self._finished_write):
            end.setblocking(False)
        self._crew = Crew(config.jobs_in_flight, self._wake)
        self._performer = Performer(
            spool, journal, self._stores, name, self._sender, ack=self._crew.ack, paused=self._crew.paused
        )
        #: Since when small files are sent, many by one thread, in the order in which these threads have begun.
        self._together: list[float] = []
        #: Parts of other workers' jobs that are being sent.
        self._helping: set[Future[None]] = set()
        self._has_suspect = False
        #: Whether it has looked for what is to be cleaned since its last job.
        self._has_cleaned = False
        #: When it looked for jobs; whether it took all that it had room for; whether to look again, and else when.
        self._looked_s = 0.0
        self._was_full = False
        self._may_be_more = True
        self._due_s = math.inf
        self._renewed_s = time.monotonic()

    def run(self) -> None:
        """Work until there is nothing to do for `worker_idle_s`, or the agent is gone."""
        idle_since_s = time.monotonic()
        while True:
            self._write_group()
            if self._look_in_s() == 0.0:
                self._look()
            now_s = time.monotonic()
            if self._is_busy():
                idle_since_s = now_s
                timeout_s = _RENEW_S
            elif not self._has_cleaned:  # now, as the agent may leave before this worker does
                self._has_cleaned = True
                self._crew.start(self._performer.clean)
                timeout_s = _RENEW_S
            elif (timeout_s := idle_since_s + self._config.worker_idle_s - now_s) <= 0:
                self._performer.clean()
                return
            if not self._wait(min(timeout_s, self._look_in_s(), self._crew.group_due_in_s())):
                return
            if self._is_busy() and time.monotonic() - self._renewed_s >= _RENEW_S:
                retry_until_written(partial(self._journal.work.renew, self._name, LEASE_S))
                self._renewed_s = time.monotonic()

    def _is_busy(self) -> bool:
        return bool(len(self._crew) or self._helping or self._crew.group_due_in_s() < math.inf)

    def _write_group(self) -> None:
        """Write down what is done, if that is due."""
        if self._crew.group_due_in_s() == 0.0:
            self._performer.write(self._crew.take_group())
            self._may_be_more = True  # what has waited for these

    def _look_in_s(self) -> float:
        """After how long to look for jobs: 0 if now. It looks every few milliseconds at most, not for each message."""
        if self._has_suspect or len(self._crew) >= self._config.jobs_in_flight + _AHEAD:
            return math.inf
        now_s = time.monotonic()
        together = self._together[:_MOST_TOGETHER]
        if len(together) == _MOST_TOGETHER and (slow_in_s := together[0] + _SLOW_S - now_s) > 0:
            return slow_in_s
        if self._may_be_more:
            is_hungry = self._was_full and len(self._crew) < self._config.jobs_in_flight
            return 0.0 if is_hungry else max(0.0, self._looked_s + GROUP_S - now_s)
        return max(0.0, self._due_s - now_s)

    def _look(self) -> None:
        """Lease as many jobs as there is room for, or else parts of other workers' jobs."""
        self._looked_s, self._may_be_more, self._due_s = time.monotonic(), False, math.inf
        usable, (n_due, next_s) = self._crew.paused(self._ready)
        n_free = self._config.jobs_in_flight - len(self._crew)
        if n_due:
            self._lease(usable, max(0, n_free), _AHEAD + min(0, n_free))
        if not self._was_full or not n_due:
            self._was_full = False
            self._help(usable)
            if next_s is not None:
                self._due_s = time.monotonic() + max(0.0, next_s - self._journal.work.now_s()) + 0.01

    def _ready(self) -> tuple[set[int], tuple[int, float | None]]:
        """The stores that can be opened here, and what Work.ready() says of them."""
        usable = self._performer.usable_stores()
        return usable, self._journal.work.ready(with_stores=usable)

    def _lease(self, usable: set[int], places: int, n_ahead: int) -> None:
        # Half of the places stay free of large files: a small one does not wait for their end.
        most_large = max(1, self._config.jobs_in_flight // 2)
        lease = partial(self._journal.work.lease_many, self._name, LEASE_S, places, n_ahead, most_large=most_large)
        # On a full disk it waits: its jobs, and those of others, go on and make room.
        lease = partial(lease, with_stores=usable, with_suspects=not self._is_busy())
        leased = retry_until_written(partial(self._crew.paused, lease))
        together: defaultdict[int, list[Job]] = defaultdict(list)
        for one in leased:
            self._has_suspect = one.job.schedule.leases_lost >= SUSPECT_AFTER
            self._has_cleaned = False
            if goes_with_others(one):
                together[one.job.store_id].append(one.job)
            else:
                self._crew.start(partial(self._performer.perform, one.job, is_plain=one.is_plain))
        for jobs in together.values():
            self._start_together(jobs)
        self._was_full = len(leased) >= places  # else there is no other that could be leased now
        # Where nothing is small enough to be leased ahead, the next one is leased when a thread has nothing to do.
        self._may_be_more = self._was_full and bool(leased)

    def _start_together(self, jobs: list[Job]) -> None:
        if len(jobs) < _LEAST_TOGETHER:
            self._start_alone(jobs)
            return
        begun_s = time.monotonic()
        self._together.append(begun_s)

        def perform() -> None:
            try:
                self._start_alone(self._performer.perform_many(jobs))
            finally:
                self._together.remove(begun_s)

        self._crew.start(perform)

    def _start_alone(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._crew.start(partial(self._performer.perform, job, is_plain=True))

    def _help(self, usable: set[int]) -> None:
        """Take parts of other workers' jobs, as many at once as those do, when no job of our own is ready."""
        most = max((self._performer.parts_in_flight(store_id) for store_id in usable), default=0) // self._config.n_workers
        while not self._has_suspect and len(self._crew) + len(self._helping) < max(1, most) and self._journal.parts.missing():
            lease = partial(self._journal.parts.lease_any, with_stores=usable, most_lost=SUSPECT_AFTER - 1)
            taken = retry_until_written(partial(lease, self._name, LEASE_S))
            if taken is None:
                return
            future = self._pieces.submit(self._performer.perform_part, *taken)
            self._helping.add(future)
            future.add_done_callback(lambda _: self._wake())

    def _wake(self) -> None:
        """Wake the main thread, from another one."""
        with suppress(BlockingIOError):  # else it has much to wake for
            self._finished_write.send(b".")

    def _wait(self, timeout_s: float) -> bool:
        """Wait for a message, a finished job, or `timeout_s`. False: the agent is gone, so the worker has to end."""
        ready, _, _ = select.select([self._agent, self._finished_read], [], [], timeout_s)
        if self._finished_read in ready:
            self._finished_read.recv(2**16)  # one byte each; if there are more, the next wait ends at once
        self._crew.raise_broken()
        if not len(self._crew):
            self._has_suspect = False  # it ran alone, so it was the one that ended
        for future in [future for future in self._helping if future.done()]:
            self._helping.discard(future)
            future.result()
        self._may_be_more = self._may_be_more or bool(ready)
        return self._agent not in ready or self._receive()

    def _receive(self) -> bool:
        """Take all messages. False: the agent is gone."""
        with suppress(BlockingIOError):
            while True:
                try:
                    message = self._agent.recv(200_000, socket.MSG_DONTWAIT)
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
            if news:  # what could not be cleaned without them
                self._has_cleaned = False
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
            self._crew.start(partial(self._open_quietly, record))

    def _open_quietly(self, record: StoreRecord) -> None:
        try:
            self._stores.open(record)
        except Exception as error:  # the first job that needs the store reports it
            log.info("store %s is not ready: %s", record.id, redact(str(error)))
