"""Many small files through the whole durable pipeline: files a second, and CPU time of each file by process.

put() of one folder, and a put() for each file, until flush() returns: snapshot, journal, upload, verification, acknowledgement.
Beside them the same bytes by bare Python sockets and by boto3's put_object, both with 8 threads and neither durable. The server
is sink.c, which costs next to nothing. The rows are run one after the other in each round.
$FILES (5000), $SIZE_KIB (16), $ROUNDS (3) and $DURABILITY ("process") say how much; $ROWS names some of the rows only.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, cast

import boto3
import psutil
from bench_bodies import KEYS, THREADS, cost_of, sink
from botocore.config import Config as BotoConfig
from measure import folder, machine, make_file, settle, spread, table

from wherry import AgentConfig, Config, SpoolConfig, Uploader
from wherry.checksum import crc32c_of_file
from wherry.spool.presence import pid_of_agent

FILES = int(os.environ.get("FILES", "5000"))
SIZE_BYTES = int(os.environ.get("SIZE_KIB", "16")) * 1024
ROUNDS = int(os.environ.get("ROUNDS", "3"))
DURABILITY = cast("Literal['process', 'power']", os.environ.get("DURABILITY", "process"))
ROWS = os.environ.get("ROWS", "sockets,folder,calls,boto3").split(",")
#: Wall seconds, and CPU seconds by kind of process.
Measured = tuple[float, Counter[str]]


def bare(port: int) -> Callable[[list[Path]], object]:
    """A PUT of each file after its checksum, by sendall and sendfile on connections that are kept."""
    kept: list[socket.socket] = []

    def put(path: Path) -> None:
        crc32c_of_file(path)
        connection = kept.pop() if kept else socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with open(path, "rb", buffering=0) as file:
            connection.sendall(b"PUT /bucket/%s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.name.encode(), SIZE_BYTES))
            at = 0
            while at < SIZE_BYTES:
                at += os.sendfile(connection.fileno(), file.fileno(), at, SIZE_BYTES - at)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        kept.append(connection)

    return lambda paths: list(pool.map(put, paths))


def boto(url: str) -> Callable[[list[Path]], object]:
    keys: dict[str, Any] = {**KEYS, "region_name": "us-east-1"}
    client: Any = boto3.client("s3", endpoint_url=url, config=BotoConfig(max_pool_connections=THREADS), **keys)

    def put(path: Path) -> None:
        with open(path, "rb") as file:
            client.put_object(Bucket="bucket", Key=path.name, Body=file)

    return lambda paths: list(pool.map(put, paths))


def by_folder(uploader: Uploader) -> Callable[[list[Path]], object]:
    def put(paths: list[Path]) -> None:
        uploader.put(paths[0].parent, "folder", overwrite=True)
        uploader.flush()

    return put


def by_calls(uploader: Uploader) -> Callable[[list[Path]], object]:
    def put(paths: list[Path]) -> None:
        for path in paths:
            uploader.put(path, f"calls/{path.name}", overwrite=True)
        uploader.flush()

    return put


def cpu_by_process(uploader: Uploader) -> Counter[str]:
    agent = psutil.Process(pid_of_agent(uploader.spool))
    found = Counter(trainer=sum(psutil.Process().cpu_times()[:2]), agent=sum(agent.cpu_times()[:2]))
    found["workers"] = sum(sum(worker.cpu_times()[:2]) for worker in agent.children())
    return found


def warm(uploader: Uploader, path: Path) -> None:
    """The agent and its workers are up, and know the server."""
    uploader.put(path, "first", overwrite=True).result()
    while not uploader.spool.inside("endpoints.json").exists():  # the trial goes on beside the first upload
        uploader.put(path, "first", overwrite=True).result()


def measured(uploader: Uploader, work: Callable[[], object]) -> Measured:
    before = cpu_by_process(uploader)
    wall_s, _ = cost_of(work)
    after = cpu_by_process(uploader)
    return wall_s, Counter({name: after[name] - before[name] for name in after})


def shown(name: str, found: list[Measured]) -> list[str]:
    def each(kind: str) -> str:
        return spread([cpu[kind] / FILES for _, cpu in found], 1e3, 2)

    return [name, spread([FILES / wall_s for wall_s, _ in found], 1, 0), *map(each, ("trainer", "agent", "workers"))]


def main() -> None:
    print(machine())
    with folder() as base, sink() as port:
        url = f"http://127.0.0.1:{port}"
        (base / "sources").mkdir()
        paths = [make_file(base / "sources" / f"{n:06d}", SIZE_BYTES) for n in range(FILES)]
        config = Config(agent=AgentConfig(worker_idle_s=600), spool=SpoolConfig(durability=DURABILITY))
        uploader = Uploader("s3://bucket", storage_options={"endpoint_url": url, **KEYS}, spool=base / "spool", config=config)
        agent: psutil.Process | None = None
        try:
            warm(uploader, paths[0])
            agent = psutil.Process(pid_of_agent(uploader.spool))
            names = {
                "sockets": ("bare sockets, not durable", bare(port)),
                "folder": ("put() of a folder", by_folder(uploader)),
                "calls": ("put() of each file", by_calls(uploader)),
                "boto3": ("boto3 put_object, not durable", boto(url)),
            }
            rows = [names[name] for name in ROWS]
            found: dict[str, list[Measured]] = {name: [] for name, _ in rows}
            for _ in range(ROUNDS):
                for name, work in rows:
                    settle()
                    found[name].append(measured(uploader, lambda work=work: work(paths)))  # type: ignore[misc]
            uploader.close()
        finally:
            if agent is not None:
                agent.terminate()
                agent.wait(30)
        shutil.rmtree(base / "sources")
    columns = ("what", "files/s", "CPU ms a file: this process", "agent", "workers")
    table(f"{FILES} files of {SIZE_BYTES // 1024} KiB, durability {DURABILITY}", columns, [shown(*one) for one in found.items()])


if __name__ == "__main__":
    with ThreadPoolExecutor(THREADS) as pool:
        main()
