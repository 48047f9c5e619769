"""The table of runs: 1,000 of them in a bucket that is 30 ms away, with their summaries and without, cold and from the cache.

SeaweedFS answers through a proxy that hands each answer over 30 ms late and counts the requests. Each figure is that of a process
of its own: a reader (`wherry.runs`), or `wherry ui`, which is up already. `N_RUNS` (1000) in the environment makes it smaller.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import folder, machine, table, wait_until_quiet

sys.path.insert(0, str(Path(__file__).parent / "looking"))
from place import FarServer, far_away, put_all

from servers.page_process import PageProcess, page_process
from servers.real import fast_folder, seaweedfs
from wherry.loggers.files.run_summary import MetricsFold, summary_bytes
from wherry.runs import Runs

N_RUNS = int(os.environ.get("N_RUNS", "1000"))
N_FIRST = 20
#: 20 metrics x 50 steps.
N_KEYS, N_STEPS = 20, 50
_SHOWN = re.compile(r"([\d,]+) runs?(?:(, read)|(, as of)?[^;<]*; still)")


def files_of_runs(base: Path, *, with_summary: bool) -> Iterator[tuple[str, Path]]:
    """(name, file): metrics, hyperparameters, five images and, with them, a summary for each run."""
    image = base / "image.png"
    image.write_bytes(b"x")
    for number in range(N_RUNS):
        run = base / f"run{number:05d}"
        run.mkdir()
        hparams: dict[str, object] = {"lr": number / 1000, "model": {"depth": number % 7}}
        (run / "hparams.json").write_text(json.dumps(hparams))
        with open(run / "metrics.jsonl", "w") as file:
            for step in range(N_STEPS):
                values = {f"m{key}": (step + key) / (7 + number) for key in range(N_KEYS)}
                file.write(json.dumps({"t": 1e9 + step, "step": step, **values}) + "\n")
        names = ["hparams.json", "metrics.jsonl"]
        if with_summary:
            fold = MetricsFold()
            fold.read_on(run / "metrics.jsonl")
            size_bytes = sum(one.stat().st_size for one in run.iterdir())
            data = summary_bytes(fold, name=run.name, state="finished", written_s=1.0, hparams=hparams, size_bytes=size_bytes)
            (run / "wherry-summary.json").write_bytes(data)
            names.append("wherry-summary.json")
        yield from ((f"{run.name}/{name}", run / name) for name in names)
        yield from ((f"{run.name}/media/images/{shown}.png", image) for shown in range(5))


def read_rows(uri: str, cache: str) -> None:
    """What a process of its own does: read all rows, and print the seconds to the first ones and to all."""
    options = json.load(sys.stdin)
    began_s = time.perf_counter()
    first_s, n = 0.0, 0
    # An hour ahead: what was written in the last minutes counts as that of a live run, which is read each time.
    with Runs(uri, options=options, cache_dir=Path(cache), now=lambda: time.time() + 3600) as runs:
        for n, row in enumerate(runs.rows(as_told=True), 1):
            assert row.trouble is None, row.trouble
            assert len(row.metrics) == N_KEYS
            if n == N_FIRST:
                first_s = time.perf_counter() - began_s
        all_s = time.perf_counter() - began_s
    assert n == N_RUNS, n
    print(json.dumps([first_s, all_s]))


def reader(far: FarServer, uri: str, cache: Path) -> tuple[float, float]:
    command = [sys.executable, __file__, "rows", uri, str(cache)]
    done = subprocess.run(command, input=json.dumps(far.options), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first_s, all_s = json.loads(done.stdout)
    return first_s, all_s


def shown(page: PageProcess) -> tuple[int, bool]:
    """How many runs the page has, and whether they are all."""
    found = _SHOWN.search(page.get("/"))
    return (int(found[1].replace(",", "")), bool(found[2])) if found else (0, False)


def page_figures(far: FarServer, uri: str, cache: Path) -> tuple[float, int, float]:
    """Seconds to the page's first answer, the rows that it has, and seconds until it has all."""
    with page_process(uri, far.options, cache) as page:
        began_s = time.perf_counter()
        n_first, is_whole = shown(page)
        first_s = all_s = time.perf_counter() - began_s
        while n_first < N_RUNS and not is_whole:  # its script is told of news; five times a second is as good here
            time.sleep(0.2)
            n, is_whole = shown(page)
            all_s = time.perf_counter() - began_s
            is_whole = is_whole or n == N_RUNS
    return first_s, n_first, all_s


def figures(base: Path, far: FarServer, *, with_summary: bool) -> Iterator[list[str]]:
    name = "with summaries" if with_summary else "without summaries"
    prefix = name.replace(" ", "-")
    with TemporaryDirectory(dir=base) as made:
        put_all(far.near, prefix, list(files_of_runs(Path(made), with_summary=with_summary)))
    uri = f"s3://{far.near.bucket}/{prefix}"
    for state, goals in (("cold", ("1", "5")), ("warm cache", ("0.5", "0.5"))):
        before = far.requests()
        first_s, all_s = reader(far, uri, base / f"cache-{prefix}")
        asked = far.requests().since(before)
        yield [f"{name}, {state}: first {N_FIRST} rows", f"{first_s:.2f}", goals[0], ""]
        yield [f"{name}, {state}: all rows", f"{all_s:.2f}", goals[1], f"{asked}, ${asked.usd:.4f}"]
    for state, goal in (("cold", "1"), ("warm cache", "0.5")):
        first_s, n_first, all_s = page_figures(far, uri, base / f"page-{prefix}")
        yield [f"{name}, {state}: the page answers", f"{first_s:.2f}", goal, f"with {n_first} of {N_RUNS} runs"]
        yield [f"{name}, {state}: the page has all", f"{all_s:.2f}", "5" if state == "cold" else "0.5", ""]


def main() -> None:
    with fast_folder() as fast, folder() as base, seaweedfs(fast) as server, far_away(server) as far:
        loud = wait_until_quiet()
        rows = [row for with_summary in (True, False) for row in figures(base, far, with_summary=with_summary)]
    table(f"{N_RUNS:,} runs, 30 ms a call ({machine()}){loud}", ["what", "s", "goal, s", "asked"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rows"]:
        read_rows(*sys.argv[2:])
    else:
        main()
