"""The clocks of this machine, as an argument: code that measures time is given them, and tests give others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


def _boot() -> str:
    """Which run of which machine the monotonic clock belongs to; empty where nothing says it.

    Processes in another time namespace have another monotonic clock (time_namespaces(7)).
    """
    found = []
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        found.append(os.readlink("/proc/self/ns/time"))
    return " ".join(found)


@dataclass(frozen=True)
class Clock:
    """`monotonic_s` is one clock for all processes of a `boot`; it never steps, and stands still while the machine is suspended.

    `wall_s` may step at any moment, in both directions.
    """

    monotonic_s: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time
    boot: str = field(default_factory=_boot)
