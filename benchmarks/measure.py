"""What the benchmarks share: repeated measurements, medians, and a table to paste into benchmarks/README.md."""

from __future__ import annotations

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
    """Print a Markdown table."""
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def machine() -> str:
    """One line on what this ran on."""
    with open("/proc/loadavg") as load:
        return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load.read().split()[0]}"


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
