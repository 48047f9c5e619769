"""Bytes, rates, durations and times as people read them, the same everywhere: in tables, messages, bars and on the page.

Sizes are in binary units, as options and part sizes are: a KiB is 1,024 bytes. Times say their zone.
"""

from __future__ import annotations

import math
from datetime import datetime, tzinfo

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(n_bytes: float) -> str:
    """A size: ``12 B``, ``1.5 KiB``, ``12.3 MiB``."""
    size, n_steps = max(0.0, float(n_bytes)), 0
    while round(size, 1) >= 1024 and n_steps < len(_UNITS) - 1:
        size, n_steps = size / 1024, n_steps + 1
    return f"{size:.{1 if n_steps else 0}f} {_UNITS[n_steps]}"


def rate_text(bytes_per_s: float) -> str:
    """A rate: ``12.3 MiB/s``."""
    return f"{size_text(bytes_per_s)}/s"


def age_text(age_s: float) -> str:
    """A duration in its largest unit: ``12 s``, ``3 min``, ``5 h``, ``2 days``."""
    for unit, seconds in (("days", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f} {unit}"
    return f"{max(0.0, age_s):.0f} s"


def time_text(at_s: float | None, zone: tzinfo | None = None) -> str:
    """Seconds since the epoch as a time with its zone, the machine's own by default: ``2026-11-23 20:58:21+00:00``.

    Empty for None, ``?`` for a time that no calendar has: a store may claim any.
    """
    if at_s is None:
        return ""
    if not math.isfinite(at_s):
        return "?"
    try:
        return datetime.fromtimestamp(at_s, zone).astimezone(zone).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return "?"
