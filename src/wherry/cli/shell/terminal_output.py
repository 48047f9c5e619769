"""What the terminal that shows our output can do."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO


def columns() -> int | None:
    """How wide lines on standard output may be; None where that is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def is_rewritten(stream: TextIO) -> bool:
    """Whether a line that was written can be replaced: on a terminal that knows escape sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
