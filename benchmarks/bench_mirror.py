"""Mirroring: what it costs beside a training run, what it sends in a day, and how fast a live run of many segments is pulled.

$MIRROR_S (90) is how long each mirror of busy files is watched ($MIRRORED, "16 64 256" files), $SEGMENTS (10000) how many are
pulled, $LOGS (10000) how many small logs are sent and closed.
"""

from __future__ import annotations

import json
import os
import statistics
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

from servers.proxy import fault_proxy
from servers.real import S3Server, fast_folder, seaweedfs
from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c, format_crc32c
from wherry.clock import Clock
from wherry.config import RetryConfig
from wherry.mirror import Mirror, MirrorConfig
from wherry.mirror.budget import LEAST_PER_HOUR, MOST_PER_HOUR, Budget, CountedStore
from wherry.mirror.format.layout import FOLDER, manifest_name, parse_segment, segment_name
from wherry.mirror.format.manifest import FileEntry, Manifest
from wherry.mirror.format.record_boundaries import masked_crc32c
from wherry.mirror.reader.pull import open_for_reading
from wherry.mirror.reader.puller import Puller
from wherry.mirror.writer.engine import Engine
from wherry.mirror.writer.segment_sender import InlineExecutor, SegmentSender
from wherry.mirror.writer.state_db import StateDb
from wherry.store import CRC32C_METADATA, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI, parse_uri

_T = TypeVar("_T")
MIRROR_S = float(os.environ.get("MIRROR_S", "90"))
SEGMENTS = int(os.environ.get("SEGMENTS", "10000"))
LOGS = int(os.environ.get("LOGS", "10000"))
MIRRORED = [int(number) for number in os.environ.get("MIRRORED", "16 64 256").split()]
BYTES_A_SECOND = 2000
#: The first look, the trial of the server, and two rounds of segments.
SETTLING_S = 65.0
ROUND_TRIP_S = 0.03
DAY_S, FLUSH_S, SCALARS = 86_400, 10, 500


class Distant(WrappedStore):
    """Every call takes a round trip more."""

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        if operation != "list":
            time.sleep(ROUND_TRIP_S)
        return call()


# -- beside a run


def beside_a_run(base: Path, server: S3Server, n_files: int) -> list[list[str]]:
    """``wherry mirror`` as a process of its own, and files that grow by 2 kB/s each: what it costs, and how late they are."""
    run, options = base / f"run{n_files}", base / "options.json"
    run.mkdir()
    with fault_proxy("127.0.0.1", server.port, []) as proxy:  # it counts what really is sent
        options.write_text(json.dumps({**server.options, "endpoint_url": proxy.url}))
        uri = f"s3://{server.bucket}/beside{n_files}"
        command = [sys.executable, "-m", "wherry.cli", "mirror", str(run), uri, "--options-file", str(options)]
        line = (b"x" * 199 + b"\n") * (BYTES_A_SECOND // 200)
        files = [open(run / f"rank{number}.log", "ab", buffering=0) for number in range(n_files)]  # noqa: SIM115  closed below
        environment = {**os.environ, "WHERRY_SPOOL": str(base / "spool")}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            watched = psutil.Process(process.pid)
            began_s, cpu_s, since_s, rss, before = time.monotonic(), 0.0, 0.0, 0, 0
            lags: list[float] = []
            written: list[tuple[float, int]] = []
            try:
                while (now_s := time.monotonic()) < began_s + SETTLING_S + MIRROR_S:
                    for file in files:
                        file.write(line)
                    written.append((now_s, files[0].tell()))
                    if not since_s and now_s > began_s + SETTLING_S:  # it has started, and made its first segments
                        since_s, cpu_s, before = now_s, sum(watched.cpu_times()[:2]), len(proxy.log)
                    if since_s and len(written) % 5 == 0:
                        lags += ages_s(server, f"beside{n_files}", written, n_files, now_s)
                    rss = max(rss, watched.memory_info().rss)
                    time.sleep(max(0.0, 1.0 - (time.monotonic() - now_s)))
                elapsed_s = time.monotonic() - since_s
                share = (sum(watched.cpu_times()[:2]) - cpu_s) / elapsed_s
                an_hour = (len(proxy.log) - before) * 3600 / elapsed_s
            finally:
                process.terminate()
                process.wait(120)
                for file in files:
                    file.close()
    budget = min(max(LEAST_PER_HOUR, 1.25 * 120 * n_files), MOST_PER_HOUR)
    return [
        [f"{n_files} files: share of one core", f"{share:.2%}", "< 1 %"],
        [f"{n_files} files: largest resident set", f"{rss / 1e6:.0f} MB", "< 60 MB"],
        [f"{n_files} files: age of the oldest byte that is not there, median", f"{statistics.median(lags):.0f} s", "<= 30 s"],
        [f"{n_files} files: ... 95 of 100", f"{sorted(lags)[len(lags) * 95 // 100]:.0f} s", "<= 30 s"],
        [f"{n_files} files: requests an hour, counted by a proxy", f"{an_hour:.0f}", f"<= {budget:.0f} and those of one burst"],
    ]


def ages_s(server: S3Server, prefix: str, written: list[tuple[float, int]], n_files: int, now_s: float) -> list[float]:
    """How old the oldest byte is of each file that is not in the store; all files have grown alike."""
    with open_for_reading(parse_uri(f"s3://{server.bucket}/{prefix}"), server.options) as store:
        there = dict.fromkeys((f"rank{number}.log" for number in range(n_files)), 0)
        for meta in store.list(f"{prefix}/{FOLDER}/"):
            if (one := parse_segment(prefix, meta)) is not None:
                there[one.path] = max(there[one.path], one.start + one.size_bytes)
    return [now_s - next((at_s for at_s, size in written if size > n_bytes), now_s) for n_bytes in there.values()]


# -- many small logs


def many_logs(base: Path) -> list[list[str]]:
    """A folder of small logs, to a local folder: sent, then closed."""
    run = base / "many"
    for number in range(LOGS):
        path = run / f"{number // 100}" / f"{number}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d: a line of a small log\n" % number)
    rows: list[list[str]] = []
    mirror = Mirror(run, base / "many-bucket", spool=base / "many-spool")
    for what, call in (("sent (flush)", mirror.flush), ("close, with the seals and the deletes", mirror.close)):
        before_s = sum(os.times()[:2])
        taken_s = seconds(call)
        cpu_s = sum(os.times()[:2]) - before_s
        rows.append([what, f"{taken_s:.1f}", f"{1000 * cpu_s / LOGS:.2f}", "20" if LOGS == 10_000 else ""])
    assert mirror.report.is_complete
    return rows


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
    at = [0.0]
    clock = Clock(lambda: at[0], lambda: 1_780_000_000.0 + at[0])
    config = MirrorConfig()
    budget = Budget(config.max_requests_per_hour, clock.monotonic_s)
    store = CountedStore(MemoryStore(uri, {}), budget)
    state_db = StateDb(base / "day.db")
    sender = SegmentSender(run, uri, "rank0", store, base / "scratch", retry=RetryConfig(call_deadline_s=0.0))
    engine = Engine(sender, state_db, config, budget, InlineExecutor(), clock=clock)
    busiest, last = 0, 0
    with open(run / "events.out.tfevents.1780000000.host", "ab", buffering=0) as file:
        for step in range(0, DAY_S, FLUSH_S):
            file.write(b"".join(event(step, b"train/metric-%d" % tag) for tag in range(SCALARS)))
            for _ in range(FLUSH_S // 5):
                at[0] += 5.0
                engine.step()
            if step % 3600 == 0:
                busiest, last = max(busiest, budget.spent - last), budget.spent
        written = file.tell()
    live = sender.sent_bytes
    requests = budget.spent
    while not engine.is_finished:
        at[0] += 1.0
        engine.step(final=True)
    state_db.close()
    return [
        ["bytes written", f"{written / 1e6:.0f} MB", ""],
        ["bytes sent / written, while it is live", f"{live / written:.3f}", "<= 1.1"],
        ["bytes sent / written, with the seal", f"{sender.sent_bytes / written:.3f}", "a store that can join: <= 1.1"],
        ["requests in the busiest hour", f"{busiest}", f"<= {budget.per_hour}"],
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
                PutOptions(metadata={CRC32C_METADATA: format_crc32c(crc32c(data[number]))}),
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
        beside = [row for n_files in MIRRORED for row in beside_a_run(base, server, n_files)]
        logs = many_logs(base)
        day = a_day(base)
        memory = StoreURI("memory", "bench-pull", "run")
        s3 = parse_uri(f"s3://{server.bucket}/many")
        with open_for_reading(s3, server.options) as store:
            pulls = [pulled(store, s3, base, "S3 (SeaweedFS, this machine)")]
        with Distant(MemoryStore(memory, {})) as distant:
            pulls.append(far_away(distant, memory, base))
    table(
        f"Mirrors of files that grow by {BYTES_A_SECOND} B/s each, {MIRROR_S:.0f} s ({machine()})", ["what", "is", "goal"], beside
    )
    table(f"{LOGS} small logs, to a local folder", ["what", "s", "ms of CPU a file", "goal, s"], logs)
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
