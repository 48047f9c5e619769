"""Standing costs: first byte on a socket, an idle agent, memory while files go to S3. Start-up: bench_size.py.

The first byte is counted from the first line of a fresh process that uses wherry, in multiples of a bare start
(``python -c pass``) of the same interpreter in the same run: with a new spool, and with the one that the round before has left.
$PYTHONS (comma-separated; this one) are the interpreters; another environment needs wherry and boto3. Modules must be compiled,
as those of an installed package are: PYTHONDONTWRITEBYTECODE does not count here.

Memory is that of the agent and its workers together, the peak of samples taken every 50 ms: PSS counts what processes share once,
RSS in each of them. The server is sink.c. $SIZES_MIB (1024,4096) are the sizes of the large files, $FILES (10000) is the number
of small ones, $IDLE_S (20) is how long an idle agent is watched; 0 leaves each of them out.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
from bench_bodies import KEYS, sink
from measure import MIB, folder, machine, make_file, seconds, spread, table

import wherry
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool

ROUNDS = int(os.environ.get("ROUNDS", "7"))
SIZES_MIB = [int(size) for size in os.environ.get("SIZES_MIB", "1024,4096").split(",") if size]
FILES = int(os.environ.get("FILES", "10000"))
IDLE_S = float(os.environ.get("IDLE_S", "20"))
PYTHONS = os.environ.get("PYTHONS", sys.executable).split(",")
FIRST_BYTE = """
import os, sys, time, wherry
options = {"endpoint_url": sys.argv[1], "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
with open(sys.argv[2], "wb") as file:
    file.write(b"x" * 1000)
started = time.time()
wherry.Uploader("s3://bucket", storage_options=options, spool=sys.argv[3]).put(sys.argv[2], "x", overwrite=True)
print(started, flush=True)
os._exit(0)
"""


def first_bytes(base: Path, python: str) -> list[list[str]]:
    """From the first use of wherry in a fresh process to the first request byte at an S3 endpoint: agent, worker, libraries."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    base.mkdir()
    times: dict[str, list[float]] = {"new spool": [], "known spool": []}
    bare: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        for n in range(ROUNDS + 1):
            for what, spool in (("new spool", base / f"new{n}"), ("known spool", base / "known")):
                bare.append(seconds(lambda: subprocess.run([python, "-c", "pass"], check=True)))
                arrived: list[float] = []

                def answer(arrived: list[float] = arrived) -> None:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1)
                        arrived.append(time.time())

                thread = threading.Thread(target=answer, daemon=True)
                thread.start()
                command = [python, "-c", FIRST_BYTE, url, str(base / "x"), str(spool)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
                thread.join(60)
                times[what].append(arrived[0] - float(done.stdout))
                os.kill(int((spool / "agent.lock").read_text()), signal.SIGTERM)
                while pid_of_agent(Spool(spool)) is not None:
                    time.sleep(0.02)
                forget_waiting(server)
    bare_s = statistics.median(bare)
    rows = [["bare start", spread(bare, 1000, 0), "1"]]
    for what, each in times.items():
        measured = each[1:]  # the first round compiles modules, and makes the known spool
        rows.append([f"first byte, {what}", spread(measured, 1000, 0), f"{statistics.median(measured) / bare_s:.1f}"])
    return rows


def forget_waiting(server: socket.socket) -> None:
    """Take the connections that were made after the first one, so that the next round does not count them."""
    server.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
    server.setblocking(True)


def idle(base: Path) -> list[list[str]]:
    """An agent whose workers have left, while eight programs have its spool open."""
    config = wherry.Config(agent=wherry.AgentConfig(worker_idle_s=0.5))
    uploaders = [wherry.Uploader(base / "bucket", spool=base / "idle", config=config) for _ in range(8)]
    uploaders[0].put(make_file(base / "x", 1000), "x", overwrite=True).result(30)
    agent = psutil.Process(pid_of_agent(uploaders[0].spool))
    while agent.children():
        time.sleep(0.1)
    before, n_before = agent.cpu_times(), agent.num_ctx_switches().voluntary
    time.sleep(IDLE_S)
    after, n_after = agent.cpu_times(), agent.num_ctx_switches().voluntary
    used = after.user + after.system - before.user - before.system
    rows = [
        ["idle agent, 8 uploaders, memory (RSS)", f"{agent.memory_info().rss / MIB:.0f}", "MiB"],
        [f"idle agent, 8 uploaders, processor time in {IDLE_S:g} s", f"{used * 1000:.0f}", "ms"],
        ["idle agent, 8 uploaders, wake-ups a second", f"{(n_after - n_before) / IDLE_S:.1f}", ""],
    ]
    for uploader in uploaders:
        uploader.close()
    return rows


class Peak:
    """The largest sums of memory (PSS, RSS) of an agent and its workers in a ``with`` block, and what each of them had then."""

    def __init__(self, uploader: wherry.Uploader) -> None:
        self._agent = psutil.Process(pid_of_agent(uploader.spool))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.pss, self.rss, self.n_processes = 0, 0, 0

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.05):
            try:
                found = [one.memory_full_info() for one in (self._agent, *self._agent.children())]
            except psutil.NoSuchProcess:
                continue
            self.pss = max(self.pss, sum(one.pss for one in found))
            self.rss = max(self.rss, sum(one.rss for one in found))
            self.n_processes = max(self.n_processes, len(found))

    def row(self, what: str) -> list[str]:
        return [what, f"{self.pss / MIB:.0f}", f"{self.rss / MIB:.0f}", str(self.n_processes)]


def know_server(base: Path, uploader: wherry.Uploader) -> None:
    """Have the trial of the server end first: without it the sink's objects would be read back, and it keeps no large ones."""
    uploader.put(make_file(base / "first", 1000), "first", overwrite=True, move=True).result()
    while not (uploader.spool.folder / "endpoints.json").exists():
        time.sleep(0.05)


def memory(base: Path) -> list[list[str]]:
    rows = []
    with sink() as port:
        options = {"endpoint_url": f"http://127.0.0.1:{port}", **KEYS}
        for size_mib in SIZES_MIB:
            uploader = wherry.Uploader("s3://bucket", storage_options=options, spool=base / f"large{size_mib}")
            know_server(base, uploader)
            source = make_file(base / "large", size_mib * MIB)
            with uploader, Peak(uploader) as peak:
                uploader.put(source, f"large{size_mib}", overwrite=True, move=True).result()
            rows.append(peak.row(f"a file of {size_mib} MiB"))
        if FILES:
            many = base / "many"
            many.mkdir()
            for n in range(FILES):
                (many / f"{n}").write_bytes(b"x" * 16_384)
            uploader = wherry.Uploader("s3://bucket", storage_options=options, spool=base / "small")
            know_server(base, uploader)
            with uploader, Peak(uploader) as peak:
                uploader.put(many, "many", overwrite=True, move=True).result()
            rows.append(peak.row(f"{FILES} files of 16 KiB"))
    return rows


def main() -> None:
    with folder() as base:
        for python in PYTHONS if ROUNDS else ():
            header = ["what", "ms, median [min-max]", "x bare"]
            of = f", {python}" if len(PYTHONS) > 1 else ""
            table(f"First byte{of} ({machine()})", header, first_bytes(base / Path(python).parts[-3], python))
        if IDLE_S:
            table("An idle agent", ["what", "found", "unit"], idle(base))
        if SIZES_MIB or FILES:
            table("Memory of agent and workers, peak", ["while they send", "PSS, MiB", "RSS, MiB", "processes"], memory(base))


if __name__ == "__main__":
    main()
