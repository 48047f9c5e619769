"""Trouble while a set is saved: ranks that are missing, exits in the middle, spools that are full, agents that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import wherry
from support import run_script
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.protocol.commit import IncompleteSetError, SetFailedError
from wherry.checkpoints.world import World
from wherry.config import AgentConfig, Config, RetryConfig, SpoolConfig
from wherry.errors import AlreadyExistsError, UploadFailed
from wherry.spool.journal.jobs import JobState
from wherry.spool.recovery import open_journal
from wherry.spool.spool import Spool

SHORT = Config(retry=RetryConfig(job_deadline_s=3.0, call_deadline_s=2.0), give_up_s=1.0)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def opened() -> Iterator[list[Checkpoints]]:
    """Whatever a test opens is closed, however its sets end."""
    made: list[Checkpoints] = []
    yield made
    for one in made:
        try:
            one.close(0.1)
        except (UploadFailed, TimeoutError):
            continue


def rank_of(number: int, size: int, node: int = 0) -> World:
    return World(number, size, 0 if node else number, node)


def test_handles_end_at_the_deadline_and_name_the_missing_ranks(
    bucket: Path, source: Path, tmp_path: Path, opened: list[Checkpoints]
) -> None:
    config = replace(SHORT, agent=AgentConfig(run_in="caller"))  # an agent on a loaded machine may need more than three seconds
    for number in (0, 1):
        opened.append(
            wherry.Checkpoints(bucket, "run1", attempt=1, world=rank_of(number, 3), spool=tmp_path / "spool", config=config)
        )
    handles = []
    for number, one in enumerate(opened):
        part = one.part(10)
        part.put(source, f"{number}.bin")
        handles.append(part.hand_over())
    with pytest.raises(UploadFailed, match="1 of 3 receipts are missing: rank 2"):
        handles[0].result()
    with pytest.raises(IncompleteSetError, match="1 of 3 receipts are missing: rank 2"):
        handles[1].result()


def test_close_waits_no_longer_than_give_up_s_for_other_ranks(
    bucket: Path, source: Path, tmp_path: Path, opened: list[Checkpoints]
) -> None:
    patient = replace(SHORT, retry=RetryConfig(), agent=AgentConfig(linger_s=1.0))
    first = wherry.Checkpoints(bucket, "run1", attempt=1, world=rank_of(0, 2), spool=tmp_path / "spool", config=patient)
    opened.append(first)
    first.save(10, source)
    with pytest.raises(TimeoutError, match="nothing has got on for 1 s"):
        first.close()


def test_the_other_ranks_close_without_waiting_for_rank_0(bucket: Path, source: Path, tmp_path: Path) -> None:
    with wherry.Checkpoints(bucket, "run1", attempt=1, world=rank_of(1, 2), spool=tmp_path / "spool") as second:
        second.save(10, source)
        second.close()
    receipts = [path.name for path in (bucket / "run1/checkpoints/data").rglob("_ranks/*")]
    assert len(receipts) == 1 and receipts[0].startswith("00001-of-00002-")


def test_a_set_whose_committer_is_lost_is_committed_by_the_next_start(
    bucket: Path, source: Path, tmp_path: Path, opened: list[Checkpoints]
) -> None:
    """The deputy's minute is not waited for: the next start of the job does what the deputy would."""
    dead = wherry.Checkpoints(bucket, "run1", attempt=1, world=rank_of(0, 2), spool=tmp_path / "spool0")
    opened.append(dead)
    part = dead.part(10)
    part.put(source, "0.bin")
    receipt = part._receipt_job(part.receipt, ["0.bin"])  # and no commit: its journal is lost after the receipt
    dead._uploader.follow_up("receipt", [receipt]).result(60)
    with wherry.Checkpoints(bucket, "run1", attempt=1, world=rank_of(1, 2, node=1), spool=tmp_path / "spool1") as other:
        part = other.part(10)
        part.put(source, "1.bin")
        part.hand_over()
        other.close()
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "spool2") as reader:
        found = reader.latest()
    assert found is not None and found.world == 2


def test_a_full_spool_sends_files_around_it_and_the_set_is_whole(bucket: Path, source: Path, tmp_path: Path) -> None:
    config = Config(spool=SpoolConfig(max_spool_bytes=3, when_full="direct"))
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "spool", config=config) as run:
        assert run.save(10, source).wait(60)
        assert (run.restore(10, tmp_path / "back") / "model.bin").read_bytes() == b"weights"


def test_ranks_without_agents_close_together(bucket: Path, source: Path, tmp_path: Path) -> None:
    config = Config(agent=AgentConfig(run_in="caller"))
    ranks = [
        wherry.Checkpoints(
            bucket, "run1", attempt=1, world=rank_of(number, 2, node=number), spool=tmp_path / f"spool{number}", config=config
        )
        for number in range(2)
    ]
    for number, one in enumerate(ranks):
        part = one.part(10)
        part.put(source, f"{number}.bin")
        part.hand_over()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one.close(60), ranks))
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "spool", config=config) as reader:
        found = reader.latest()
    assert found is not None and found.n_objects == 2
    for number in range(2):  # nor is a deputy's job left, which nobody would ever do
        assert open_jobs(tmp_path / f"spool{number}") == []


def open_jobs(spool_folder: Path) -> list[str]:
    with closing(open_journal(Spool(spool_folder))) as journal:
        return [job.uri for job in journal.queries.jobs(states=[JobState.QUEUED, JobState.LEASED, JobState.FAILED])]


def test_a_save_that_has_raised_has_not_used_up_its_step(
    bucket: Path, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "spool") as run:
        with pytest.raises(FileNotFoundError):
            run.save(10, tmp_path / "not there")
        run.save(9, source).wait(60)
        assert "is saved after step 10" not in caplog.text
        with pytest.raises(RuntimeError), run.save(10) as folder:
            (folder / "model.bin").write_bytes(b"half")
            raise RuntimeError
        run.save(10, source).wait(60)
        with pytest.raises(AlreadyExistsError, match="saved already"):
            run.save(10, source)
        assert (run.restore(10, tmp_path / "back") / "model.bin").read_bytes() == b"weights"


def test_a_step_that_one_of_several_ranks_could_not_save_is_saved_again_by_all(
    bucket: Path, source: Path, tmp_path: Path, opened: list[Checkpoints]
) -> None:
    for number in range(2):
        opened.append(wherry.Checkpoints(bucket, "run1", attempt=1, world=rank_of(number, 2), spool=tmp_path / "spool"))
    opened[0].save(10, source)
    with pytest.raises(FileNotFoundError):
        opened[1].save(10, tmp_path / "not there")
    with pytest.raises(AlreadyExistsError, match=r"could not be saved by this rank.* on all ranks, with overwrite=True"):
        opened[1].save(10, source)
    parts = [one.part(10, overwrite=True) for one in opened]
    for number, part in enumerate(parts):
        part.put(source, f"{number}.bin")
    handles = [part.hand_over() for part in parts]
    assert all(handle.wait(60) for handle in handles)


EXITS = """
import os, sys, wherry
from wherry.checkpoints.world import World
run = wherry.Checkpoints(sys.argv[1], "run1", attempt=1, world=World(1, 2, 1), spool=sys.argv[2])
with run.save(10) as folder:
    (folder / "model.bin").write_bytes(b"weights")
    {}
"""


def test_an_exit_in_the_block_tells_the_other_ranks(
    bucket: Path, source: Path, tmp_path: Path, opened: list[Checkpoints]
) -> None:
    first = wherry.Checkpoints(bucket, "run1", attempt=1, world=rank_of(0, 2), spool=tmp_path / "spool")
    opened.append(first)
    handle = first.save(10, source)
    done = subprocess.run(
        [sys.executable, "-c", EXITS.format("sys.exit(3)"), bucket, tmp_path / "spool"], check=False, timeout=120
    )
    assert done.returncode == 3
    with pytest.raises((UploadFailed, SetFailedError), match="rank 1 could not store its part: SystemExit: 3"):
        handle.result(60)


def test_a_child_that_is_forked_in_the_block_takes_nothing_away(bucket: Path, tmp_path: Path) -> None:
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "spool") as run:
        saving = run.save(10)
        with saving as folder:
            (folder / "model.bin").write_bytes(b"weights")
            if (child := os.fork()) == 0:
                try:
                    saving.__exit__(None, None, None)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        assert saving.handle is not None and saving.handle.wait(60)
        assert (run.restore(10, tmp_path / "back") / "model.bin").read_bytes() == b"weights"
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "spool") as reader:
        assert [one.step for one in reader.list()] == [10]


#: It waits 1 s for other ranks in place of 10 s; spool/test_drain.py holds the limit itself to a clock.
RAISES = """
import sys, wherry
from wherry.checkpoints.world import World
from wherry.spool import drain

drain._FOR_OTHERS_S /= 10

with wherry.Checkpoints(sys.argv[1], "run1", attempt=1, world=World(0, 2), spool=sys.argv[2]) as checkpoints:
    checkpoints.save(1, sys.argv[3])
    raise RuntimeError("the loss is NaN")
"""


def test_a_rank_that_ends_by_an_error_leaves_the_set_to_its_agent(bucket: Path, source: Path, spool_folder: Path) -> None:
    """The launcher waits for its end before it ends the other ranks, which may never save that step."""
    said = run_script(RAISES, bucket, spool_folder, source, expected=1)
    assert "the loss is NaN" in said
    assert "as other ranks have not saved their parts of a set for 1 s; they go on in the background" in said
    with wherry.Checkpoints(bucket, "run1", attempt=1, world=World(1, 2), spool=spool_folder) as other:
        other.save(1, source.rename(source.with_name("of_rank_1.bin"))).result(60.0)
