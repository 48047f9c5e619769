"""A process that gives way does so as a process and, where the kernel groups processes by session, as a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from wherry.posix.priority import give_way

GROUP = Path("/proc/self/autogroup")
GIVE_WAY = """
import os, sys
from pathlib import Path
from wherry.posix.priority import give_way
group = Path("/proc/self/autogroup")
read = lambda: ["", *(group.read_text().split() if group.exists() else ())][-1]  # empty: a process in no group
before = read()
give_way(int(sys.argv[1]), idle_io=True)
print(os.getpriority(os.PRIO_PROCESS, 0), before, read())
"""


def _given_way(nice: int, *, new_session: bool) -> tuple[int, str, str]:
    """The priority of a process after give_way(), and its group's before and after it; both "" where there are no groups."""
    command = [sys.executable, "-c", GIVE_WAY, str(nice)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=new_session)
    priority, *group = done.stdout.split()
    return int(priority), *(group or ["", ""])  # type: ignore[return-value]


def test_a_session_of_its_own_gives_way_as_a_group() -> None:
    priority, before, after = _given_way(7, new_session=True)
    assert max(7, os.getpriority(os.PRIO_PROCESS, 0)) == priority
    assert after == ("7" if before else "")


def test_the_session_of_others_keeps_its_priority() -> None:
    priority, before, after = _given_way(7, new_session=False)
    assert max(7, os.getpriority(os.PRIO_PROCESS, 0)) == priority
    assert before == after


def test_a_process_that_is_nicer_already_stays_so() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    give_way(0)
    assert before == os.getpriority(os.PRIO_PROCESS, 0)
