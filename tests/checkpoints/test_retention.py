"""Checkpoints that prune their own run, pin and delete sets, and restore while others prune."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

import wherry
from checkpoint_sets import TimedStore, save_set, steps_of, write_part
from support import wait_until
from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import SetAbandonedError
from wherry.checkpoints.protocol.deletion import InUseError, PruneDelays
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checkpoints.protocol.uncommitted import uncommitted
from wherry.checkpoints.protocol.uses import readers
from wherry.checkpoints.prune import Pruner
from wherry.checkpoints.reading import reading
from wherry.checkpoints.restore import DamagedSetError, PrunedWhileRestoringError
from wherry.checkpoints.world import World
from wherry.errors import AccessDeniedError, NotFoundError, UploadFailed
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

KEYS = RunKeys("run1/checkpoints")
NOW = PruneDelays(abandon_after_s=0.0, grace_s=0.0)


def stored(bucket: Path) -> tuple[LocalStore, RunKeys]:
    """The bucket as a store, and the keys of its run."""
    return LocalStore(StoreURI("file", "", str(bucket).strip("/")), {}), RunKeys(f"{str(bucket).strip('/')}/run1/checkpoints")


def file_with(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_job_prunes_its_own_run(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    keep = wherry.Keep(last=2, every_steps=100)
    with wherry.Checkpoints(bucket, "run1", keep=keep, spool=spool_folder) as run:
        for step in (100, 110, 120, 130):
            run.save(step, file_with(tmp_path / "model.txt", str(step))).wait(60)
    with wherry.Checkpoints(bucket, "run1", keep=keep, spool=spool_folder) as resumed:
        assert [100, 120, 130] == [one.step for one in resumed.list()]
        resumed.restore("latest", tmp_path / "back")
        resumed.save(140, file_with(tmp_path / "model.txt", "140")).wait(60)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as reader:
        assert [100, 130, 140] == [one.step for one in reader.list()]


def test_a_job_that_was_taken_over_prunes_no_more(
    bucket: Path, spool_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = wherry.Checkpoints(bucket, "run1", keep=wherry.Keep(last=1), spool=spool_folder)
    first.save(1, file_with(tmp_path / "model.txt", "1")).wait(60)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as second:
        second.save(2, file_with(tmp_path / "model.txt", "2")).wait(60)
    first.close()
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as reader:
        assert [1, 2] == [one.step for one in reader.list()]
    assert "attempt 2 has begun" in caplog.text


def test_what_is_in_the_way_of_pruning_is_logged_and_not_raised(
    bucket: Path, spool_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with wherry.Checkpoints(bucket, "run1", keep=wherry.Keep(last=1), spool=spool_folder) as run:
        run.save(1, file_with(tmp_path / "model.txt", "1")).wait(60)
        run.flush()
        (bucket / "run1/checkpoints/clock.json").unlink(missing_ok=True)
        (bucket / "run1/checkpoints/clock.json").mkdir()
    assert "not pruned for now" in caplog.text


def test_sets_are_pinned_and_deleted_by_what_names_them(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as run:
        for step in (10, 20, 30):
            run.save(step, file_with(tmp_path / "model.txt", str(step)), metrics={"loss": step}).wait(60)
        assert 10 == run.pin("best:loss").step
        with pytest.raises(InUseError):
            run.delete(10)
        report = run.prune(keep=wherry.Keep(last=1), delays=NOW)
        assert {10: ["pinned"], 30: ["of the last 1", "the newest complete set"]} == {
            name.step: why for name, why in report.kept.items()
        }
        name = run.unpin(str(run.find(10).set))
        assert name == run.delete(name.step)
        assert [30] == [one.step for one in run.list()]
        with pytest.raises(NotFoundError, match="pruned"):
            run.find(str(name))


def test_whoever_resumes_commits_what_a_dead_node_has_left(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    store, keys = stored(bucket)
    save_set(store, keys, 10, world=2)
    for rank in range(2):
        write_part(store, keys, SetName("000000001", 20), rank=rank, world=2)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as run:
        found = run.latest()
        assert found is not None and 20 == found.step
        run.restore("latest", tmp_path / "back")
        assert f"{found.set} 1" == (tmp_path / "back/rank1.bin").read_text()
    write_part(store, keys, SetName("000000001", 30))
    with wherry.Checkpoints(bucket, "run1", attempt=7, world=World(0, 2), spool=spool_folder) as ranks:
        assert ranks.attempt.resumed_from == SetName("000000001", 30)


def test_a_restore_is_seen_while_it_lasts(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    store, keys = stored(bucket)
    manifest = save_set(store, keys, 10)
    with reading(store, keys, manifest.set, renew_s=0.01):
        assert {manifest.set} == readers(store, keys, None, 1.0)[0]
        with pytest.raises(InUseError, match="being restored"):
            save_set(store, keys, 20)
            Pruner(store, keys).delete(manifest.set)
    assert [] == list(store.list(keys.readers))


def test_who_may_only_read_restores_without_a_word_to_prune() -> None:
    store = MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})
    manifest = save_set(store, KEYS, 10)
    faulty = FaultyStore(store, [Fault("put", AccessDeniedError("read only"), times=1000)])
    with reading(faulty, KEYS, manifest.set):
        assert [] == list(store.list(KEYS.readers))
    assert 0 == faulty.calls["delete"]


def test_a_set_that_was_pruned_while_it_was_restored_is_told_from_a_damaged_one() -> None:
    store = TimedStore(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))
    for step in (10, 20):
        save_set(store, KEYS, step)
    name = SetName("000000001", 10)
    with pytest.raises(PrunedWhileRestoringError), reading(store, KEYS, name):
        store.now_s += 7200  # this reader was suspended, and is not heard of
        Pruner(store, KEYS, keep=wherry.Keep(last=1), delays=NOW).prune()
        raise DamagedSetError("it is not there")
    with pytest.raises(PrunedWhileRestoringError), reading(store, KEYS, name):
        pytest.fail("it is gone already")
    with pytest.raises(DamagedSetError) as caught, reading(store, KEYS, SetName("000000001", 20)):
        raise DamagedSetError("a flipped bit")
    assert not isinstance(caught.value, PrunedWhileRestoringError)


def test_latest_starts_over_with_a_newer_set_when_it_is_pruned(
    bucket: Path, spool_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pointer that lags names a set that is gone; a newer one has come meanwhile."""
    store, keys = stored(bucket)
    save_set(store, keys, 10)
    with wherry.Checkpoints(bucket, "run1", spool=spool_folder) as run:
        found = run.latest()
        assert found is not None
        save_set(store, keys, 20)
        Pruner(store, keys, keep=wherry.Keep(last=1), delays=PruneDelays()).prune()
        stale = FirstFinds(run, found)
        stale.restore("latest", tmp_path / "back")
    assert (tmp_path / "back/rank0.bin").read_text().startswith("000000001_000000000020")
    assert "was pruned" in caplog.text


class FirstFinds(Checkpoints):
    """Has found a set before it was pruned."""

    def __init__(self, run: Checkpoints, found: Manifest) -> None:
        self.__dict__.update(run.__dict__)
        self.found = found

    def find(self, which: int | str) -> Manifest:
        return self.found


def test_a_rank_that_comes_after_its_set_was_given_up_is_told(bucket: Path, spool_folder: Path, tmp_path: Path) -> None:
    store, keys = stored(bucket)
    save_set(store, keys, 1)
    ranks = [Checkpoints(bucket, "run1", attempt=2, world=World(rank, 2), spool=spool_folder) for rank in range(2)]
    ranks[0].save(2, file_with(tmp_path / "rank0.txt", "0"))
    wait_until(lambda: [2] == steps_of(uncommitted(store, keys)), what="the objects of rank 0")
    assert [2] == steps_of(Pruner(store, keys, delays=PruneDelays(abandon_after_s=0.0)).prune().abandoned)
    handle = ranks[1].save(2, file_with(tmp_path / "rank1.txt", "1"))
    with pytest.raises((UploadFailed, SetAbandonedError), match="abandoned"):
        handle.result(60)
    with pytest.raises(UploadFailed, match="abandoned"):
        ranks[0].flush(60)
    for one in ranks:
        with suppress(UploadFailed):
            one.close()
    assert [1] == [one.step for one in Catalog(store, keys).manifests()]


def test_logs_stay_quiet_where_nothing_is_pruned(bucket: Path, spool_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with wherry.Checkpoints(bucket, "run1", keep=wherry.Keep(last=1), spool=spool_folder) as run:
        assert run.latest() is None
        assert {} == run.prune().kept
    assert "" == caplog.text
    store, keys = stored(bucket)
    assert [] == Catalog(store, keys).names()
