"""Curves of 100 metrics x 1,000,000 points in a bucket that is 30 ms away: from Parquet, and from lines that are still written.

SeaweedFS answers through a proxy that hands each answer over 30 ms late and counts the requests. The page is `wherry ui` as a
process of its own, with an empty cache; the browser is Chromium without a window. `N_POINTS` (1000000) makes it smaller.
`BENCH_DATA` is a folder in which the data (3 GB) is made once, and kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import boto3
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from measure import folder, machine, table, wait_until_quiet

sys.path.insert(0, str(Path(__file__).parent / "looking"))
from place import FarServer, far_away, memory_of_tree_mb, put_all, seconds_until

from browser import Browser, browser
from servers.page_process import PageProcess, page_process
from servers.real import S3Server, fast_folder, seaweedfs
from wherry.loggers.files.run_summary import MetricsFold, summary_bytes

N_POINTS = int(os.environ.get("N_POINTS", "1000000"))
#: So many lines are filled into the column cache, as all would take minutes.
N_FILLED = min(N_POINTS, int(os.environ.get("N_FILLED", "100000")))
N_KEYS = 100
KEYS = [f"m{number:03d}" for number in range(N_KEYS)]
#: Lines of different numbers; then they come again, with other steps.
N_DIFFERENT = 5000
#: Chromium gives memory back when it has had nothing to do for some seconds.
_COLLECTED_S = 10.0
_DRAWN = "document.querySelectorAll('.card .uplot').length"
_SAID = "[...document.querySelectorAll('.card .said')].filter((one) => / of |all /.test(one.textContent)).length"


def make_data(base: Path, n_points: int) -> Path:
    """What a run folder holds at its end, without the lines, and the lines of one that is still written."""
    made = base / f"{n_points}"
    if (made / "done").exists():
        return made
    made.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    steps = np.arange(n_points)
    columns = {"t": 1e9 + steps, "step": steps, **{key: rng.normal(size=n_points).cumsum() for key in KEYS}}
    pq.write_table(pa.table(columns), made / "metrics.parquet", compression="zstd", row_group_size=50_000)
    values = [json.dumps({key: float(columns[key][step]) for key in KEYS})[1:] for step in range(min(n_points, N_DIFFERENT))]
    with open(made / "metrics.jsonl", "w") as file:
        for step in range(n_points):
            file.write(f'{{"t": {1e9 + step}, "step": {step}, {values[step % len(values)]}\n')
    (made / "hparams.json").write_text('{"lr": 0.001}')
    fold = MetricsFold()
    fold.add((made / "metrics.jsonl").read_bytes()[: 2**20].rpartition(b"\n")[0] + b"\n")
    data = summary_bytes(fold, name="job", state="finished", written_s=1.0, hparams={"lr": 0.001}, size_bytes=1)
    (made / "wherry-summary.json").write_bytes(data)
    (made / "done").touch()
    return made


def put_runs(server: S3Server, made: Path) -> None:
    put_all(server, "curves", [(f"finished/{name}", made / name) for name in ("hparams.json", "wherry-summary.json")])
    s3 = boto3.client(
        "s3",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    s3.upload_file(str(made / "metrics.parquet"), server.bucket, "curves/finished/metrics.parquet")
    s3.upload_file(str(made / "metrics.jsonl"), server.bucket, "lines/live/metrics.jsonl")
    with open(made / "metrics.jsonl", "rb") as file:
        s3.put_object(Bucket=server.bucket, Key="filled/live/metrics.jsonl", Body=b"".join(islice(file, N_FILLED)))


def points(page: PageProcess, run_id: str, key: str, n: int = 800) -> dict[str, Any]:
    """What a chart of one metric is drawn from."""
    (found,) = json.loads(page.get(f"/data/points?id={run_id}&key={quote(key)}&n={n}"))["runs"]
    assert "trouble" not in found, found["trouble"]
    assert isinstance(found, dict)
    return found


def from_parquet(far: FarServer, base: Path) -> Iterator[list[str]]:
    with page_process(f"s3://{far.near.bucket}/curves", far.options, base / "c1") as page:
        before, began_s = far.requests(), time.perf_counter()
        found = points(page, "finished", "m007")
        first_s = time.perf_counter() - began_s
        asked = far.requests().since(before)
        n_drawn = len(found["lines"][0]["x"])
        yield ["Parquet: the points of the first chart, s", f"{first_s:.2f}", "1", f"{n_drawn} of {found['n_total']:,}; {asked}"]
        began_s = time.perf_counter()
        points(page, "finished", "m008")
        yield ["Parquet: those of another one, s", f"{time.perf_counter() - began_s:.2f}", "", ""]


def in_a_browser(far: FarServer, base: Path) -> Iterator[list[str]]:
    uri = f"s3://{far.near.bucket}/curves"
    with page_process(uri, far.options, base / "c2") as page, ExitStack() as stack:
        before = set(psutil.Process().children(recursive=True))
        window = stack.enter_context(browser())
        (driver,) = (one for one in set(psutil.Process().children()) - before if "chromedriver" in one.name())
        window.open("about:blank")
        (chromium,) = driver.children()
        empty_mb = memory_of_tree_mb(chromium.pid)
        began_s = time.perf_counter()
        window.open(f"{page.root}/run?id=finished")
        first_s = seconds_until(lambda: window.run(f"return {_DRAWN} > 0"), began_s)
        yield [
            "Parquet: from the address to the first chart in Chromium, s",
            f"{first_s:.2f}",
            "1",
            "the page was not open before",
        ]
        most_mb = scroll(window, chromium.pid)
        all_s = time.perf_counter() - began_s
        yield [
            f"Chromium after scrolling over {N_KEYS} charts, MB",
            f"{most_mb:.0f}",
            "500",
            f"sum of the PSS of its processes; {empty_mb:.0f} with an empty page",
        ]
        yield [f"all {N_KEYS} charts seen, s", f"{all_s:.1f}", "", ""]
        time.sleep(_COLLECTED_S)
        yield ["Chromium ten seconds later, MB", f"{memory_of_tree_mb(chromium.pid):.0f}", "", "what it holds, without garbage"]
        yield ["the page's server, largest resident set, Parquet, MB", f"{page.peak_mb:.0f}", "400", "VmHWM, at the end"]


def scroll(window: Browser, pid: int) -> float:
    """Look at all charts, from the top to the end; the most memory that the browser had."""
    most_mb = 0.0
    for at in range(100):
        window.run(f"document.querySelectorAll('.card')[{min(at * 2, N_KEYS - 1)}].scrollIntoView()")
        window.wait_for(f"{_SAID} > {min(at * 2, N_KEYS - 1)}", "the charts in view")
        if at % 10 == 0:
            most_mb = max(most_mb, memory_of_tree_mb(pid))
        if at * 2 >= N_KEYS:
            break
    return max(most_mb, memory_of_tree_mb(pid))


def from_lines(far: FarServer, base: Path, size_mb: float) -> Iterator[list[str]]:
    uri = f"s3://{far.near.bucket}/lines"
    with page_process(uri, far.options, base / "c3") as page:
        before, began_s = far.requests(), time.perf_counter()
        found = points(page, "live", "m007")
        first_s = time.perf_counter() - began_s
        n_drawn = len(found["lines"][0]["x"])
        told = "labelled as the end" if found["tail_only"] else "all" if N_POINTS < 10_000 else "**not labelled**"
        yield [
            "lines: the points of the first chart, s",
            f"{first_s:.2f}",
            "1",
            f"{n_drawn} of the last {found['n_here']:,}, {told}",
        ]

    uri = f"s3://{far.near.bucket}/filled"
    with page_process(uri, far.options, base / "c4") as page:
        before, began_s = far.requests(), time.perf_counter()
        while (found := points(page, "live", "m007"))["tail_only"]:
            time.sleep(0.5)  # the page's script is told of news
        all_s = time.perf_counter() - began_s
        asked = far.requests().since(before)
        assert found["n_total"] == N_FILLED, found["n_total"]
        yield [
            f"lines: {N_FILLED:,} points of {N_KEYS} metrics ({size_mb:,.0f} MB) are all columns, s",
            f"{all_s:.1f}",
            "",
            f"{asked}",
        ]
        yield ["the page's server, largest resident set, lines, MB", f"{page.peak_mb:.0f}", "400", "VmHWM, at the end"]
    with page_process(uri, far.options, base / "c4") as page:
        before, began_s = far.requests(), time.perf_counter()
        while points(page, "live", "m008")["tail_only"]:
            time.sleep(0.1)
        again_s = time.perf_counter() - began_s
        yield ["lines: all points of another metric, the next day, s", f"{again_s:.2f}", "", f"{far.requests().since(before)}"]


def main() -> None:
    with ExitStack() as stack:
        data = os.environ.get("BENCH_DATA") or stack.enter_context(TemporaryDirectory(prefix="wherry-bench-"))
        made = make_data(Path(data), N_POINTS)
        fast, base = stack.enter_context(fast_folder()), stack.enter_context(folder())
        server = stack.enter_context(seaweedfs(fast))
        far = stack.enter_context(far_away(server))
        put_runs(server, made)
        loud = wait_until_quiet(20.0)
        size_mb = (made / "metrics.jsonl").stat().st_size / 1e6 * N_FILLED / N_POINTS
        rows = [*from_parquet(far, base), *in_a_browser(far, base), *from_lines(far, base, size_mb)]
    title = f"{N_KEYS} metrics x {N_POINTS:,} points, 30 ms a call ({machine()}){loud}"
    table(title, ["what", "found", "goal", "how"], rows)


if __name__ == "__main__":
    main()
