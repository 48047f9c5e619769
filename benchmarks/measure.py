"""What the benchmarks share: repeated measurements, medians, and a table to paste into benchmarks/README.md."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MIB = 2**20
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))  # its servers


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """Median [min-max]."""
    low, middle, high = (scale * value for value in (min(values), statistics.median(values), max(values)))
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table, and add it to the file $BENCH_RECORD as a line of JSON."""
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if path := os.environ.get("BENCH_RECORD"):  # compare/ keeps it
        with open(path, "a", encoding="utf-8") as record:
            print(json.dumps({"title": title, "header": list(header), "rows": [list(row) for row in rows]}), file=record)


def machine() -> str:
    """One line on what this ran on."""
    with open("/proc/loadavg") as load:
        return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load.read().split()[0]}"


def wait_until_quiet(most_s: float = 60.0) -> str:
    """Wait until no more than one process computes, at most so long; what the table's title has to say if others still do.

    compare/ waits itself, and better: the load counts what was measured just before.
    """
    if "BENCH_RECORD" in os.environ:
        return ""
    until = time.monotonic() + most_s
    while (load := os.getloadavg()[0]) > 1.0:
        if time.monotonic() > until:
            return f" **beside other work, load {load:.1f}**"
        time.sleep(1.0)  # the kernel computes the load every five seconds
    return ""


def make_file(path: Path, size_bytes: int) -> Path:
    """A file of random bytes, in the page cache."""
    block = os.urandom(min(size_bytes, 16 * MIB))
    with open(path, "wb") as file:
        left = size_bytes
        while left:
            left -= file.write(block[:left])
    return path


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder on the disk ($BENCH_FOLDER, else the system's temporary folder), removed at the end."""
    with tempfile.TemporaryDirectory(prefix="wherry-bench-", dir=os.environ.get("BENCH_FOLDER")) as name:
        yield Path(name)


def settle() -> None:
    """Let the disk write back what is dirty, so that one measurement does not pay for another's."""
    os.sync()
