"""The versions of Python that wherry names are those that its tests run with."""

from __future__ import annotations

import re
from pathlib import Path

import pythons

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_classifiers_name_versions_that_the_matrix_runs() -> None:
    """Python 3.14 is run where it is installed, and named when it was."""
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    assert ["3.10", "3.11", "3.12", "3.13"] == named
    assert set(named) < set(pythons.VERSIONS)


def test_ci_runs_the_matrix_and_all_that_it_runs_is_there() -> None:
    assert re.search(r"^make .*\btest matrix\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    for path in (*pythons.TESTS, *pythons.LEFT_OUT, *pythons.SOURCES):
        assert (ROOT / path).exists(), path


def test_a_version_that_is_not_installed_is_not_found() -> None:
    assert pythons.find("3.99") is None
