"""What people do to log files besides appending to them, and what a reader finds then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror_oracle import MirrorOracle
from mirrors import ONCE, Rig, lines
from wherry.backends.memory import MemoryStore
from wherry.errors import TransientError
from wherry.mirror import MirrorConfig
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

QUICK = MirrorConfig(max_lag_s=10.0, segment_bytes=1000, settle_s=2.0, grace_s=20.0, retry=ONCE)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, QUICK)


def age(path: Path, by_s: int = 5) -> None:
    """Give a file another time of its last change, as time itself does."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + by_s * 10**9))


def test_a_truncated_file_begins_anew_as_the_next_generation(rig: Rig) -> None:
    rig.write("a.log", lines(3000))
    rig.flush()
    rig.write("a.log", "new\n", mode="wb")
    rig.flush()
    assert b"new\n" == rig.read("a.log")
    assert "a.log/0002-00000000000000000000" in rig.segments()
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_a_file_that_was_truncated_and_has_grown_past_its_old_end_begins_anew(rig: Rig) -> None:
    rig.write("a.log", lines(500, 1))
    rig.flush()
    rig.write("a.log", lines(3000, 2), mode="wb")
    rig.flush()
    assert rig.local()["a.log"] == rig.read("a.log")


def test_copytruncate(rig: Rig) -> None:
    """As logrotate does it: the copy is a file of its own, the original is emptied in place."""
    path = rig.write("a.log", lines(3000))
    rig.flush()
    (rig.folder / "a.log.1").write_bytes(path.read_bytes())
    os.truncate(path, 0)
    rig.write("a.log", "new\n")
    rig.flush()
    assert b"new\n" == rig.read("a.log")
    rig.close()
    assert rig.local() == rig.plain()


def test_an_emptied_file_is_empty_after_the_close(rig: Rig) -> None:
    path = rig.write("a.log", lines(3000))
    rig.flush()
    os.truncate(path, 0)
    rig.close()
    assert {"a.log": b""} == rig.plain()
    assert [] == rig.segments()


def test_a_file_that_is_rotated_by_a_rename_is_sealed_under_its_new_name(rig: Rig) -> None:
    path = rig.write("a.log", lines(2500, 1))
    rig.flush()
    rig.write("a.log", "last words\n")
    path.rename(rig.folder / "a.log.1")
    rig.write("a.log", "new\n")
    for _ in range(20):
        rig.step(5.0)
    assert rig.local()["a.log.1"] == rig.plain()["a.log.1"]
    assert b"new\n" == rig.read("a.log")
    assert ["a.log/0002-00000000000000000000"] == rig.segments()
    rig.close()
    assert rig.local() == rig.plain()


def test_a_chain_of_rotations(rig: Rig) -> None:
    """a.log -> a.log.1 -> a.log.2, several times between two looks and over restarts."""
    for number in range(6):
        rig.write("a.log", lines(1500, number))
        if number % 2:
            rig.flush()
        for old in range(3, 0, -1):
            if (source := rig.folder / f"a.log.{old}").exists():
                source.rename(rig.folder / f"a.log.{old + 1}")
        (rig.folder / "a.log").rename(rig.folder / "a.log.1")
        rig.step(1.0)
        if number == 3:
            rig.restart()
    rig.write("a.log", "end\n")
    for _ in range(10):
        rig.step(10.0)
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_a_rotated_file_that_goes_on_growing_under_its_new_name_is_whole(rig: Rig) -> None:
    path = rig.write("a.log", lines(2500, 1))
    rig.flush()
    with open(path, "ab", buffering=0) as writer:
        path.rename(rig.folder / "old.log")
        rig.step(1.0)
        for number in range(5):
            writer.write(lines(300, number))
            rig.step(8.0)
    for _ in range(5):
        rig.step(10.0)
    assert rig.local() == rig.plain()


def test_an_inode_that_is_used_again_by_another_file_is_another_file(rig: Rig) -> None:
    path = rig.write("a.log", lines(2500, 1))
    rig.flush()
    record = rig.engine.tracker.files["a.log"].record
    path.unlink()
    path = rig.write("b.log", lines(4000, 2))
    record.inode = path.stat().st_ino  # as a file system does that uses the first free one
    rig.flush()
    assert rig.local()["b.log"] == rig.read("b.log")
    assert lines(2500, 1) == rig.read("a.log")


def test_the_same_name_and_inode_with_other_bytes_is_another_file(rig: Rig) -> None:
    path = rig.write("a.log", lines(2500, 1))
    rig.flush()
    path.unlink()
    path = rig.write("a.log", lines(4000, 2))
    rig.engine.tracker.files["a.log"].record.inode = path.stat().st_ino
    rig.flush()
    assert lines(4000, 2) == rig.read("a.log")


@pytest.mark.parametrize("at", [0, 700, -10])
def test_a_rewrite_of_the_same_size_is_seen(rig: Rig, at: int) -> None:
    path = rig.write("a.log", lines(9000, 1))
    rig.flush()
    changed = bytearray(path.read_bytes())
    changed[at] ^= 1
    path.write_bytes(changed)
    age(path)
    rig.flush()
    assert bytes(changed) == rig.read("a.log")
    rig.close()
    assert {"a.log": bytes(changed)} == rig.plain()


def test_a_touched_file_is_not_sent_again(rig: Rig) -> None:
    path = rig.write("a.log", lines(9000, 1))
    rig.flush()
    n_segments = len(rig.segments())
    age(path)
    rig.flush()
    assert n_segments == len(rig.segments())


def test_a_file_that_was_rewritten_by_a_rename_goes_on_if_it_begins_with_what_was_sent(rig: Rig) -> None:
    """As rsync and editors do: another inode, the same beginning."""
    path = rig.write("a.log", lines(2500, 1))
    rig.flush()
    n_segments = len(rig.segments())
    (rig.folder / "a.tmp").write_bytes(path.read_bytes() + b"more\n")
    (rig.folder / "a.tmp").rename(path)
    rig.flush()
    assert rig.local()["a.log"] == rig.read("a.log")
    assert n_segments + 1 == len(rig.segments())


def test_a_file_that_was_replaced_by_another_begins_anew(rig: Rig) -> None:
    path = rig.write("a.log", lines(2500, 1))
    rig.flush()
    (rig.folder / "a.tmp").write_bytes(lines(5000, 2))
    (rig.folder / "a.tmp").rename(path)
    rig.flush()
    assert lines(5000, 2) == rig.read("a.log")


def test_what_was_sent_of_a_deleted_file_stays(rig: Rig) -> None:
    path = rig.write("a.log", lines(2500, 1))
    rig.write("b.png", "x")
    rig.flush()
    path.unlink()
    (rig.folder / "b.png").unlink()
    rig.flush()
    rig.close()
    assert lines(2500, 1) == rig.read("a.log")
    assert {"b.png": b"x"} == rig.plain()


def test_a_deleted_file_that_comes_back_begins_anew(rig: Rig) -> None:
    path = rig.write("a.log", lines(2500, 1))
    rig.flush()
    path.unlink()
    rig.step(1.0)
    rig.write("a.log", "new\n")
    rig.flush()
    assert b"new\n" == rig.read("a.log")
    rig.close()
    assert {"a.log": b"new\n"} == rig.plain()


def test_a_sealed_file_that_grows_again_goes_on_behind_its_plain_object(rig: Rig) -> None:
    rig.write("a.log", lines(2500, 1))
    rig.close()
    rig.restart()
    rig.write("a.log", lines(500, 2))
    rig.flush()
    assert {"a.log": lines(2500, 1)} == rig.plain()
    assert rig.local()["a.log"] == rig.read("a.log")
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_a_sealed_file_that_is_truncated_begins_anew(rig: Rig) -> None:
    rig.write("a.log", lines(2500, 1))
    rig.close()
    rig.restart()
    rig.write("a.log", "new\n", mode="wb")
    rig.flush()
    assert b"new\n" == rig.read("a.log")
    rig.close()
    assert {"a.log": b"new\n"} == rig.plain()


def test_the_segments_of_a_rotated_file_stay_for_the_grace_time(rig: Rig) -> None:
    path = rig.write("a.log", lines(2500, 1))
    rig.flush()
    path.rename(rig.folder / "old.log")
    rig.step(1.0)
    for _ in range(3):
        rig.step(5.0)
    assert "old.log" in rig.plain()
    assert 3 == len(rig.segments())
    for _ in range(5):
        rig.step(5.0)
    assert [] == rig.segments()


@pytest.mark.parametrize("nth", range(1, 6))
def test_the_segments_of_an_earlier_generation_go_without_a_gap(tmp_path: Path, nth: int) -> None:
    """The sealed file is the second generation, and shorter than the first, whose segments are taken away."""
    store = FaultyStore(MemoryStore(StoreURI("memory", f"{tmp_path}"), {}))
    rig = Rig(tmp_path, QUICK, store=store)
    rig.write("a.log", lines(5000, 1))
    rig.flush()
    rig.write("a.log", lines(1500, 2), mode="wb")
    store.plan.append(Fault("delete", TransientError("down"), nth=nth, times=10**9))
    for _ in range(20):
        rig.step(5.0, final=True)
    found = MirrorOracle(rig.seen, rig.uri.prefix, believes_manifests=False).read("a.log") or b""
    assert lines(1500, 2).startswith(found) or lines(5000, 1).startswith(found)
    assert lines(1500, 2) == rig.read("a.log")
    store.plan.clear()
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


@pytest.mark.parametrize("is_rotated", [False, True])
@pytest.mark.parametrize("nth", range(1, 6))
def test_a_reader_never_finds_a_gap_while_segments_are_taken_away(tmp_path: Path, nth: int, is_rotated: bool) -> None:
    store = FaultyStore(MemoryStore(StoreURI("memory", f"{tmp_path}"), {}))
    rig = Rig(tmp_path, QUICK, store=store)
    rig.write("a.log", lines(1500, 1))
    rig.close()  # there is a plain object already
    rig.restart()
    path = rig.write("a.log", lines(5000, 2), mode="wb")
    rig.flush()
    store.plan.append(Fault("delete", TransientError("down"), nth=nth, times=10**9))
    if is_rotated:
        path.rename(rig.folder / "b.log")
    for _ in range(20):
        rig.step(5.0, final=True)
    found = rig.read("a.log")
    assert found == lines(1500, 1) or lines(5000, 2).startswith(found)
    assert is_rotated or found == lines(5000, 2)
    store.plan.clear()
    rig.close()
    assert rig.local()["b.log" if is_rotated else "a.log"] == rig.plain()["b.log" if is_rotated else "a.log"]
    assert [] == rig.segments()


def test_a_folder_that_cannot_be_read_for_a_while_is_not_taken_for_deleted(rig: Rig) -> None:
    rig.write("sub/a.log", lines(2500, 1))
    rig.flush()
    before = rig.segments()
    (rig.folder / "sub").rename(rig.folder.parent / "away")
    (rig.folder / "sub").symlink_to("nowhere")
    rig.step(1.0)
    (rig.folder / "sub").unlink()
    (rig.folder.parent / "away").rename(rig.folder / "sub")
    rig.flush()
    assert before == rig.segments()
    assert rig.local()["sub/a.log"] == rig.read("sub/a.log")


def test_a_folder_that_is_renamed_is_many_rotations(rig: Rig) -> None:
    for name in "abc":
        rig.write(f"one/{name}.log", lines(2500, ord(name)))
    rig.flush()
    (rig.folder / "one").rename(rig.folder / "two")
    for _ in range(10):
        rig.step(10.0)
    rig.close()
    assert rig.local() == rig.plain()


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_clock_jumps_change_nothing(rig: Rig, jump_s: float) -> None:
    rig.write("a.log", lines(500, 1))
    rig.flush()
    rig.clock.jump_s = jump_s
    rig.write("a.log", "more\n")
    for _ in range(12):
        rig.step(1.0)
    assert rig.local()["a.log"] == rig.read("a.log")
    rig.close()
    assert rig.local() == rig.plain()
