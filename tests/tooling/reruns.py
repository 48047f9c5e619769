"""A red run means a fault: a plugin of tests/conftest.py. With ``--rerun-failed``, what failed is run again, alone.

After the parallel run each failed test is run again in a process of its own. If it passes there, the run is green, with a line
``FLAKY: name`` and the output of the first failure. The run stays red

- if the test fails again;
- if it is marked `promise`: a test of loss or damage is never run again;
- if more than two tests failed;
- if the name is in tests/flaky.txt, where whoever sees the line puts it in the next commit, unless they fix the test;
- if anything else is wrong: a module that cannot be imported, a worker that crashed, coverage below its floor.

pytest-rerunfailures runs a test again at once, beside the others that may have disturbed it, and has no such bounds.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Where the tests of loss and damage are.
PROMISES = (
    "tests/conformance/",
    "tests/faults/",
    "tests/trouble/",
    "tests/checkpoints/test_chaos.py",
    "tests/checkpoints/test_model.py",
    "tests/checkpoints/test_prune_races.py",
    "tests/checkpoints/test_reference_races.py",
    "tests/e2e/test_forked_children.py",
    "tests/e2e/test_killed_trials.py",
    "tests/e2e/test_processes.py",
    "tests/mirror/test_mirror_chaos.py",
    "tests/mirror/test_mirror_fuzz.py",
    "tests/mirror/test_reading_fuzz.py",
)
MOST_FLAKY = 2
_PHASES = ("setup", "call", "teardown")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rerun-failed", action="store_true", help="run up to two failed tests again, alone")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise: a test of loss or damage, which is never run again when it has failed")
    if config.getoption("rerun_failed") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reruns(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of loss and damage."""
    for item in items:
        if item.nodeid.startswith(PROMISES):
            item.add_marker("promise")


class _Reruns:
    """Collects the failures of a run; at its end runs them again."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failures: list[pytest.TestReport] = []
        self._flaky: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures.append(report)

    @pytest.hookimpl(trylast=True)  # when the workers have ended
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.TESTS_FAILED and self._may_be_flaky(session):
            names = list(dict.fromkeys(report.nodeid for report in self._failures))
            if all(self._passes_alone(name) for name in names):
                self._flaky = names
                session.exitstatus = pytest.ExitCode.OK

    def _may_be_flaky(self, session: pytest.Session) -> bool:
        """Return True if nothing but tests failed, and the run is green if these pass alone."""
        names = {report.nodeid for report in self._failures}
        file = self._config.rootpath / "tests" / "flaky.txt"
        known = set(file.read_text(encoding="utf-8").splitlines()) if file.exists() else set()
        return (
            session.testsfailed == len(self._failures)
            and not session.shouldfail
            and len(names) <= MOST_FLAKY
            and names.isdisjoint(known)
            and all(report.when in _PHASES and "promise" not in report.keywords for report in self._failures)
        )

    def _passes_alone(self, name: str) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", self._config.option.markexpr, name]
        return subprocess.run(command, cwd=self._config.rootpath, stdin=subprocess.DEVNULL, check=False).returncode == 0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self._flaky:
            terminalreporter.write_line(f"FLAKY: {name}", yellow=True, bold=True)
