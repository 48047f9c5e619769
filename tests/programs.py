"""Processes that a test starts and waits for."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import AnyStr


class Program(subprocess.Popen[AnyStr]):
    """A process that is killed, and not waited for, if the ``with`` block fails: a test that waited would never end."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, traceback)
