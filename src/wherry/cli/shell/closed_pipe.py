"""A pipe whose reader has ended, as in ``wherry ls URI | head -1``: that is no error of ours."""

from __future__ import annotations

import os
import select
import sys


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
