"""Whatever is killed, and whichever call fails: what is in the bucket is a prefix of the folder, and equals it after the seal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_chaos import Nursery, nursery, play
from wherry.testing.servers import fast_folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("nursery")) as one:
        yield one


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


@pytest.mark.parametrize("seed", range(6))
def test_killed_mirrors_leave_prefixes_and_the_last_one_the_folder(home: Nursery, place: Path, seed: int) -> None:
    play(place / "seed", home, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 206))
def test_two_hundred_seeds(home: Nursery, place: Path, seed: int) -> None:
    play(place / "seed", home, seed)
