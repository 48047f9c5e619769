"""Waits until jobs have ended. Where there is no agent, it does the jobs itself.

What that takes is imported then: a program that has an agent starts sooner without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wherry.agent.session import LOOK_AGAIN_S, Session
from wherry.errors import UploadFailed
from wherry.posix.fork import call_in_children, leave_to_parent
from wherry.posix.interrupts import raise_if_interrupted
from wherry.spool.journal.jobs import JobId
from wherry.spool.journal.journal import Journal

if TYPE_CHECKING:
    from wherry.agent.in_process import Caller


class JobWaiter:
    """Waits for the jobs of one session."""

    def __init__(self, session: Session, journal: Journal) -> None:
        self._session = session
        self._journal = journal
        self._caller: Caller | None = None
        call_in_children(self, JobWaiter._forget_caller)

    def _forget_caller(self) -> None:
        """In a forked child: its parent's threads are not here, and its stores' connections are not ours."""
        leave_to_parent(self._caller)
        self._caller = None

    def start(self, ids: Sequence[JobId]) -> None:
        """See to it that somebody works on these jobs: the agent, or this thread, which then returns when they have ended."""
        if self._session.has_agent:
            self._session.call_agent()
            return
        for job_id in ids:  # one by one: asking for all of them after each would take long for a folder of many files
            while self._journal.queries.unfinished(ids=[job_id]) and not self._journal.overview.held_up(self._session.name):
                self.wait(LOOK_AGAIN_S)

    def wait(self, timeout_s: float) -> None:
        """Wait until some job ends, at most `timeout_s`.

        Without an agent, also if none can be started, do the next job instead, however long it takes.
        """
        raise_if_interrupted()
        if self._session.reaches_agent():
            self._session.wait(timeout_s)
            return
        if self._caller is None:
            from wherry.agent.in_process import Caller
            from wherry.agent.open_stores import Stores

            stores = Stores(
                self._session.spool.inside("endpoints.json"), self._journal.work.note_error, own=self._session.store_id
            )
            for store_id, secrets in self._session.secrets.items():
                stores.learn(int(store_id), secrets)
            self._caller = Caller(self._session.spool, self._journal, stores, self._session.name)
        if pause_s := self._caller.work():
            self._session.listener().wait(min(pause_s, timeout_s))

    def wait_for(self, ids: Sequence[JobId], timeout_s: float | None, remedy: Callable[[int], str]) -> bool:
        """Wait until these jobs have ended, at most `timeout_s`; whether they have.

        Without `timeout_s` UploadFailed, with a `remedy` for so many jobs, when all that is left waits for an operator.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._session.listener()  # from now on nothing that ends can be missed
        while ids and self._journal.queries.unfinished(ids=ids):
            left_s = LOOK_AGAIN_S if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                return False
            if until_s is None and (held := self._journal.overview.held_up(self._session.name)):
                own = [one for one in held if one.job_id in ids] or held  # `held` names the oldest ones only
                raise UploadFailed(own, remedy=remedy(len(own)))
            self.wait(left_s)
        return True

    def close(self) -> None:
        """End the threads that did the jobs here."""
        if self._caller is not None:
            self._caller.close()
