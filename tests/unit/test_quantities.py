"""Sizes, rates, durations and times are written by one rule."""

from __future__ import annotations

import re
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from wherry.quantities import age_text, rate_text, size_text, time_text

SOURCE = Path(__file__).resolve().parent.parent.parent / "src/wherry"


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**20, "1.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (2**40, "1.0 TiB"),
        (3000 * 2**50, "3000.0 PiB"),
        (-1, "0 B"),
    ],
)
def test_a_size_is_in_binary_units(n_bytes: float, expected: str) -> None:
    assert expected == size_text(n_bytes)
    assert f"{expected}/s" == rate_text(n_bytes)


def test_a_duration_is_in_its_largest_unit() -> None:
    assert ["12 s", "3 min", "5 h", "2 days", "0 s"] == [age_text(s) for s in (12, 180, 5 * 3600, 2 * 86_400, -3)]


def test_a_time_says_its_zone() -> None:
    assert "2023-11-14 22:13:20+00:00" == time_text(1.7e9, timezone.utc)
    assert "2023-11-15 03:43:20+05:30" == time_text(1.7e9, timezone(timedelta(hours=5, minutes=30)))
    assert re.fullmatch(r"2023-11-1[45] \d\d:\d\d:20[+-]\d\d:\d\d", time_text(1.7e9))


def test_a_time_that_no_calendar_has_is_no_error() -> None:
    assert ["", "?", "?", "?"] == [time_text(at_s) for at_s in (None, 1e30, float("nan"), float("inf"))]


def test_nobody_else_writes_sizes_or_times_for_people() -> None:
    """Decimal units and times without a zone would be a second rule. A log's own stamps and names of files are no tables."""
    other = re.compile(r"/ 1e[69]\b.*[kMG]B|filesize|%Y-%m-%d %H:%M:%S\"|f\"[^\"]*\} [kMG]B\b")
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in path.read_text().splitlines()
        if other.search(line)
    ]
    assert [] == found
