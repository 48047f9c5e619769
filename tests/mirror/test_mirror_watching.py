"""What the kernel is asked to tell of a folder, and what is done where it cannot tell."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrors import Rig
from support import wait_until
from wherry.mirror.writer.scan import scan
from wherry.mirror.writer.watcher import Watcher


def watched(place: Path) -> set[Path]:
    """The folders at and below a place that inotify watches for this process, by the kernel's account."""
    inodes = set()
    for path in Path("/proc/self/fdinfo").iterdir():
        try:
            inodes |= {int(number, 16) for number in re.findall(r"inotify wd:\S+ ino:(\w+)", path.read_text())}
        except FileNotFoundError:  # the listing's own
            continue
    return {path for path in (place, *place.rglob("*")) if path.lstat().st_ino in inodes}


@contextmanager
def watching(place: Path, *folders: Path) -> Iterator[tuple[Watcher, threading.Event]]:
    """A watcher of the first folder, when all of them, and no others at that place, are watched."""
    told = threading.Event()
    watcher = Watcher(folders[0], told.set)
    try:
        assert watcher.arm()
        wait_until(lambda: watched(place) >= set(folders), 30.0, "the watches")
        assert set(folders) == watched(place)
        yield watcher, told
    finally:
        watcher.stop()


def test_links_are_not_followed_and_what_is_real_is_watched(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "data"
    for number in range(50):
        (outside / str(number)).mkdir(parents=True)
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "data").symlink_to(outside)
    (folder / "a" / "around").symlink_to(folder)
    with watching(tmp_path, folder, folder / "a", folder / "a" / "b") as (_, told):
        (outside / "0" / "x").write_text("x")
        (outside / "y").write_text("x")
        assert not told.wait(1.0)
        (folder / "a" / "b" / "x").write_text("x")
        assert told.wait(60.0)


def test_a_folder_that_appears_is_watched_when_it_is_armed_again(tmp_path: Path) -> None:
    with watching(tmp_path, tmp_path) as (watcher, told):
        (tmp_path / "deep" / "deeper").mkdir(parents=True)
        assert told.wait(60.0)
        told.clear()
        watcher.arm()
        wait_until(lambda: len(watched(tmp_path)) == 3, 30.0, "three watches")
        (tmp_path / "deep" / "deeper" / "x").write_text("x")
        assert told.wait(60.0)


def test_a_link_to_names_that_are_no_utf_8_does_no_harm(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "data"
    folder.mkdir()
    os.makedirs(os.fsencode(outside) + b"/\xff\xfe")
    (folder / "data").symlink_to(outside)
    with watching(tmp_path, folder) as (watcher, told):
        (folder / "x").write_text("x")
        assert told.wait(60.0)
        assert watcher.arm()


def test_a_watcher_that_fails_says_so_once_and_lets_others_look(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wherry.mirror")
    with watching(tmp_path, tmp_path) as (watcher, told):
        with open(os.fsencode(tmp_path) + b"/\xff", "wb"):
            assert told.wait(60.0)
        wait_until(lambda: not watcher.arm(), 60.0, "the end of the watcher")
    (said,) = caplog.records
    assert (logging.INFO, True) == (said.levelno, "it is looked at every second instead" in said.getMessage())


def test_a_folder_that_vanishes_before_it_is_watched_is_a_change_and_no_end(tmp_path: Path) -> None:
    told = threading.Event()
    watcher = Watcher(tmp_path, told.set)
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for number in range(50):
                (tmp_path / str(number)).mkdir()
            for number in range(50):
                (tmp_path / str(number)).rmdir()

    busy = threading.Thread(target=come_and_go)
    busy.start()
    try:
        for _ in range(10):
            told.clear()
            assert watcher.arm()
            assert told.wait(60.0)
        assert watcher.arm()
    finally:
        stop.set()
        busy.join()
        watcher.stop()


def test_a_file_in_the_place_of_the_folder_is_no_folder_and_the_mirror_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    rig.folder.rmdir()
    rig.step()
    rig.folder.write_text("a file")
    assert None is scan(rig.folder)
    rig.step(1.0)
    assert not [one for one in caplog.messages if "is there" in one or "cannot be read" in one]
    rig.folder.unlink()
    rig.write("a.log", "a line\n")
    rig.flush()
    assert b"a line\n" == rig.read("a.log")
    rig.state_db.close()
