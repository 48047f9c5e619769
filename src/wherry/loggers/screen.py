"""Whether anybody watches what is printed."""

from __future__ import annotations

import sys
from typing import TextIO


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel. IPython is asked only if it is there already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def is_terminal(stream: TextIO | None) -> bool:
    """Whether it leads to a terminal; not if it is closed, or None as in a daemon."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError, AttributeError):
        return False


def is_watched(stream: TextIO | None) -> bool:
    """Whether it leads to a terminal, or to a notebook."""
    return is_terminal(stream) or (in_notebook() and stream in (sys.stdout, sys.stderr))
