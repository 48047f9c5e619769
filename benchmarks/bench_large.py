"""Large files through the whole pipeline, beside bare Python sockets in the same round.

Up: from put(move=True), after the call, to the verified object. Down: get() into a new file, verified. The bare rows send and
fetch the same bytes with 8 threads, and sum them (CRC32C), without durability, retries, signatures or verification. The server is
sink.c. CPU seconds are those of all our processes: caller, agent, workers. $SIZE_MIB (1024), $ROUNDS (5), $TLS=1 to go through a
TLS terminator; $BENCH_FOLDER is where the files go (BENCH_FOLDER=/dev/shm: no disk).
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
from bench_bodies import THREADS, Cost, bare_fetching, bare_sending, cpu_of, sink, uploading
from measure import MIB, machine, make_file, spread, table

from servers.real import tls_terminator
from wherry import Uploader
from wherry.spool.presence import pid_of_agent

SIZE_BYTES = int(os.environ.get("SIZE_MIB", "1024")) * MIB
ROUNDS = int(os.environ.get("ROUNDS", "5"))
OVER_TLS = bool(os.environ.get("TLS"))


def cost(work: Callable[[], object], uploader: Uploader) -> Cost:
    """Wall and CPU seconds of a call, the agent's and its workers' among them."""
    agent = psutil.Process(pid_of_agent(uploader.spool))
    processes = [psutil.Process(), agent, *agent.children()]
    before, started_s = cpu_of(processes), time.perf_counter()
    work()
    wall_s = time.perf_counter() - started_s
    return wall_s, cpu_of([psutil.Process(), agent, *agent.children()]) - before


def one_round(port: int, pool: ThreadPoolExecutor, uploader: Uploader, folder: Path) -> dict[str, Cost]:
    """Each row once, by its name."""
    source, sent, got = folder / "source", folder / "sent", folder / "got"
    shutil.copyfile(source, sent)

    def put() -> None:
        uploader.put(sent, "large", overwrite=True, move=True).result()

    found = {
        "up, bare sockets": cost(partial(bare_sending(port, source), pool), uploader),
        "up, wherry": cost(put, uploader),
        "down, bare sockets": cost(partial(bare_fetching(port, SIZE_BYTES, got), pool), uploader),
    }
    got.unlink()
    found["down, wherry"] = cost(partial(uploader.get, f"pattern/{SIZE_BYTES}", got), uploader)
    got.unlink()
    return found


def show(rounds: list[dict[str, Cost]]) -> None:
    """Print the table."""
    rows = []
    for what in rounds[0]:
        bare = [costs[f"{what.partition(',')[0]}, bare sockets"] for costs in rounds]
        walls, cpus = zip(*(costs[what] for costs in rounds), strict=True)
        speed = statistics.median(wall for wall, _ in bare) / statistics.median(walls)
        effort = statistics.median(cpus) / statistics.median(cpu for _, cpu in bare)
        per_gib = 2**30 / SIZE_BYTES
        rows.append([what, spread(walls, per_gib), spread(cpus, per_gib), f"{speed:.2f}", f"{effort:.2f}"])
    title = f"{SIZE_BYTES // MIB} MiB, {'TLS (bare: plain)' if OVER_TLS else 'plain HTTP'}"
    table(title, ["what", "s/GiB", "CPU s/GiB, all processes", "speed / bare", "CPU / bare"], rows)


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as name, ExitStack() as stack:
        folder, port, pool = Path(name), stack.enter_context(sink()), stack.enter_context(ThreadPoolExecutor(THREADS))
        make_file(folder / "source", SIZE_BYTES)
        url, options = f"http://127.0.0.1:{port}", dict[str, object]()
        if OVER_TLS:
            url, authority = stack.enter_context(tls_terminator(port, folder))
            options = {"verify": str(authority)}
        uploader = stack.enter_context(uploading(url, folder / "spool", **options))
        show([one_round(port, pool, uploader, folder) for _ in range(ROUNDS)])
    print(machine())


if __name__ == "__main__":
    main()
