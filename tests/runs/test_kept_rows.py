"""A table that was read once is there at once the next time, and what has not changed is not read again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from wherry.runs import KeySummary, RunRow
from wherry.runs.kept_rows import KeptRows
from wherry.runs.objects.discovery import Found
from wherry.runs.objects.disk_cache import DiskCache
from wherry.store import ObjectMeta

LOSS = KeySummary(math.nan, 3, -math.inf, 1, 2.5, 0, 4, 1, True)
ROW = RunRow(
    "a", "job", "s3://b/a", "finished", age_s=10.0, hparams={"model": {"depth": 2}}, metrics={"loss": LOSS}, size_bytes=7
)


def found(etag: str = "e1", size_bytes: int = 3) -> Found:
    return Found("a", "", [ObjectMeta("runs/a/metrics.jsonl", size_bytes, etag, None)])


def kept(folder: Path, *rows: RunRow, now_s: float = 100.0) -> KeptRows:
    """What another process finds after one has read these rows."""
    cache = DiskCache(folder)
    first = KeptRows(cache, "bucket")
    for row in rows:
        first.take(row, found(), now_s)
    first.save(now_s)
    return KeptRows(cache, "bucket")


def test_a_run_that_has_not_changed_is_as_it_was_and_older(tmp_path: Path) -> None:
    again = kept(tmp_path, ROW).row("a", found(), 160.0)
    assert repr(replace(ROW, age_s=70.0)) == repr(again)  # NaN is equal to nothing


@pytest.mark.parametrize("now", [found("e2"), found(size_bytes=4), Found("a", "", [])], ids=["etag", "size", "gone"])
def test_a_run_that_has_changed_is_read(now: Found, tmp_path: Path) -> None:
    assert kept(tmp_path, ROW).row("a", now, 160.0) is None


@pytest.mark.parametrize("row", [replace(ROW, state="live"), replace(ROW, trouble="403")], ids=["live", "trouble"])
def test_what_may_change_by_itself_is_read(row: RunRow, tmp_path: Path) -> None:
    before = kept(tmp_path, row)
    assert before.row("a", found(), 160.0) is None
    assert [row.state] == [one.state for one in before.of_before(160.0)[0]]


def test_the_table_of_before_is_told_with_its_age(tmp_path: Path) -> None:
    rows, age_s = kept(tmp_path, ROW, now_s=100.0).of_before(130.0)
    assert (["a"], [40.0], 30.0) == ([row.id for row in rows], [row.age_s for row in rows], age_s)
    assert ([], None) == KeptRows(DiskCache(tmp_path), "another bucket").of_before(130.0)


def test_a_run_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    second = kept(tmp_path, ROW, replace(ROW, id="b"))
    assert second.row("a", found(), 160.0) is not None
    second.save(160.0)
    assert ["a"] == [row.id for row in kept(tmp_path / "none", ROW).of_before(0.0)[0]]
    assert ["a"] == [row.id for row in KeptRows(DiskCache(tmp_path), "bucket").of_before(0.0)[0]]


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{", b'{"rows": {"a": 1}}', b'{"rows": {"a": ["v", {"id": 1}]}}', b'{"rows": 5}']
)
def test_a_damaged_file_is_as_if_it_were_not_there(damage: bytes, tmp_path: Path) -> None:
    before = kept(tmp_path, ROW)
    (path,) = (one for one in tmp_path.rglob("*") if one.is_file())
    path.write_bytes(damage)
    assert ([], None) == before.of_before(160.0)
    assert before.row("a", found(), 160.0) is None
