"""Standing costs: first byte on a socket, an idle agent, memory while a large file goes to S3. Start-up: bench_size.py.

$SIZES_MIB (256,1024) are the sizes of the large files; with 4096 it takes a minute more.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
from measure import MIB, folder, machine, make_file, spread, table

import wherry
from servers.real import fast_folder, seaweedfs
from wherry.spool.presence import pid_of_agent

ROUNDS = 7
SIZES_MIB = [int(size) for size in os.environ.get("SIZES_MIB", "256,1024").split(",")]
FIRST_BYTE = """
import os, sys, time, wherry
options = {"endpoint_url": sys.argv[1], "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
with open(sys.argv[2], "wb") as file:
    file.write(b"x" * 1000)
started = time.time()
wherry.Uploader("s3://bucket", storage_options=options, spool=sys.argv[3]).put(sys.argv[2], "x")
print(started, flush=True)
os._exit(0)
"""


def first_byte(base: Path) -> list[str]:
    """From the first line of a fresh process that uses wherry to the first request byte at an S3 endpoint: agent, worker, SDK."""
    times = []
    for i in range(ROUNDS):
        with socket.create_server(("127.0.0.1", 0)) as server:
            arrived: list[float] = []

            def accept(server: socket.socket = server, arrived: list[float] = arrived) -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1)
                    arrived.append(time.time())

            thread = threading.Thread(target=accept)
            thread.start()
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            spool = base / f"spool{i}"
            command = [sys.executable, "-c", FIRST_BYTE, url, str(base / "x"), str(spool)]
            started = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            thread.join(30)
            times.append(arrived[0] - started)
            os.kill(int((spool / "agent.lock").read_text()), 15)
    return ["first call to first byte, fresh process", spread(times, 1000, 0), "ms"]


def idle(base: Path) -> list[list[str]]:
    config = wherry.Config(agent=wherry.AgentConfig(worker_idle_s=0.5))
    with wherry.Uploader(base / "bucket", spool=base / "idle", config=config) as uploader:
        uploader.put(base / "x", "x").result(30)
        agent = psutil.Process(pid_of_agent(uploader.spool))
        while agent.children():
            time.sleep(0.1)
        before = agent.cpu_times()
        time.sleep(20)
        after = agent.cpu_times()
        used = after.user + after.system - before.user - before.system
        return [
            ["idle agent, memory (RSS)", f"{agent.memory_info().rss / MIB:.0f}", "MiB"],
            ["idle agent, processor time in 20 s", f"{used * 1000:.0f}", "ms"],
        ]


def memory(base: Path, size_mib: int) -> list[str]:
    """The largest sum of the memory of the agent and its workers while one file goes up, counting shared pages once (PSS)."""
    with fast_folder() as data, seaweedfs(data) as server:
        uploader = wherry.Uploader(f"s3://{server.bucket}", storage_options=server.options, spool=base / f"memory{size_mib}")
        handle = uploader.put(make_file(base / "large", size_mib * MIB), "large", move=True)
        peak = 0
        agent = psutil.Process(pid_of_agent(uploader.spool))
        started = time.perf_counter()
        while not handle.wait(0.1):
            peak = max(peak, sum(process.memory_full_info().pss for process in [agent, *agent.children()]))
        speed = size_mib / (time.perf_counter() - started)
        uploader.close()
    return [f"agent and workers, peak, {size_mib} MiB to S3 ({speed:.0f} MiB/s)", f"{peak / MIB:.0f}", "MiB"]


def main() -> None:
    with folder() as base:
        rows = [first_byte(base)]
        rows += idle(base)
        rows += [memory(base, size) for size in SIZES_MIB]
    table(f"Standing costs ({machine()})", ["what", "median [min-max]", "unit"], rows)


if __name__ == "__main__":
    main()
