"""Processor time and memory of a process and all below it, and what the rest of the machine did meanwhile (Linux: /proc)."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Short beside every upload, and cheap: one sample takes less than a millisecond.
SAMPLE_S = 0.05


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the name before them may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def tree(root: int) -> list[int]:
    """The process and all below it."""
    below: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                below[int(stat_of(int(name))[1])].append(int(name))
    found = [root]
    for pid in found:
        found += below[pid]
    return found


def cpu_s(root: int) -> float:
    """What the tree has used so far, with what its ended processes had (their parents have waited for them)."""
    used = 0
    for pid in tree(root):
        with suppress(OSError):
            used += sum(map(int, stat_of(pid)[11:15]))
    return used / TICKS_PER_S


def busy_s() -> float:
    """Processor time that the machine has used so far, by anyone, and that its host took away."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def pss_bytes(pid: int) -> int:
    """The pages of a process, each divided by the number of processes that have it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


class PeakMemory:
    """The largest sum of the memory below `root` while the block runs (PSS: pages that processes share count once)."""

    def __init__(self, root: int, *, without_root: bool = False) -> None:
        self.root, self.without_root, self.bytes = root, without_root, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            found = [self.root]
            for pid in found:
                found += children(pid)
            total = 0
            for pid in found[1:] if self.without_root else found:
                with suppress(OSError):
                    total += pss_bytes(pid)
            self.bytes = max(self.bytes, total)
            if self._done.wait(SAMPLE_S):
                return

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def wait_until_quiet(most_s: float, share: float = 0.1) -> bool:
    """Wait until the machine uses less than `share` of one core for two seconds; False: it never did."""
    end = time.monotonic() + most_s
    calm = 0
    while calm < 2:
        before = busy_s()
        time.sleep(1)
        calm = calm + 1 if busy_s() - before < share else 0
        if time.monotonic() > end and not calm:
            return False
    return True
