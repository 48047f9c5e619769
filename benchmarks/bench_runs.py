"""Looking at runs: the table of 1,000 runs at 30 ms a call, and one chart of 100 metrics x N points, beside the targets of each.

``N_RUNS`` and ``N_POINTS`` in the environment make it smaller or larger. The store is a local folder that answers late: neither
the network's bandwidth nor a server's own time is in the figures.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import folder, machine, table

from wherry.backends.local.store import LocalStore
from wherry.loggers.files.run_summary import MetricsFold, summary_bytes
from wherry.runs import Runs, downsample
from wherry.runs.objects.disk_cache import DiskCache
from wherry.runs.objects.place import place_of
from wherry.runs.objects.reading_store import Tally
from wherry.store import ObjectMeta
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI, parse_uri

N_RUNS = int(os.environ.get("N_RUNS", "1000"))
N_POINTS = int(os.environ.get("N_POINTS", "100000"))
N_KEYS = 100
LATENCY_S = 0.03
#: S3 lists so many objects in one answer.
PAGE = 1000
_T = TypeVar("_T")


class LateStore(WrappedStore):
    """Answers each request 30 ms late; a listing for each thousand names."""

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        if operation != "list":
            time.sleep(LATENCY_S)
        return call()

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        for number, meta in enumerate(super().list(prefix, start_after=start_after)):
            if number % PAGE == 0:
                time.sleep(LATENCY_S)
            yield meta


def open_late(root: Path, cache: Path, tally: Tally) -> Runs:
    """Runs below `root`, through a store that answers late."""
    runs = Runs(root, cache_dir=cache)
    uri = parse_uri(root)
    late = StoreURI("late", "", uri.prefix)
    bare = LateStore(LocalStore(uri, {}))
    runs._places = [place_of(late, bare, "", tally=tally, cache=DiskCache(cache / "runs"), scratch=root.parent)]
    return runs


def make_runs(root: Path, *, with_summary: bool) -> None:
    line = json.dumps({"t": 1.0, "step": 1, **{f"m{n}": n / 7 for n in range(20)}}) + "\n"
    for number in range(N_RUNS):
        run = root / f"run{number:05d}"
        (run / "media/images").mkdir(parents=True)
        (run / "metrics.jsonl").write_text(line * 50)
        hparams: dict[str, object] = {"lr": number / 1000, "model": {"depth": number % 7}}
        (run / "hparams.json").write_text(json.dumps(hparams))
        for image in range(5):
            (run / f"media/images/{image}.png").write_bytes(b"x")
        if with_summary:
            fold = MetricsFold()
            fold.read_on(run / "metrics.jsonl")
            data = summary_bytes(fold, name=run.name, state="finished", written_s=1.0, hparams=hparams, size_bytes=1)
            (run / "wherry-summary.json").write_bytes(data)


def time_rows(runs: Runs) -> tuple[float, float]:
    """Seconds to the first 20 rows, and to all."""
    began_s = time.perf_counter()
    first_s = n = 0.0
    for n, _ in enumerate(runs.rows(), 1):
        if n == 20:
            first_s = time.perf_counter() - began_s
    assert n == N_RUNS
    return first_s, time.perf_counter() - began_s


def rows(base: Path) -> Iterator[list[str]]:
    for with_summary in (True, False):
        what = "with summaries" if with_summary else "without"
        root = base / what.replace(" ", "-")
        make_runs(root, with_summary=with_summary)
        for name in ("cold cache", "warm cache"):
            tally = Tally()
            with open_late(root, base / f"cache-{with_summary}", tally) as runs:
                first_s, all_s = time_rows(runs)
            usage = tally.usage()
            goal = "0.5" if name == "warm cache" else "1 and 5"
            counts = f"{usage.n_lists} lists, {usage.n_gets} gets, ${usage.usd:.4f}"
            yield [f"{N_RUNS} runs {what}, {name}: first 20 rows, all (s)", f"{first_s:.2f}, {all_s:.2f} ({counts})", goal]


def make_metrics(run: Path) -> None:
    """Metrics of one finished run as Parquet, and the last of its lines; all of them would be 2.3 kB each."""
    run.mkdir(parents=True)
    rng = np.random.default_rng(1)
    steps = np.arange(N_POINTS)
    columns = {"t": steps + 1e9, "step": steps, **{f"m{n:03d}": rng.normal(size=N_POINTS).cumsum() for n in range(N_KEYS)}}
    pq.write_table(pa.table(columns), run / "metrics.parquet", compression="zstd", row_group_size=50_000)
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(min(N_POINTS, 20_000)):
            values = {key: float(column[step]) for key, column in columns.items() if key.startswith("m")}
            file.write(json.dumps({"t": 1e9 + step, "step": step, **values}) + "\n")


def charts(base: Path) -> Iterator[list[str]]:
    make_metrics(base / "curves/finished")
    os.utime(base / "curves/finished/metrics.jsonl", (1e9, 1e9))
    lines = base / "lines/live"
    lines.mkdir(parents=True)
    (lines / "metrics.jsonl").write_bytes((base / "curves/finished/metrics.jsonl").read_bytes())
    for what, root, run_id in (
        (f"Parquet, {N_KEYS} metrics x {N_POINTS:,} points", base / "curves", "finished"),
        (f"lines, {(lines / 'metrics.jsonl').stat().st_size / 1e6:.0f} MB", base / "lines", "live"),
    ):
        tally = Tally()
        with open_late(root, base / f"cache-{run_id}", tally) as runs:
            began_s = time.perf_counter()
            series = runs.run(run_id).series("m007")
            drawn = downsample(series.step, series.value, 2000)
            took_s = time.perf_counter() - began_s
            usage = tally.usage()
            shown = f"{took_s:.2f} ({len(drawn.indices)} of {len(series.step):,} points{', the end' if series.tail_only else ''}"
            yield [f"first chart from {what} (s)", f"{shown}; {usage.n_gets} gets, {usage.n_bytes / 1e6:.1f} MB)", "1"]
            began_s = time.perf_counter()
            whole = runs.run(run_id).series("m008", whole=True)
            yield [f"another chart, all {len(whole.step):,} points (s)", f"{time.perf_counter() - began_s:.2f}", ""]


def main() -> None:
    with folder() as base:
        found = [*rows(base), *charts(base)]
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found.append(["peak memory of this process, the making of the data included (MB)", f"{peak_bytes / 1e6:.0f}", "400"])
    table(f"Looking at runs, 30 ms a call ({machine()})", ["what", "measured", "target"], found)


if __name__ == "__main__":
    main()
