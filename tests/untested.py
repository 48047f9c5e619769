"""Says at the end of a run what this machine could not give: a test that needs it has tested less, and is not skipped."""

from __future__ import annotations

from pytest import TerminalReporter

#: The name under which a test records what it could not try, with ``record_property``.
UNTESTED = "untested"


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for report in terminalreporter.stats.get("passed", []):
        for name, reason in report.user_properties:
            if name == UNTESTED:
                terminalreporter.write_line(f"NOT TESTED HERE: {report.nodeid}: {reason}", yellow=True)
