"""Mirroring: what it costs beside a training run, what it sends in a day, and how fast a live run of many segments is pulled.

$MIRROR_S (90) is how long the mirror of 64 files is watched, $SEGMENTS (10000) how many are pulled.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import psutil
from measure import folder, machine, seconds, table

from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c, format_crc32c
from wherry.config import RetryConfig
from wherry.mirror import MirrorConfig
from wherry.mirror.budget import Budget, CountedStore
from wherry.mirror.engine import Engine
from wherry.mirror.layout import manifest_name, segment_name
from wherry.mirror.ledger import Ledger
from wherry.mirror.manifest import FileEntry, Manifest
from wherry.mirror.pull import Puller, open_for_reading
from wherry.mirror.records import masked_crc32c
from wherry.mirror.sender import Courier, InlineExecutor
from wherry.store import CRC32C_METADATA, ObjectStore
from wherry.testing.servers import S3Server, fast_folder, seaweedfs
from wherry.uri import StoreURI, parse_uri
from wherry.wrappers import WrappedStore

_T = TypeVar("_T")
MIRROR_S = float(os.environ.get("MIRROR_S", "90"))
SEGMENTS = int(os.environ.get("SEGMENTS", "10000"))
FILES, BYTES_A_SECOND = 64, 2000
ROUND_TRIP_S = 0.03
DAY_S, FLUSH_S, SCALARS = 86_400, 10, 500


class Distant(WrappedStore):
    """Every call takes a round trip more."""

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        if operation != "list":
            time.sleep(ROUND_TRIP_S)
        return call()


# -- beside a run


def beside_a_run(base: Path, server: S3Server) -> list[list[str]]:
    """``wherry mirror`` as a process of its own, and 64 files that grow by 2 kB/s each."""
    run, options = base / "run", base / "options.json"
    run.mkdir()
    options.write_text(json.dumps(server.options))
    command = [
        sys.executable,
        "-m",
        "wherry.cli",
        "mirror",
        str(run),
        f"s3://{server.bucket}/beside",
        "--options-file",
        str(options),
    ]
    line = (b"x" * 199 + b"\n") * (BYTES_A_SECOND // 200)
    files = [open(run / f"rank{number}.log", "ab", buffering=0) for number in range(FILES)]  # noqa: SIM115  closed below
    environment = {**os.environ, "WHERRY_SPOOL": str(base / "spool")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        began_s, cpu_s, since_s, rss = time.monotonic(), 0.0, 0.0, 0
        try:
            while (now_s := time.monotonic()) < began_s + 10 + MIRROR_S:
                for file in files:
                    file.write(line)
                if not since_s and now_s > began_s + 10:  # it has started, and made its first segments
                    since_s, cpu_s = now_s, sum(watched.cpu_times()[:2])
                rss = max(rss, watched.memory_info().rss)
                time.sleep(max(0.0, 1.0 - (time.monotonic() - now_s)))
            share = (sum(watched.cpu_times()[:2]) - cpu_s) / (time.monotonic() - since_s)
        finally:
            process.terminate()
            process.wait(120)
            for file in files:
                file.close()
    return [
        ["share of one core", f"{share:.2%}", "< 1 %"],
        ["largest resident set", f"{rss / 1e6:.0f} MB", "< 60 MB"],
    ]


# -- a day


def event(step: int, tag: bytes) -> bytes:
    """A scalar as TensorBoard's event files keep it, as to its size and its framing."""
    data = struct.pack("<dq", step, step) + b"\x00" * 12 + tag
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


def a_day(base: Path) -> list[list[str]]:
    """Scalars flushed every 10 s for a day, by a clock that is turned: what is sent of them, and by how many requests."""
    run, uri = base / "day", StoreURI("memory", "bench-day", "run")
    run.mkdir()
    (base / "scratch").mkdir()
    clock = [0.0]
    config = MirrorConfig()
    budget = Budget(config.max_requests_per_hour, lambda: clock[0])
    store = CountedStore(MemoryStore(uri, {}), budget)
    ledger = Ledger(base / "day.db")
    courier = Courier(run, uri, "rank0", store, base / "scratch", retry=RetryConfig(call_deadline_s=0.0))
    engine = Engine(
        courier, ledger, config, budget, InlineExecutor(), clock=lambda: clock[0], now=lambda: 1_780_000_000.0 + clock[0]
    )
    busiest, last = 0, 0
    with open(run / "events.out.tfevents.1780000000.host", "ab", buffering=0) as file:
        for step in range(0, DAY_S, FLUSH_S):
            file.write(b"".join(event(step, b"train/metric-%d" % tag) for tag in range(SCALARS)))
            for _ in range(FLUSH_S // 5):
                clock[0] += 5.0
                engine.turn()
            if step % 3600 == 0:
                busiest, last = max(busiest, budget.spent - last), budget.spent
        written = file.tell()
    live = courier.sent_bytes
    requests = budget.spent
    while not engine.is_finished:
        clock[0] += 1.0
        engine.turn(final=True)
    ledger.close()
    return [
        ["bytes written", f"{written / 1e6:.0f} MB", ""],
        ["bytes sent / written, while it is live", f"{live / written:.3f}", "<= 1.1"],
        ["bytes sent / written, with the seal", f"{courier.sent_bytes / written:.3f}", "a store that can join: <= 1.1"],
        ["requests in the busiest hour", f"{busiest}", f"<= {config.max_requests_per_hour}"],
        ["requests a day", f"{requests} ({requests * 0.005 / 1000:.3f} USD at 0.005 for 1000)", ""],
    ]


# -- many segments


def put_segments(store: ObjectStore, prefix: str, scratch: Path, n: int) -> int:
    """Segments of some 500 bytes, and the manifest that a mirror has with them; how many bytes they are."""
    data = [os.urandom(400 + number % 200) for number in range(n)]
    starts = [0]
    for one in data:
        starts.append(starts[-1] + len(one))

    def put(number: int) -> None:
        with tempfile.NamedTemporaryFile(dir=scratch) as file:
            file.write(data[number])
            file.flush()
            store.put_file(
                f"{prefix}/{segment_name('rank0', 'a.log', 1, starts[number])}",
                Path(file.name),
                metadata={CRC32C_METADATA: format_crc32c(crc32c(data[number]))},
            )

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, range(n)))
    entry = FileEntry("a.log", "a.log", "append", "live", 1, starts[-1], format_crc32c(crc32c(b"".join(data))))
    now_s = time.time()
    with tempfile.NamedTemporaryFile("w", dir=scratch) as text:
        text.write(Manifest("rank0", 1, "open", now_s, 600.0, 0.0, 0, 1, (entry,)).to_json())
        text.flush()
        store.put_file(f"{prefix}/{manifest_name('rank0')}", Path(text.name))
    return starts[-1]


def pulled(store: ObjectStore, uri: StoreURI, base: Path, name: str) -> list[str]:
    """Seconds of a pull, against those of gets one after another (of a tenth of the segments)."""
    size = put_segments(store, uri.prefix, base, SEGMENTS)
    keys = [meta.key for meta in store.list(f"{uri.prefix}/") if "/segments/" in meta.key]

    def one_by_one() -> None:
        with tempfile.NamedTemporaryFile(dir=base) as file:
            for key in keys[:: max(1, len(keys) // 500)]:
                store.get_file(key, Path(file.name))

    n_tried = len(keys[:: max(1, len(keys) // 500)])
    sequential_s = seconds(one_by_one) * len(keys) / n_tried
    with Puller(store, uri, base / f"copy-{name[:2]}") as puller:
        pull_s = seconds(puller.step)
        puller.raise_first()
    assert size == (base / f"copy-{name[:2]}" / "a.log").stat().st_size
    return [name, f"{sequential_s:.1f}", f"{pull_s:.1f}", f"{sequential_s / pull_s:.1f}", f"{len(keys) / pull_s:.0f}"]


def main() -> None:
    with folder() as base, fast_folder() as place, seaweedfs(place) as server:
        beside = beside_a_run(base, server)
        day = a_day(base)
        memory = StoreURI("memory", "bench-pull", "run")
        s3 = parse_uri(f"s3://{server.bucket}/many")
        with open_for_reading(s3, server.options) as store:
            pulls = [pulled(store, s3, base, "S3 (SeaweedFS, this machine)")]
        with Distant(MemoryStore(memory, {})) as distant:
            pulls.append(far_away(distant, memory, base))
    table(f"Mirror of {FILES} files at {BYTES_A_SECOND} B/s each, {MIRROR_S:.0f} s ({machine()})", ["what", "is", "goal"], beside)
    table(f"A day of scalars, flushed every {FLUSH_S} s, by a simulated clock", ["what", "is", "goal"], day)
    header = ["store", "one after another, s", "pull, s", "times faster", "segments/s"]
    table(f"Pull of {SEGMENTS} segments of 500 bytes", header, pulls)


def far_away(distant: Distant, uri: StoreURI, base: Path) -> list[str]:
    """As pulled(), with the segments put there without the round trips."""
    put_segments(distant.inner, uri.prefix, base, SEGMENTS)
    sequential_s = SEGMENTS * ROUND_TRIP_S
    with Puller(distant, uri, base / "copy-far") as puller:
        pull_s = seconds(puller.step)
        puller.raise_first()
    name = f"memory, {1000 * ROUND_TRIP_S:.0f} ms a call"
    return [name, f"{sequential_s:.1f}", f"{pull_s:.1f}", f"{sequential_s / pull_s:.1f}", f"{SEGMENTS / pull_s:.0f}"]


if __name__ == "__main__":
    main()
