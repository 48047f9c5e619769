"""wherry: the whole pipeline, with its agent and workers up."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from clients.contract import MIB, THREADS, Client, Endpoint
from wherry import AgentConfig, Config, Uploader
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c_of_file
from wherry.spool.presence import pid_of_agent
from wherry.store import PutOptions
from wherry.uri import StoreURI

THREADS_A_PROCESS = 4
#: As a worker does it.
MOST_TOGETHER_BYTES = 256 * 1024


class Wherry(Client):
    """`put(move=True)` to the verified object, `get` to the verified file; `put` of a folder, durable."""

    packages = ("wherry",)
    scheme = "s3"
    move = True

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        folder = Path(endpoint.folder)
        config = Config(agent=AgentConfig(worker_idle_s=600))
        self.uploader = Uploader(
            f"{self.scheme}://{endpoint.bucket}", storage_options=self.options(), spool=folder / "spool", config=config
        )
        # Its agent and all workers are up, and know the server: on S3 a trial goes on beside the first uploads, whose sums are
        # read back until it has ended. So these are small, which the sink keeps.
        first = folder / "first"
        first.write_bytes(bytes(16 * 1024))
        self.uploader.put(first, "first", overwrite=True).result(60)
        while self.scheme == "s3" and not (folder / "spool" / "endpoints.json").exists():
            self.uploader.put(first, "first", overwrite=True).result(60)
            time.sleep(0.1)
        first.write_bytes(bytes(64 * MIB))
        for _ in range(2):
            self.uploader.put(first, "first", overwrite=True).result(60)

    def options(self) -> dict[str, Any]:
        at = self.endpoint
        keys = {"aws_access_key_id": at.access_key, "aws_secret_access_key": at.secret_key, "region": at.region}
        return {"endpoint_url": at.url, **keys, **({"verify": at.ca_file} if at.ca_file else {})}

    def prepare(self, path: Path) -> Path:
        return Path(shutil.copyfile(path, Path(self.endpoint.folder) / "sent")) if self.move else path

    def up(self, path: Path, key: str) -> None:
        started = time.perf_counter()
        handle = self.uploader.put(path, key, overwrite=True, move=self.move)
        self.blocked_s = time.perf_counter() - started
        handle.result()

    def settle(self) -> None:
        self.uploader.spool.await_freeing()

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        self.uploader.get(key, path)

    def many(self, folder: Path, prefix: str) -> None:
        started = time.perf_counter()
        self.uploader.put(folder, prefix, overwrite=True)
        self.blocked_s = time.perf_counter() - started
        self.uploader.flush()

    def close(self) -> None:
        agent = pid_of_agent(self.uploader.spool)
        self.uploader.close()
        if agent:
            os.kill(agent, signal.SIGTERM)


class ByCopy(Wherry):
    """The same with the file kept: `put` copies it first."""

    move = False


class Calls(Wherry):
    """A `put` for each file."""

    def many(self, folder: Path, prefix: str) -> None:
        started = time.perf_counter()
        for path in folder.iterdir():
            self.uploader.put(path, f"{prefix}/{path.name}", overwrite=True)
        self.blocked_s = time.perf_counter() - started
        self.uploader.flush()


#: The store of each process of StoreAlone.
_stores: list[S3Store] = []


def _open_store(bucket: str, options: dict[str, Any]) -> None:
    _stores.append(S3Store(StoreURI("s3", bucket), options))
    _stores[0].probe("trial/")


def _put_all(paths: list[Path], prefix: str) -> None:
    store = _stores[0]
    puts = [(f"{prefix}/{path.name}", path, PutOptions(crc32c=crc32c_of_file(path))) for path in paths]
    is_small = puts[0][1].stat().st_size <= MOST_TOGETHER_BYTES
    made = dict(store.put_many(puts, store.capabilities.puts_at_once)) if is_small else {}
    left = [put for place, put in enumerate(puts) if place not in made]
    with ThreadPoolExecutor(THREADS_A_PROCESS) as threads:
        for done in [threads.submit(store.put_file, *put) for put in left]:
            done.result()


class StoreAlone(Client):
    """The store alone with CRC32C, in 2 processes: `put_many`, or 4 threads of `put_file`. No spool, no journal, not durable."""

    packages = ("wherry",)

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        keys = {"aws_access_key_id": endpoint.access_key, "aws_secret_access_key": endpoint.secret_key}
        options = {"endpoint_url": endpoint.url, "region": endpoint.region, **keys}
        spawn = multiprocessing.get_context("spawn")
        self.processes = [
            ProcessPoolExecutor(1, spawn, _open_store, (endpoint.bucket, options)) for _ in range(THREADS // THREADS_A_PROCESS)
        ]

    def many(self, folder: Path, prefix: str) -> None:
        paths, n = list(folder.iterdir()), len(self.processes)
        for done in [process.submit(_put_all, paths[i::n], prefix) for i, process in enumerate(self.processes)]:
            done.result()

    def close(self) -> None:
        for process in self.processes:
            process.shutdown()


class OnGCS(Wherry):
    """`put(move=True)` to the verified object, `get` to the verified file."""

    scheme = "gs"

    def options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint.url, "anonymous": True}


CLIENTS: dict[str, type[Client]] = {
    "wherry-store": StoreAlone,
    "wherry": Wherry,
    "wherry-copy": ByCopy,
    "wherry-calls": Calls,
    "wherry-gcs": OnGCS,
}
