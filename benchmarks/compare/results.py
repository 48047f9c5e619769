"""The figures of one table, as they are kept: a JSON file a table, saved after each round, so that a run can go on."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
#: More than this share of a core taken by others while a client was measured, and the measurement is not quiet.
QUIET_SHARE = 0.15


@dataclass
class Found:
    """What one client did: a dictionary of figures for each round."""

    name: str
    about: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    is_ours: bool = False
    #: What it moved was compared, byte for byte, at a smaller size.
    is_faithful: bool = False
    error: str | None = None
    rounds: list[dict[str, float]] = field(default_factory=list)

    def values(self, figure: str) -> list[float]:
        return [each[figure] for each in self.rounds]

    def median(self, figure: str) -> float | None:
        return statistics.median(self.values(figure)) if self.rounds and not self.error else None


@dataclass
class Result:
    """One table: what was measured, on what, when, and of which commit."""

    table: str
    title: str
    do: str
    size_bytes: int
    n_files: int
    commit: str
    machine: dict[str, Any]
    started: str
    #: What the server was written in: that in Python takes more of the processors that the clients need.
    sink: str = "C"
    rows: list[Found] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        return self.size_bytes * self.n_files

    def row(self, name: str) -> Found | None:
        return next((row for row in self.rows if row.name == name and not row.error and row.rounds), None)

    def loud(self) -> tuple[int, int]:
        """Measurements beside which others took more than QUIET_SHARE of a core, and all."""
        every = [each for row in self.rows for each in row.rounds]
        return sum(each.get("others_cpu_s", 0) > QUIET_SHARE * each["wall_s"] + 0.03 for each in every), len(every)

    def save(self, folder: Path) -> None:
        save_json(asdict(self), folder / f"{self.table}.json")


def save_json(value: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(rounded(value), indent=1) + "\n")
    path.with_suffix(".new").replace(path)


def rounded(value: Any) -> Any:
    """Four digits: what a clock is worth here, and a diff that can be read."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def load(path: Path) -> Result:
    found = json.loads(path.read_text())
    return Result(**{**found, "rows": [Found(**row) for row in found["rows"]]})


def commit() -> str:
    """The last commit that changed the code; "+": with changes that are in none."""
    code = ["src", "backends", "benchmarks/*.c", "benchmarks/*.py"]
    git = ["git", "-C", str(ROOT)]
    said = subprocess.run(
        [*git, "log", "-1", "--format=%h", "--", "src", "backends"], capture_output=True, text=True, check=False
    )
    changed = subprocess.run([*git, "status", "--porcelain", "--", *code[:2]], capture_output=True, text=True, check=False)
    return (said.stdout.strip() or "?") + ("+" if changed.stdout.strip() else "")


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gib": round(memory / 2**30),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
