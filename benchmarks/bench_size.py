"""What an installation costs: the wheel, the packages that it brings, and how long a process with wherry takes to start.

A fresh environment gets the wheel and no extra, so this needs a package index. Its bare interpreter starts faster than that of
the development environment, which has more .pth files to read: the same work is a larger multiple of it.
"""

from __future__ import annotations

import functools
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from measure import folder, machine, seconds, spread, table

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 15
#: Run by the fresh environment: of each package its name and bytes, of pip none.
PACKAGES = """
import importlib.metadata, json
print(json.dumps({
    package.name: sum(path.locate().stat().st_size for path in package.files or () if path.locate().is_file())
    for package in importlib.metadata.distributions() if package.name not in ("pip", "setuptools")
}))
"""
STARTS = {
    "python -c pass": ["python", "-c", "pass"],
    "import wherry": ["python", "-c", "import wherry"],
    "import wherry; wherry.Uploader": ["python", "-c", "import wherry; wherry.Uploader"],
    "from wherry.loggers import ObjectStoreLogger": ["python", "-c", "from wherry.loggers import ObjectStoreLogger"],
    "wherry --version": ["wherry", "--version"],
    "wherry --help": ["wherry", "--help"],
}


def install(base: Path) -> tuple[Path, Path]:
    """The wheel of this tree, and the programs of a fresh environment that has it."""
    build = [sys.executable, "-W", "ignore", "-m", "build", "--outdir", str(base), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = base.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(base / "env")], check=True)
    programs = base / "env" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    return wheel, programs


def sizes(wheel: Path, programs: Path) -> list[list[str]]:
    done = subprocess.run([programs / "python", "-c", PACKAGES], check=True, capture_output=True, text=True)
    packages: dict[str, int] = json.loads(done.stdout)
    own = packages.pop("wherry")
    largest = sorted(packages, key=lambda name: packages[name], reverse=True)[:3]
    named = ", ".join(f"{name} {packages[name] / 1e6:.1f}" for name in largest)
    return [
        ["wheel", f"{wheel.stat().st_size / 1e6:.2f}", "MB"],
        ["wherry, installed, with compiled modules", f"{own / 1e6:.1f}", "MB"],
        ["packages that the base install brings", str(len(packages)), f"largest, MB: {named}"],
        ["their size, installed", f"{sum(packages.values()) / 1e6:.0f}", "MB"],
    ]


def starts(programs: Path) -> list[list[str]]:
    """Interleaved: each round starts each once, so that a busy moment meets all of them."""
    times: dict[str, list[float]] = {what: [] for what in STARTS}
    processor: dict[str, list[float]] = {what: [] for what in STARTS}
    for _ in range(ROUNDS):
        for what, (program, *arguments) in STARTS.items():
            command, before = [str(programs / program), *arguments], used_s()
            times[what].append(seconds(functools.partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)))
            processor[what].append(used_s() - before)

    def multiple(of: dict[str, list[float]], what: str) -> str:
        return f"{statistics.median(of[what]) / statistics.median(of['python -c pass']):.1f}"

    return [[what, spread(times[what], 1000, 0), multiple(times, what), multiple(processor, what)] for what in STARTS]


def used_s() -> float:
    """The processor time of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    header = ["what", "ms, median [min-max]", "x bare", "x bare, processor time"]
    with folder() as base:
        wheel, programs = install(base)
        table("Size of an installation", ["what", "size", "unit"], sizes(wheel, programs))
        table(f"Start of a process, fresh environment ({machine()})", header, starts(programs))
    table(f"Start of a process, development environment ({machine()})", header, starts(Path(sys.executable).parent))


if __name__ == "__main__":
    main()
