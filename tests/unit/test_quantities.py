"""Sizes, rates, durations and times are written by one rule."""

from __future__ import annotations

import re
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from wherry.errors import ConfigError
from wherry.quantities import age_text, count_text, parse_size, rate_text, size_text, time_text

SOURCE = Path(__file__).resolve().parent.parent.parent / "src/wherry"


def test_one_thing_has_a_word_of_its_own() -> None:
    assert ["0 files", "1 file", "2 files"] == [count_text(n, "file") for n in range(3)]
    assert ["1 retry", "2 retries"] == [count_text(n, "retry", "retries") for n in (1, 2)]
    lines = [line for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines()]
    assert [] == [line for line in lines if re.search(r"[a-z]\(s\)", line) and "`" not in line]


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("500K", 500 * 1024),
        ("10MiB", 10 * 2**20),
        ("10m", 10 * 2**20),
        ("1.5 GB/s", 1_500_000_000),
        (" 2 Ti ", 2 * 2**40),
        ("1 b", 1),
    ],
)
def test_a_size_is_read_with_the_units_of_other_tools(text: str, expected: int) -> None:
    assert expected == parse_size(text)


@pytest.mark.parametrize("size_bytes", [1, 1024, 3 * 2**20, 7 * 2**40])
def test_a_size_that_was_written_is_read_again(size_bytes: int) -> None:
    assert size_bytes == parse_size(size_text(size_bytes))


@pytest.mark.parametrize("text", ["", "10 apples", "-1", "1e9", "KiB", "1 2", "inf", "nan", "\u0661MiB", "1KiBB"])
def test_what_is_no_size_is_refused_by_name_and_with_a_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size: write a number of bytes, or one with a unit, such as 500K"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "0.1", "9000P", "9" * 400])
def test_a_size_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write at least 1 B"):
        parse_size(text)
