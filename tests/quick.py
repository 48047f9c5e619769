"""Checks a change in at most 90 seconds: lint, types, and the tests nearest to what changed. Run by ``make quick``.

What changed: the commits since the branch left ``main`` and the working tree; without either, the last commit.

Which tests run, nearest first:

0. test files that changed;
1. test files that are named after a changed module (``test_journal.py`` for ``journal.py``), or that mention a changed file that
   is not Python by its name;
2. test files that import a changed module;
3. test files that import a module that imports a changed one.

pytest starts no further test once ``TESTS_S`` are over, and counts the rest. ``make test`` runs everything.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: From the start of the script. The tests that run then and a cold start of mypy have the rest of the 90 seconds.
TESTS_S = 55.0
NO_TIME = "no time left"
#: What holds for every change: cheap enough to run each time.
ALWAYS = ("tests/test_layers.py", "tests/test_public_api.py")


class Source:
    """A Python file of the project: its dotted name and what it imports."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        relative = path.relative_to(root).with_suffix("")
        parts = relative.parts[1:] if relative.parts[0] in ("src", "tests", "benchmarks") else ("wherry", *relative.parts)
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.is_test = relative.parts[0] == "tests" and path.name.startswith("test_")

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def imports(self) -> dict[str, str]:
        """Name in the file -> dotted name of what is imported: a module, or a member of one."""
        found: dict[str, str] = {}
        package = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        for node in ast.walk(ast.parse(self.text, str(self.path))):
            if isinstance(node, ast.Import):
                found |= {alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                origin = [*above, *([node.module] if node.module else [])]
                found |= {alias.asname or alias.name: ".".join([*origin, alias.name]) for alias in node.names}
        return found


class Graph:
    """Which file of the project imports which."""

    def __init__(self, root: Path, paths: Sequence[Path]) -> None:
        self.root = root
        self.sources = [Source(path, root) for path in paths]
        self._by_name = {source.name: source for source in self.sources if not source.is_test and source.path.suffix == ".py"}
        # The names that a package offers are written in its stub where it has one.
        self._fronts = {source.name: source for source in sorted(self.sources, key=lambda source: source.path.suffix)}

    def modules(self, source: Source) -> set[Path]:
        """The files that `source` imports, of this project."""
        return {found.path for name in source.imports.values() if (found := self._find(name)) and found is not source}

    def _find(self, name: str) -> Source | None:
        """The module of that name, or the one that defines the member of that name: `wherry.Uploader` is in `wherry.uploader`."""
        if name in self._by_name:
            return self._by_name[name]
        package, _, member = name.rpartition(".")
        front = self._fronts.get(package)
        offered = front.imports.get(member) if front and front.is_package else None
        if offered and offered != name:
            return self._find(offered)
        return self._find(package) if package else None

    def nearest(self, changed: Sequence[Path]) -> list[Path]:
        """The test files that matter for the changed ones, nearest first; of two as near the one that imports less."""
        targets = set(changed)
        imported = {source.path: self.modules(source) for source in self.sources}
        near = {path for path, found in imported.items() if found & targets}
        stems = {f"test_{path.stem}" for path in changed if path.suffix == ".py"}
        mentions = [path.name for path in changed if path.suffix != ".py"]
        ranked: list[tuple[int, int, Path]] = []
        for source in self.sources:
            if not source.is_test:
                continue
            path = source.path
            ranks = (
                path in targets,
                path.stem in stems or any(name in source.text for name in mentions),
                path in near,
                bool(imported[path] & near),
            )
            if True in ranks:
                ranked.append((ranks.index(True), len(imported[path]), path))
        return [path for _, _, path in sorted(ranked)]


def git(*arguments: str) -> list[str]:
    """The lines that git prints; none if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changes() -> tuple[str, list[Path]]:
    """What the changes are counted from, in words, and the files that are there and changed."""
    fork = next((lines[0] for name in ("main", "origin/main") if (lines := git("merge-base", "HEAD", name))), "HEAD")
    for said, base in (("the branch left main", fork), ("the commit before the last", "HEAD~1")):
        names = {*git("diff", "--name-only", "--diff-filter=d", base), *git("ls-files", "--others", "--exclude-standard")}
        if names:
            return said, sorted(ROOT / name for name in names)
    return "the first commit", []


def sources() -> list[Path]:
    """The Python files and stubs of the project, those that git does not know yet too."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard", "src", "backends", "tests", "benchmarks")
    return [path for path in map(ROOT.joinpath, names) if path.suffix in (".py", ".pyi") and path.exists()]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--until", type=float, help="start no test after this time (time.time())")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > item.config.getoption("--until"):
        pytest.skip(NO_TIME)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Count what the time did not suffice for in the last line, and print no mark for each."""
    is_left = report.skipped and NO_TIME in str(report.longrepr)
    return ("left to make test", "", "") if is_left else None


def run(*command: str | Path) -> bool:
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    """0 if all passed, 1 otherwise."""
    started = time.time()
    programs = Path(sys.executable).parent
    since, changed = changes()
    print(f"{len(changed)} files changed since {since}")
    ruff = programs / "ruff"
    passed = {"lint": run(ruff, "check", ".") & run(ruff, "format", "--check", "--quiet", ".")}
    types = subprocess.Popen([programs / "mypy"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    tests = [*ALWAYS, *(str(path.relative_to(ROOT)) for path in Graph(ROOT, sources()).nearest(changed))]
    tests = [name for name in dict.fromkeys(tests) if not name.startswith("tests/extra/")]
    first = " ".join(name.removeprefix("tests/") for name in tests[:12])
    print(f"{len(tests)} test files: {first}{' ...' if len(tests) > 12 else ''}", flush=True)
    options = ["-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--until", str(started + TESTS_S)]
    # As a plugin, so that xdist's workers have it too.
    passed["tests"] = pytest.main([*options, "-p", "quick", *tests]) == 0
    print(types.communicate()[0], end="")
    passed["types"] = types.returncode == 0
    results = [f"{what} {'passed' if good else 'FAILED'}" for what, good in passed.items()]
    print(*results, f"{time.time() - started:.0f} s", sep=", ")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
