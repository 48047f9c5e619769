"""Files that were sealed, and are renamed: what others need of the store stays until they have it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror_fuzz import JoiningStore
from mirror_oracle import MirrorOracle
from mirrors import ONCE, Rig, lines
from wherry.errors import PermanentError, TransientError
from wherry.mirror import MirrorConfig
from wherry.mirror.writer.scan import Scan, scan
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

CONFIG = MirrorConfig(max_lag_s=10.0, segment_bytes=1000, settle_s=2.0, grace_s=20.0, retry=ONCE)
CHANGES = ("put", "delete", "join")


class Killed(BaseException):
    """The process is no more."""


def killed() -> None:
    raise Killed


def rig_of(tmp_path: Path) -> tuple[Rig, list[Fault]]:
    """And the faults of its store, to be added to."""
    uri = StoreURI("memory", f"{tmp_path}", "runs/a")
    store = FaultyStore(JoiningStore(uri, {}))
    return Rig(tmp_path, CONFIG, store=store, uri=uri), store.plan


def read(rig: Rig, path: str) -> bytes:
    """As one who knows no manifest."""
    return MirrorOracle(rig.seen, rig.uri.prefix, believes_manifests=False).read(path) or b""


def swap(rig: Rig, one: str, other: str) -> None:
    (rig.folder / one).rename(rig.folder / "between.tmp")
    (rig.folder / other).rename(rig.folder / one)
    (rig.folder / "between.tmp").rename(rig.folder / other)


@pytest.mark.parametrize("n_bytes", [50, 600, 1200])
@pytest.mark.parametrize("both_grow", [False, True])
def test_files_that_change_places_are_never_mixed(tmp_path: Path, n_bytes: int, both_grow: bool) -> None:
    rig, plan = rig_of(tmp_path)
    rig.write("a.log", lines(600, 1))
    rig.write("b.log", lines(n_bytes, 2))
    rig.close()
    rig.restart()
    rig.step()
    rig.write("a.log", lines(300, 3))
    if both_grow:
        rig.write("b.log", lines(300, 4))
    rig.flush()
    whole = [(rig.folder / name).read_bytes() for name in ("a.log", "b.log")]

    def snapshot() -> None:
        for path, found in MirrorOracle(rig.seen, rig.uri.prefix, believes_manifests=False).files().items():
            assert any(data.startswith(found) for data in whole), path

    plan += [Fault(operation, act=snapshot, after=after, times=10**9) for operation in CHANGES for after in (False, True)]
    swap(rig, "a.log", "b.log")
    for _ in range(10):
        rig.step(10.0)
    rig.close()
    assert rig.engine.is_complete
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


@pytest.mark.parametrize("more", ["", "second run\n"])
@pytest.mark.parametrize("new", ["", "after the rotation\n"])
def test_a_sealed_log_has_its_new_name_before_its_old_one_is_replaced(tmp_path: Path, more: str, new: str) -> None:
    """A kill at any moment of the close leaves what an earlier run has sent."""
    rig, plan = rig_of(tmp_path)
    path = rig.write("train.log", first := lines(2000))
    rig.close()
    rig.restart()
    rig.step()
    rig.write("train.log", more)
    path.rename(rig.folder / "train.log.1")
    rig.write("train.log", new)
    seen: list[dict[str, bytes]] = []
    plan += [Fault(operation, act=lambda: seen.append(rig.plain()), after=True, times=10**9) for operation in CHANGES]
    rig.close()
    assert all(any(data.startswith(first) for data in plain.values()) for plain in seen)
    assert rig.local() == rig.plain() == seen[-1]
    assert [] == rig.segments()


def test_the_close_ends_where_a_file_that_was_to_be_tidied_up_is_gone(tmp_path: Path) -> None:
    rig, plan = rig_of(tmp_path)
    path = rig.write("a.log", lines(600))
    rig.flush()
    plan.append(Fault("delete", act=killed))
    with pytest.raises(Killed):
        rig.close()
    plan.clear()
    rig.restart()
    rig.write("a.log", lines(100, 1))
    rig.step(1.0, force=True)
    path.rename(rig.folder / "a.log.1")
    rig.write("a.log", lines(50, 2))
    rig.step(1.0)
    path.rename(rig.folder / "a.log.1")
    rig.write("a.log", lines(50, 3))
    rig.step(1.0)
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_the_close_ends_though_a_renamed_file_cannot_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, _ = rig_of(tmp_path)
    path = rig.write("logs/a.log", lines(600))
    rig.flush()
    path.rename(rig.folder / "logs/a.log.1")
    rig.step(1.0)
    rig.restart()
    monkeypatch.setattr("wherry.mirror.writer.folder_scanner.scan", blind)
    rig.write("b.log", "x\n")
    rig.close()
    assert not rig.engine.is_complete
    assert b"x\n" == rig.plain()["b.log"]
    monkeypatch.undo()
    rig.restart()
    rig.close()
    assert rig.local() == rig.plain()


def blind(folder: Path) -> Scan | None:
    """The folder as it is for one who may not read ``logs``."""
    found = scan(folder)
    if found is None:
        return None
    files = {path: one for path, one in found.files.items() if not path.startswith("logs/")}
    return Scan(files, found.symlinks, {"logs": "permission denied"})


def test_files_of_one_size_and_time_that_change_places_are_told_apart(tmp_path: Path) -> None:
    rig, _ = rig_of(tmp_path)
    for name in ("a.bin", "b.bin", "best.json"):
        rig.write(name, name * 100)
        os.utime(rig.folder / name, ns=(10**18, 10**18))
    for _ in range(5):
        rig.step(10.0)
    swap(rig, "a.bin", "b.bin")
    (rig.folder / "next.tmp").write_text("other.son" * 100)
    os.utime(rig.folder / "next.tmp", ns=(10**18, 10**18))
    (rig.folder / "next.tmp").rename(rig.folder / "best.json")
    for _ in range(5):
        rig.step(10.0)
    assert rig.local() == rig.plain()


def test_a_file_under_another_inode_with_the_same_bytes_is_not_sent_again(tmp_path: Path) -> None:
    """As rsync leaves it, and `cp -p`."""
    rig, _ = rig_of(tmp_path)
    path = rig.write("model.bin", lines(100_000))
    rig.close()
    rig.restart()
    status, data = path.stat(), path.read_bytes()
    (rig.folder / "copy.tmp").write_bytes(data)
    os.utime(rig.folder / "copy.tmp", ns=(status.st_atime_ns, status.st_mtime_ns))
    (rig.folder / "copy.tmp").rename(path)
    for _ in range(5):
        rig.step(10.0)
    rig.close()
    assert rig.sent_bytes < 1.2 * len(data)


def test_a_segment_in_doubt_after_a_seal_is_tidied_up_after_the_next(tmp_path: Path) -> None:
    rig, plan = rig_of(tmp_path)
    rig.write("a.log", lines(600))
    rig.flush()
    plan.append(Fault("delete", TransientError("cut"), times=10**9))
    rig.step(1.0, final=True)
    rig.step(1.0, final=True)
    plan.clear()
    rig.restart()
    rig.write("a.log", lines(100, 1))
    plan.append(Fault("put", act=killed, key="segments/"))
    with pytest.raises(Killed):
        rig.flush()
    plan.clear()
    rig.restart()
    rig.step(400.0)
    rig.step(400.0)
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_segments_of_a_renamed_file_that_is_not_sealed_stay_when_the_next_one_is_tidied_up(tmp_path: Path) -> None:
    rig, plan = rig_of(tmp_path)
    path = rig.write("a.log", old := lines(2500, 1))
    rig.flush()
    path.rename(rig.folder / "a.log.1")
    rig.write("a.log", lines(1500, 2))
    plan.append(Fault("put", PermanentError("refused"), key="a.log.1", times=10**9))
    rig.close()
    assert not rig.engine.is_complete
    rig.restart()
    for _ in range(5):
        rig.step(400.0)
    kept = [rig.get(f"_mirror/rank0/segments/a.log/{name}") for name in rig.segments("a.log") if name.startswith("0001-")]
    assert old == b"".join(kept)
    plan.clear()
    rig.restart()
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_what_the_tracker_calls_a_renamed_file_is_so_after_a_restart(tmp_path: Path) -> None:
    """Renamed, renamed back, and the process killed: it is sealed under the name that it has."""
    rig, _ = rig_of(tmp_path)
    path = rig.write("a.log", lines(600))
    rig.flush()
    path.rename(rig.folder / "b.log")
    rig.step(1.0)
    (rig.folder / "b.log").rename(path)
    rig.step(1.0)
    rig.restart()
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()
