"""Standard output that nobody reads: a pipe whose reader has ended, as in ``wherry ls URI | head -1``, or a closed file."""

from __future__ import annotations

import os
import select
import sys


def fill_standard_files() -> None:
    """Put /dev/null where a standard file is closed, as by ``>&-``: else the next file that is opened takes its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)  # as standard files are
            setattr(sys, name, os.fdopen(number, mode))


def is_closed_pipe(error: BaseException) -> bool:
    """Whether the error is that nobody reads our standard output any more. Connections to a store can break as well."""
    if not isinstance(error, BrokenPipeError):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLERR)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def write_nowhere() -> None:
    """Send what is still to be written to /dev/null: the interpreter flushes standard output at its end, which would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
