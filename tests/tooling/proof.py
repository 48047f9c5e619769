"""Shows which faults the tests catch: faults that were fixed are put back and small changes are made, one at a time.

    python tests/tooling/proof.py record              # one run of the suite: which tests execute which lines
    python tests/tooling/proof.py faults              # each patch of tests/tooling/faults
    python tests/tooling/proof.py mutants --count 200
    python tests/tooling/proof.py table               # what each suite caught, and what only one of them did

With ``--suite COMMIT`` the tests are those of another commit, so that an old suite and a new one can be compared on the same
code. All work is done in git worktrees below .proof/, which may be deleted. A run can be interrupted: what has a result is not
tried again while the changed file stays the same.

For each change only the tests that execute a changed line are run, the fastest first, until one fails or the limit is reached.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORK = ROOT / ".proof"
FAULTS = Path(__file__).parent / "faults"
#: What mutants are made of: the code whose faults lose or damage uploads.
TARGETS = (
    "src/wherry/spool/journal",
    "src/wherry/transfer",
    "src/wherry/checkpoints/protocol",
    "src/wherry/mirror/format",
    "backends/local",
)
LIMIT_S = 60.0
#: A test that hangs is a test that fails.
TEST_LIMIT_S = 20.0
_COVERAGE = "[run]\ncore = ctrace\nsource = src/wherry, backends\ndynamic_context = none\n"


@dataclass(frozen=True)
class Change:
    """A change to one or more files. `key` is a digest of the text that was changed, so that no result is used for other text."""

    name: str
    key: str
    files: dict[str, str]


@dataclass(frozen=True)
class Result:
    """What became of a change: "killed", "survived", "limit" (no test failed in time), "not executed" or "error"."""

    suite: str
    kind: str
    name: str
    key: str
    result: str
    n_tests: int
    seconds: float
    output: str


class Suite:
    """The code of the working tree's commit with the tests of a commit, in a worktree."""

    def __init__(self, commit: str) -> None:
        self.name = commit
        self.folder = WORK / f"tree-{commit}"
        head = git("rev-parse", "HEAD")
        self.lines = WORK / f"lines-{commit}-{head[:12]}.json"
        self.reset(head)

    def reset(self, commit: str = "HEAD") -> None:
        """Put the code back."""
        check_out(self.folder, commit)
        if self.name != "HEAD":
            take_from(self.name, self.folder, "tests", "pyproject.toml")

    def pytest(self, *arguments: str, limit_s: float | None = None) -> tuple[int | None, str]:
        """Run pytest there: its exit status (None: stopped at the limit), and the end of its output."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=limit_s)
                return process.returncode, output[-2000:]
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def record(self, paths: Sequence[str]) -> None:
        """Run all tests once, and keep for each line of the product the tests that execute it, and for each test its time."""
        from coverage import CoverageData

        config, report, data_file = self.folder / ".proofrc", self.folder / "report.xml", self.folder / ".coverage"
        config.write_text(_COVERAGE)
        measured = ("--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report=")
        status, output = self.pytest(
            *paths, "-n", "3", "--dist", "worksteal", f"--junitxml={report}", "--no-cov-on-fail", *measured
        )
        if status != 0:
            sys.exit(f"the suite {self.name} is not green as it is:\n{output}")
        seconds = {
            f"{case.get('classname')}.{case.get('name')}": float(case.get("time", 0))
            for case in ET.parse(report).iter("testcase")  # noqa: S314  # pytest has just written it
        }
        data = CoverageData(str(data_file))
        data.read()
        tests: dict[str, dict[str, list[str]]] = {}
        for path in data.measured_files():
            contexts = data.contexts_by_lineno(path)
            name = os.path.relpath(os.path.realpath(path), self.folder)
            tests[name] = {str(line): sorted({one.partition("|")[0] for one in names if one}) for line, names in contexts.items()}
        times = {
            test: seconds.get(report_name(test), 0.0)
            for by_line in tests.values()
            for names in by_line.values()
            for test in names
        }
        self.lines.write_text(json.dumps({"tests": tests, "seconds": times}))

    def tests_of(self, change: Change) -> list[str]:
        """The tests that execute a line which the change touches, the fastest first."""
        recorded = json.loads(self.lines.read_text())
        names: set[str] = set()
        for path, text in change.files.items():
            before, by_line = (self.folder / path).read_text(), recorded["tests"].get(path, {})
            touched = {name for line in touched_lines(before, text) for name in by_line.get(str(line), ())}
            # What is executed by an import only, such as a constant, concerns all tests of the module.
            names |= touched or {name for tests in by_line.values() for name in tests}
        return sorted(names, key=lambda name: (recorded["seconds"][name], name))

    def try_change(self, kind: str, change: Change) -> Result:
        """Make the change, run the tests that execute it, and put the code back."""
        start_s = time.monotonic()
        tests = self.tests_of(change)
        outcome, output = "not executed", ""
        if tests:
            wanted = self.folder.parent / f"tests-{self.name}.txt"
            wanted.write_text("\n".join(tests))
            for path, text in change.files.items():
                (self.folder / path).write_text(text)
            try:
                status, output = self.pytest("-x", f"--timeout={TEST_LIMIT_S:g}", f"@{wanted}", limit_s=LIMIT_S)
            finally:
                self.reset()
            outcome = {None: "limit", 0: "survived", 1: "killed", 2: "killed", 3: "killed"}.get(status, "error")
        return Result(self.name, kind, change.name, change.key, outcome, len(tests), time.monotonic() - start_s, output)


def check_out(folder: Path, commit: str) -> None:
    """Have a worktree with this commit and nothing else; it is made if it is missing."""
    if not folder.exists():
        git("worktree", "prune")
        git("worktree", "add", "--detach", "--force", str(folder), commit)
    git("reset", "--quiet", "--hard", commit, folder=folder)
    git("clean", "--quiet", "-fd", folder=folder)


def take_from(commit: str, folder: Path, *names: str) -> None:
    """Replace files and folders of a worktree by those of another commit."""
    for name in names:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
    git("checkout", "--quiet", commit, "--", *names, folder=folder)


def touched_lines(before: str, after: str) -> set[int]:
    """The numbers of the lines of `before` that belong to a statement which is changed, or beside which something is added."""
    touched: set[int] = set()
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    for kind, first, end, _, _ in matcher.get_opcodes():
        if kind in ("replace", "delete"):
            touched.update(range(first + 1, end + 1))
        elif kind == "insert":
            touched.update((first, first + 1))
    for first, last in _statements(ast.parse(before)):
        if not touched.isdisjoint(statement := range(first, last + 1)):
            touched.update(statement)
    return touched


def _statements(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """The first and last line of each statement; of one with a body, such as ``if``, those before the body."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            yield node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno


def mutants_of(path: str, text: str) -> Iterator[Change]:
    """All small changes to a module that are tried: each replaces the lines of one statement or expression."""
    lines = text.splitlines(keepends=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    n_of_line: dict[tuple[int, str], int] = {}
    for kind, node, new in _sites(ast.parse(text)):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        start = len(lines[first].encode()[: node.col_offset].decode())
        end = len(lines[last].encode()[: node.end_col_offset].decode())
        changed = [*lines[:first], lines[first][:start] + new + lines[last][end:], *lines[last + 1 :]]
        number = n_of_line[node.lineno, kind] = n_of_line.get((node.lineno, kind), 0) + 1
        yield Change(f"{path}:{node.lineno} {kind} {number}", digest, {path: "".join(changed)})


_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SQL = (
    ("SELECT ", "UPDATE ", "INSERT ", "DELETE ", "WHERE "),
    ((" AND ", " OR "), (" <= ", " < "), (" < ", " <= "), (" = ", " <> ")),
)
_Site = tuple[str, "ast.expr | ast.stmt", str]


def _sites(tree: ast.Module) -> Iterator[_Site]:
    """(kind, node, what stands in its place) of each mutant."""
    in_f_strings = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in in_f_strings:  # before Python 3.12 their parts have no positions of their own
            continue
        if isinstance(node, ast.Compare):
            flipped = ast.Compare(node.left, [_FLIPPED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
            yield "comparison", node, f"({ast.unparse(flipped)})"
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and-or", node, f"({ast.unparse(ast.BoolOp(other, node.values))})"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "not", node, f"({ast.unparse(node.operand)})"
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield "off-by-one", node, str(node.value + 1)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _sql_sites(node, node.value)
        elif isinstance(node, (ast.Raise, ast.AugAssign, ast.Delete)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
        ):
            yield "dropped", node, "pass"
        elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield "return", node, "return None"


def _sql_sites(node: ast.Constant, text: str) -> Iterator[_Site]:
    words, swaps = _SQL
    if any(word in text for word in words):
        for old, new in swaps:
            if old in text:
                yield "sql", node, repr(text.replace(old, new, 1))


def faults(folder: Path) -> Iterator[Change]:
    """The patches of tests/tooling/faults, each of which puts back one fault that was fixed. `folder` is left as it is."""
    for patch in sorted(FAULTS.glob("*.patch")):
        names = [line.split("\t")[2] for line in git("apply", "--numstat", str(patch)).splitlines()]
        with tempfile.TemporaryDirectory() as scratch:
            for name in names:
                (Path(scratch) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / name, Path(scratch) / name)
            git("apply", str(patch), folder=Path(scratch))
            after = {name: (Path(scratch) / name).read_text() for name in names}
        digest = hashlib.sha256("".join([*((folder / name).read_text() for name in names), *after.values()]).encode()).hexdigest()
        yield Change(patch.stem, digest[:12], after)


def mutants(folder: Path, count: int, seed: int) -> list[Change]:
    """A sample of all mutants of TARGETS: the same for the same code, count and seed."""
    paths = [path for target in TARGETS for path in sorted((folder / target).glob("*.py"))]
    every = [change for path in paths for change in mutants_of(str(path.relative_to(folder)), path.read_text())]
    return random.Random(seed).sample(every, min(count, len(every)))


def results() -> list[Result]:
    """All results so far."""
    file = WORK / "results.jsonl"
    return [Result(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def attempt(suite: Suite, kind: str, changes: Sequence[Change]) -> int:
    """Try the changes that have no result yet; 1 if a fault was not killed. Some mutants change nothing that can be seen."""
    known = {(one.name, one.key): one for one in results() if (one.suite, one.kind) == (suite.name, kind)}
    for number, change in enumerate(changes, 1):
        result = known.get((change.name, change.key))
        if result is None:
            result = known[change.name, change.key] = suite.try_change(kind, change)
            with open(WORK / "results.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        print(
            f"{number}/{len(changes)} {result.result:<12} {result.n_tests:>5} tests {result.seconds:>5.0f} s  {change.name}",
            flush=True,
        )
    n_killed = sum(known[change.name, change.key].result == "killed" for change in changes)
    print(f"{n_killed} of {len(changes)} killed")
    return int(kind == "fault" and n_killed < len(changes))


def table() -> str:
    """A Markdown table with a row for each suite and kind, then the changes on which the suites differ."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for one in results():
        rows.setdefault((one.kind, one.suite), {})[one.name] = one.result
    columns = ("killed", "survived", "limit", "not executed", "error")
    lines = ["| kind | tests of | changes | " + " | ".join(columns) + " |", "| --- " * (3 + len(columns)) + "|"]
    for (kind, suite), outcomes in sorted(rows.items()):
        counts = [str(list(outcomes.values()).count(column)) for column in columns]
        lines.append(f"| {kind} | {suite} | {len(outcomes)} | " + " | ".join(counts) + " |")
    for kind in sorted({kind for kind, _ in rows}):
        suites = [outcomes for (row_kind, _), outcomes in sorted(rows.items()) if row_kind == kind]
        for name in sorted(set.intersection(*(set(outcomes) for outcomes in suites))):
            if len({outcomes[name] == "killed" for outcomes in suites}) > 1:
                lines.append(f"- {kind} {name}: " + ", ".join(outcomes[name] for outcomes in suites))
    return "\n".join(lines)


def report_name(test: str) -> str:
    """The name of a test in pytest's XML report."""
    names, bracket, parameters = test.partition("[")
    path, *rest = names.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *rest]) + bracket + parameters


def git(*arguments: str, folder: Path = ROOT) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """0: every fault was caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "faults", "mutants", "table"])
    parser.add_argument("--suite", default="HEAD", metavar="COMMIT", help="the commit whose tests are run (default: HEAD)")
    parser.add_argument("--count", type=int, default=200, help="number of mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="seed of their choice (default: 1)")
    parser.add_argument("--tests", nargs="*", default=["tests"], metavar="PATH", help="what to record (default: all tests)")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if options.what == "table":
        print(table())
        return 0
    suite = Suite(options.suite)
    if options.what == "record" or not suite.lines.exists():
        print(f"running the tests of {suite.name} once, to see which execute which lines", flush=True)
        suite.record(options.tests)
    if options.what == "record":
        return 0
    if options.what == "faults":
        return attempt(suite, "fault", list(faults(suite.folder)))
    return attempt(suite, "mutant", mutants(suite.folder, options.count, options.seed))


if __name__ == "__main__":
    sys.exit(main())
