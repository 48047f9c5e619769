"""The worker processes of an agent: forked from it, ended with it, and reached over a socket pair each."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from wherry.store.environment import Environment, use

log = logging.getLogger("wherry.agent.agent")

#: A worker that dies at once is not started again at once.
_RESPAWN_WAIT_S = 1.0


@dataclass
class WorkerProcess:
    """A worker as its agent sees it."""

    name: str
    pid: int
    channel: socket.socket
    started_s: float
    environment: Environment


class WorkerPool:
    """At most `n_workers` processes in each environment of stores.

    `work(name, channel)` is called in each, and its process ends when that returns.
    """

    def __init__(self, n_workers: int, work: Callable[[str, socket.socket], None]) -> None:
        self._n_workers = n_workers
        self._work = work
        self._workers: dict[int, WorkerProcess] = {}
        self._n_started = 0
        self._not_before_s = 0.0

    def __len__(self) -> int:
        return len(self._workers)

    def names(self) -> set[str]:
        """Under which the living workers lease jobs."""
        return {worker.name for worker in self._workers.values()}

    def pids(self) -> list[int]:
        """Of the living workers."""
        return list(self._workers)

    def scale(self, wanted: int, greeting: Callable[[], Mapping[str, object]], environment: Environment = None) -> None:
        """Start workers until as many as wanted have this environment; `greeting` makes the first message to each."""
        while self._n_in(environment) < min(self._n_workers, wanted) and time.monotonic() >= self._not_before_s:
            self.spawn(greeting(), environment)

    def _n_in(self, environment: Environment) -> int:
        return sum(worker.environment == environment for worker in self._workers.values())

    def spawn(self, greeting: Mapping[str, object], environment: Environment = None) -> None:
        """Start a worker, which opens the stores of programs that have this environment."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._n_started += 1
        name = f"{os.getpid()}-{self._n_started}"
        agent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_worker(name, theirs, ours, agent_pid, environment)
        theirs.close()
        worker = WorkerProcess(name, pid, ours, time.monotonic(), environment)
        self._workers[pid] = worker
        _send(worker, greeting)

    def _be_worker(
        self, name: str, channel: socket.socket, other_end: socket.socket, agent_pid: int, environment: Environment
    ) -> NoReturn:
        """In the child: close what belongs to the agent, work, and leave without the agent's exit handlers."""
        status = 1
        try:
            gc.freeze()  # else each collection here would write to, and so copy, the pages that are shared with the agent
            _die_with_parent(agent_pid)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            for inherited in (other_end, *(worker.channel for worker in self._workers.values())):
                inherited.close()
            use(environment)
            self._work(name, channel)
            status = 0
        except BaseException:
            log.exception("worker %s died", name)
        finally:
            logging.shutdown()
            os._exit(status)

    def send_all(self, message: Mapping[str, object]) -> None:
        """Send a message to every worker; an empty one only wakes it."""
        for worker in self._workers.values():
            _send(worker, message)

    def send_one(self, message: Mapping[str, object]) -> None:
        """Send a message to the worker that is there for longest."""
        for worker in list(self._workers.values())[:1]:
            _send(worker, message)

    def reap(self) -> Iterator[tuple[str, str]]:
        """The (name, cause of death) of each worker that has died since the last call; those that ended well are forgotten."""
        for pid, worker in list(self._workers.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone == 0:
                continue
            del self._workers[pid]
            worker.channel.close()
            if status != 0:
                if time.monotonic() - worker.started_s < _RESPAWN_WAIT_S:
                    self._not_before_s = time.monotonic() + _RESPAWN_WAIT_S
                yield worker.name, _cause(status)

    def kill(self, name: str, why: str) -> None:
        """Kill the worker of that name, if there is one; reap() then reports it."""
        for worker in self._workers.values():
            if worker.name == name:
                log.error("worker %s %s: killed", name, why)
                os.kill(worker.pid, signal.SIGKILL)

    def kill_all(self) -> Iterator[str]:
        """Kill all workers and yield the name of each when it has ended. What it was sending is sent again, from the
        first missing part on.
        """
        for worker in self._workers.values():
            os.kill(worker.pid, signal.SIGKILL)
        for worker in self._workers.values():
            os.waitpid(worker.pid, 0)
            worker.channel.close()
            yield worker.name


def _send(worker: WorkerProcess, message: Mapping[str, object]) -> None:
    with suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):  # dead or busy: it looks into the journal anyway
        worker.channel.send(json.dumps(message).encode())


def _cause(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.WEXITSTATUS(status)}"


def _die_with_parent(agent_pid: int) -> None:
    """Have the kernel kill this process when the agent dies (prctl(2), PR_SET_PDEATHSIG); elsewhere its channel tells."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != agent_pid:  # it died before we asked
        os._exit(1)
