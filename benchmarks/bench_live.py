"""Runs that are looked at while they are written: how soon a new point is seen, and what looking costs.

Each run has a trainer that logs a step and a line of text a second, `wherry mirror` with its default settings to SeaweedFS, and a
page of its own: `wherry ui` as a process, which reads through a proxy that hands each answer over 30 ms late and counts the
requests. A segment counts as stored when a listing shows it, which this process asks for five times a second on a way of its own;
its points are seen when the page's server hands them out after it has said that there is news, and, for the first run, when
Chromium has drawn them. `LIVE_S` (300) is how long that is watched, `N_RUNS` (4) how many runs there are.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from measure import folder, machine, table, wait_until_quiet

sys.path.insert(0, str(Path(__file__).parent / "looking"))
from place import FarServer, Requests, far_away

from browser import Browser, browser
from servers.page_process import PageProcess, page_process
from servers.real import S3Server, fast_folder, seaweedfs
from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.mirror.format.layout import FOLDER, parse_segment
from wherry.store.registry import open_store
from wherry.uri import parse_uri

LIVE_S = float(os.environ.get("LIVE_S", "300"))
N_RUNS = int(os.environ.get("N_RUNS", "4"))
#: The first segments come in a burst, and the page learns the pace of a run from them.
SETTLING_S = 40.0
KEY = "train/loss"
_LOOK_S = 0.2


@dataclass
class Seen:
    """When so many points were first there, by time.monotonic()."""

    points: list[tuple[float, int]] = field(default_factory=list)

    def take(self, n: int) -> None:
        if not self.points or n > self.points[-1][1]:
            self.points.append((time.monotonic(), n))

    def when(self, n: int) -> float | None:
        return next((at_s for at_s, there in self.points if there >= n), None)


@dataclass
class Watched:
    """One run with all that belongs to it. `stored`: when segments of metrics were there that end at this byte."""

    name: str
    folder: Path
    far: FarServer
    page: PageProcess
    stored: list[tuple[float, int]] = field(default_factory=list)
    by_server: Seen = field(default_factory=Seen)
    by_browser: Seen = field(default_factory=Seen)
    before: Requests = field(default_factory=lambda: Requests(0, 0))

    def train(self, end: threading.Event) -> None:
        config = RunFolderConfig(parquet=False, upload=False)
        with RunFolderLogger(self.folder, config=config) as log, open(self.folder / "logs-rank0.txt", "a") as text:
            step = 0
            while not end.wait(1.0):
                log.log_metrics({KEY: 1 / (1 + step), "val/loss": 2 / (1 + step)}, step)
                log.flush()
                text.write(f"step {step}\n")
                text.flush()
                step += 1

    def listen(self, end: threading.Event) -> None:
        """Ask for the points whenever the server says that there is news, as the page's script does."""
        while not end.is_set():
            for name in self.page.events(f"/live?id={self.name}"):
                if end.is_set():
                    return
                if name == "news":
                    found = json.loads(self.page.get(f"/data/points?id={self.name}&key={KEY}"))["runs"][0]
                    self.by_server.take(found.get("n_total", 0))

    def look(self, window: Browser, end: threading.Event) -> None:
        """Read what the first chart says of itself; it says it when it is drawn."""
        script = "return Number((document.querySelector('.card .said')?.textContent.match(/all (\\d+)/) ?? [0, 0])[1])"
        while not end.wait(_LOOK_S):
            self.by_browser.take(int(str(window.run(script))))

    def waits(self, seen: Seen, since_s: float) -> list[float]:
        """Seconds from each segment's storing until its last point was seen, of those stored since then and seen by now."""
        lines = (self.folder / "metrics.jsonl").read_bytes()
        found = []
        for stored_s, end in self.stored:
            seen_s = seen.when(lines[:end].count(b"\n"))
            if stored_s >= since_s and seen_s is not None:
                found.append(max(0.0, seen_s - stored_s))
        return found


def watch_segments(server: S3Server, runs: Sequence[Watched], end: threading.Event) -> None:
    known: set[str] = set()
    store = open_store(parse_uri(f"s3://{server.bucket}"), server.options)
    try:
        while not end.wait(_LOOK_S):
            for run in runs:
                metas = list(store.list(f"live/{run.name}/{FOLDER}/"))
                now_s = time.monotonic()
                for meta in metas:
                    segment = parse_segment(f"live/{run.name}", meta)
                    if meta.key not in known and segment is not None and segment.path == "metrics.jsonl":
                        known.add(meta.key)
                        assert segment.end is not None, "the mirror does not compress this file"
                        run.stored.append((now_s, segment.end))
    finally:
        store.close()


def mirror(server: S3Server, run: Path, base: Path) -> subprocess.Popen[bytes]:
    options = base / "options.json"
    options.write_text(json.dumps(server.options))
    uri = f"s3://{server.bucket}/live/{run.name}"
    command = [sys.executable, "-m", "wherry.cli", "mirror", str(run), uri, "--options-file", str(options)]
    environment = {**os.environ, "WHERRY_SPOOL": str(base / f"spool-{run.name}")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def prepared(stack: ExitStack, server: S3Server, base: Path, end: threading.Event) -> list[Watched]:
    runs = []
    for number in range(N_RUNS):
        name = f"run{number}"
        (base / name).mkdir()
        far = stack.enter_context(far_away(server))
        page = stack.enter_context(page_process(f"s3://{server.bucket}/live/{name}", far.options, base / f"cache{number}"))
        runs.append(Watched(name, base / name, far, page))
    for run in runs:
        threading.Thread(target=run.train, args=[end], daemon=True).start()
        process = mirror(server, run.folder, base)
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
    return runs


def figures(what: str, waits: Sequence[float]) -> list[list[str]]:
    if not waits:
        return [[f"{what}: median, s", "nothing was seen", "2", ""]]
    ordered = sorted(waits)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    n = f"{len(ordered)} segments"
    return [
        [f"{what}: median, s", f"{statistics.median(ordered):.2f}", "2", n],
        [f"{what}: 99 of 100, s", f"{p99:.2f}", "10", f"{n}: the largest" if len(ordered) < 100 else n],
    ]


def measured(stack: ExitStack, server: S3Server, base: Path) -> list[list[str]]:
    end = threading.Event()
    stack.callback(end.set)
    runs = prepared(stack, server, base, end)
    threading.Thread(target=watch_segments, args=(server, runs, end), daemon=True).start()
    while not all(run.stored for run in runs):
        time.sleep(_LOOK_S)  # watch_segments() looks that often
    for run in runs:
        threading.Thread(target=run.listen, args=[end], daemon=True).start()
    window = stack.enter_context(browser())
    window.open(f"{runs[0].page.root}/run?id={runs[0].name}")
    window.wait_for("document.querySelector('.card .said')?.textContent.startsWith('all ')", "the first chart")
    threading.Thread(target=runs[0].look, args=(window, end), daemon=True).start()
    time.sleep(SETTLING_S)
    since_s = time.monotonic()
    for run in runs:
        run.before = run.far.requests()
    time.sleep(LIVE_S)
    an_hour = 3600 / (time.monotonic() - since_s)
    asked = [run.far.requests().since(run.before) for run in runs]
    end.set()
    lists, gets = (max(values) * an_hour for values in zip(*((one.lists, one.gets) for one in asked), strict=True))
    most = max(asked, key=lambda one: one.lists + one.gets)
    peak_mb = max(run.page.peak_mb for run in runs)
    return [
        *figures("from the bucket to the page's server", [wait for run in runs for wait in run.waits(run.by_server, since_s)]),
        *figures("from the bucket to Chromium", runs[0].waits(runs[0].by_browser, since_s)),
        ["requests an hour of a page", f"{(most.lists + most.gets) * an_hour:.0f}", "1000", f"{lists:.0f} of them lists"],
        ["USD an hour of a page", f"{max(one.usd for one in asked) * an_hour:.5f}", "0.003", f"{gets:.0f} gets and heads"],
        ["the page's server, largest resident set, MB", f"{peak_mb:.0f}", "400", "VmHWM"],
    ]


def main() -> None:
    with ExitStack() as stack:
        fast, base = stack.enter_context(fast_folder()), stack.enter_context(folder())
        server = stack.enter_context(seaweedfs(fast))
        loud = wait_until_quiet(20.0)
        rows = measured(stack, server, base)
    title = f"{N_RUNS} live runs with a page each, watched for {LIVE_S:.0f} s ({machine()}){loud}"
    table(title, ["what", "found", "goal", "how"], rows)


if __name__ == "__main__":
    main()
