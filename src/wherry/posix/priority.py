"""Lets other programs go first: the priority of processes for the processor and the disk."""

from __future__ import annotations

import errno
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

#: The number of ioprio_set(2), which the C library has no function for.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}
_OF_ONE_THREAD = 1
_IDLE_CLASS = 3 << 13
#: The kernel lets one group of all change in a tenth of a second; agents may start together.
_TRIES = 20
_TRY_AGAIN_S = 0.05


def give_way(nice: int, children: Iterable[int] = (), *, idle_io: bool = False) -> None:
    """Take `nice` (0 to 19; higher: others go first) for this process, and give it to `children`, unless they are nicer already.

    Processes that are forked later inherit it. On Linux with autogroups (sched(7)), which most desktops and plain machines have,
    processes of two sessions share a processor equally, however nice they are: there the group of this process's session gets the
    value as well, if the session is its own.

    `idle_io`: read from and write to the disk only when nobody else does. Linux only, and only with some schedulers (BFQ).
    """
    for pid in (os.getpid(), *children):
        for thread in _threads(pid):
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, max(nice, os.getpriority(os.PRIO_PROCESS, thread)))
                if idle_io:
                    _take_idle_io(thread)
    if os.getsid(0) == os.getpid():
        _give_way_as_group(Path("/proc/self/autogroup"), nice)


def _threads(pid: int) -> Iterator[int]:
    """Those of a process: on Linux each has a priority of its own."""
    if sys.platform != "linux":
        yield pid
        return
    with suppress(FileNotFoundError):
        yield from map(int, os.listdir(f"/proc/{pid}/task"))


def _give_way_as_group(file: Path, nice: int) -> None:
    """Have the session's group give way. No error where there are no groups, or nobody may change them."""
    for _ in range(_TRIES):
        try:
            file.write_text(f"{nice}\n")
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return
        else:
            return
        time.sleep(_TRY_AGAIN_S)  # nothing can be waited for


def _take_idle_io(thread: int) -> None:
    number = _IOPRIO_SET.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    import ctypes

    with suppress(AttributeError):
        ctypes.CDLL(None).syscall(number, _OF_ONE_THREAD, thread, _IDLE_CLASS)  # refused in some sandboxes: all stays as it was
