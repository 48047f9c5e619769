"""What verification costs a download: `download()` against the same ranges, fetched side by side and put in place unlooked at.

The difference holds all that verification and resuming need: each range summed as it arrives, its line in the record, the
comparison of the whole. 1 GiB from a local folder, in memory and on the disk, and from SeaweedFS, object and copy in memory.
Rounds are interleaved, and their order turns. $ROUNDS (7) and $SIZE_MIB (1024) change that.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import MIB, folder, machine, make_file, settle, spread, table

from servers.real import fast_folder, seaweedfs
from wherry.backends.local.store import LocalStore
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c_of_file
from wherry.config import RetryConfig, TransferConfig
from wherry.store import ObjectStore, PutOptions
from wherry.transfer.download import download
from wherry.uri import StoreURI

ROUNDS = int(os.environ.get("ROUNDS", "7"))
SIZE_BYTES = int(os.environ.get("SIZE_MIB", "1024")) * MIB
LIMIT = 0.10
TRANSFER = TransferConfig()


class PlainStore(LocalStore):
    """Copies inside the kernel, as a store does that nobody verifies."""

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        source, target = os.open(Path("/", key), os.O_RDONLY), os.open(path, os.O_WRONLY)
        try:
            at = start
            while end is not None and at < end:
                at += os.copy_file_range(source, target, end - at, at, at)
        finally:
            os.close(source)
            os.close(target)
        return None


def bare(store: ObjectStore, key: str, target: Path) -> None:
    """The same ranges and threads, and nothing else."""
    meta = store.head(key)
    temporary = target.with_name("temporary")
    with open(temporary, "wb") as file:
        file.truncate(meta.size_bytes)

    def fetch(start: int) -> None:
        end = min(start + TRANSFER.range_size_bytes, meta.size_bytes)
        store.get_file(key, temporary, start=start, end=end, if_match=meta.etag)

    with ThreadPoolExecutor(TRANSFER.ranges_in_flight) as pool:
        list(pool.map(fetch, range(0, meta.size_bytes, TRANSFER.range_size_bytes)))
    os.replace(temporary, target)


def verified(store: ObjectStore, key: str, target: Path) -> None:
    download(store, key, target, uri=key, transfer=TRANSFER, retry=RetryConfig())


def timed(work: Callable[[ObjectStore, str, Path], None], store: ObjectStore, key: str, target: Path) -> tuple[float, float]:
    """Seconds by the clock, and of the processor in this process."""
    target.unlink(missing_ok=True)
    settle()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work(store, key, target)
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def compare(name: str, store: ObjectStore, key: str, target: Path) -> list[str]:
    ways = (bare, verified)
    plain = PlainStore(StoreURI("file", ""), {}) if isinstance(store, LocalStore) else store
    taken: dict[str, list[tuple[float, float]]] = {way.__name__: [] for way in ways}
    for i in range(ROUNDS + 1):
        for way in ways if i % 2 else reversed(ways):
            figures = timed(way, plain if way is bare else store, key, target)
            if i:  # the first warms up caches and connections
                taken[way.__name__].append(figures)
    walls = {way: [wall for wall, _ in figures] for way, figures in taken.items()}
    cpus = {way: statistics.median(cpu for _, cpu in figures) for way, figures in taken.items()}
    # Rounds are compared with their neighbours: the machine's own speed moves more than what is measured.
    ratio = statistics.median(with_s / without_s for with_s, without_s in zip(walls["verified"], walls["bare"], strict=True))
    cpu_gib = (cpus["verified"] - cpus["bare"]) / (SIZE_BYTES / 2**30)
    verdict = "ok" if ratio < 1 + LIMIT else "over 10 %"
    return [name, spread(walls["bare"]), spread(walls["verified"]), f"{ratio:.3f}", f"{cpu_gib:.2f}", verdict]


def local(base: Path, name: str) -> list[str]:
    source = make_file(base / "source", SIZE_BYTES)
    key = str(base / "object").lstrip("/")
    with LocalStore(StoreURI("file", ""), {}) as store:
        store.put_file(key, source, PutOptions(crc32c=crc32c_of_file(source)))
        return compare(name, store, key, base / "target")


def s3(base: Path) -> list[str]:
    source = make_file(base / "source", SIZE_BYTES)
    (base / "server").mkdir()
    with seaweedfs(base / "server") as server, S3Store(StoreURI("s3", server.bucket), server.options) as store:
        store.put_file("object", source, PutOptions(crc32c=crc32c_of_file(source)))
        source.unlink()
        return compare("SeaweedFS over http", store, "object", base / "target")


def digests(base: Path) -> list[list[str]]:
    """How fast the digests of foreign objects are: what a download that needs one cannot outrun."""
    source = make_file(base / "source", 256 * MIB)
    data = source.read_bytes()
    rows = []
    for name in ("md5", "sha1", "sha256"):
        started = time.perf_counter()
        hashlib.new(name, data, usedforsecurity=False)
        rows.append([name, f"{len(data) / (time.perf_counter() - started) / 1e9:.2f}"])
    started = time.perf_counter()
    crc32c_of_file(source)
    return [*rows, ["crc32c, from the page cache", f"{len(data) / (time.perf_counter() - started) / 1e9:.2f}"]]


def main() -> None:
    print(machine())
    rows = []
    with fast_folder() as base:
        rows.append(local(base, "local folder in memory"))
    with folder() as base:
        rows.append(local(base, "local folder on the disk"))
    with fast_folder() as base:
        rows.append(s3(base))
    header = ["store", "without, s", "with, s", "with / without", "more CPU s a GiB", "less than 10 %"]
    table(f"Verification of a download of {SIZE_BYTES // MIB} MiB, {ROUNDS} rounds: median [min-max]", header, rows)
    with fast_folder() as base:
        table("Digests of foreign objects", ["digest", "GB/s"], digests(base))


if __name__ == "__main__":
    main()
