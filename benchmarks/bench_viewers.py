"""The first chart of a run of 100 metrics x 100,000 points on this machine's disk: `wherry ui` beside TensorBoard and trackio.

Each reads what its own logger writes. The clock runs from the command's start, with the page cache warm, to the first answer with
points of one metric, over HTTP as the viewer's own page asks for them; browsers are left out. `N_POINTS` (100000) makes it
smaller. The viewers are those of `make bench-viewers` ($VIEWERS, .viewers). `BENCH_DATA` is a folder in which the data is made
once, which takes minutes for trackio, and kept.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from bench_curves import N_KEYS, make_data
from measure import machine, table, wait_until_quiet

sys.path.insert(0, str(Path(__file__).parent / "looking"))
from place import memory_of_tree_mb

from wherry.loggers.destinations.tensorboard import TensorBoardLogger

N_POINTS = int(os.environ.get("N_POINTS", "100000"))
VIEWERS = Path(os.environ.get("VIEWERS", ".viewers")).absolute()
KEY = "m007"
_MOST_S = 120.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  http://
    with _direct.open(request, timeout=_MOST_S) as answer:
        return json.loads(answer.read())


def of_wherry(root: str) -> tuple[int, int]:
    """Points that are drawn, and points that they stand for."""
    (found,) = ask(f"{root}/data/points?id=run&key={KEY}&n=800")["runs"]
    return len(found["lines"][0]["x"]), found["n_here"] if "lines" in found else 0


def of_tensorboard(root: str) -> tuple[int, int]:
    points = ask(f"{root}/data/plugin/scalars/scalars?tag={KEY}&run=rank0")
    return len(points), int(points[-1][1]) + 1 if points else 0


def of_trackio(root: str) -> tuple[int, int]:
    (found,) = ask(f"{root}/api/get_logs_batch", {"project": "bench", "runs": [{"run": "run"}], "scalar_only": True})["data"]
    logs = found["logs"] if isinstance(found, dict) else found
    return len(logs), int(logs[-1]["step"]) + 1 if logs else 0


def tried(question: Callable[[str], tuple[int, int]], root: str) -> tuple[int, int]:
    try:
        return question(root)
    except (OSError, ValueError, LookupError):  # it is not up, or does not know the run yet
        return 0, 0


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[psutil.Process]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=quiet, stderr=quiet) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def figures(
    name: str, command: list[str], environment: Mapping[str, str], port: int, question: Callable[[str], tuple[int, int]]
) -> list[str]:
    began_s = time.perf_counter()
    with running(command, environment) as process:
        n = reached = 0
        while not n and time.perf_counter() - began_s < _MOST_S:
            n, reached = tried(question, f"http://127.0.0.1:{port}")
            if not n:
                time.sleep(0.02)  # none of them says when it knows the run
        first_s = time.perf_counter() - began_s
        most_mb = memory_of_tree_mb(process.pid)
        while reached < N_POINTS and time.perf_counter() - began_s < _MOST_S:
            time.sleep(0.5)
            n_then, reached_then = tried(question, f"http://127.0.0.1:{port}")
            if reached_then >= N_POINTS:
                break
            n_then = max(n_then, 0)
        all_s = time.perf_counter() - began_s
        most_mb = max(most_mb, memory_of_tree_mb(process.pid))
    if not n:
        return [name, f"nothing in {_MOST_S:.0f}", "", "", "", ""]
    whole = f"{all_s:.1f}" if all_s < _MOST_S else f"not in {_MOST_S:.0f}"
    return [name, f"{first_s:.2f}", f"{n:,}", f"{reached / N_POINTS:.0%}", whole, f"{most_mb:.0f}"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def make_boards(made: Path) -> None:
    """The same for TensorBoard and trackio, from the lines."""
    if not (made / "board").exists():
        with TensorBoardLogger(made / "board-new") as board, open(made / "metrics.jsonl", "rb") as file:
            for line in file:
                found = json.loads(line)
                step = found.pop("step")
                found.pop("t")
                board.log_metrics(found, step)
        (made / "board-new").rename(made / "board")
    if not (made / "trackio").exists():
        fill = [str(VIEWERS / "bin/python"), str(Path(__file__).parent / "looking/fill_trackio.py"), str(made / "metrics.jsonl")]
        subprocess.run(fill, env={**os.environ, "TRACKIO_DIR": str(made / "trackio-new")}, check=True, capture_output=True)
        (made / "trackio-new").rename(made / "trackio")


def main() -> None:
    with ExitStack() as stack:
        data = os.environ.get("BENCH_DATA") or stack.enter_context(TemporaryDirectory(prefix="wherry-bench-"))
        os.environ["N_POINTS"] = str(N_POINTS)
        made = make_data(Path(data), N_POINTS)
        make_boards(made)
        base = Path(stack.enter_context(TemporaryDirectory(prefix="wherry-bench-")))
        for kind, names in (("parquet", ("metrics.parquet", "wherry-summary.json")), ("lines", ("metrics.jsonl",))):
            (base / kind / "run").mkdir(parents=True)
            for name in (*names, "hparams.json"):
                shutil.copyfile(made / name, base / kind / "run" / name)
        loud = wait_until_quiet(20.0)
        rows = []
        for kind in ("parquet", "lines"):
            port = free_port()
            command = [sys.executable, "-m", "wherry.cli", "ui", "--no-open", "--port", str(port), str(base / kind)]
            cache = {"XDG_CACHE_HOME": str(base / f"cache-{kind}")}
            rows.append(figures(f"wherry ui, {kind}", command, cache, port, of_wherry))
        port = free_port()
        board = [str(VIEWERS / "bin/tensorboard"), "--logdir", str(made / "board"), "--port", str(port), "--host", "127.0.0.1"]
        rows.append(figures("TensorBoard, fast loader", [*board, "--load_fast=true"], {}, port, of_tensorboard))
        port = free_port()
        command = [str(VIEWERS / "bin/trackio"), "show", "--project", "bench", "--host", "127.0.0.1"]
        ports = {"GRADIO_SERVER_PORT": str(port), "TRACKIO_SERVER_PORT": str(port), "TRACKIO_DIR": str(made / "trackio")}
        rows.append(figures("trackio", command, {**ports, "BROWSER": "true"}, port, of_trackio))
    title = f"The first chart of {N_KEYS} metrics x {N_POINTS:,} points on the disk, beside others ({machine()}){loud}"
    header = [
        "viewer",
        "first points, s",
        "points it then shows",
        "share of the steps that they reach",
        "all steps, s",
        "PSS, MB",
    ]
    table(title, header, rows)


if __name__ == "__main__":
    main()
