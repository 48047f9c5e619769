"""What a training loop loses while large files are uploaded beside it. CPU-bound: torch, two threads on two cores.

Each row is a process of its own, which does a fixed number of steps and hands over two files on the way, one when a tenth of the
steps is done, the other at four tenths. wherry's agent, Composer's worker process and all clients exist before the first step,
when the clock starts. What is lost is the time over that of the same number of steps without uploads, of which the same process
does a quarter before and a quarter after: from one process to the next the loop alone differs by more than an upload costs. The
row "nothing" says how much noise is left. Uploads that go on after the last step are waited for: "stored after" is when the last
object was there, counted from the first step. "CPU s more" is what the trainer and all that works for it (agent, workers) used
until then, over that of the steps alone.

wherry's uploads are durable and verified; the others are neither, and die with the trainer. Composer's design is its
RemoteUploaderDownloader's: a copy of each file, a spawned process, boto3's upload_file. The server is sink.c, on the same cores.

$SIZE_MIB (2048) of each file, $TRAIN_S (24) of the loop alone, $ROUNDS (5), $ROWS (separated by ";"; all) make it shorter.
The files, and copies of them, are in memory: 8 GiB; $BENCH_FOLDER is another place for them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from measure import MIB, machine, make_file, spread, table

KEYS = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
N_FILES = 2
THREADS = 2
#: Hands a file over; and waits until all that was handed over is stored.
Row = tuple[Callable[[Path], object], Callable[[], object]]


def nothing(url: str, folder: Path) -> Row:
    return lambda path: None, lambda: None


def wherry_row(*, move: bool, **agent: Any) -> Callable[[str, Path], Row]:
    def ready(url: str, folder: Path) -> Row:
        import wherry

        config = wherry.Config(agent=wherry.AgentConfig(**agent))
        options = {"endpoint_url": url, **KEYS}
        uploader = wherry.Uploader("s3://bucket", storage_options=options, spool=folder / "spool", config=config)
        uploader.put(make_file(folder / "first", 1000), "first", overwrite=True, move=True).result()
        while not (folder / "spool" / "endpoints.json").exists():  # the trial goes on beside the first upload
            time.sleep(0.05)
        time.sleep(4)  # as long as an agent takes to give way, and its trial to leave
        return lambda path: uploader.put(path, path.name, overwrite=True, move=move), uploader.close

    return ready


def boto_client(url: str) -> Any:
    import boto3

    return boto3.client("s3", endpoint_url=url, region_name="us-east-1", **KEYS)  # type: ignore[call-overload]


def in_threads(upload: Callable[[Path], object]) -> Row:
    threads: list[threading.Thread] = []

    def hand_over(path: Path) -> None:
        threads.append(threading.Thread(target=upload, args=(path,)))
        threads[-1].start()

    def wait() -> None:
        for thread in threads:
            thread.join()

    return hand_over, wait


def boto_thread(url: str, folder: Path) -> Row:
    client = boto_client(url)
    return in_threads(lambda path: client.upload_file(str(path), "bucket", path.name))


def obstore_thread(url: str, folder: Path) -> Row:
    obstore: Any = import_module("obstore")
    options = {**KEYS, "endpoint": url, "region": "us-east-1", "aws_unsigned_payload": "true"}
    store = import_module("obstore.store").S3Store(
        "bucket", config=options, client_options={"allow_http": True}, virtual_hosted_style_request=False
    )
    return in_threads(lambda path: obstore.put(store, path.name, path, chunk_size=16 * MIB, max_concurrency=8))


def composers_worker(url: str, files: Any) -> None:
    client = boto_client(url)
    while (path := files.get()) is not None:
        client.upload_file(path, "bucket", os.path.basename(path))
        os.unlink(path)


def composers_design(url: str, folder: Path) -> Row:
    spawn = multiprocessing.get_context("spawn")
    files = spawn.Queue()
    worker = spawn.Process(target=composers_worker, args=(url, files))
    worker.start()
    copies = folder / "copies"
    copies.mkdir()

    def hand_over(path: Path) -> None:
        files.put(shutil.copy2(path, copies / path.name))

    def wait() -> None:
        files.put(None)
        worker.join()

    time.sleep(5)  # until its libraries are loaded
    return hand_over, wait


ROWS: dict[str, Callable[[str, Path], Row]] = {
    "nothing": nothing,
    "wherry, move": wherry_row(move=True),
    "wherry, copy": wherry_row(move=False),
    "obstore in a thread": obstore_thread,
    "boto3 in a thread": boto_thread,
    "Composer's design": composers_design,
}
for _nice in filter(None, os.environ.get("NICE", "").split(",")):
    ROWS[f"wherry, move, nice {_nice}"] = wherry_row(move=True, nice=int(_nice))


def training() -> Callable[[], object]:
    """One step of some ten milliseconds."""
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(768, 768), torch.nn.ReLU(), torch.nn.Linear(768, 768), torch.nn.ReLU(), torch.nn.Linear(768, 16)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(256, 768), torch.randn(256, 16)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def used_s(folder: Path) -> float:
    """Processor time so far of this process, its children, and the agent with its workers."""
    lock = folder / "spool" / "agent.lock"
    roots = [psutil.Process()] + ([psutil.Process(int(lock.read_text()))] if lock.exists() else [])
    times = [one.cpu_times() for root in roots for one in (root, *root.children(recursive=True))]
    return float(sum(one.user + one.system + one.children_user + one.children_system for one in times))


def train(name: str, url: str, folder: Path, n_steps: int) -> dict[str, float]:
    """In the trainer's process. Seconds of the loop, of the calls in it and until the last object was stored; CPU seconds."""
    step = training()
    hand_over, wait = ROWS[name](url, folder)
    for _ in range(20):
        step()
    before = alone(step, folder, n_steps // 4)
    due = {n_steps * (1 + 3 * n) // 10: folder / f"file{n}" for n in range(N_FILES)}
    in_calls, used_before_s = 0.0, used_s(folder)
    started = time.perf_counter()
    for n in range(n_steps):
        if (path := due.get(n)) is not None:
            called = time.perf_counter()
            hand_over(path)
            in_calls += time.perf_counter() - called
        step()
    loop_s = time.perf_counter() - started
    wait()
    stored_s, cpu_s = time.perf_counter() - started, used_s(folder) - used_before_s
    after = alone(step, folder, n_steps // 4)
    alone_s, alone_cpu_s = (n_steps * (one + other) / 2 for one, other in zip(before, after, strict=True))
    return {
        "alone_s": alone_s,
        "lost_s": loop_s - alone_s,
        "calls_s": in_calls,
        "stored_s": stored_s,
        "cpu_s": cpu_s - alone_cpu_s,
    }


def alone(step: Callable[[], object], folder: Path, n_steps: int) -> tuple[float, float]:
    """The seconds, and the CPU seconds, of a step without uploads."""
    started, used_before_s = time.perf_counter(), used_s(folder)
    for _ in range(n_steps):
        step()
    return (time.perf_counter() - started) / n_steps, (used_s(folder) - used_before_s) / n_steps


def measured(name: str, url: str, size_bytes: int, n_steps: int) -> dict[str, float]:
    """One row, in a process of its own, with files of its own."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER", "/dev/shm")) as at:  # noqa: S108
        for n in range(N_FILES if name != "nothing" else 0):
            make_file(Path(at) / f"file{n}", size_bytes)
        command = [sys.executable, __file__, "--row", name, url, at, str(n_steps)]
        found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        lock = Path(at) / "spool" / "agent.lock"
        if lock.exists():
            with suppress(ProcessLookupError):  # it has left by itself
                os.kill(int(lock.read_text()), signal.SIGTERM)
        return found


def main() -> None:
    from bench_bodies import sink

    size_mib, n_rounds = int(os.environ.get("SIZE_MIB", "2048")), int(os.environ.get("ROUNDS", "5"))
    names = os.environ["ROWS"].split(";") if "ROWS" in os.environ else [name for name in ROWS if name != "nothing"]
    absent = [name for name in names if "obstore" in name and find_spec("obstore") is None]
    names = [name for name in names if name not in absent]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ("nothing", *names)}
    with sink() as port:
        url = f"http://127.0.0.1:{port}"
        n_steps = max(50, int(200 * float(os.environ.get("TRAIN_S", "24")) / measured("nothing", url, 0, 200)["alone_s"]))
        for _ in range(n_rounds):
            for name in found:
                found[name].append(measured(name, url, size_mib * MIB, n_steps))
    loops = [one["alone_s"] for each in found.values() for one in each]
    rows = [
        [
            name,
            spread([one["lost_s"] for one in each]),
            spread([one["calls_s"] for one in each], 1, 3),
            spread([one["stored_s"] for one in each], 1, 1),
            spread([one["cpu_s"] for one in each]),
        ]
        for name, each in found.items()
    ]
    rows += [[f"{name}: not installed", "", "", "", ""] for name in absent]
    title = f"A loop of {median(loops):.1f} s [{min(loops):.1f}-{max(loops):.1f}] alone, {N_FILES} x {size_mib} MiB ({machine()})"
    table(title, ["beside it", "s lost", "of them in the calls", "stored after, s", "CPU s more"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        print(json.dumps(train(sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))), flush=True)
    else:
        main()
