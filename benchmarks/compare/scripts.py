"""The tables of wherry's own measurements (benchmarks/bench_*.py) that have a goal: run, kept and judged like the others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from processes import wait_until_quiet
from results import ROOT, commit, machine, now, save_json
from sink_program import language_of_sink

_NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?")


@dataclass(frozen=True)
class CellGoal:
    """The first number of a cell, over that of another if one is named, is to be at most `limit`.

    `row` is how a row's name begins; if several do, the largest number counts.
    """

    told: str
    row: str
    column: int
    limit: float
    over: str | None = None


@dataclass(frozen=True)
class Script:
    """One program, what makes it quick by the environment, and its goals."""

    name: str
    file: str
    quick: Mapping[str, str] = field(default_factory=dict)
    goals: Sequence[CellGoal] = ()
    #: A client of the peers that it also measures, where it is installed.
    borrows: str | None = None
    has_sink: bool = False


@dataclass
class Told:
    """What a script printed: its tables, as text."""

    script: str
    commit: str
    machine: dict[str, Any]
    started: str
    is_quiet: bool
    tables: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    #: As of a Result.
    sink: str = "C"


def _at_most(what: str, row: str, limit: float, unit: str = " s") -> CellGoal:
    return CellGoal(f"{what}: at most {limit:g}{unit}", row, 1, limit)


#: Looking at runs.
LOOKING = (
    Script(
        "runs",
        "bench_runs.py",
        quick={"N_RUNS": "100"},
        goals=tuple(
            goal
            for name in ("with summaries", "without summaries")
            for goal in (
                _at_most(f"1,000 runs {name}: the first 20 rows", f"{name}, cold: first 20 rows", 1),
                _at_most(f"1,000 runs {name}: all rows read", f"{name}, cold: all rows", 5),
                _at_most(f"1,000 runs {name}: all on the page", f"{name}, cold: the page has all", 5),
                _at_most(f"1,000 runs {name}: warm cache, all on the page", f"{name}, warm cache: the page has all", 0.5),
                _at_most(f"1,000 runs {name}: warm cache, all compared with the bucket", f"{name}, warm cache: all rows", 0.5),
            )
        ),
    ),
    Script(
        "curves",
        "bench_curves.py",
        quick={"N_POINTS": "20000", "N_FILLED": "20000"},
        goals=(
            _at_most("100 x 1,000,000 points, Parquet: the first chart's points", "Parquet: the points of the first chart", 1),
            _at_most("... the first chart in Chromium, from the address on", "Parquet: from the address", 1),
            _at_most("... from lines: the end of the first chart's points", "lines: the points of the first chart", 1),
            _at_most("the page's server", "the page's server, largest resident set", 400, " MB"),
            _at_most("Chromium, all 100 charts seen", "Chromium after scrolling", 500, " MB"),
        ),
    ),
    Script(
        "live",
        "bench_live.py",
        quick={"LIVE_S": "60", "N_RUNS": "2"},
        goals=(
            _at_most("a new point at the page's server, median", "from the bucket to the page's server: median", 2),
            _at_most("... 99 of 100", "from the bucket to the page's server: 99", 10),
            _at_most("a new point in Chromium, median", "from the bucket to Chromium: median", 2),
            _at_most("... 99 of 100", "from the bucket to Chromium: 99", 10),
            _at_most("a page of a live run, an hour", "requests an hour", 1000, " requests"),
            _at_most("a page of a live run, an hour", "USD an hour", 0.003, " USD"),
        ),
    ),
    Script("viewers", "bench_viewers.py", quick={"N_POINTS": "5000"}),
)
SCRIPTS = {
    script.name: script
    for script in (
        Script(
            "enqueue",
            "bench_enqueue.py",
            quick={"ROUNDS": "2"},
            goals=(
                CellGoal(
                    "`upload_file` of 1 GiB, the file kept: at most 1.1 x `cp`",
                    "`upload_file`, 1 GiB, by copy",
                    1,
                    1.1,
                    "`cp`, 1 GiB",
                ),
                CellGoal(
                    "durable enqueue of 100 KiB: at most 0.38 ms (half of what it took)", "`upload_file`, 100 KiB, 500", 1, 0.38
                ),
                CellGoal('the same with `durability="power"`: at most 1 ms', "`upload_file`, 100 KiB, `dur", 1, 1),
            ),
        ),
        Script("local", "bench_local.py", quick={"ROUNDS": "2"}),
        Script(
            "startup",
            "bench_startup.py",
            has_sink=True,
            quick={"ROUNDS": "3", "IDLE_S": "0", "SIZES_MIB": "1024", "FILES": "500"},
            goals=(
                CellGoal("first byte of a fresh process: at most 8 x `python -c pass`", "first byte", 2, 8),
                CellGoal("agent and workers, peak memory (PSS): at most 80 MB, which is 76.3 MiB", "a file of", 1, 76.3),
            ),
        ),
        Script(
            "training",
            "bench_training.py",
            has_sink=True,
            quick={
                "SIZE_MIB": "128",
                "TRAIN_S": "3",
                "ROUNDS": "1",
                "ROWS": "wherry, move;wherry, copy;obstore in a thread;Composer's design",
            },
            borrows="obstore",
            goals=(
                CellGoal("time lost, by move: at most that of obstore in a thread", "wherry, move", 1, 1, "obstore in a thread"),
                CellGoal("time lost, by copy: at most that of obstore in a thread", "wherry, copy", 1, 1, "obstore in a thread"),
                CellGoal("time lost, by move: at most 1/8 of Composer's design", "wherry, move", 1, 0.125, "Composer's design"),
                CellGoal("time lost, by copy: at most 1/8 of Composer's design", "wherry, copy", 1, 0.125, "Composer's design"),
            ),
        ),
        Script(
            "listing",
            "bench_listing.py",
            quick={"KEYS": "100000", "ROUNDS": "1"},
            goals=(
                CellGoal(
                    "1,000,000 keys: at most 1.25 x the time of `s5cmd ls` (0.8 x its rate)", "wherry ls -r", 1, 1.25, "s5cmd ls"
                ),
                CellGoal("1,000,000 keys: at most 100 MiB of memory", "wherry ls -r", 3, 100),
            ),
        ),
        Script(
            "sync",
            "bench_sync.py",
            quick={"KEYS": "20000", "ROUNDS": "1"},
            goals=(
                CellGoal("100,000 unchanged files: at most 1.2 x the time of `s5cmd sync`", "wherry sync", 1, 1.2, "s5cmd sync"),
            ),
        ),
        *LOOKING,
    )
}


def measure_script(script: Script, path: Path, peers: Path, *, quick: bool, wait_s: float) -> Told:
    """Run it, unless it was run on this commit already; keep what it prints."""
    if path.exists() and not quick:
        old = Told(**json.loads(path.read_text()))
        if (old.commit, old.machine) == (commit(), machine()) and not old.error:
            return old
    sink = language_of_sink() if script.has_sink else "C"
    told = Told(script.name, commit(), machine(), now(), wait_until_quiet(wait_s), sink=sink)
    with tempfile.TemporaryDirectory() as name:
        record = Path(name) / "record"
        environment = {**os.environ, **(script.quick if quick else {}), "BENCH_RECORD": str(record)}
        borrowed = next(peers.glob(f"lib/python3*/site-packages/{script.borrows}"), None) if script.borrows else None
        if borrowed is not None and script.borrows is not None:
            (Path(name) / script.borrows).symlink_to(borrowed.resolve())
            environment["PYTHONPATH"] = name
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / script.file)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            told.error = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
        told.tables = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    save_json(asdict(told), path)
    return told


def load_script(path: Path) -> Told:
    return Told(**json.loads(path.read_text()))


def number(told: Told, row: str, column: int) -> float | None:
    """The largest first number in this cell of the rows whose names begin like that."""
    found = [
        float(first[0].replace(",", ""))
        for table in told.tables
        for cells in table["rows"]
        if cells[0].startswith(row) and (first := _NUMBER.search(cells[column]))
    ]
    return max(found, default=None)


def judged(goal: CellGoal, told: Told) -> list[str]:
    """The goal, what was found, and whether that is enough."""
    value = number(told, goal.row, goal.column)
    base = number(told, goal.over, goal.column) if goal.over else 1.0
    if value is None or base is None:
        return [goal.told, "not measured", ""]
    # A loss below 0 is noise: without one of the others there is no ratio.
    ratio = value / base if base > 0 else float("inf") if value > 0 else 0.0
    found = f"{ratio:.2f} x" if goal.over else f"{value:g}"
    return [goal.told, found, "met" if ratio <= goal.limit else "**missed**"]
