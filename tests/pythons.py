"""Runs the tests that depend on the version of Python with each that is installed: ``make matrix``.

What differs between versions is how a process ends, forks, starts threads and speaks to SQLite; the rest of the suite runs with
one. Needs nothing but Python. Each version gets an environment of its own below .matrix/, made anew when what it is made from
changes, with the extra "test": without torch and the other large packages, so without the tests that are marked "large".
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = tuple(f"3.{minor}" for minor in range(10, 15))
#: What an environment is made from.
SOURCES = ("pyproject.toml", "constraints.txt", "servers.txt")
#: Unit, checkpoint, mirror, logger and process tests. Chaos and what is the same in every version are left to `make test`.
TESTS = (
    "tests/unit",
    "tests/posix",
    "tests/store",
    "tests/spool",
    "tests/transfer",
    "tests/agent",
    "tests/checkpoints",
    "tests/mirror",
    "tests/loggers",
    "tests/destinations",
    "tests/e2e/test_at_exit.py",
    "tests/e2e/test_forked_children.py",
    "tests/e2e/test_processes.py",
    "tests/faults/test_agent.py",
    "tests/faults/test_ends.py",
    "tests/trouble/test_caller.py",
)
#: What `--short` omits: few of these tests depend on the version, and they take more than half of the time.
OMITTED_IF_SHORT = ("tests/checkpoints", "tests/mirror", "tests/destinations")
LEFT_OUT = (
    "tests/checkpoints/test_chaos.py",
    "tests/checkpoints/test_dcp.py",
    "tests/checkpoints/test_dcp_ranks.py",
    "tests/checkpoints/test_exchange.py",
    "tests/checkpoints/test_many_ranks.py",
    "tests/checkpoints/test_model.py",
    "tests/checkpoints/test_prune_races.py",
    "tests/checkpoints/test_restore_together.py",
    "tests/mirror/test_mirror_chaos.py",
    "tests/mirror/test_mirror_fuzz.py",
)
TESTS_IF_SHORT = tuple(path for path in TESTS if path not in OMITTED_IF_SHORT)
MARKS = "not slow and not extra and not large"
#: Where coverage costs nothing.
MEASURED = VERSIONS[2:]
#: One version takes 5 minutes on two quiet cores.
LIMIT_S = 900.0
#: For writing down where all threads are, before they are killed.
SAYING_S = 2.0


def main() -> int:
    """0: all that ran passed. 1: a test failed, or there was no version to run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ran", metavar="X.Y", help="a version with which all tests ran already")
    parser.add_argument(
        "--short", action="store_true", help="the oldest and the newest only, and only what depends on the version"
    )
    parser.add_argument("--prepare", action="store_true", help="make the environments, and run no test")
    given = parser.parse_args()
    tests = TESTS_IF_SHORT if given.short else TESTS
    results: dict[str, str] = {}
    pythons = {version: find(version) for version in VERSIONS}
    installed = [version for version in VERSIONS if pythons[version] is not None and version != given.ran]
    for version in VERSIONS:
        start_s = time.monotonic()
        python = pythons[version]
        if version == given.ran:
            results[version] = "ran all tests already"
        elif python is None:
            results[version] = "not installed here, skipped"
        elif given.short and version not in (installed[0], installed[-1]):
            results[version] = "left out, as it is neither the oldest nor the newest"
        elif given.prepare:
            results[version] = "prepared" if prepare(version, python) is not None else "FAILED"
            results[version] += f" after {time.monotonic() - start_s:.0f} s"
        else:
            results[version] = "passed" if run(version, python, tests) else "FAILED"
            results[version] += f" after {time.monotonic() - start_s:.0f} s"
        say(f"Python {version}: {results[version]}")
    say("\n" + "\n".join(f"{version:<5} {result}" for version, result in results.items()))
    if all(result.startswith("not installed") for result in results.values()):
        say(f"none of {', '.join(VERSIONS)} is installed: put one on the PATH (python3.12), or install it with pyenv")
        return 1
    return 1 if any(result.startswith("FAILED") for result in results.values()) else 0


def find(version: str) -> Path | None:
    """The newest Python of that version that pyenv or the PATH has, and that has what we need."""
    return next(filter(works, candidates(version)), None)


def candidates(version: str) -> Iterator[Path]:
    """Where it may be: pyenv's, the newest first, then the PATH's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = [path for path in pyenv.glob(f"versions/{version}.*/bin/python") if path.parent.parent.name.split(".")[2].isdecimal()]
    yield from sorted(found, key=lambda path: int(path.parent.parent.name.split(".")[2]), reverse=True)
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)


def works(python: Path) -> bool:
    """Whether it starts (pyenv's names on the PATH may lead nowhere) and can make environments."""
    done = subprocess.run([python, "-c", "import ensurepip, sqlite3, ssl, venv"], capture_output=True, check=False)
    return done.returncode == 0


def run(version: str, python: Path, tests: Sequence[str]) -> bool:
    """Run these tests; whether they passed."""
    say(f"\nPython {version} ({python})")
    environment = prepare(version, python)
    if environment is None:
        return False
    options = ["-q", "-n", "3", "--dist", "worksteal", "-p", "no:cacheprovider"]
    left_out = [f"--ignore={path}" for path in LEFT_OUT]
    coverage = ["--cov", "--cov-report="] if version in MEASURED and tests is TESTS else []  # the floor is that of all of them
    return finish([environment, "-m", "pytest", *options, "-m", MARKS, *left_out, *coverage, *tests])


def finish(command: Sequence[str | Path], limit_s: float = LIMIT_S) -> bool:
    """Whether it ends in time and well."""
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            say(f"\nnot ended after {limit_s:.0f} s; this is what its processes were doing:")
            end(process)
            return False
        except BaseException:  # Ctrl-C
            end(process)
            raise


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill its group, in which pytest's workers are, after all have said where their threads are (tests/hangs.py)."""
    os.killpg(process.pid, signal.SIGUSR1)
    time.sleep(SAYING_S)
    os.killpg(process.pid, signal.SIGKILL)


def prepare(version: str, python: Path) -> Path | None:
    """The environment's Python; None, with pip's words on the terminal, if it cannot be made."""
    folder = ROOT / ".matrix" / version
    made = folder / "bin" / "python"
    stamp = folder / "made-from"
    wanted = digest(python)
    if stamp.exists() and stamp.read_text() == wanted:
        return made
    say(f"making {folder.relative_to(ROOT)}: a minute or two")
    shutil.rmtree(folder, ignore_errors=True)
    pip: list[str | Path] = [made, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    steps: Sequence[Sequence[str | Path]] = (
        [python, "-m", "venv", folder],
        [*pip, "-c", "constraints.txt", "-e", ".[test]"],
        [*pip, "--require-hashes", "--no-deps", "-r", "servers.txt"],
    )
    for step in steps:
        if subprocess.run(step, cwd=ROOT, check=False).returncode != 0:
            return None
    stamp.write_text(wanted)
    return made


def digest(python: Path) -> str:
    """What changes when an environment must be made anew: the patch version too, as pyenv may replace it."""
    version = subprocess.run([python, "-VV"], capture_output=True, text=True, check=True).stdout
    together = hashlib.sha256(version.encode())
    for name in SOURCES:
        together.update((ROOT / name).read_bytes())
    return f"{python} {together.hexdigest()}"


def say(text: str) -> None:
    """Write a line at once: pytest writes to the same terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
