"""Ranks that torch.distributed joins restore one set, fall back together, and fail together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wherry
from checkpoint_sets.ranks import run_ranks
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.world import World

RESTORE = """
bucket, folder, ranks = Path(arguments[0]), Path(arguments[1]), arguments[2]
run = wherry.Checkpoints(bucket, "run1", spool=folder / "spool")
try:
    run.restore("latest", folder / f"back{rank}", ranks="own" if ranks == "own" else None)
    print("restored", run.parent.step, run.latest().step)
except Exception as error:
    print(type(error).__name__, error)
run.close()
"""


@pytest.fixture
def sets(tmp_path: Path) -> list[SetName]:
    """Sets of step 1, 2 and 3, each of three ranks, in the folder `bucket`."""
    (tmp_path / "bucket").mkdir()
    ranks = [
        wherry.Checkpoints(tmp_path / "bucket", "run1", attempt=1, world=World(rank, 3, rank), spool=tmp_path / "spool")
        for rank in range(3)
    ]
    names = []
    for step in (1, 2, 3):
        for rank, one in enumerate(ranks):
            path = tmp_path / f"part{rank}.txt"
            path.write_text(f"{step} of {rank}")
            handle = one.save(step, path)
        names.append(handle.result(60).set)
    with ThreadPoolExecutor() as pool:
        list(pool.map(Checkpoints.close, ranks))
    return names


def damage(folder: Path, name: SetName, rank: int) -> None:
    path = folder / f"bucket/run1/checkpoints/data/{name}/part{rank}.txt"
    path.write_text(path.read_text().replace("of", "0f"))


def test_damage_that_one_rank_finds_makes_all_fall_back(sets: list[SetName], tmp_path: Path) -> None:
    damage(tmp_path, sets[2], 1)
    damage(tmp_path, sets[1], 2)
    for said in run_ranks(3, tmp_path, RESTORE, tmp_path / "bucket", tmp_path, "own"):
        assert said.splitlines()[-1] == "restored 1 1", said
    assert [(tmp_path / f"back{rank}/part{rank}.txt").read_text() for rank in range(3)] == ["1 of 0", "1 of 1", "1 of 2"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "back0."))] == []


def test_a_set_that_was_there_before_is_put_aside(sets: list[SetName], tmp_path: Path) -> None:
    with wherry.Checkpoints(tmp_path / "bucket", "run1", spool=tmp_path / "spool2") as reader:
        reader.restore("latest", tmp_path / "back0")
    damage(tmp_path, sets[2], 1)
    (tmp_path / "bucket/run1/checkpoints/data" / str(sets[2]) / "part1.txt").touch()
    for said in run_ranks(3, tmp_path, RESTORE, tmp_path / "bucket", tmp_path, "all"):
        assert said.splitlines()[-1] == "restored 2 2", said
    assert (tmp_path / f"back0.{sets[2]}/part0.txt").read_text() == "3 of 0"
    assert (tmp_path / "back0/part0.txt").read_text() == "2 of 0"


def test_a_rank_that_cannot_restore_ends_the_others(sets: list[SetName], tmp_path: Path) -> None:
    (tmp_path / "back1").mkdir()
    (tmp_path / "back1/mine.txt").write_text("mine")
    said = run_ranks(3, tmp_path, RESTORE, tmp_path / "bucket", tmp_path, "all")
    assert "FileExistsError" in said[1], said
    for rank in (0, 2):
        assert "OtherRankFailedError" in said[rank] and "rank 1 says FileExistsError" in said[rank], said
    (tmp_path / "back1/mine.txt").unlink()
    for one in run_ranks(3, tmp_path, RESTORE, tmp_path / "bucket", tmp_path, "all"):
        assert one.splitlines()[-1] == "restored 3 3", one


def test_a_rank_that_dies_is_no_reason_to_go_on_alone(sets: list[SetName], tmp_path: Path) -> None:
    dies = 'if rank == 1:\n    arguments[2] = "own"\n    os.kill(os.getpid(), signal.SIGKILL)\n' + RESTORE
    said = run_ranks(3, tmp_path, dies, tmp_path / "bucket", tmp_path, "all")
    assert all("Error" in said[rank] and "restored" not in said[rank] for rank in (0, 2)), said


def test_a_run_without_sets_says_so_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    for said in run_ranks(2, tmp_path, RESTORE, tmp_path / "bucket", tmp_path, "all"):
        assert said.startswith("NotFoundError"), said
