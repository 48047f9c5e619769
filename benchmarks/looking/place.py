"""What the benchmarks of looking at runs share: a bucket that is far away, what they share besides."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
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
