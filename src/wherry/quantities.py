"""Bytes, rates, durations and times as people read them, the same everywhere: in tables, messages, bars and on the page.

Sizes are in binary units, as options and part sizes are: a KiB is 1,024 bytes. Times say their zone.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, tzinfo

from wherry.errors import ConfigError

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(|b|[kmgtp](?:i?b)?|[kmgtp]i)(?:/s)?", re.ASCII)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(n_bytes: float) -> str:
    """A size: ``12 B``, ``1.5 KiB``, ``12.3 MiB``."""
    size, n_steps = max(0.0, float(n_bytes)), 0
    while round(size, 1) >= 1024 and n_steps < len(_UNITS) - 1:
        size, n_steps = size / 1024, n_steps + 1
    return f"{size:.{1 if n_steps else 0}f} {_UNITS[n_steps]}"


def parse_size(text: str, *, least_bytes: int = 1) -> int:
    """Read a size, or a rate: ``4096``, ``500K``, ``10MiB``, ``1.5 GB/s``. ConfigError for anything else, and for less.

    K, M, G, T, P are binary as KiB ... are, which is how aws and rclone read them; KB, MB ... are powers of 1,000.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{text!r} is no size: write a number of bytes, or one with a unit, such as 500K, 10MiB or 1.5GB")
    n_steps = "bkmgtp".index(found[2][:1] or "b")
    size = float(found[1]) * (1000 if found[2].endswith("b") and n_steps and "i" not in found[2] else 1024) ** n_steps
    if not least_bytes <= size < 2**63:
        raise ConfigError(f"{text!r} is out of range: write at least {size_text(least_bytes)}, and less than 8192 PiB")
    return int(size)


def count_text(n: int, one: str, more: str = "") -> str:
    """A number of things: ``1 file``, ``2 files``; `more` is the word for several where that is not `one` with an s."""
    return f"{n} {one if n == 1 else more or f'{one}s'}"


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
