"""One user of a spool: its name there, where it is woken, and its calls to the agent."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence

from wherry.agent.launch import start_agent
from wherry.agent.wakeup import Listener, Notifier, notify
from wherry.config import AgentConfig
from wherry.spool.journal.jobs import JobId
from wherry.spool.presence import forget, register
from wherry.spool.spool import Spool

log = logging.getLogger("wherry")

#: A waiting session looks into the journal this often even without a message: one may be lost, an agent may die.
LOOK_AGAIN_S = 1.0
#: Secrets reach a new agent as soon as it listens; a machine under load takes its time.
_AGENT_START_S = 20.0
#: Short, as the first byte waits for it.
_ASK_AGAIN_S = 0.002


class Session:
    """While a session is signed on the agent stays; when its process is gone, the agent notices.

    `agent=None`: there is no agent to call, the caller does the work itself.
    """

    def __init__(self, spool: Spool, agent: AgentConfig | None) -> None:
        self.spool = spool
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        #: What the agent is handed: {store id: secret options}. In memory only.
        self.secrets: dict[str, Mapping[str, object]] = {}
        #: The journal's id of the store that this session uploads to.
        self.store_id: int | None = None
        self._agent = agent
        self.has_agent = agent is not None
        self._pid = os.getpid()
        self._registration = register(spool, self.name)
        self._listener: Listener | None = None
        self._listener_pid = 0
        self._listener_lock = threading.Lock()
        self._notifier = Notifier()
        self._called_s = -LOOK_AGAIN_S
        #: No agent could be started at the last try; and a warning has said so.
        self._is_agent_missing = False
        self._has_warned = False

    @property
    def is_here(self) -> bool:
        """Whether this is the process that signed on, and not a fork of it."""
        return os.getpid() == self._pid

    def call_agent(self, *, warm: int | None = None) -> None:
        """Wake the agent, or start one, and hand it this session's secrets. A warning is logged if none can be started.

        `warm`: the id of a store that is going to be used.
        """
        if self._agent is None:
            return
        self._called_s = time.monotonic()
        carried: dict[str, object] = {} if warm is None else {"warm": [warm]}
        address = self.spool.name_inside("bell")
        if self._notifier.notify(address, self.secrets, carried):
            self._is_agent_missing = False
            return
        try:
            start_agent(self.spool.folder, self._agent)
        except OSError as error:  # what was accepted stays so, and the next call tries again
            self._is_agent_missing = True
            if not self._has_warned:
                warning = (
                    "the agent of %s could not be started: %s. Uploads wait until the next try, or until this program waits for "
                    "them or ends: it then makes them itself"
                )
                log.warning(warning, self.spool.folder, error)
                self._has_warned = True
            return
        self._is_agent_missing = False
        until_s = time.monotonic() + _AGENT_START_S
        while (carried or self.secrets) and not self._notifier.notify(address, self.secrets, carried):
            if time.monotonic() > until_s:
                log.warning("the agent of %s does not answer: see %s", self.spool.folder, self.spool.folder / "agent.log")
                return
            time.sleep(_ASK_AGAIN_S)  # it has no way to call us before it listens itself

    def let_go(self, ids: Sequence[JobId]) -> None:
        """Have the agent give up these uploads, also what a worker is sending. Call it again until they have ended."""
        if self._agent is not None:
            notify(self.spool.inside("bell"), {"let_go": list(ids)})

    def reaches_agent(self) -> bool:
        """Return False if this session has no agent, or none can be started: that is tried again once a second."""
        if self._is_agent_missing and time.monotonic() - self._called_s >= LOOK_AGAIN_S:
            self.call_agent()
        return self.has_agent and not self._is_agent_missing

    def listener(self) -> Listener:
        """Where we are woken; from its first use on, no end of a job is missed."""
        if self._listener_pid != os.getpid():
            self._listener, self._listener_pid, self._listener_lock = None, os.getpid(), threading.Lock()
        with self._listener_lock:
            if self._listener is None:
                name = self.name if self.is_here else f"{self.name}.{os.getpid()}"
                with self.spool.explained("the socket of a session"):
                    self._listener = Listener(self.spool.inside("clients", f"{name}.bell"))
            return self._listener

    def wait(self, timeout_s: float) -> None:
        """Wait until some job ends, at most `timeout_s` or a second. An agent that is gone is started within a second."""
        listener = self.listener()
        if not listener.wait(0):
            if time.monotonic() - self._called_s >= LOOK_AGAIN_S:
                self.call_agent()
            listener.wait(min(timeout_s, LOOK_AGAIN_S))

    def sign_off(self) -> None:
        """Leave. The agent finishes what is queued, and then leaves as well."""
        if self._listener is not None and self._listener_pid == os.getpid():
            self._listener.close()
        if self.is_here:
            forget(self.spool, self.name)
        os.close(self._registration)
        if self._agent is not None:
            notify(self.spool.inside("bell"))
