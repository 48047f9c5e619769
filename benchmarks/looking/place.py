"""What the benchmarks of looking at runs share: a bucket that is far away, a page of `wherry ui` before it, what both use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from servers.real import S3Server
from wherry.store import PutOptions
from wherry.store.registry import open_store
from wherry.uri import parse_uri

HERE = Path(__file__).resolve().parent
LATENCY_S = 0.03
#: List prices of S3 (Standard, us-east-1): https://aws.amazon.com/s3/pricing/.
LIST_USD, GET_USD = 5.0 / 1e6, 0.4 / 1e6
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Requests:
    """What a far server was asked, as its proxy counts."""

    lists: int
    gets: int

    @property
    def usd(self) -> float:
        return self.lists * LIST_USD + self.gets * GET_USD

    def since(self, before: Requests) -> Requests:
        return Requests(self.lists - before.lists, self.gets - before.gets)

    def __str__(self) -> str:
        return f"{self.lists:,} list and {self.gets:,} get requests"


@dataclass(frozen=True)
class FarServer:
    """A real server behind a proxy. `options` open it from far away; `near` is the server itself."""

    near: S3Server
    process: subprocess.Popen[str]
    port: int

    @property
    def options(self) -> dict[str, object]:
        return {**self.near.options, "endpoint_url": f"http://127.0.0.1:{self.port}"}

    def requests(self) -> Requests:
        """All so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        return Requests(found.pop("list", 0), sum(found.values()))


@contextmanager
def far_away(near: S3Server, latency_s: float = LATENCY_S) -> Iterator[FarServer]:
    """Put the server far away."""
    command = [sys.executable, str(HERE / "far.py"), str(near.port), str(latency_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield FarServer(near, process, int(process.stdout.readline()))
        finally:
            process.stdin.close()


@dataclass(frozen=True)
class PageProcess:
    """`wherry ui` as a process of its own."""

    root: str
    process: psutil.Process

    def get(self, path: str) -> str:
        with _direct.open(self.root + path, timeout=120) as answer:
            return str(answer.read().decode())

    def events(self, path: str) -> Iterator[str]:
        """The names of the events that it sends, as they come."""
        with _direct.open(self.root + path, timeout=600) as answer:
            while line := answer.readline().decode():
                if line.startswith("event: "):
                    yield line[len("event: ") :].strip()

    @property
    def peak_mb(self) -> float:
        """The largest resident set so far (VmHWM)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024 / 1e6


@contextmanager
def page_process(uri: str, options: Mapping[str, object], cache: Path) -> Iterator[PageProcess]:
    """Start it; it is up when this returns. `cache` is where it keeps what it reads."""
    command = [sys.executable, "-m", "wherry.cli", "ui", "--no-open", "--port", "0", uri]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    if options:
        cache.mkdir(parents=True, exist_ok=True)
        file = cache / "options.json"
        file.write_text(json.dumps(dict(options)))
        command += ["--options-file", str(file)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            root = next(found[1] for line in process.stdout if (found := re.search(r"(http://[\d.:]+)/", line)))
            yield PageProcess(root, psutil.Process(process.pid))
        finally:
            process.terminate()


def put_all(server: S3Server, prefix: str, files: Sequence[tuple[str, Path]]) -> None:
    """Put files under their names below a prefix of the bucket."""
    store = open_store(parse_uri(f"s3://{server.bucket}"), server.options)
    try:
        with ThreadPoolExecutor(16) as pool:
            for _ in pool.map(lambda one: store.put_file(f"{prefix}/{one[0]}", one[1], PutOptions()), files):
                pass
    finally:
        store.close()


def memory_of_tree_mb(pid: int) -> float:
    """PSS of a process and all below it: pages that they share count once."""
    top = psutil.Process(pid)
    return sum(_pss(one) for one in (top, *top.children(recursive=True))) / 1e6


def _pss(one: psutil.Process) -> int:
    try:
        return int(one.memory_full_info().pss)
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return 0


def seconds_until(condition: object, began_s: float) -> float:
    """Seconds since `began_s`, once `condition()` is true. Nothing tells of it, so it is asked a hundred times a second."""
    assert callable(condition)
    while not condition():
        time.sleep(0.01)
    return time.perf_counter() - began_s
