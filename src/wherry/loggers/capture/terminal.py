"""Whether the output goes to a terminal or notebook, and text that is safe to print there."""

from __future__ import annotations

import re
import sys
from typing import TextIO

#: Characters that control a terminal (C0, DEL, C1), and those that change the direction of text.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""The text with its control characters, except those in `keep`, escaped as Python writes them: ``\x1b``. Logged texts may be
    a model's output, which must not move the cursor, set a title or hide earlier output.
    """
    if text.isprintable():
        return text
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text)


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel. Does not import IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def is_terminal(stream: TextIO | None) -> bool:
    """Whether it leads to a terminal. False if it is closed, or None as in a daemon."""
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError, AttributeError):
        return False


def is_watched(stream: TextIO | None) -> bool:
    """Whether it leads to a terminal or to a notebook."""
    return is_terminal(stream) or (in_notebook() and stream in (sys.stdout, sys.stderr))
