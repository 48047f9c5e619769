"""Checkpoint sets, one rank and several, on a local folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wherry
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.handle import RunTakenOverError
from wherry.checkpoints.restore import DamagedSetError
from wherry.checkpoints.world import World
from wherry.errors import AlreadyExistsError, ConfigError, NotFoundError, UploadFailed


@pytest.fixture
def run(bucket: Path, spool_folder: Path) -> Iterator[Checkpoints]:
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as checkpoints:
        yield checkpoints


def folder_of(path: Path, **texts: str) -> Path:
    path.mkdir(parents=True)
    for name, text in texts.items():
        (path / f"{name}.txt").write_text(text)
    return path


def test_what_was_saved_comes_back(run: Checkpoints, tmp_path: Path) -> None:
    handle = run.save(10, folder_of(tmp_path / "a", model="weights", optimizer="moments"), metrics={"loss": 0.5})
    assert handle.wait(60)
    assert handle.result().size_bytes == len("weightsmoments")
    assert run.latest() is not None
    restored = run.restore("latest", tmp_path / "back")
    assert {path.name: path.read_text() for path in restored.iterdir()} == {"model.txt": "weights", "optimizer.txt": "moments"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_set_without_its_manifest_does_not_exist(run: Checkpoints, bucket: Path, tmp_path: Path) -> None:
    run.save(10, folder_of(tmp_path / "a", model="old")).wait(60)
    run.save(20, folder_of(tmp_path / "b", model="new")).wait(60)
    newest = sorted((bucket / "run1/checkpoints/manifests").iterdir())[-1]
    newest.unlink()
    (bucket / "run1/checkpoints/latest.json").unlink()
    assert [one.step for one in run.list()] == [10]
    found = run.latest()
    assert found is not None and found.step == 10


@pytest.mark.parametrize("damage", ["all objects removed", "a receipt damaged"])
def test_a_set_without_its_receipts_is_passed_over(run: Checkpoints, bucket: Path, tmp_path: Path, damage: str) -> None:
    run.save(10, folder_of(tmp_path / "a", model="old")).wait(60)
    newest = run.save(20, folder_of(tmp_path / "b", model="new"))
    newest.wait(60)
    data = bucket / f"run1/checkpoints/data/{newest.name}"
    if damage == "all objects removed":
        shutil.rmtree(data)
    else:
        (data / "model.txt").unlink()
        (receipt,) = (data / "_ranks").iterdir()
        receipt.write_text("{}")
    found = run.latest()
    assert found is not None and found.step == 10


def test_a_branch_is_followed_and_not_the_highest_step(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as first:
        first.save(50, folder_of(tmp_path / "a", model="50"))
        first.save(100, folder_of(tmp_path / "b", model="100"))
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as second:
        second.restore(50, tmp_path / "back")
        second.save(60, folder_of(tmp_path / "c", model="60"))
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as third:
        found = third.latest()
        assert found is not None and found.step == 60
        assert found.parent is not None and found.parent.step == 50


def test_a_step_is_saved_once_in_an_attempt(run: Checkpoints, tmp_path: Path) -> None:
    run.save(10, folder_of(tmp_path / "a", model="first")).wait(60)
    with pytest.raises(AlreadyExistsError, match="overwrite=True"):
        run.save(10, tmp_path / "a")
    run.save(10, folder_of(tmp_path / "b", model="second"), overwrite=True).wait(60)
    assert (run.restore("latest", tmp_path / "back") / "model.txt").read_text() == "second"


def test_a_folder_is_filled_in_the_spool(run: Checkpoints, spool_folder: Path, tmp_path: Path) -> None:
    saving = run.save(10)
    with saving as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "model.txt").write_text("weights")
    assert saving.handle is not None and saving.handle.wait(60)
    assert (run.restore(10, tmp_path / "back") / "deep" / "model.txt").read_text() == "weights"
    with pytest.raises(RuntimeError), run.save(20) as folder:
        (folder / "model.txt").write_text("half")
        raise RuntimeError
    assert [one.step for one in run.list()] == [10]
    assert [path for path in (spool_folder / "objects").iterdir() if path.is_dir()] == []
    with contextlib.suppress(UploadFailed):
        run.flush()


def test_a_folder_of_a_killed_program_is_removed(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as run:
        run.save(10, folder_of(tmp_path / "a", model="weights")).wait(60)
    code = f"""
import os, signal, wherry
run = wherry.Checkpoints({str(bucket)!r}, "run1", spool={str(spool_folder)!r})
with run.save(20) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "model.txt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert any(path.is_dir() for path in (spool_folder / "objects").iterdir())
    with wherry.Uploader(bucket, spool=spool_folder, config=wherry.Config(agent=wherry.AgentConfig(run_in="caller"))) as uploader:
        uploader.put(tmp_path / "a" / "model.txt", "other.txt").wait(60)
    assert not any(path.is_dir() for path in (spool_folder / "objects").iterdir())


def test_ranks_save_one_set(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    ranks = [wherry.Checkpoints(bucket, "run1", attempt=1, world=World(rank, 3, rank), spool=spool_folder) for rank in range(3)]
    handles = [one.save(5, folder_of(tmp_path / f"r{rank}", **{f"part{rank}": str(rank)})) for rank, one in enumerate(ranks)]
    assert all(handle.wait(60) for handle in handles)
    assert {handle.result().n_objects for handle in handles} == {3}
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as reader:
        assert sorted(path.name for path in reader.restore("latest", tmp_path / "back").iterdir()) == [
            "part0.txt",
            "part1.txt",
            "part2.txt",
        ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one.close(), ranks))


def test_a_flipped_bit_is_found_and_the_set_before_is_restored(
    run: Checkpoints, bucket: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run.save(10, folder_of(tmp_path / "a", model="good")).wait(60)
    newer = run.save(20, folder_of(tmp_path / "b", model="evil"))
    newer.wait(60)
    (bucket / f"run1/checkpoints/data/{newer.name}/model.txt").write_text("live")
    with pytest.raises(DamagedSetError, match=r"restore file:///.*/model\.txt: .* \(another set can be restored"):
        run.restore(20, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert (run.restore("latest", tmp_path / "back") / "model.txt").read_text() == "good"
    assert "is damaged" in caplog.text


def test_an_older_job_of_the_same_run_is_told(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    first = wherry.Checkpoints(bucket, "run1", spool=spool_folder)
    first.save(1, folder_of(tmp_path / "a", model="1")).wait(60)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as second:
        second.save(1, folder_of(tmp_path / "b", model="2")).wait(60)
    with pytest.raises(RunTakenOverError, match="attempt 2"):
        first.save(2, folder_of(tmp_path / "c", model="3")).result(60)
    first.close()
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as third:
        found = third.latest()
        assert found is not None and (found.set.number, found.step) == (2, 1)


def test_a_rank_whose_object_cannot_be_stored_ends_the_others_wait(bucket: Path, tmp_path: Path) -> None:
    ranks = [
        wherry.Checkpoints(bucket, "run1", attempt=1, world=World(rank, 2, rank), spool=tmp_path / f"spool{rank}")
        for rank in range(2)
    ]
    handles = [one.save(5, folder_of(tmp_path / f"r{rank}", model=str(rank))) for rank, one in enumerate(ranks)]
    for handle in handles:  # both have named an object model.txt
        with pytest.raises((UploadFailed, wherry.StoreError)):
            handle.wait(60)
    with wherry.Checkpoints(bucket, "run1", spool=tmp_path / "spool") as reader:
        assert reader.latest() is None
        with pytest.raises(NotFoundError):
            reader.restore("latest", tmp_path / "back")
    for one in ranks:
        with contextlib.suppress(UploadFailed):
            one.close()


def test_a_rank_whose_file_is_refused_ends_the_others_wait(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    ranks = [wherry.Checkpoints(bucket, "run1", attempt=1, world=World(rank, 2, rank), spool=spool_folder) for rank in range(2)]
    handle = ranks[0].save(5, folder_of(tmp_path / "r0", model="0"))
    with pytest.raises(FileNotFoundError):
        ranks[1].save(5, tmp_path / "nothing")
    with pytest.raises(UploadFailed, match="rank 1 could not store"):
        handle.wait(60)
    for one in ranks:
        with contextlib.suppress(UploadFailed):
            one.close()


def test_a_truncated_manifest_is_passed_over(run: Checkpoints, bucket: Path, tmp_path: Path) -> None:
    run.save(10, folder_of(tmp_path / "a", model="good")).wait(60)
    name = run.save(20, folder_of(tmp_path / "b", model="other")).result(60).set
    path = bucket / f"run1/checkpoints/manifests/{name}.json"
    path.write_bytes(path.read_bytes()[:-9])
    (bucket / "run1/checkpoints/latest.json").unlink()
    found = run.latest()
    assert found is not None and found.step == 10


def test_a_receipt_that_leaves_its_folder_is_refused(run: Checkpoints, bucket: Path, tmp_path: Path) -> None:
    name = run.save(10, folder_of(tmp_path / "a", model="good")).result(60).set
    (receipt,) = (bucket / f"run1/checkpoints/data/{name}/_ranks").iterdir()
    content = json.loads(receipt.read_text())
    content["objects"][0]["name"] = "../x"
    receipt.write_text(json.dumps(content))
    with pytest.raises(wherry.IntegrityError):
        run.restore(10, tmp_path / "back")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("step", [-1, 1.5, True, 10**12, "7"])
def test_a_bad_step_is_refused(run: Checkpoints, tmp_path: Path, step: int) -> None:
    with pytest.raises(ConfigError, match="step"):
        run.save(step, folder_of(tmp_path / "a", model="x"))


def test_ranks_that_nothing_brings_together_are_told(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    with (
        wherry.Checkpoints(bucket, "run1", world=World(1, 2, 1), spool=spool_folder) as alone,
        pytest.raises(ConfigError, match="attempt="),
    ):
        alone.save(1, folder_of(tmp_path / "a", model="x"))


def test_a_set_that_was_pruned_since_was_committed_all_the_same(run: Checkpoints, tmp_path: Path) -> None:
    handles = [run.save(step, folder_of(tmp_path / f"{step}", model="x")) for step in (1, 2)]
    assert all(handle.wait(60) for handle in handles)
    run.prune(keep=wherry.Keep(last=1))
    assert handles[0].result(60).step == 1
