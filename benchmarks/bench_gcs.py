"""Bodies to and from GCS: our own requests, the same store by requests alone, its peers, and what bare Python sockets take.

The server is sink.c. All rows of ours have CRC32C of all bytes, both ways; those of the peers have none. Rows of peers are
there if they are installed. $SIZE_MIB (1024), $FILES (2000) and $ROUNDS (5) make it shorter, and so do the names
of tables: up, down, small.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bench_bodies import (
    FILES,
    PART_BYTES,
    ROUNDS,
    SIZE_BYTES,
    SMALL_BYTES,
    THREADS,
    bare_fetching,
    bare_sending,
    each_range,
    sink,
)
from measure import MIB, machine, make_file, spread, table

from wherry.backends.gcs.store import GCSStore
from wherry.checksum import crc32c_of_file
from wherry.store import Part, PutOptions
from wherry.uri import StoreURI

Work = Callable[[ThreadPoolExecutor], object]


def cpu_s() -> float:
    """Of this process, and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def store_at(url: str, **options: object) -> GCSStore:
    return GCSStore(StoreURI("gs", "bucket"), {"endpoint_url": url, "token": "TOKEN", **options})


def sending(store: GCSStore, path: Path) -> Work:
    """All parts of a file, each after its checksum, composed at the end; as the workers do."""
    size_bytes = path.stat().st_size

    def send(pool: ThreadPoolExecutor) -> None:
        upload_id, sent = store.begin("large", size_bytes), []

        def part(start: int, end: int) -> None:
            crc = crc32c_of_file(path, start, end)
            sent.append(store.put_part("large", upload_id, path, Part(start // PART_BYTES + 1, start, end, crc)))

        each_range(pool, size_bytes, part)
        store.complete("large", upload_id, sent)

    return send


def fetching(store: GCSStore, size_bytes: int, path: Path) -> Work:
    """All ranges into a new file, each with its checksum."""
    key = f"pattern/{size_bytes}"

    def fetch(pool: ThreadPoolExecutor) -> None:
        etag = store.head(key).etag
        make_empty(path, size_bytes)
        each_range(pool, size_bytes, lambda start, end: store.get_file(key, path, start=start, end=end, if_match=etag))

    return fetch


def make_empty(path: Path, size_bytes: int) -> None:
    path.unlink(missing_ok=True)
    path.touch()
    os.truncate(path, size_bytes)


def googles(url: str, path: Path, target: Path, size_bytes: int) -> Iterator[tuple[str, Work, Work]]:
    """google-cloud-storage's transfer manager, by threads and by processes (its default).

    Without checksums: it demands those of parts in the answers, and the server drops the bytes.
    """
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    nobody: Any = AnonymousCredentials
    client: Any = storage.Client(project="p", credentials=nobody(), client_options={"api_endpoint": url})
    bucket = client.bucket("bucket")
    for kind in (transfer_manager.THREAD, transfer_manager.PROCESS):
        options: Any = {"worker_type": kind, "max_workers": THREADS, "chunk_size": 2 * PART_BYTES}

        def send(_: object, options: Any = options) -> None:
            transfer_manager.upload_chunks_concurrently(str(path), bucket.blob("google"), checksum=None, **options)

        def fetch(_: object, options: Any = options) -> None:
            target.unlink(missing_ok=True)
            blob = bucket.blob(f"pattern/{size_bytes}")
            transfer_manager.download_chunks_concurrently(blob, str(target), crc32c_checksum=False, **options)

        yield f"google-cloud-storage's transfer manager, {THREADS} of {kind!r}", send, fetch


def obstores(url: str, path: Path, target: Path, size_bytes: int) -> Iterator[tuple[str, Work, Work]]:
    """Obstore's GCSStore, with parts and ranges as large as ours; no checksums."""
    import obstore
    from obstore.store import GCSStore as Peer

    key = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    store: Any = Peer("bucket", config={"service_account_key": json.dumps(key)}, client_options={"allow_http": True})

    def send(_: object) -> None:
        obstore.put(store, "obstore", path, chunk_size=PART_BYTES, max_concurrency=THREADS)

    def fetch(pool: ThreadPoolExecutor) -> None:
        make_empty(target, size_bytes)
        with open(target, "r+b", buffering=0) as file:

            def part(start: int, end: int) -> None:
                os.pwrite(file.fileno(), obstore.get_range(store, f"pattern/{size_bytes}", start=start, end=end), start)

            each_range(pool, size_bytes, part)

    yield "obstore's GCSStore", send, fetch


def run(title: str, unit: float, columns: list[str], rows: dict[str, Work], *, is_rate: bool = False) -> None:
    """Wall and CPU time of each row, in turn, $ROUNDS times after one that does not count. `unit`: how many there were of it."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    with ThreadPoolExecutor(THREADS) as pool:
        for n in range(ROUNDS + 1):
            for name, work in rows.items():
                wall, cpu = time.perf_counter(), cpu_s()
                work(pool)
                found[name] += [(time.perf_counter() - wall, cpu_s() - cpu)] if n else []
    shown = []
    for name, costs in found.items():
        walls = spread([unit / wall for wall, _ in costs], 1, 0) if is_rate else spread([wall / unit for wall, _ in costs])
        shown.append([name, walls, spread([cpu / unit for _, cpu in costs], 1e3 if is_rate else 1)])
    table(title, columns, shown)


def small_files(folder: Path, stores: dict[str, GCSStore]) -> None:
    paths = [make_file(folder / f"small-{n}", SMALL_BYTES) for n in range(64)]
    crcs = [crc32c_of_file(path) for path in paths]

    def putting(store: GCSStore) -> Work:
        def put(n: int) -> object:
            return store.put_file(
                f"small/{n}", paths[n % 64], PutOptions(crc32c=crcs[n % 64], metadata={"wherry-token": "0" * 32})
            )

        return lambda pool: list(pool.map(put, range(FILES)))

    rows = {name: putting(store) for name, store in stores.items()}
    columns = ["what", "files/s", "client's CPU ms each"]
    run(f"put_file of {FILES} files of 16 KiB to GCS, {THREADS} threads", FILES, columns, rows, is_rate=True)


def main(tables: Sequence[str] = ()) -> None:
    """Measure these tables of up, down and small, or all."""
    print(machine())
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, sink() as port, ExitStack() as stack:
        folder, url = Path(name), f"http://127.0.0.1:{port}"
        path, target = make_file(folder / "large", SIZE_BYTES), folder / "back"
        ours = {
            "wherry's GCSStore": stack.enter_context(store_at(url)),
            "the same, sdk_only": stack.enter_context(store_at(url, sdk_only=True)),
        }
        up = {"bare sockets: sendfile, CRC32C": bare_sending(port, path)}
        up |= {name: sending(store, path) for name, store in ours.items()}
        down = {"bare sockets: recv, CRC32C, pwrite": bare_fetching(port, SIZE_BYTES, target)}
        down |= {name: fetching(store, SIZE_BYTES, target) for name, store in ours.items()}
        for peers in (googles, obstores):
            with suppress(ImportError):
                for name, send, fetch in peers(url, path, target, SIZE_BYTES):
                    up[name], down[name] = send, fetch
        columns = ["what", "s/GiB", "client's CPU s/GiB"]
        if not tables or "up" in tables:
            run(f"{SIZE_BYTES // MIB} MiB up to GCS, plain HTTP", SIZE_BYTES / 2**30, columns, up)
        if not tables or "down" in tables:
            run(f"{SIZE_BYTES // MIB} MiB down from GCS, plain HTTP, into a new file on tmpfs", SIZE_BYTES / 2**30, columns, down)
        if not tables or "small" in tables:
            small_files(folder, ours)


if __name__ == "__main__":
    main(sys.argv[1:])
