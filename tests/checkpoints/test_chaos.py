"""Whatever is killed, and whenever: the newest set that can be there is restored, byte for byte, the same on all ranks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_sets.chaos import ENTRY_POINTS, RUN, Game, Place, folder_place
from mirror_chaos import Nursery, nursery
from servers.features import tell_spool
from servers.real import S3Server, fast_folder
from wherry.backends.s3.store import S3Store
from wherry.uri import parse_uri


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("nursery"), "checkpoint_sets.chaos", ENTRY_POINTS) as one:
        yield one


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


def play(folder: Path, home: Nursery, seed: int, place: Place) -> Counter[str]:
    game = Game(folder / "seed", home, seed, place)
    try:
        game.play()
    except AssertionError:
        sys.stderr.write(f"seed {seed}: the last lines of its processes\n")
        sys.stderr.write((folder / "seed" / "output.txt").read_text()[-20_000:])
        raise
    sys.stdout.write(f"seed {seed}: {game.counts}\n")
    return Counter(game.counts)


def in_a_bucket(folder: Path, home: Nursery, server: S3Server, seed: int, *, lax: bool) -> None:
    prefix = f"chaos{seed}"
    options = {**server.options, "conditional_writes": not lax}
    with S3Store(parse_uri(f"s3://{server.bucket}/{prefix}"), options) as store:
        uri = f"{server.bucket}/{prefix}"
        play(
            folder,
            home,
            seed,
            Place(
                f"chaoss3://{uri}",
                options,
                f"s3://{uri}",
                options,
                store,
                f"{prefix}/{RUN}/checkpoints",
                5.0,
                look_s=0.2,
                introduce=lambda spool: tell_spool(spool, server),
            ),
        )


@pytest.mark.parametrize(("seed", "lax"), [(4, False), (1, True)])
def test_killed_jobs_restore_the_newest_complete_set(home: Nursery, place: Path, seed: int, lax: bool) -> None:
    play(place, home, seed, folder_place(place / "bucket", lax=lax))


def test_killed_jobs_of_a_real_server_restore_the_newest_complete_set(
    home: Nursery, place: Path, seaweedfs_server: S3Server
) -> None:
    in_a_bucket(place, home, seaweedfs_server, 1000, lax=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 203))
def test_two_hundred_seeds(home: Nursery, place: Path, seaweedfs_server: S3Server, seed: int) -> None:
    """Local and S3, with conditions and without, in turn: fifty seeds each."""
    if seed % 2:
        play(place, home, seed, folder_place(place / "bucket", lax=seed % 4 == 3))
    else:
        in_a_bucket(place, home, seaweedfs_server, seed, lax=seed % 4 == 2)
