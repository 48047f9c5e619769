"""The versions of Python that wherry names are those that its tests run with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pythons

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_classifiers_name_versions_that_the_matrix_runs() -> None:
    """Python 3.14 is run where it is installed, and named when it was."""
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    assert ["3.10", "3.11", "3.12", "3.13"] == named
    assert set(named) < set(pythons.VERSIONS)


def test_ci_runs_the_matrix_and_all_that_it_runs_is_there() -> None:
    stages = re.findall(r"^stage \d+ (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    (prepared, ran) = (stage for stage in stages if stage.startswith("matrix "))
    assert f"{ran} PREPARE=1" == prepared, "another set of environments is prepared than is used"
    assert stages.index("lint") > stages.index(prepared)
    assert stages.index("test") < stages.index(ran)
    for path in (*pythons.TESTS, *pythons.LEFT_OUT, *pythons.SOURCES):
        assert (ROOT / path).exists(), path
    assert set(pythons.OMITTED_IF_SHORT) < set(pythons.TESTS)


def test_a_version_that_is_not_installed_is_not_found() -> None:
    assert pythons.find("3.99") is None


def test_what_is_prepared_runs_no_test(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def prepare(version: str, python: Path) -> Path | None:
        return None if version == "3.13" else python

    monkeypatch.setattr(sys, "argv", ["pythons.py", "--prepare", "--short", "--ran", "3.12"])
    monkeypatch.setattr(pythons, "find", lambda version: Path(version))
    monkeypatch.setattr(pythons, "VERSIONS", ("3.11", "3.12", "3.13"))
    monkeypatch.setattr(pythons, "prepare", prepare)
    monkeypatch.setattr(pythons, "finish", lambda *_: pytest.fail("a test was run"))
    assert 1 == pythons.main()
    result = capsys.readouterr().out
    assert "3.11  prepared after 0 s" in result
    assert "3.13  FAILED after 0 s" in result


HANGS = """
import threading, time
import hangs
hangs.pytest_configure()
def hang_here():
    print("ready", flush=True)
    time.sleep(600)
threading.Thread(target=hang_here).start()
threading.Event().wait()
"""


def test_what_does_not_end_says_where_its_threads_are_and_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGS],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        pythons.end(process)
        assert b"in hang_here" in process.stderr.read()
    assert process.returncode == -signal.SIGKILL


def test_what_ends_in_time_is_not_killed() -> None:
    assert pythons.finish([sys.executable, "-c", ""], limit_s=60.0)
    assert not pythons.finish([sys.executable, "-c", "raise SystemExit(1)"], limit_s=60.0)
