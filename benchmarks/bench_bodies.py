"""Bodies to and from S3: our own requests, the same store by botocore alone, and what bare Python sockets take.

The server is the sink (sink_program.py), which costs next to nothing; over TLS a terminator in Python before it, which costs
much, so that only the CPU time of the client means something there. All rows have the same sizes, threads and checksums
(CRC32C of all bytes, both ways), and are run one after the other in each round. Rows of peers are there if they are installed.
$SIZE_MIB (1024), $TLS_SIZE_MIB (256), $FILES (2000) and $ROUNDS (5) make it shorter.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import google_crc32c
import psutil
from botocore.config import Config as BotoConfig
from measure import MIB, machine, make_file, spread, table
from sink_program import HERE, sink_program

from servers.real import tls_terminator
from wherry import AgentConfig, Config, Uploader
from wherry.backends.s3.probe import AMAZON
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c_of_file
from wherry.spool.presence import pid_of_agent
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

SIZE_BYTES = int(os.environ.get("SIZE_MIB", "1024")) * MIB
TLS_SIZE_BYTES = int(os.environ.get("TLS_SIZE_MIB", "256")) * MIB
FILES = int(os.environ.get("FILES", "2000"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
THREADS = 8
PART_BYTES = 16 * MIB
SMALL_BYTES = 16 * 1024
KEYS = {"aws_access_key_id": "KEY", "aws_secret_access_key": "SECRET"}
#: Wall and CPU seconds of this process.
Cost = tuple[float, float]
#: Takes a range [start, end).
Take = Callable[[int, int], object]


@contextmanager
def sink() -> Iterator[int]:
    """Build the server and run it; its port."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*sink_program(Path(folder)), "0"]
        with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline())
            finally:
                process.stdin.close()


def cost_of(work: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def each_range(pool: ThreadPoolExecutor, size_bytes: int, take: Take) -> None:
    starts = range(0, size_bytes, PART_BYTES)
    list(pool.map(lambda start: take(start, min(start + PART_BYTES, size_bytes)), starts))


def store_at(url: str, **options: object) -> S3Store:
    store = S3Store(StoreURI("s3", "bucket"), {"endpoint_url": url, **KEYS, **options})
    store.assume({**AMAZON.as_dict(), "copies_parts": False})
    store.head("pattern/1")  # its client is made now
    return store


def sending(store: S3Store, path: Path) -> Callable[[ThreadPoolExecutor], object]:
    """All parts of a file, each after its checksum; as the workers do."""
    size_bytes = path.stat().st_size

    def send(pool: ThreadPoolExecutor) -> None:
        upload_id = store.begin("large", size_bytes)

        def part(start: int, end: int) -> object:
            crc = crc32c_of_file(path, start, end)
            return store.put_part("large", upload_id, path, Part(start // PART_BYTES + 1, start, end, crc))

        each_range(pool, size_bytes, part)
        store.abort("large", upload_id)

    return send


def fetching(store: S3Store, size_bytes: int, path: Path) -> Callable[[ThreadPoolExecutor], object]:
    """All ranges into a new file, each with its checksum."""

    def fetch(pool: ThreadPoolExecutor) -> None:
        path.unlink(missing_ok=True)
        path.touch()
        os.truncate(path, size_bytes)
        each_range(pool, size_bytes, lambda start, end: store.get_file(f"pattern/{size_bytes}", path, start=start, end=end))

    return fetch


def bare_sending(port: int, path: Path) -> Callable[[ThreadPoolExecutor], object]:
    """A signature-less PUT of each part by os.sendfile, on connections that are kept."""
    kept: list[socket.socket] = []

    def send(pool: ThreadPoolExecutor) -> None:
        with open(path, "rb", buffering=0) as file:

            def part(start: int, end: int) -> None:
                crc32c_of_file(path, start, end)
                connection = kept.pop() if kept else socket.create_connection(("127.0.0.1", port))
                connection.sendall(b"PUT /bucket/bare HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (end - start))
                while start < end:
                    start += os.sendfile(connection.fileno(), file.fileno(), start, end - start)
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
                kept.append(connection)

            each_range(pool, path.stat().st_size, part)

    return send


def bare_fetching(port: int, size_bytes: int, path: Path) -> Callable[[ThreadPoolExecutor], object]:
    """A ranged GET by recv_into and pwrite, with the checksum of each block."""

    def fetch(pool: ThreadPoolExecutor) -> None:
        path.unlink(missing_ok=True)
        with open(path, "wb", buffering=0) as file:
            os.truncate(path, size_bytes)

            def part(start: int, end: int) -> None:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    head = f"GET /bucket/pattern/{size_bytes} HTTP/1.1\r\nRange: bytes={start}-{end - 1}\r\n\r\n"
                    connection.sendall(head.encode())
                    while not (head_end := connection.recv(4096, socket.MSG_PEEK).find(b"\r\n\r\n") + 4) > 3:
                        pass
                    connection.recv(head_end)
                    crc = 0
                    while start < end:
                        block = connection.recv(min(MIB, end - start), socket.MSG_WAITALL)
                        crc = google_crc32c.extend(crc, block)
                        start += os.pwrite(file.fileno(), block, start)

            each_range(pool, size_bytes, part)

    return fetch


def boto_sending(url: str, path: Path, authority: str | None) -> Callable[[ThreadPoolExecutor], object]:
    """boto3's own upload_file with its defaults."""
    keys: dict[str, Any] = {**KEYS, "region_name": "us-east-1", "verify": authority}
    client: Any = boto3.client("s3", endpoint_url=url, config=BotoConfig(max_pool_connections=16), **keys)
    return lambda pool: client.upload_file(str(path), "bucket", "boto3")


def run(title: str, size_bytes: int, rows: dict[str, Callable[[ThreadPoolExecutor], object]]) -> None:
    found: dict[str, list[Cost]] = {name: [] for name in rows}
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(ROUNDS):
            for name, work in rows.items():
                found[name].append(cost_of(lambda work=work: work(pool)))  # type: ignore[misc]
    per_gib = 2**30 / size_bytes
    shown = [
        [name, spread([wall for wall, _ in costs], per_gib), spread([cpu for _, cpu in costs], per_gib)]
        for name, costs in found.items()
    ]
    table(title, ["what", "s/GiB", "client's CPU s/GiB"], shown)


def small_files(url: str, folder: Path) -> None:
    paths = [make_file(folder / f"small-{n}", SMALL_BYTES) for n in range(64)]
    crcs = [crc32c_of_file(path) for path in paths]
    rows: dict[str, Callable[[int], object]] = {}
    with ExitStack() as stack:
        for name, options in (("wherry's S3Store", {}), ("the same, sdk_only", {"sdk_only": True})):
            store = stack.enter_context(store_at(url, **options))

            def put(store: S3Store, n: int) -> object:
                metadata = {"wherry-token": "0" * 32}
                return store.put_file(f"small/{n}", paths[n % 64], PutOptions(crc32c=crcs[n % 64], metadata=metadata))

            rows[name] = partial(put, store)
        found: dict[str, list[Cost]] = {name: [] for name in rows}
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        for _ in range(ROUNDS):
            for name, work in rows.items():
                found[name].append(cost_of(lambda work=work: list(pool.map(work, range(FILES)))))  # type: ignore[misc]
    shown = [
        [name, spread([FILES / wall for wall, _ in costs], 1, 0), spread([cpu / FILES for _, cpu in costs], 1e3, 2)]
        for name, costs in found.items()
    ]
    table(f"put_file of {FILES} files of 16 KiB, {THREADS} threads", ["what", "files/s", "client's CPU ms each"], shown)


def cpu_of(processes: list[psutil.Process]) -> float:
    """Their CPU time so far, with that of their children that have ended."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


@contextmanager
def uploading(url: str, spool: Path, **options: object) -> Iterator[Uploader]:
    """An uploader whose agent and workers are up, and know the server."""
    config = Config(agent=AgentConfig(worker_idle_s=600))
    with Uploader(
        "s3://bucket", storage_options={"endpoint_url": url, **KEYS, **options}, spool=spool, config=config
    ) as uploader:
        try:
            uploader.put(make_file(spool.with_name("first"), SMALL_BYTES), "first", overwrite=True, move=True).result()
            while not (spool / "endpoints.json").exists():  # the trial goes on beside the first upload
                time.sleep(0.1)
            yield uploader
        finally:
            agent = psutil.Process(pid_of_agent(uploader.spool))
            agent.terminate()


def pipeline(url: str, folder: Path, source: Path) -> None:
    """From put(move=True) to the verified object, and get() of an object to the verified file."""
    size_bytes = source.stat().st_size
    found: dict[str, list[Cost]] = {}
    sent, got = folder / "sent", folder / "got"

    def measure(name: str, uploader: Uploader, work: Callable[[], object]) -> None:
        agent = psutil.Process(pid_of_agent(uploader.spool))
        processes = [psutil.Process(), agent, *agent.children()]
        before = cpu_of(processes)
        wall, _ = cost_of(work)
        found.setdefault(name, []).append((wall, cpu_of(processes) - before))

    with uploading(url, folder / "spool") as ours, uploading(url, folder / "spool-of-sdk", sdk_only=True) as sdk:
        for _ in range(ROUNDS):
            for name, uploader in (("wherry", ours), ("wherry, sdk_only", sdk)):
                shutil.copyfile(source, sent)
                put = partial(uploader.put, sent, "large", overwrite=True, move=True)
                measure(f"put(move=True), {name}", uploader, lambda put=put: put().result())  # type: ignore[misc]
                got.unlink(missing_ok=True)
                measure(f"get(), {name}", uploader, partial(uploader.get, f"pattern/{size_bytes}", got))
    got.unlink()
    rows = [
        [name, spread([wall for wall, _ in costs], 2**30 / size_bytes), spread([cpu for _, cpu in costs], 2**30 / size_bytes)]
        for name, costs in sorted(found.items(), reverse=True)
    ]
    table(f"{size_bytes // MIB} MiB through the whole pipeline, plain HTTP", ["what", "s/GiB", "CPU s/GiB, all processes"], rows)


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, sink() as port, ExitStack() as stack:
        folder, url = Path(name), f"http://127.0.0.1:{port}"
        path = make_file(folder / "large", SIZE_BYTES)
        direct, sdk = stack.enter_context(store_at(url)), stack.enter_context(store_at(url, sdk_only=True))
        run(
            f"{SIZE_BYTES // MIB} MiB up, plain HTTP",
            SIZE_BYTES,
            {
                "bare sockets: sendfile, CRC32C": bare_sending(port, path),
                "wherry's S3Store": sending(direct, path),
                "the same, sdk_only": sending(sdk, path),
                "boto3 upload_file, defaults": boto_sending(url, path, None),
            },
        )
        target = folder / "back"
        run(
            f"{SIZE_BYTES // MIB} MiB down, plain HTTP, into a new file on tmpfs",
            SIZE_BYTES,
            {
                "bare sockets: recv, CRC32C, pwrite": bare_fetching(port, SIZE_BYTES, target),
                "wherry's S3Store": fetching(direct, SIZE_BYTES, target),
                "the same, sdk_only": fetching(sdk, SIZE_BYTES, target),
            },
        )
        target.unlink()
        pipeline(url, folder, path)
        small_files(url, folder)
        path.unlink()
        path = make_file(folder / "large", TLS_SIZE_BYTES)
        secure_url, authority = stack.enter_context(tls_terminator(port, folder))
        direct = stack.enter_context(store_at(secure_url, verify=str(authority)))
        sdk = stack.enter_context(store_at(secure_url, verify=str(authority), sdk_only=True))
        run(
            f"{TLS_SIZE_BYTES // MIB} MiB up, TLS",
            TLS_SIZE_BYTES,
            {
                "wherry's S3Store": sending(direct, path),
                "the same, sdk_only": sending(sdk, path),
                "boto3 upload_file, defaults": boto_sending(secure_url, path, str(authority)),
            },
        )
        run(
            f"{TLS_SIZE_BYTES // MIB} MiB down, TLS, into a new file on tmpfs",
            TLS_SIZE_BYTES,
            {
                "wherry's S3Store": fetching(direct, TLS_SIZE_BYTES, target),
                "the same, sdk_only": fetching(sdk, TLS_SIZE_BYTES, target),
            },
        )


if __name__ == "__main__":
    main()
