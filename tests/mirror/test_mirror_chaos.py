"""Whatever is killed, and whichever call fails: what is in the bucket is a prefix of the folder, and equals it after the seal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_chaos import ENTRY_POINT, Nursery, Place, local_place, nursery, play
from servers.proxy import CutAnswer, Delay, DropAnswer, Reset, When, fault_proxy, s3_error
from servers.real import S3Server, fast_folder
from wherry.backends.s3.store import S3Store
from wherry.uri import parse_uri


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("nursery"), "mirror_chaos", ENTRY_POINT) as one:
        yield one


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_folder() as folder:
        yield folder


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_killed_mirrors_leave_prefixes_and_the_last_one_the_folder(home: Nursery, place: Path, seed: int) -> None:
    play(place / "seed", home, seed, local_place(place / "bucket"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 206))
def test_two_hundred_seeds(home: Nursery, place: Path, seed: int) -> None:
    play(place / "seed", home, seed, local_place(place / "bucket"))


#: What the proxy does to a request, one of these at a time.
FAULTS = (
    Reset(),
    DropAnswer(),
    DropAnswer(),
    CutAnswer(),
    Delay(0.2),
    s3_error(503, "SlowDown", retry_after_s=0),
    s3_error(500, "InternalError"),
    s3_error(500, "InternalError", committed=True),
)


def through_a_proxy(home: Nursery, folder: Path, server: S3Server, seed: int) -> None:
    """A real server, and a proxy in front of it that spoils one request in eight."""
    rng = random.Random(f"{seed} proxy")
    plan = [When(rng.choice(("PUT", "", "")), "", rng.choice(FAULTS), nth=nth) for nth in range(1, 2000, 8)]
    prefix = f"chaos{seed}"
    with fault_proxy("127.0.0.1", server.port, plan) as proxy:
        uri = f"s3://{server.bucket}/{prefix}"
        with S3Store(parse_uri(uri), server.options) as store:
            place = Place(uri, {**server.options, "endpoint_url": proxy.url}, store, prefix, 1.5)
            play(folder / "seed", home, seed, place)
        assert sum(proxy.fired) > 10


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_mirrors_to_a_real_server_through_a_proxy_of_faults(
    home: Nursery, place: Path, seaweedfs_server: S3Server, seed: int
) -> None:
    through_a_proxy(home, place, seaweedfs_server, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 42))
def test_forty_seeds_through_a_proxy_of_faults(home: Nursery, place: Path, seaweedfs_server: S3Server, seed: int) -> None:
    through_a_proxy(home, place, seaweedfs_server, seed)
