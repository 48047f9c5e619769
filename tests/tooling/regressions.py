"""Runs the tests of faults that were fixed against older code, where each must fail: ``make regressions BASE=COMMIT``.

docs/faults.md names them: a row of its table of kinds has, in its last column, the tests in backquotes, as
``tests/a/test_b.py`` or ``tests/a/test_b.py::test_c``. A name stands for all cases of that file or function; one of them must
fail. The tests are those of HEAD, the product (src, backends) is that of BASE, both in a git worktree below .proof/, which may be
deleted.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tooling.proof import ROOT, WORK, check_out, git, report_name, take_from

PRODUCT = ("src", "backends")
LIMIT_S = 3600.0


def named(text: str) -> list[str]:
    """The tests that the rows of tables in a Markdown text name, each once, in their order."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return list(dict.fromkeys(name for row in rows for name in re.findall(r"`(tests/[\w/.]+\.py(?:::\w+)*)`", row)))


def outcomes(report: str) -> dict[str, bool]:
    """For each test of a JUnit report of pytest, without its parameters, whether one of its cases failed.

    A module that cannot be imported, as it needs what BASE lacks, is one failed case that has the name of the file.
    """
    failed: dict[str, bool] = {}
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314  # pytest has just written it
        name = f"{case.get('classname')}.{case.get('name', '').partition('[')[0]}".strip(".")
        is_red = case.find("failure") is not None or case.find("error") is not None
        failed[name] = failed.get(name, False) or is_red
    return failed


def is_red(name: str, failed: Mapping[str, bool]) -> bool | None:
    """Return True if a test or file that docs/faults.md names has failed; None if it was not run."""
    module, wanted = report_name(name.partition("::")[0]), report_name(name)
    ran = [value for test, value in failed.items() if test == module or f"{test}.".startswith(f"{wanted}.")]
    return any(ran) if ran else None


def run(base: str, names: Sequence[str]) -> dict[str, bool]:
    """Run them with the product of `base`: as outcomes(), of all."""
    folder = WORK / f"regressions-{base.replace('/', '-')}"
    check_out(folder, git("rev-parse", "HEAD"))
    take_from(base, folder, *PRODUCT)
    by_file: dict[str, list[str]] = {}
    for name in names:
        by_file.setdefault(name.partition("::")[0], []).append(name)
    failed: dict[str, bool] = {}
    with ThreadPoolExecutor(2) as pool:  # a pytest for each file: one that cannot be imported ends a run of several
        for results in pool.map(lambda one: _run(folder, one), by_file.values()):
            failed.update(results)
    return failed


def _run(folder: Path, names: Sequence[str]) -> dict[str, bool]:
    report = folder / f"{names[0].partition('::')[0].replace('/', '-')}.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=60", "-m", "not extra", f"--junitxml={report}"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *names],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode == pytest.ExitCode.USAGE_ERROR:  # the module cannot be imported, so none of the names is found
        return {report_name(names[0].partition("::")[0]): True}
    return outcomes(report.read_text())


def main() -> int:
    """0: all that is named has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit whose product is tested")
    names = named((ROOT / "docs/faults.md").read_text())
    failed = run(parser.parse_args().base, names)
    words = {True: "red", False: "GREEN, and must be red", None: "NOT RUN"}
    results = [is_red(name, failed) for name in names]
    for name, result in zip(names, results, strict=True):
        print(f"{words[result]:<22}  {name}")
    print(f"{results.count(True)} of {len(names)} are red")
    return int(results != [True] * len(names))


if __name__ == "__main__":
    sys.exit(main())
