"""Runs everything, in hours, and ends with one table of what it came to: ``make nightly``.

A lane that fails does not stop the others. ``make nightly LANES="matrix slow"`` runs these. The table is Markdown, fit for the
note that an issue is closed with; Ctrl-C prints it as far as it has come. Needs nothing but Python and make: each target makes
what it needs, and if it cannot, the lane has failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Lane:
    """A command, and the longest that it may take."""

    name: str
    command: Sequence[str]
    limit_s: float


#: All that there are, in the order in which they run. Where tests/pythons.py ends what hangs, the limit here is longer than its.
LANES = (
    Lane("test", ("make", "test"), 3600.0),
    Lane("matrix", ("make", "matrix"), 9000.0),
    Lane("extra", ("make", "test-extra"), 7200.0),
    Lane("slow", ("make", "test-slow"), 14400.0),
    Lane("fuzz", ("make", "fuzz"), 1800.0),
    Lane("faults", ("make", "faults"), 7200.0),
    Lane("mutants", ("make", "mutants"), 14400.0),
    Lane("bench", ("make", "bench"), 1800.0),
)
#: For writing down where all threads are, or for ending by itself after Ctrl-C, before it is killed.
SAYING_S = 2.0
ENDING_S = 20.0
#: pytest's last line: "3 failed, 120 passed, 7 deselected in 4.51s".
CLOSING = re.compile(r"^(?:\x1b\[[\d;]*m|=| )*(?=\d+ \w)(?P<counts>.+) in \d+\.\d+s\b")
COUNTED = re.compile(r"(\d+) (?:passed|failed|errors?|xfailed|xpassed)\b")
#: libFuzzer's.
FUZZED = re.compile(r"^Done (\d+) runs in \d+ second")


@dataclass(frozen=True)
class Result:
    """What became of one lane."""

    name: str
    cases: int
    seconds: float
    result: str


def main(arguments: Sequence[str] | None = None, lanes: Sequence[Lane] = LANES) -> int:
    """0: all lanes that ran passed. 1: one failed, or they were interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "lanes", nargs="*", metavar="LANE", help=", ".join(lane.name for lane in lanes) + "; all if none is named"
    )
    wanted = parser.parse_args(arguments).lanes
    if unknown := set(wanted) - {lane.name for lane in lanes}:
        parser.error(f"no such lane: {', '.join(sorted(unknown))}; there are {', '.join(lane.name for lane in lanes)}")
    results: list[Result] = []
    for lane in lanes:
        if wanted and lane.name not in wanted:
            continue
        say(f"\n== {lane.name}: {' '.join(lane.command)}")
        results.append(run(lane))
        if results[-1].result == "interrupted":
            break
    say("\n" + table(results))
    return 0 if all(result.result == "passed" for result in results) else 1


def run(lane: Lane) -> Result:
    """Run it, with its output on the terminal."""
    begin_s = time.monotonic()
    cases = 0
    late = threading.Event()
    with subprocess.Popen(
        lane.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        timer = threading.Timer(lane.limit_s, end, (process, late))
        timer.start()
        try:
            assert process.stdout is not None
            for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                say(line)
                cases += cases_of(line)
            status = process.wait()
            result = f"FAILED: not ended after {lane.limit_s:.0f} s" if late.is_set() else f"FAILED: exit status {status}"
            result = "passed" if status == 0 and not late.is_set() else result
        except KeyboardInterrupt:
            interrupt(process)
            result = "interrupted"
        finally:
            timer.cancel()
    return Result(lane.name, cases, time.monotonic() - begin_s, result)


def end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    """Kill its group after all have said where their threads are (tests/hangs.py)."""
    late.set()
    with suppress(ProcessLookupError):  # what does not know SIGUSR1 ends by it
        os.killpg(process.pid, signal.SIGUSR1)
        time.sleep(SAYING_S)
        os.killpg(process.pid, signal.SIGKILL)


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Pass Ctrl-C on, which ends what tests/pythons.py has started too; then kill what is left of its group."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def cases_of(line: str) -> int:
    """How many cases this line says have run: 0, unless pytest or libFuzzer closes with it."""
    if fuzzed := FUZZED.match(line):
        return int(fuzzed[1])
    closing = CLOSING.match(line)
    return sum(map(int, COUNTED.findall(closing["counts"]))) if closing else 0


def table(results: Sequence[Result]) -> str:
    """In Markdown, below a line that says of which commit it is, and where it ran."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [
        f"Commit {git.stdout.strip() or 'unknown'}, Python {platform.python_version()}, {os.cpu_count()} cores.",
        "",
        "| lane | cases | seconds | result |",
        "| --- | ---: | ---: | --- |",
    ]
    lines += [f"| {each.name} | {each.cases or ''} | {each.seconds:.0f} | {each.result} |" for each in results]
    return "\n".join(lines)


def say(text: str) -> None:
    """Write a line at once: what a lane says is read while it runs."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
