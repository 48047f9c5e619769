"""Checkpoint sets whose other ranks are gone: nobody waits for those, and what there is to do is said at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import wherry
from command_line import CommandLine
from gate import wait_until
from support import agent_gone, end_agent, new_job, store_id
from wherry.agent.set_jobs import EarlierNodeError
from wherry.checkpoints.protocol.commit import IncompleteSetError
from wherry.checkpoints.world import World
from wherry.spool.journal.jobs import JobKind
from wherry.spool.journal.journal import Journal

INCOMPLETE = IncompleteSetError.__name__


@pytest.fixture
def line(tmp_path: Path) -> Iterator[CommandLine]:
    with end_agent(tmp_path / "spool"):
        yield CommandLine(tmp_path)


def save(folder: Path, rank: int, spool: str) -> None:
    """Be a rank of two, on a node of its own, that hands its part over and does not wait."""
    (folder / "weights").write_bytes(b"weights")
    world = World(rank, 2, 0, rank)
    run = wherry.Checkpoints(folder / "bucket", "run1", attempt=1, world=world, spool=folder / spool)
    part = run.part(10)
    part.put(folder / "weights", f"{rank}.bin")
    part.hand_over()
    try:
        run.close(0.0)
    except TimeoutError:
        return


def test_drain_says_at_once_that_a_set_waits_for_ranks_that_are_gone_and_the_agent_leaves(line: CommandLine) -> None:
    save(line.folder, 0, "spool")
    out, err = line.run("drain", expected=6)
    assert " 1 left, 0 failed\n" in out
    assert "1 of 2 receipts are missing: rank 1" in err
    assert "nothing goes on here" in err
    assert "--timeout" in err
    assert "in the background" not in err
    wait_until(lambda: agent_gone(line.spool), timeout_s=20.0, what="the agent to leave")


def test_what_a_set_lacked_at_the_last_look_is_looked_at_again(line: CommandLine) -> None:
    save(line.folder, 0, "spool")
    line.run("drain", expected=6)
    with end_agent(line.folder / "other"):
        save(line.folder, 1, "other")
        wait_until(lambda: list((line.folder / "bucket").rglob("00001-of-00002-*")), what="the receipt of rank 1")
    assert " 0 left, 0 failed\n" in line.run("drain")[0]
    assert list((line.folder / "bucket/run1").rglob("latest.json"))


def job(journal: Journal, store: int, owner: str, kind: JobKind, error_kind: str | None) -> int:
    """An unfinished job whose last attempt ended so."""
    named = new_job(f"{kind.value}-{owner}-{error_kind}", kind=kind)
    (job_id,), _ = journal.uploads.submit(owner, store, [named])
    if error_kind is not None:
        leased = journal.work.lease("w", 60.0)
        assert leased is not None
        journal.work.requeue(leased.id, "w", wait_s=60.0, error="missing", kind=error_kind, counts=False)
    return job_id


@pytest.mark.parametrize(
    ("others", "is_left"),
    [
        pytest.param([], True, id="nothing else"),
        pytest.param([("deputy", JobKind.COMMIT, INCOMPLETE)], True, id="a deputy of the same"),
        pytest.param([("1-dead", JobKind.CHECK, None)], True, id="a check"),
        pytest.param([("1-dead", JobKind.PUT, None)], False, id="an upload"),
        pytest.param([("1-dead", JobKind.RECEIPT, None)], False, id="a receipt"),
        pytest.param([("1-dead", JobKind.COMMIT, None)], False, id="a set that nobody has looked at"),
        pytest.param([("1-dead", JobKind.COMMIT, "TransientError")], False, id="a set that the store did not answer for"),
        pytest.param([("deputy", JobKind.COMMIT, EarlierNodeError.__name__)], False, id="a deputy whose turn comes"),
        pytest.param([("2-alive", JobKind.COMMIT, INCOMPLETE)], False, id="a set whose program lives"),
    ],
)
def test_sets_are_left_to_others_when_nothing_else_can_go_on(
    tmp_path: Path, others: list[tuple[str, JobKind, str | None]], is_left: bool
) -> None:
    with closing(Journal(tmp_path / "journal.db")) as journal:
        store = store_id(journal)
        first = job(journal, store, "1-dead", JobKind.COMMIT, INCOMPLETE)
        for other in others:
            job(journal, store, *other)
        left = journal.overview.left_to_others({"2-alive"})
        assert is_left == bool(left)
        assert not is_left or first == left[0].job_id
        journal.work.resume()
        assert [] == journal.overview.left_to_others({"2-alive"}), "they are to be looked at again first"
