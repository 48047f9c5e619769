"""Programs that log to a file."""

from __future__ import annotations

from pathlib import Path

from support import run_script
from wherry.loggers.destinations.file import FileConfig

#: Nothing of pytest's own output is captured.
QUIET = FileConfig(capture_stdout=False, capture_stderr=False)


PROLOGUE = """
import atexit, os, signal, sys, threading, warnings
from wherry.loggers import Event, Logger, ObjectStoreLogger, State
from wherry.loggers.destinations.file import FileLogger, FileConfig

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and later, for a fork with threads
folder = sys.argv[1]
"""


def of_script(folder: Path, text: str, *, expected: int = 0, prefix: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """What a script shows, and the lines of the log that it leaves."""
    import textwrap

    shown = run_script(PROLOGUE + textwrap.dedent(text), folder, expected=expected, prefix=prefix)
    return shown, (folder / "log.txt").read_text().splitlines()
