"""Uploads without an agent, in the process that accepts them; and cleaning up after such processes when they die."""

from __future__ import annotations

import os

from wherry.agent.open_stores import Stores
from wherry.agent.perform import Performer
from wherry.posix.thread_pool import DaemonThreadPool
from wherry.spool.journal.journal import Journal, retry_until_written
from wherry.spool.leftovers import sweep
from wherry.spool.presence import dead_sessions, forget, living_sessions
from wherry.spool.spool import Spool
from wherry.transfer.upload import POOL_THREADS, Sender

#: A session that does its jobs itself leases them under its name with this prefix, which tells it from an agent's workers.
_CALLER = "caller:"


class Caller:
    """Does an agent's work in the calling thread. A forked child cannot use it, as the threads of its pool are missing there."""

    def __init__(self, spool: Spool, journal: Journal, stores: Stores, session: str) -> None:
        self._pieces = DaemonThreadPool(POOL_THREADS, "wherry")  # the work may be left to the end of the interpreter
        name = f"{_CALLER}{session}"
        sender = Sender(journal, self._pieces, worker=name)
        self._performer = Performer(spool, journal, stores, name, sender, in_caller=True)
        self._release_dead()

    def work(self) -> float:
        """Carry out the next job and return 0; without one, return after how many seconds (at most one) to look again."""
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
    return [f"{_CALLER}{session}" for session in living_sessions(spool)]


def release_dead_callers(spool: Spool, journal: Journal) -> bool:
    """Queue what callers were sending when they died; whether there was anything. Clean up after all sessions that died."""
    died = dead_sessions(spool)
    callers = {name for name in journal.work.lease_owners() if name.startswith(_CALLER)}
    dead = callers.difference(living_callers(spool)) if callers else set()
    for name in dead:
        journal.work.release(name)
    if died:
        sweep(spool, journal)
        for session in died:
            forget(spool, session)
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
