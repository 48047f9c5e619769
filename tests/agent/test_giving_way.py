"""Agent and workers let other programs go first, and go on beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from gate import wait_until
from wherry import AgentConfig, Config, Uploader
from wherry.spool.presence import pid_of_agent

SPIN = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])])\nwhile True: pass"


def threads_of(agent: psutil.Process) -> list[int]:
    """The agent's, and its workers'."""
    return [thread.id for process in (agent, *agent.children()) for thread in process.threads()]


@contextmanager
def all_cores_busy() -> Iterator[None]:
    with ExitStack() as stack:
        for core in os.sched_getaffinity(0):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN, str(core)]))
            stack.callback(process.kill)
        yield


def test_uploads_go_on_beside_programs_that_use_every_core(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"bytes")
    config = Config(agent=AgentConfig(nice=19, idle_io=True))
    with Uploader(tmp_path / "bucket", spool=tmp_path / "spool", config=config) as uploader:
        uploader.put(file, "first").result()
        agent = psutil.Process(pid_of_agent(uploader.spool))
        wait_until(lambda: {19} == {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads_of(agent)})
        group = Path(f"/proc/{agent.pid}/autogroup")
        wait_until(lambda: not group.exists() or group.read_text().split()[-1:] in (["19"], []))  # it comes after the threads
        with all_cores_busy():
            uploader.put(file, "second").result()
    assert b"bytes" == (tmp_path / "bucket" / "second").read_bytes()
