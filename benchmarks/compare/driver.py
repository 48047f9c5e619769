"""A client's process as the harness sees it: orders go in, figures come out."""

from __future__ import annotations

import json
import selectors
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from processes import PeakMemory, busy_s, cpu_s
from sinks import Target

#: Nothing that is measured takes longer; a client that does is stuck.
ORDER_S = 120.0


@dataclass(frozen=True)
class Row:
    """One line of a table: which client, and the name it has there."""

    name: str
    module: str
    client: str
    #: Needs wherry itself, so it runs in this Python and not in the peers'.
    is_ours: bool = False
    #: A program: its memory is what it has itself, without the Python process that starts it.
    is_command: bool = False


class ClientError(Exception):
    """The client could not start, refused, failed, or moved nothing."""


class Driver:
    """One client, from its start until the end of the block."""

    def __init__(self, row: Row, target: Target, folder: Path, peers: Path) -> None:
        self.row, self.target = row, target
        self.folder = Path(tempfile.mkdtemp(prefix=f"{row.client}-", dir=folder))
        python = sys.executable if row.is_ours else str(peers / "bin" / "python")
        where = json.dumps(vars(target.at(self.folder)))
        if not Path(python).exists():
            raise ClientError(f"{peers} is not there: make bench-peers makes it")
        drive = str(Path(__file__).with_name("drive.py"))
        self.log = open(self.folder / "log", "wb")  # noqa: SIM115 (closed with the driver)
        self.process = subprocess.Popen(
            [python, drive, row.module, row.client, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
        )
        self.about = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(ORDER_S):
                self.process.kill()
                raise ClientError(f"{self.row.name}: no answer within {ORDER_S:.0f} s")
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": (self.folder / "log").read_text()[-1500:]}
        if "error" in found:
            raise ClientError(found["error"])
        return found

    def ask(self, **order: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def measure(self, do: str, path: Path, key: str, size_bytes: int) -> dict[str, float]:
        """Carry out one order; wall, processor time of all processes, memory, and what else the machine did."""
        if do == "up":
            path = Path(self.ask(do="prepare", path=str(path))["path"])
        pid, server = self.process.pid, self.target.pid
        moved = self.target.moved() if self.target.moved else (0, 0)
        mine, theirs, all_of_it = cpu_s(pid), cpu_s(server) if server else 0.0, busy_s()
        with PeakMemory(pid, without_root=self.row.is_command) as memory:
            told = self.ask(do=do, path=str(path), key=key, size_bytes=size_bytes)
        self.ask(do="settle", path=str(path))  # no time of the caller's, but processor time of the client's
        found = {
            "wall_s": told["wall_s"],
            "blocked_s": told["blocked_s"],
            "cpu_s": cpu_s(pid) - mine,
            "server_cpu_s": (cpu_s(server) - theirs) if server else 0.0,
            "peak_bytes": float(memory.bytes),
        }
        found["others_cpu_s"] = max(0.0, busy_s() - all_of_it - found["cpu_s"] - found["server_cpu_s"])
        if self.target.moved:
            was, now = moved, self.target.moved()
            n = now[1] - was[1] if do == "down" else now[0] - was[0]
            if n < size_bytes:
                raise ClientError(f"{self.row.name} says that it is done, and has moved {n} of {size_bytes} bytes")
        return found

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
