"""Run a program that never outlives the process that asked for it.

``python guard.py PARENT_PID GRACE_S LEFTOVERS PROGRAM ARGUMENT...``, LEFTOVERS being files (``:`` between them) that the program
is known to leave behind: they are removed when it has ended.

The guard is a process between the two, in a session of its own, so that Ctrl-C and a killed process group do not reach it. It
ends the program (SIGTERM and, GRACE_S later, SIGKILL for its whole group) when its standard input is closed, which is how it is
told to, or when PARENT_PID is not its parent any more, which is how it learns of a SIGKILL. Should the guard itself be killed,
Linux kills the program (prctl(2), PR_SET_PDEATHSIG). That call alone would not do: it fires at the end of the *thread* that
started the child. An end of file alone would not either: a forked sibling may hold the other end of the pipe.

The guard's exit status is the program's. It imports nothing but the standard library and is run as a script.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: No event tells a process that it got another parent, so this one is looked at, once a second.
_LOOK_S = 1.0


def main(arguments: list[str]) -> int:
    """Run the program until it ends, or until it must."""
    parent, grace_s, leftovers, command = int(arguments[0]), float(arguments[1]), arguments[2], arguments[3:]
    guard = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def die_with_the_guard() -> None:  # between fork and exec; the guard has one thread then, so this is safe
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:  # it was killed before the call above
            os._exit(1)

    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_the_guard)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    threading.Thread(target=_end_in_time, args=(child, parent, grace_s), daemon=True).start()
    status = child.wait()
    _signal_group(child.pid, signal.SIGKILL)  # processes that it may have left
    for leftover in filter(None, leftovers.split(os.pathsep)):
        with suppress(FileNotFoundError):
            os.unlink(leftover)
    return status if status >= 0 else 128 - status


def _end_in_time(child: subprocess.Popen[bytes], parent: int, grace_s: float) -> None:
    while os.getppid() == parent and not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        pass
    _signal_group(child.pid, signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        _signal_group(child.pid, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # it has ended; macOS says "not permitted" for one not yet waited for
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
