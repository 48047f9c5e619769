"""A segment that is in the store and that nobody has noted, for its answer was lost: and then the file becomes another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror_oracle import MirrorOracle
from mirrors import ONCE, Rig, lines
from wherry.backends.memory import MemoryStore
from wherry.clock import Clock
from wherry.errors import TransientError
from wherry.mirror import MirrorConfig
from wherry.mirror.format.layout import segment_name
from wherry.mirror.writer.due import DueTasks
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

CONFIG = MirrorConfig(max_lag_s=10.0, segment_bytes=1000, settle_s=2.0, grace_s=20.0, retry=ONCE)


def rig_that_loses(tmp_path: Path, key: str, nth: int = 1) -> Rig:
    """The answer to the `nth` put of a name with `key` in it is lost."""
    uri = StoreURI("memory", f"{tmp_path}", "runs/a")
    lost = Fault("put", TransientError("the answer was lost"), nth=nth, after=True, key=key)
    return Rig(tmp_path, CONFIG, uri=uri, store=FaultyStore(MemoryStore(uri, {}), [lost]))


def go_on(rig: Rig, process: str) -> None:
    if process != "the same":
        rig.restart(lose_state_db=process == "another without its ledger")


#: What changes something in the store.
LATE = ("put", "delete")

processes = pytest.mark.parametrize("process", ["the same", "another", "another without its ledger"])


@processes
@pytest.mark.parametrize("n_sent", [0, 1])
def test_a_file_cut_back_to_what_was_noted_is_what_readers_find(tmp_path: Path, process: str, n_sent: int) -> None:
    rig = rig_that_loses(tmp_path, "a.log", nth=n_sent + 1)
    first = lines(500, 1)
    path = rig.write("a.log", first if n_sent else lines(500, 2))
    rig.step(1.0, force=True)
    if n_sent:
        rig.write("a.log", lines(300, 2))
        rig.step(1.0, force=True)
    assert n_sent + 1 == len(rig.segments())
    go_on(rig, process)
    os.truncate(path, len(first) if n_sent else 0)
    for _ in range(10):
        rig.step(10.0)
    assert rig.local()["a.log"] == path.read_bytes() == (first if n_sent else b"")
    if n_sent:
        assert first == rig.read("a.log")
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


@processes
def test_one_that_grows_again_begins_anew(tmp_path: Path, process: str) -> None:
    rig = rig_that_loses(tmp_path, "a.log")
    path = rig.write("a.log", lines(500, 1))
    rig.step(1.0, force=True)
    go_on(rig, process)
    os.truncate(path, 0)
    rig.step(10.0)
    rig.write("a.log", "other\n")
    for _ in range(5):
        rig.step(10.0)
    assert b"other\n" == rig.read("a.log")
    rig.close()
    assert {"a.log": b"other\n"} == rig.plain()
    assert [] == rig.segments()


@processes
def test_what_was_sent_after_a_seal_and_cut_off_again(tmp_path: Path, process: str) -> None:
    rig = rig_that_loses(tmp_path, "a.log", nth=3)  # a segment, the plain object, a segment
    path = rig.write("a.log", first := lines(500, 1))
    rig.close()
    rig.restart()
    rig.write("a.log", lines(300, 2))
    for _ in range(1):
        rig.step(1.0, force=True)
    assert len(rig.segments()) == 1
    go_on(rig, process)
    os.truncate(path, len(first))
    for _ in range(10):
        rig.step(10.0)
    assert first == rig.read("a.log")
    rig.close()
    assert {"a.log": first} == rig.plain()
    assert [] == rig.segments()


def test_what_was_sent_beyond_the_last_scan_is_not_less_than_nothing_unsent(tmp_path: Path) -> None:
    """The file grows while it is sent, and the put of what had come since the scan goes wrong."""
    rig = rig_that_loses(tmp_path, "a.log", nth=8)

    def grow() -> None:
        rig.write("a.log", lines(20_000, 2))

    assert isinstance(rig.bare, FaultyStore)
    rig.bare.plan.insert(0, Fault("put", act=grow, key="a.log"))
    rig.write("a.log", lines(500, 1))
    rig.step(1.0, force=True)
    (tracked,) = rig.engine.tracker.active
    assert tracked.found is not None
    assert tracked.record.acked > tracked.found.size + 5000
    assert (1, 0) == (rig.engine.report().unsent_files, rig.engine.report().unsent_bytes)
    rig.engine.write_manifest("open")
    assert rig.manifest().unsent_bytes == 0
    due_tasks = DueTasks(rig.engine.tracker, rig.config, rig.folder, Clock(lambda: rig.clock.s + 60.0))
    assert [(tracked,)] == [task.files for task in due_tasks.tasks(force=True)], "as long as no scan has found more"
    rig.close()
    assert rig.local() == rig.plain()


def test_the_seal_of_an_emptied_file_leaves_no_gap_at_any_kill(tmp_path: Path) -> None:
    """Sealed, gone on in segments, emptied: those segments must not be found behind the empty object."""
    rig = rig_that_loses(tmp_path, "nothing")
    path = rig.write("a.log", first := lines(500, 1))
    rig.close()
    rig.restart()
    rig.write("a.log", lines(2500, 2))
    rig.flush()
    whole = path.read_bytes()
    os.truncate(path, 0)
    assert isinstance(rig.bare, FaultyStore)
    found: list[bytes] = []
    oracle = MirrorOracle(rig.seen, rig.uri.prefix, believes_manifests=False)

    def snapshot() -> None:
        found.append(oracle.read("a.log") or b"")

    rig.bare.plan += [Fault(operation, act=snapshot, times=10**9, after=after) for operation in LATE for after in (False, True)]
    rig.close()
    assert all(whole.startswith(data) for data in found)
    assert sorted(map(len, found), reverse=True) == [len(data) for data in found], "it never goes back and forth"
    assert {b"", first, whole} <= set(found)
    assert {"a.log": b""} == rig.plain()
    assert [] == rig.segments()


def test_a_sealed_file_that_has_grown_is_sealed_again_at_once(tmp_path: Path) -> None:
    """The next run of a program goes on with the log of the last one: its close does not wait for `max_lag_s`."""
    rig = rig_that_loses(tmp_path, "nothing")
    rig.write("a.log", "first run\n")
    rig.close()
    rig.restart()
    rig.step()
    rig.write("a.log", "second run\n")
    rig.step(0.1, final=True)
    rig.step(0.1, final=True)
    assert rig.engine.is_finished
    assert {"a.log": b"first run\nsecond run\n"} == rig.plain()


@pytest.mark.parametrize("data", [b"", b"a line\n"])
@pytest.mark.parametrize("is_the_same", [False, True])
def test_a_file_that_was_elsewhere_for_a_while_is_sealed(tmp_path: Path, data: bytes, is_the_same: bool) -> None:
    rig = rig_that_loses(tmp_path, "nothing")
    path = rig.write("a.log", data)
    rig.step(1.0, force=True)
    path.rename(tmp_path / "elsewhere")
    rig.step(1.0)
    if is_the_same:
        (tmp_path / "elsewhere").rename(path)
    else:
        rig.write("a.log", data)
    rig.close()
    assert {"a.log": data} == rig.plain()
    assert [] == rig.segments()


def put(rig: Rig, name: str, data: bytes) -> None:
    source = rig.spool / "made"
    source.write_bytes(data)
    rig.seen.put_file(rig.uri.key_for(name), source)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_file_whose_first_segments_are_gone_begins_anew(tmp_path: Path, is_empty: bool) -> None:
    """With no ledger, too: the object of its name does not reach to where the segments that are left begin."""
    rig = rig_that_loses(tmp_path, "nothing")
    whole = lines(3000)
    rig.write("a.log", b"" if is_empty else whole)
    put(rig, "a.log", b"" if is_empty else whole[:40])
    put(rig, segment_name("rank0", "a.log", 1, 1000), whole[1000:2000])
    rig.restart(lose_state_db=True)
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_segments_of_an_earlier_generation_are_not_those_of_a_later_one_with_the_same_bytes(tmp_path: Path) -> None:
    """The manifest knows of a generation of which nothing has come; the file begins as the one before did."""
    rig = rig_that_loses(tmp_path, "nothing")
    whole = lines(3000)
    path = rig.write("a.log", whole[:1000])
    rig.flush()
    os.truncate(path, 0)
    rig.step(1.0)
    rig.write("a.log", whole[:1000])
    assert isinstance(rig.bare, FaultyStore)
    rig.bare.plan.append(Fault("put", TransientError("killed"), key="/0002-", times=10**9))
    rig.step(1.0, force=True)
    rig.engine.write_manifest("open")
    assert 2 == max(entry.generation for entry in rig.manifest().files)
    rig.bare.plan.clear()
    rig.restart(lose_state_db=True)
    rig.write("a.log", whole[1000:])
    rig.flush()
    assert whole == rig.read("a.log")
    rig.close()
    assert {"a.log": whole} == rig.plain()
    assert [] == rig.segments()
