"""A mirror ends, and says truly how, whatever is done to its folder; and no odd file stops the others."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from mirrors import ONCE, Rig, lines
from wherry.backends.memory import MemoryStore
from wherry.mirror import MirrorConfig
from wherry.mirror.writer.scan import Scan, scan
from wherry.mirror.writer.tracked_file import TrackedFile
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

QUICK = MirrorConfig(max_lag_s=10.0, segment_bytes=1000, settle_s=2.0, grace_s=20.0, retry=ONCE)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, QUICK)


def pass_by(rig: Rig, seconds: int = 60) -> None:
    for _ in range(seconds):
        rig.step(1.0)


def grow(rig: Rig) -> None:
    rig.write("a.log", "one more\n")


def end(rig: Rig) -> bool:
    """Whether it is complete, when it has ended."""
    for _ in range(60):
        rig.step(1.0, final=True)
        if rig.engine.is_finished:
            return rig.engine.is_complete
    raise AssertionError(f"never finished: {rig.engine.report()}")


@pytest.mark.parametrize("before", ["unsent", "sent", "sealed"])
def test_a_file_that_never_stops_growing_is_waited_for_a_few_times_and_is_readable(tmp_path: Path, before: str) -> None:
    uri = StoreURI("memory", f"{tmp_path}", "runs/a")
    rig = Rig(tmp_path, QUICK, uri=uri, store=FaultyStore(MemoryStore(uri, {})))
    data = lines(20_000)
    rig.write("a.log", data)
    if before != "unsent":
        rig.flush()
    if before == "sealed":  # by an earlier run
        rig.close()
        rig.restart()
        rig.step()
    n_sent = rig.sent_bytes
    assert isinstance(rig.bare, FaultyStore)
    rig.bare.plan.append(Fault("put", act=lambda: grow(rig), times=10**9, after=True))
    grow(rig)
    assert not end(rig)
    assert rig.sent_bytes - n_sent < 10 * len(data)
    assert rig.read("a.log").startswith(data)
    assert rig.local()["a.log"].startswith(rig.read("a.log"))


def test_a_file_that_grows_between_looks_is_waited_for_a_few_times(rig: Rig) -> None:
    data = lines(20_000)
    rig.write("a.log", data)
    rig.flush()
    for _ in range(60):
        grow(rig)
        rig.step(1.0, final=True)
        if rig.engine.is_finished:
            break
    assert rig.engine.is_finished
    assert not rig.engine.is_complete
    assert rig.sent_bytes < 12 * len(data)
    assert rig.local()["a.log"].startswith(rig.read("a.log"))


@pytest.mark.parametrize("is_killed", [False, True], ids=["goes-on", "restarts"])
def test_a_rotated_file_that_is_truncated_before_its_seal_is_a_new_one(rig: Rig, is_killed: bool) -> None:
    rig.write("a.log", lines(3000))
    rig.flush()
    (rig.folder / "a.log").rename(rig.folder / "a.log.1")
    rig.step(1.0)
    rig.write("a.log.1", "short\n", mode="wb")
    if is_killed:
        rig.restart()
    rig.step(1.0)
    assert lines(3000) == rig.read("a.log")  # what was sent stays
    assert end(rig)
    assert {"a.log.1": b"short\n"} == rig.plain()


def test_a_rotated_file_that_is_rewritten_with_more_before_its_seal_is_a_new_one(rig: Rig) -> None:
    rig.write("a.log", lines(3000))
    rig.flush()
    (rig.folder / "a.log").rename(rig.folder / "a.log.1")
    rig.step(1.0)
    rig.write("a.log.1", lines(5000, 1), mode="wb")
    assert end(rig)
    assert rig.local() == rig.plain()


def test_a_folder_that_vanishes_ends_it_incomplete_and_unsealed(rig: Rig) -> None:
    rig.write("a.log", lines(3000))
    rig.flush()
    shutil.rmtree(rig.folder)
    before = rig.n_requests
    assert not end(rig)
    assert rig.n_requests < before + 20
    rig.engine.write_incomplete()
    assert "incomplete" == rig.manifest().state
    assert lines(3000) == rig.read("a.log")


def test_a_folder_that_is_elsewhere_when_it_starts_again_is_not_complete(rig: Rig) -> None:
    rig.write("a.log", lines(3000))
    rig.flush()
    rig.write("a.log", "unsent\n")
    rig.restart()
    rig.folder.rename(rig.folder.with_name("unmounted"))
    rig.step(1.0)
    assert not end(rig)
    assert "sealed" != rig.manifest().state
    assert "is not there" in rig.engine.report().trouble[0]
    rig.folder.with_name("unmounted").rename(rig.folder)
    rig.restart()
    assert end(rig)
    assert rig.local() == rig.plain()


@pytest.mark.parametrize("name", ["a\x01b.log", "_mirror/a.log", "a.log.tmp"])
def test_a_file_that_is_renamed_to_what_is_not_mirrored_counts_as_deleted_and_the_others_go_on(rig: Rig, name: str) -> None:
    for path in ("a.log", "other.log"):
        rig.write(path, lines(3000))
    rig.flush()
    (rig.folder / name).parent.mkdir(exist_ok=True)
    (rig.folder / "a.log").rename(rig.folder / name)
    pass_by(rig)
    rig.write("other.log", "more\n")
    rig.flush()
    assert rig.local()["other.log"] == rig.read("other.log")
    end(rig)
    assert lines(3000) == rig.read("a.log")
    assert {"other.log"} == rig.plain().keys()


def test_a_rotated_file_that_is_renamed_to_what_is_not_mirrored_counts_as_deleted(rig: Rig) -> None:
    rig.write("a.log", lines(3000))
    rig.flush()
    (rig.folder / "a.log").rename(rig.folder / "a.log.1")
    rig.step(1.0)
    (rig.folder / "a.log.1").rename(rig.folder / "a.log.1.tmp")
    end(rig)
    assert lines(3000) == rig.read("a.log")
    assert {} == rig.plain()


def test_an_empty_file_under_another_name_is_another_file(rig: Rig) -> None:
    """Its inode is reused at once: nothing tells a rename from a new file, and nothing of the old one has to be finished."""
    rig.write("startup.log", b"")
    rig.step(1.0)
    (rig.folder / "startup.log").rename(rig.folder / "train.jsonl")
    rig.write("train.jsonl", lines(3000))
    rig.flush()
    assert {"train.jsonl": lines(3000)} == rig.read_all()
    assert end(rig)
    assert rig.local() == rig.plain()


def test_a_file_that_is_renamed_over_another_takes_its_place(rig: Rig) -> None:
    rig.write("a.log", lines(3000, 1))
    rig.write("b.log", lines(4000, 2))
    rig.flush()
    os.replace(rig.folder / "a.log", rig.folder / "b.log")
    pass_by(rig, 90)
    assert lines(3000, 1) == rig.read("b.log")
    rig.write("b.log", "more\n")
    rig.flush()
    assert rig.local()["b.log"] == rig.read("b.log")
    assert end(rig)
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_backups_that_are_numbered_anew_are_other_files_and_do_not_wait(rig: Rig) -> None:
    for round_ in range(8):
        rig.write("next", lines(500, round_))
        os.replace(rig.folder / "next", rig.folder / "train.log.2")
        pass_by(rig, 15)
        assert lines(500, round_) == rig.plain()["train.log.2"]


def test_a_file_that_is_open_for_writing_is_not_finished_however_still_it_stands(rig: Rig) -> None:
    with open(rig.folder / "model.pt", "wb", buffering=0) as file:
        file.write(b"half")
        rig.flush()  # does not wait for it
        pass_by(rig, 60)
        assert {} == rig.plain()
        file.write(b" and half")
    pass_by(rig, 5)
    assert {"model.pt": b"half and half"} == rig.plain()


def test_a_file_that_is_never_closed_is_sent_all_the_same(rig: Rig) -> None:
    with open(rig.folder / "run.db", "wb", buffering=0) as file:
        file.write(b"all there is")
        pass_by(rig, 120)
        assert {"run.db": b"all there is"} == rig.plain()


def test_at_the_end_an_open_file_is_sent_as_it_is(rig: Rig) -> None:
    with open(rig.folder / "run.db", "wb", buffering=0) as file:
        file.write(b"all there is")
        assert end(rig)
        assert {"run.db": b"all there is"} == rig.plain()


class Held(Executor):
    """Keeps what it was given until it is let go."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Keep it; the future is not done."""
        future: Future[Any] = Future()
        self.held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def let_go(self) -> None:
        """Do all of it."""
        for future, call in self.held:
            future.set_result(call())
        self.held.clear()


def test_a_folder_is_not_looked_at_again_and_again_while_its_files_are_sealed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand files take as long to look at as hundreds take to seal."""
    attempts: list[Path] = []

    def slowly(folder: Path) -> Scan | None:
        attempts.append(folder)
        time.sleep(0.1)
        return scan(folder)

    rig.write("a.log", lines(3))
    rig.flush()
    held = Held()
    monkeypatch.setattr("wherry.mirror.writer.folder_scanner.scan", slowly)
    monkeypatch.setattr(rig.engine.runner, "executor", held)
    rig.step(final=True)
    attempts.clear()
    for _ in range(5):
        rig.step(final=True)
    assert held.held
    assert [] == attempts
    held.let_go()
    monkeypatch.undo()
    rig.close()
    assert rig.engine.is_complete
    assert rig.local() == rig.plain()


def test_what_ended_beside_a_task_that_could_not_be_noted_is_noted_by_the_next_step(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state database's disk is full when the first of three seals is noted."""
    sealed, attempts = rig.engine.tracker.sealed, []

    def on_a_full_disk(tracked: TrackedFile) -> None:
        attempts.append(tracked.record.path)
        if len(attempts) == 1:
            raise OSError(errno.ENOSPC, "no space left")
        sealed(tracked)

    for name in ("a.log", "b.log", "c.log"):
        rig.write(name, lines(3))
    rig.flush()
    held = Held()
    monkeypatch.setattr(rig.engine.runner, "executor", held)
    monkeypatch.setattr(rig.engine.tracker, "sealed", on_a_full_disk)
    rig.step(final=True)
    assert 3 == len(held.held)
    held.let_go()
    rig.step(final=True)
    assert 2 == len(rig.engine.runner)
    rig.step(final=True)
    assert 3 == len(set(attempts))
    monkeypatch.undo()
    rig.close()
    assert rig.engine.is_complete
    assert rig.local() == rig.plain()


def test_a_close_does_not_pause_for_as_long_as_it_takes_to_look_at_many_files(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks of a live mirror there are a hundred times what one takes: 30 s for ten thousand files."""

    def slowly(folder: Path) -> Scan | None:
        time.sleep(0.1)
        return scan(folder)

    rig.write("a.log", lines(3))
    rig.flush()
    monkeypatch.setattr("wherry.mirror.writer.folder_scanner.scan", slowly)
    rig.step(1.0)
    assert rig.engine.pause_s() > 5.0
    pauses = []
    while not rig.engine.is_finished:
        rig.step(1.0, final=True)
        pauses.append(rig.engine.pause_s())
    assert max(pauses) < 5.0
