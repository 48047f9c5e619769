"""EventFile: what was written is there, whole, whatever happens to the process, the disk and the other threads."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from programs import Program
from support import own_mounts, run_script
from tfevents import event_files, read_events, read_scalars, read_values
from wherry.loggers.event_files import summaries
from wherry.loggers.event_files.event_file import EventFile


class Clock:
    """A clock that the test sets."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_scalars_are_read_back_with_step_and_time(tmp_path: Path, clock: Clock) -> None:
    file = EventFile(tmp_path, now=clock)
    file.add_scalars({"loss": 0.5, "acc": 0.25}, 3)
    file.add_scalars({"loss": 0.125}, 4, wall_time_s=12.5)
    file.close()
    events = read_events(*event_files(tmp_path))
    assert [(clock.now_s, 3), (12.5, 4)] == [(event.wall_time_s, event.step) for event in events]
    assert {"loss": [(3, 0.5), (4, 0.125)], "acc": [(3, 0.25)]} == read_scalars(tmp_path)


def test_names_sort_by_time_and_number_and_say_who_wrote(tmp_path: Path, clock: Clock) -> None:
    file = EventFile(tmp_path, now=clock)
    for step, now_s in enumerate((5.0, 5.0, 7.0, 6.0)):  # the clock stands, goes on, and is set back
        clock.now_s = now_s
        file.add_scalars({"a": 1.0}, step)
        file.roll()
    taken = file.take_closed()
    assert event_files(tmp_path) == taken
    assert [0, 1, 2, 3] == [event.step for event in read_events(*taken)]
    assert re.fullmatch(rf"events\.out\.tfevents\.0000000005\.[\w.-]+\.{os.getpid()}\.\d{{6}}", taken[0].name)


def test_no_file_before_the_first_event(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "new" / "folder")
    file.flush()
    file.roll()
    file.add_scalars({}, 0)
    assert ([], None, []) == (list(tmp_path.iterdir()), file.path, file.take_closed())
    file.add_scalars({"a": 1.0}, 0)
    assert [file.path] == event_files(tmp_path)
    file.close()


def test_numbers_that_a_float_cannot_hold_are_kept_as_well_as_it_can(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    numbers = [math.nan, math.inf, -math.inf, 1e300, -1e300, 10**400, -(10**400), 1e-300, True]
    for step, number in enumerate(numbers):
        file.add_scalars({"a": number}, step)
    file.close()
    read = [number for _, number in read_scalars(tmp_path)["a"]]
    assert math.isnan(read[0])
    assert [math.inf, -math.inf, math.inf, -math.inf, math.inf, -math.inf, 0.0, 1.0] == read[1:]


def test_any_tag_and_any_step_can_be_written(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    tags = ["", "a b/c", "Größe Ω 漢字 🚣", "x" * 300, "x" * 20_000, "half \ud800 a pair", "nul\0"]
    steps = [0, 127, 128, 2**31, 2**62, -1, 5]
    for tag, step in zip(tags, steps, strict=True):
        file.add_scalars({tag: 1.0}, step)
    file.close()
    expected = [(step, tag.replace("\ud800", "?")) for tag, step in zip(tags, steps, strict=True)]
    assert expected == [(step, value.tag) for step, value in read_values(tmp_path)]


def test_tags_without_end_do_not_fill_the_memory(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    for i in range(25_000):
        file.add_scalars({f"tag {i}": float(i)}, i)
    file.close()
    assert [(f"tag {i}", [(i, float(i))]) for i in range(25_000)] == list(read_scalars(tmp_path).items())
    assert len(file._prefixes) <= 10_000


def test_a_file_is_closed_at_its_size_and_given_once(tmp_path: Path) -> None:
    file = EventFile(tmp_path, max_file_bytes=1000)
    given = []
    for step in range(100):
        file.add_scalars({"loss": float(step)}, step)
        given += file.take_closed()
    file.close()
    given += file.take_closed()
    assert event_files(tmp_path) == given
    assert all(1000 <= path.stat().st_size < 1100 for path in given[:-1])
    assert [(step, float(step)) for step in range(100)] == read_scalars(tmp_path)["loss"]
    assert [] == file.take_closed()


def test_a_file_is_closed_at_its_age(tmp_path: Path, clock: Clock) -> None:
    file = EventFile(tmp_path, max_file_age_s=30.0, now=clock)
    for step in range(7):
        file.add_scalars({"loss": 0.0}, step)
        clock.now_s += 10.0
    assert [[0, 1, 2], [3, 4, 5]] == [[event.step for event in read_events(path)] for path in file.take_closed()]
    clock.now_s += 19.0
    file.roll_if_due()
    assert [] == file.take_closed()
    clock.now_s += 1.0
    file.roll_if_due()
    assert [[6]] == [[event.step for event in read_events(path)] for path in file.take_closed()]
    file.close()


def test_a_closed_one_says_so_and_closes_again(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.add_scalars({"a": 1.0}, 0)
    file.close()
    file.close()
    file.flush()
    with pytest.raises(RuntimeError, match=r"EventFile in .* is closed: make a new one"):
        file.add_scalars({"a": 1.0}, 1)


def test_threads_lose_nothing_and_mix_nothing(tmp_path: Path) -> None:
    file = EventFile(tmp_path, max_file_bytes=20_000)

    def write(number: int) -> None:
        for step in range(500):
            if step % 50 == 0:
                file.add_values([summaries.text(f"text {number}", "x" * 1000)], step)
            file.add_scalars({f"tag {number}": float(step)}, step)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    assert event_files(tmp_path) == file.take_closed()
    expected = {f"tag {number}": [(step, float(step)) for step in range(500)] for number in range(4)}
    assert expected == read_scalars(tmp_path)


@pytest.mark.parametrize("flush", ["", "file.flush()"])
def test_sigkill_loses_nothing(tmp_path: Path, flush: str) -> None:
    script = f"""
        import os, signal, sys
        from wherry.loggers.event_files.event_file import EventFile
        file = EventFile(sys.argv[1])
        for step in range(1000):
            file.add_scalars({{"loss": float(step)}}, step)
        {flush}
        os.kill(os.getpid(), signal.SIGKILL)
    """
    run_script(script, tmp_path, expected=-signal.SIGKILL)
    assert [(step, float(step)) for step in range(1000)] == read_scalars(tmp_path)["loss"]


def test_whatever_instant_it_is_killed_at_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    script = """
        import sys
        from wherry.loggers.event_files.event_file import EventFile
        file = EventFile(sys.argv[1], max_file_bytes=2000)
        for step in range(10**9):
            file.add_scalars({"loss": float(step)}, step)
            print(step, flush=True)
    """
    with Program([sys.executable, "-c", textwrap.dedent(script), tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "200\n":
                process.kill()
                break
        last = [int(line) for line in process.stdout][-1:] or [200]
    steps = [event.step for event in read_events(*event_files(tmp_path), may_be_torn=True)]
    assert list(range(len(steps))) == steps
    assert len(steps) > last[0]


def test_after_a_fork_each_writes_a_file_of_its_own(tmp_path: Path) -> None:
    script = """
        import os, sys, threading
        from wherry.loggers.event_files.event_file import EventFile
        file = EventFile(sys.argv[1])
        file.add_scalars({"before": 1.0}, 0)
        file.roll()
        file.add_scalars({"before": 1.0}, 1)
        held, go_on = threading.Event(), threading.Event()
        def hold():
            with file._lock:
                held.set()
                go_on.wait()
        thread = threading.Thread(target=hold)
        thread.start()  # another thread has the lock at the very moment of the fork
        held.wait()
        child = os.fork()
        if child == 0:
            file.add_scalars({"child": 1.0}, 2)
            file.close()
            assert 1 == len(file.take_closed())
            os._exit(0)
        go_on.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        file.add_scalars({"parent": 1.0}, 3)
        file.close()
        assert 2 == len(file.take_closed())
    """
    run_script(script, tmp_path)
    said = sorted(
        sorted(f"{event.step} {value.tag}" for event in read_events(path) for value in event.values)
        for path in event_files(tmp_path)
    )
    assert [["0 before"], ["1 before", "3 parent"], ["2 child"]] == said


def test_a_full_disk_is_reported_and_the_file_stays_whole(tmp_path: Path) -> None:
    script = """
        import errno, os, subprocess, sys
        from pathlib import Path
        from tfevents import read_events, event_files
        from wherry.loggers.event_files import summaries
        from wherry.loggers.event_files.event_file import EventFile
        folder = Path(sys.argv[1])
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
        ballast = folder / "ballast"
        ballast.write_bytes(b"x" * 100_000)
        file = EventFile(folder)
        written, lost = [], []
        for step in range(12):
            try:
                file.add_values([summaries.text("text", "x" * 30_000)], step)
                written.append(step)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                assert "this event is lost, the file is whole without it, and later events are tried again" in str(error), error
                assert "tfevents" in str(error), error
                lost.append(step)
            assert written == [event.step for event in read_events(*event_files(folder))]
            if step == 8:
                ballast.unlink()
        file.close()
        print(written, lost)
    """
    said = run_script(script, tmp_path, prefix=own_mounts())
    assert "[0, 1, 2, 3, 4, 9, 10, 11] [5, 6, 7, 8]\n" == said


def test_a_disk_that_is_full_from_the_start_leaves_no_file_without_its_head(tmp_path: Path) -> None:
    script = """
        import subprocess, sys
        from pathlib import Path
        from tfevents import read_scalars, event_files
        from wherry.loggers.event_files.event_file import EventFile
        folder = Path(sys.argv[1])
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
        ballast = folder / "ballast"
        ballast.write_bytes(b"x" * 65_536)
        file = EventFile(folder)
        for step in range(3):
            try:
                file.add_scalars({"a": 1.0}, step)
            except OSError:
                assert [] == event_files(folder)
                ballast.unlink(missing_ok=True)
        file.close()
        print(read_scalars(folder), len(file.take_closed()))
    """
    said = run_script(script, tmp_path, prefix=own_mounts())
    assert "{'a': [(1, 1.0), (2, 1.0)]} 1\n" == said


def test_a_write_that_ctrl_c_tore_hides_no_later_event(tmp_path: Path) -> None:
    """A file-size limit cuts the write, and its signal is made a Ctrl-C, which comes while the end is being taken back."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from tfevents import read_events, event_files
        from wherry.loggers.event_files import summaries
        from wherry.loggers.event_files.event_file import EventFile
        signal.signal(signal.SIGXFSZ, signal.default_int_handler)
        file = EventFile(sys.argv[1])
        file.add_scalars({"a": 1.0}, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        try:
            file.add_values([summaries.text("text", "x" * 30_000)], 1)
        except KeyboardInterrupt:
            print("interrupted")
        file.add_scalars({"a": 1.0}, 2)
        file.close()
        print([event.step for event in read_events(*event_files(Path(sys.argv[1])), may_be_torn=True)])
    """
    assert "interrupted\n[0, 2]\n" == run_script(script, tmp_path)


def test_a_signal_handler_may_log_while_the_same_thread_writes(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from wherry.loggers.event_files.event_file import EventFile
        file = EventFile(sys.argv[1])
        def log(*_):
            file.add_scalars({"handler": 1.0}, 0)
            file.flush()
        signal.signal(signal.SIGUSR1, log)
        with file._lock:
            os.kill(os.getpid(), signal.SIGUSR1)
            file.add_scalars({"main": 1.0}, 1)
        file.close()
    """
    run_script(script, tmp_path)
    assert {"handler": [(0, 1.0)], "main": [(1, 1.0)]} == read_scalars(tmp_path)


def test_fsync_keeps_every_event(tmp_path: Path) -> None:
    file = EventFile(tmp_path, fsync=True)
    for step in range(3):
        file.add_scalars({"a": 1.0}, step)
        file.flush()
        file.roll()
    file.close()
    assert [(0, 1.0), (1, 1.0), (2, 1.0)] == read_scalars(tmp_path)["a"]


def test_events_after_the_folder_was_removed_are_in_a_new_file_and_that_is_said_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tb"
    file = EventFile(folder)
    file.add_scalars({"a": 1.0}, 0)
    shutil.rmtree(folder)
    file.add_scalars({"a": 2.0}, 1)
    (said,) = (record.message for record in caplog.records)
    assert "was removed while it was being written" in said
    file.add_scalars({"a": 3.0}, 2)
    file.close()
    assert event_files(folder) == file.take_closed()
    assert {"a": [(1, 2.0), (2, 3.0)]} == read_scalars(folder)
    assert 1 == len(caplog.records)
