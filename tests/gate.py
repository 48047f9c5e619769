"""A destination whose door the test opens: a third-party backend, found by its entry point, around the local store.

Until `open()` every put waits, so what a test does meanwhile (kill, fork, press Ctrl-C) always meets unfinished uploads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from programs import Program

_MODULE = '''
import os, time
from pathlib import Path
from wherry.backends.local.store import LocalStore
from wherry.uri import StoreURI

class GatedStore(LocalStore):
    """The local store; each put notes its key and waits for the gate."""

    def __init__(self, uri, options):
        super().__init__(StoreURI("file", "", uri.prefix), options)
        self.gate = Path(os.environ["GATE"])

    def _path_of(self, key):
        return key

    def put_file(self, key, path, *put):
        with open(self.gate / "puts", "a") as log:
            log.write(key + "\\n")
        while not (self.gate / "is_open").exists():
            time.sleep(0.005)
        return super().put_file(str(self.gate / "dest" / key).lstrip("/"), path, *put)

    def head(self, key):
        return super().head(str(self.gate / "dest" / key).lstrip("/"))
'''


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0, what: str = "it") -> None:
    """Wait for a condition outside this process, which cannot ring us."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


@dataclass
class Gate:
    """The gate's folder, and the environment in which processes find the backend ``gated://``."""

    folder: Path

    def __post_init__(self) -> None:
        info = self.folder / "site" / "gated-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gated\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[wherry.backends]\ngated = gated_store:GatedStore\n")
        (self.folder / "site" / "gated_store.py").write_text(_MODULE)
        self.dest.mkdir()

    @property
    def dest(self) -> Path:
        """Where the objects of ``gated://x`` end."""
        return self.folder / "dest"

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(self.folder / "site"), os.environ.get("PYTHONPATH", "")]))
        return {**os.environ, "PYTHONPATH": path, "GATE": str(self.folder), "WHERRY_SPOOL": str(self.folder / "spool")}

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def open(self) -> None:
        (self.folder / "is_open").touch()

    def puts(self) -> list[str]:
        """The keys that workers have begun to put, in order."""
        log = self.folder / "puts"
        return log.read_text().split() if log.exists() else []

    def script(self, text: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
        """Start a user's script in this environment."""
        return Program(  # type: ignore[call-overload,no-any-return]
            [sys.executable, "-u", "-c", textwrap.dedent(text), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    def run(self, text: str, *arguments: str, timeout_s: float = 60.0) -> tuple[int, str]:
        """Run a user's script to its end: (exit status, what it printed)."""
        with self.script(text, *arguments) as process:
            output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output

    def drain(self) -> None:
        """Finish what is in the spool, as the next run would."""
        code, output = self.run(DRAIN)
        assert code == 0, output

    def agent(self) -> psutil.Process:
        """The process of the agent."""
        found: list[psutil.Process] = []

        def look() -> bool:
            try:
                found[:] = [psutil.Process(int((self.spool / "agent.lock").read_text()))]
            except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
                return False
            return bool(found[0].is_running())

        wait_until(look, what="the agent")
        return found[0]


#: What "the next run" does: sign on, and wait until the journal has nothing open.
DRAIN = """
from wherry.agent.session import Session
from wherry.config import AgentConfig
from wherry.spool.drain import wait_until_drained
from wherry.spool.recovery import open_journal
from wherry.spool.spool import Spool

spool = Spool()
journal = open_journal(spool)
client = Session(spool, AgentConfig())
client.call_agent()
assert wait_until_drained(journal.queries.counts, client.wait, timeout_s=50)
client.sign_off()
counts = journal.queries.counts()
assert counts.failed == 0, journal.queries.jobs(states=["failed"])
"""


def family(pid: int) -> list[psutil.Process]:
    """The process of that number and all below it; none if it is gone."""
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill(*processes: psutil.Process) -> None:
    """SIGKILL, and wait until they are dead. Some may be gone already: workers die with their agent."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    wait_until(lambda: all(is_dead(process) for process in processes), what="killed processes to die")


def is_dead(process: psutil.Process) -> bool:
    """Whether it is gone, or its parent has only not asked for it yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
