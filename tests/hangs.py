"""What hangs names itself: a plugin of tests/conftest.py.

pytest-timeout raises an error in a test that takes too long. That does not help where a call of C never returns, where the error
is caught, or where pytest itself waits. For the first two, pytest's watchdog writes down where all threads are, and ends the
process (`faulthandler_timeout` in pyproject.toml). For the last, each process of pytest does so when it gets SIGUSR1, which
tests/pythons.py and .ci/run send to those that do not end.

A test that fails must not take hours to say so. Without CI in the environment pytest says where two values begin to differ; with
it, it compares them line by line, which for a megabyte of bytes does not end.
"""

from __future__ import annotations

import faulthandler
import os
import signal

for name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(name, None)


def pytest_configure() -> None:
    """Write to the real stderr, which is not captured at this moment."""
    faulthandler.register(signal.SIGUSR1, file=os.dup(2))
