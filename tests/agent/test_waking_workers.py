"""Every message to the agent reaches every worker."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from gate import wait_until
from wherry import AgentConfig
from wherry.agent.agent import Agent
from wherry.agent.worker_pool import WorkerPool
from wherry.spool.spool import Spool


def test_messages_in_a_burst_wake_all_workers(tmp_path: Path) -> None:
    """One of them may wait for a helper to have sent the last parts of its file, and has nothing else that wakes it."""
    heard = tmp_path / "heard"
    heard.mkdir()

    def listen(name: str, channel: socket.socket) -> None:
        while message := channel.recv(1000):
            with open(heard / name, "ab") as file:
                file.write(message + b"\n")

    def n_heard() -> list[int]:
        return sorted(len(path.read_bytes().splitlines()) for path in heard.iterdir())

    agent = Agent(Spool(tmp_path / "spool"), AgentConfig(), stay=True, environ={}, clock=None)
    agent._workers = WorkerPool(2, listen)
    for _ in range(2):
        agent._workers.spawn({"is_first": True})
    agent._on_messages([])
    wait_until(lambda: n_heard() == [2, 2])
    agent._woken_s = float("inf")  # however slow this machine is, the next message comes soon after
    agent._on_messages([])
    wait_until(lambda: n_heard() == [2, 3])
    agent._wake_the_others()
    wait_until(lambda: n_heard() == [3, 4])
    agent._end()
    assert [] == [pid for pid in agent._workers.pids() if os.path.exists(f"/proc/{pid}")]
