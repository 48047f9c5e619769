"""A red run means a fault: what passes alone is flaky and is named, what fails again or may not fail is red."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.reruns import PROMISES

TESTS = Path(__file__).parent.parent
#: Fails when it is run for the first time.
FLAKY = """
def test_flaky{number}(request):
    ran = request.config.rootpath / "ran{number}"
    if not ran.exists():
        ran.touch()
        raise AssertionError("the first failure {number}")
"""
PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
PROMISE = "import pytest\npytestmark = pytest.mark.promise\n"


def run(folder: Path, text: str, *options: str, known: str = "", n_workers: int = 0) -> tuple[int, str]:
    """Run these tests: the exit status and the output."""
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(text)
    (folder / "tests" / "flaky.txt").write_text(known)
    (folder / "pytest.ini").write_text("[pytest]\n")
    workers = ["-p", "xdist.plugin", "-n", str(n_workers)] if n_workers else []
    command = [sys.executable, "-m", "pytest", "-p", "tooling.reruns", "-p", "no:cacheprovider", *workers, *options]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins cost a second
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_a_test_that_passes_alone_is_flaky_and_its_first_failure_is_kept(tmp_path: Path) -> None:
    status, output = run(tmp_path, PASSES + FLAKY.format(number=1) + FLAKY.format(number=2), "--rerun-failed", n_workers=2)
    assert 0 == status, output
    assert "FLAKY: tests/test_it.py::test_flaky1\n" in output
    assert "FLAKY: tests/test_it.py::test_flaky2\n" in output
    assert "the first failure 1" in output


RED = {
    "fails again": (FAILS, ""),
    "one of two fails again": (FAILS + FLAKY.format(number=1), ""),
    "three": ("".join(FLAKY.format(number=number) for number in range(3)), ""),
    "a promise": (PROMISE + FLAKY.format(number=1), ""),
    "known": (FLAKY.format(number=1), "tests/test_it.py::test_flaky1\n"),
    "cannot be imported": (FLAKY.format(number=1) + "import nothing_of_this_name\n", ""),
    "a crashed worker": ("import os\n" + FLAKY.format(number=1).replace('raise AssertionError("the', 'os._exit(3)  # ("the'), ""),
}


@pytest.mark.parametrize("case", RED)
def test_the_run_stays_red(tmp_path: Path, case: str) -> None:
    text, known = RED[case]
    n_workers = 1 if case == "a crashed worker" else 0
    status, output = run(tmp_path, PASSES + text, "--rerun-failed", known=known, n_workers=n_workers)
    assert 0 != status, output
    assert "FLAKY" not in output


def test_nothing_is_run_again_unless_asked_for(tmp_path: Path) -> None:
    status, output = run(tmp_path, FLAKY.format(number=1))
    assert 1 == status, output


def test_the_tests_of_loss_and_damage_are_where_the_table_says() -> None:
    assert [] == [path for path in PROMISES if not (TESTS.parent / path).exists()]
