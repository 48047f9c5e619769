"""Anything may happen to a folder at any moment: readers find beginnings of what files were, and the seal equals the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_fuzz import play
from servers.real import fast_folder
from wherry.mirror.writer import due as due_tasks, joining, segment_sender as sender


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With limits that small files reach, too."""
    monkeypatch.setattr(joining, "WORTH_JOINING_BYTES", 200)
    monkeypatch.setattr(sender, "WORTH_JOINING_BYTES", 200)
    monkeypatch.setattr(sender, "_LISTED_TOGETHER", 2)
    monkeypatch.setattr(due_tasks, "WORTH_JOINING_BYTES", 300)
    monkeypatch.setattr(due_tasks, "_LARGE_BYTES", 500)
    with fast_folder() as folder:
        yield folder


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (25, 50, 75))])
def test_whatever_is_done_to_a_folder(place: Path, first: int) -> None:
    for seed in range(first, first + 25):
        play(place, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 6100, 100))
def test_six_thousand_seeds(place: Path, first: int) -> None:
    for seed in range(first, first + 100):
        play(place, seed)
