"""A real full disk under the spool: a clear error, nothing half-written, nothing lost, and what was accepted still arrives."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gate import Gate
from support import own_mounts, run_script, without_waits

#: Mounts a small disk at argv[1], in a mount namespace of its own, before it does anything else.
MOUNT = """
import logging, os, subprocess, sys
from pathlib import Path
import wherry
from wherry.errors import SpoolError
from support import file_of, wait_until

logging.getLogger("wherry").setLevel(logging.ERROR)  # a small disk is made of memory, of which it warns
disk, dest = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)], check=True)
spool = disk / "spool"
objects = lambda: sorted(path.name for path in (spool / "objects").iterdir())

def fill():
    with open(disk / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def run_on_small_disk(text: str, disk: Path, **env: str) -> str:
    (disk.parent / "dest").mkdir(exist_ok=True)
    script = MOUNT + textwrap.dedent(text)
    return without_waits(run_script(script, disk, disk.parent / "dest", prefix=own_mounts(), env=env))


def test_a_large_file_has_the_room_that_one_before_it_is_about_to_give_back(disk: Path) -> None:
    text = """
    import threading
    from wherry.spool.spool import Spool
    from wherry.spool.staging import stage
    subprocess.run(["mount", "-o", "remount,size=150m", str(disk)], check=True)
    opened = Spool(spool)
    sent = stage(opened, file_of(disk / "sent", 68_000_000), "1-1-1", move=True)
    (disk / "sent").unlink()
    held = opened.hold_large([sent.object_id])
    opened.free([sent.object_id])
    assert held and opened.free_bytes() < 90_000_000
    threading.Timer(0.05, lambda: [os.close(each) for each in held]).start()
    print(stage(opened, file_of(dest / "next", 90_000_000), "1-1-1").method)
    """
    assert run_on_small_disk(text, disk) == "copy\n"


def test_a_file_that_does_not_fit_is_refused_with_figures_and_earlier_ones_arrive(disk: Path) -> None:
    text = """
    from support import end_agent
    small, large = file_of(dest.parent / "small", 1_000_000), dest.parent / "large"
    large.write_bytes(b"x" * 40_000_000)
    with end_agent(spool), wherry.Uploader(dest, spool=spool) as uploader:
        for i in range(3):
            uploader.put(small, f"{i}")
        before = set(objects())
        try:
            uploader.put(large, "large")
        except SpoolError as error:
            print(error.errno, error)
        assert set(objects()) <= before, objects()
        uploader.put(small, "3")
    wait_until(lambda: objects() == [], what="the last staged file's end")
    assert sorted(path.name for path in dest.iterdir()) == ["0", "1", "2", "3"]
    assert all(path.read_bytes() == small.read_bytes() for path in dest.iterdir())
    """
    said = run_on_small_disk(text, disk)
    assert "no room in the spool" in said
    assert "40000000 bytes are needed" in said
    assert "are free" in said
    assert said.startswith("28 ")


def test_a_sparse_file_larger_than_the_disk_is_copied_with_its_holes(disk: Path) -> None:
    text = """
    from support import end_agent
    source = dest.parent / "source"
    with open(source, "wb") as file:
        for at in (0, 30_000_000, 70_000_000):
            file.seek(at)
            file.write(os.urandom(4096))
    with end_agent(spool), wherry.Uploader(dest, spool=spool) as uploader:
        uploader.put(source, "sparse").result()
    assert source.read_bytes() == (dest / "sparse").read_bytes()
    """
    assert "" == run_on_small_disk(text, disk)


def test_a_disk_that_fills_while_a_file_is_written_leaves_nothing_half_written(disk: Path) -> None:
    text = """
    from support import CALLER
    with wherry.Uploader(dest, spool=spool, config=CALLER) as uploader:
        try:
            with uploader.open("a") as file:
                while True:
                    file.write(bytes(1_000_000))
        except SpoolError as error:
            print(error.errno, error)
        assert objects() == []
        writer = uploader.open("b")
        writer.write(b"in a buffer")
        fill()
        try:
            writer.close()
        except SpoolError as error:
            print(error.errno, error)
        assert writer.closed
        assert objects() == []
        try:
            uploader.put("/proc/self/exe", "c")
        except SpoolError as error:
            print(error.errno, error)
        assert objects() == []
        (disk / "filler").unlink()
        with uploader.open("d") as file:
            file.write(b"there is room again")
    assert [path.name for path in dest.iterdir()] == ["d"]
    """
    lines = run_on_small_disk(text, disk).splitlines()
    assert [True] * 3 == [line.startswith("28 [Errno 28] no room in the spool") for line in lines], lines


def test_a_spool_cannot_be_opened_on_a_full_disk_and_says_so(disk: Path) -> None:
    text = """
    fill()
    try:
        wherry.Uploader(dest, spool=spool)
    except SpoolError as error:
        print(error)
    """
    said = run_on_small_disk(text, disk)
    assert "full" in said or "No space left" in said
    assert "Traceback" not in said


def test_what_was_accepted_arrives_although_the_disk_is_full(disk: Path) -> None:
    """Somebody else fills the disk while uploads wait: they are verified and acknowledged, at the latest when there is room."""
    gate = Gate(disk.parent)
    text = """
    from support import end_agent
    small = file_of(dest.parent / "small", 1_000_000)
    with end_agent(spool), wherry.Uploader("gated://x", spool=spool) as uploader:
        handles = [uploader.put(small, f"{i}") for i in range(3)]
        wait_until(lambda: (dest.parent / "puts").exists(), what="the first put")
        fill()
        (dest.parent / "is_open").touch()
        wait_until(lambda: {"0", "1", "2"} <= {path.name for path in dest.iterdir()}, what="the objects")
        (disk / "filler").unlink()
        for handle in handles:
            handle.result(60.0)
    wait_until(lambda: objects() == [], what="the last staged file's end")
    assert all(path.read_bytes() == small.read_bytes() for path in dest.iterdir())
    """
    said = run_on_small_disk(text, disk, GATE=gate.environment["GATE"], PYTHONPATH=gate.environment["PYTHONPATH"])
    assert "" == said, said


FILL_WITH_UPLOADS = """
from support import end_agent
import time
def accept_until_full(uploader, source):
    handles = []
    try:
        while True:
            handles.append(uploader.put(source, f"{len(handles)}"))
    except SpoolError as error:
        print(error.errno, error)
    return handles

def finish(handles, source):
    (dest.parent / "is_open").touch()
    for handle in handles:
        handle.result(60.0)
    wait_until(lambda: objects() == [], what="the last staged file's end")  # it comes after the acknowledgement
    assert {f"{i}" for i in range(len(handles))} == {path.name for path in dest.iterdir()}
    assert all(path.read_bytes() == source.read_bytes() for path in dest.iterdir())
"""


@pytest.mark.parametrize("others_too", [False, True], ids=["of uploads only", "others take the rest"])
def test_a_disk_full_of_accepted_uploads_empties_by_itself(disk: Path, others_too: bool) -> None:
    """Verifying writes nothing into the spool, and the journal has room that accepting may not use; nobody frees any."""
    gate = Gate(disk.parent)
    text = f"""
    source = file_of(dest.parent / "source", 5_000_000)
    with end_agent(spool), wherry.Uploader("gated://x", spool=spool) as uploader:
        handles = accept_until_full(uploader, source)
        assert len(handles) == 5, len(handles)
        if {others_too}:
            fill()
        finish(handles, source)
    """
    text = FILL_WITH_UPLOADS + textwrap.dedent(text)
    said = run_on_small_disk(text, disk, GATE=gate.environment["GATE"], PYTHONPATH=gate.environment["PYTHONPATH"])
    assert "no room in the spool" in said
    assert 1 == said.count("\n"), said


def test_many_small_uploads_on_a_full_disk_are_all_finished(disk: Path) -> None:
    """Each frees less room than the journal takes to say that it is done."""
    gate = Gate(disk.parent)
    text = """
    source = file_of(dest.parent / "source", 100)
    with end_agent(spool), wherry.Uploader("gated://x", spool=spool) as uploader:
        handles = [uploader.put(source, f"{i}") for i in range(300)]  # whose rows fit, also when the log is moved late
        fill()
        finish(handles, source)
    """
    text = FILL_WITH_UPLOADS + textwrap.dedent(text)
    said = run_on_small_disk(text, disk, GATE=gate.environment["GATE"], PYTHONPATH=gate.environment["PYTHONPATH"])
    assert "" == said, said


def test_a_reader_of_the_journal_on_a_full_disk_keeps_no_upload_for_ever(disk: Path) -> None:
    """While it reads, the log cannot begin anew, and takes all room but what the database needs to take the log in."""
    gate = Gate(disk.parent)
    text = """
    import sqlite3
    from contextlib import closing
    source, log = file_of(dest.parent / "source", 100), spool / "agent.log"

    def write_until_full():
        "Make the log longer by pages in which nothing has changed."
        with closing(sqlite3.connect(spool / "journal.db", isolation_level=None)) as writer:
            try:
                while True:
                    for change in ("BEGIN IMMEDIATE", *["UPDATE held SET size_bytes = 1 - size_bytes"] * 2, "COMMIT"):
                        writer.execute(change)
            except sqlite3.OperationalError as error:
                assert "full" in str(error), error

    with end_agent(spool), wherry.Uploader("gated://x", spool=spool) as uploader:
        handles = [uploader.put(source, f"{i}") for i in range(400)]
        os.truncate(spool / "reserve", 2**20)  # the rest has been used by others
        fill()
        reader = sqlite3.connect(spool / "journal.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM jobs").fetchall()
        write_until_full()
        (dest.parent / "is_open").touch()
        wait_until(lambda: "cannot be written" in log.read_text(), what="the disk to be full of the log")
        reader.close()
        finish(handles, source)
    """
    text = FILL_WITH_UPLOADS + textwrap.dedent(text)
    said = run_on_small_disk(text, disk, GATE=gate.environment["GATE"], PYTHONPATH=gate.environment["PYTHONPATH"])
    assert "" == said, said


def test_accepting_never_takes_the_room_that_finishing_needs(disk: Path) -> None:
    """The journal has used its reserve: nothing is staged in the room that comes free until the reserve is whole again."""
    text = """
    from support import CALLER
    source = file_of(dest.parent / "source", 100_000)
    with wherry.Uploader(dest, spool=spool, config=CALLER) as uploader:
        uploader.put(source, "a")
        assert uploader.spool.reserve.release()
        fill()
        os.truncate(disk / "filler", (disk / "filler").stat().st_size - 1_000_000)
        for accept in (lambda: uploader.put(source, "b"), lambda: uploader.open("c")):
            try:
                accept()
            except SpoolError as error:
                print(error.errno, error)
        (disk / "filler").unlink()
        uploader.put(source, "b")
    assert not (spool / "reserve").exists()
    """
    lines = run_on_small_disk(text, disk).splitlines()
    assert [True] * 2 == [line.startswith("28 [Errno 28] no room in the spool") for line in lines], lines
    assert "100000 bytes are needed, 0 are free" in lines[0]


def test_a_disk_without_inodes_is_told_as_that(disk: Path) -> None:
    text = """
    from support import CALLER, end_agent
    source = file_of(dest.parent / "source", 100)
    remount = lambda how: subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)
    uploader = wherry.Uploader(dest, spool=spool, config=CALLER)
    uploader.put(source, "a")
    in_use = os.statvfs(disk).f_files - os.statvfs(disk).f_ffree
    remount(f"nr_inodes={in_use}")
    calls = (
        lambda: uploader.put(source, "b"),
        lambda: uploader.open("b"),
        lambda: wherry.Uploader(dest, spool=spool, config=CALLER),
        lambda: wherry.Uploader(dest, spool=disk / "new", config=CALLER),
    )
    for call in calls:
        try:
            call()
        except SpoolError as error:
            print(error.errno, error)
    remount(f"nr_inodes={in_use + 100}")
    uploader.put(source, "b")
    uploader.close()
    assert objects() == []
    """
    lines = run_on_small_disk(text, disk).splitlines()
    assert 4 == len(lines), lines
    for line in lines:
        assert line.startswith("28 ")
        assert "has no inodes left" in line
        assert "are needed" not in line
    assert "no room in the spool" in lines[0]
