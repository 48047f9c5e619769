"""FileLogger when the run fails, is interrupted or killed, forks, or cannot write."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from file_logs import PROLOGUE, QUIET, of_script
from support import end_agent, open_files, own_mounts, run_script, wait_until
from wherry.loggers.destinations.file import FileLogger


def test_the_log_of_a_run_that_failed_is_in_the_store(tmp_path: Path) -> None:
    """Also if nobody closes anything; its last lines are the traceback."""
    shown, lines = of_script(
        tmp_path,
        """
        store = ObjectStoreLogger(folder + "/store", spool=folder + "/spool")
        logger = Logger(State("run"), [FileLogger("log.txt", folder=folder), store])
        logger.run_event(Event.INIT)
        print("working")
        raise ValueError("no")
        """,
        expected=1,
    )
    assert 1 == shown.count("ValueError: no")
    assert ["[stdout]: working", "[exception]: Traceback (most recent call last):"] == lines[:2]
    assert "[exception]: ValueError: no" == lines[-1]
    with end_agent(tmp_path / "spool"):
        wait_until((tmp_path / "store" / "log.txt").exists, what="the agent to upload the log")
    assert lines == (tmp_path / "store" / "log.txt").read_text().splitlines()


@pytest.mark.parametrize(
    "end",
    [
        "raise ValueError('no')",
        "try:\n    raise ValueError('no')\nfinally:\n    logger.close()",
        "with logger:\n    raise ValueError('no')",
        "with file:\n    raise ValueError('no')",
        "sys.excepthook = lambda kind, error, trace: before(kind, error, trace)\nraise ValueError('no')",
    ],
)
def test_the_traceback_is_the_last_thing_in_the_file(tmp_path: Path, end: str) -> None:
    shown, lines = of_script(
        tmp_path,
        f"""
atexit.register(print, "late")
file = FileLogger("log.txt", folder=folder)
before = sys.excepthook
logger = Logger(State("run"), file)
logger.run_event(Event.INIT)
print("working")
sys.stdout.write("no end of line")
atexit.register(print, "later")
{end}
""",
        expected=1,
    )
    assert ["[stdout]: working", "[stdout]: no end of line", "[exception]: Traceback (most recent call last):"] == lines[:3]
    assert "[exception]: ValueError: no" == lines[-1]
    assert 1 == "".join(lines).count("ValueError: no")
    assert 1 == shown.count("ValueError: no")
    assert {"later", "late"} <= set(shown.splitlines())


def test_ctrl_c_is_the_last_thing_in_the_file(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        'file = FileLogger("log.txt", folder=folder)\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()',
        expected=-signal.SIGINT,
    )
    assert "[exception]: KeyboardInterrupt" == lines[-1]


@pytest.mark.parametrize(("status", "last"), [(0, "[stdout]: bye"), (3, "[exception]: SystemExit: 3")])
def test_an_exit_that_is_no_failure_leaves_no_traceback(tmp_path: Path, status: int, last: str) -> None:
    _, lines = of_script(
        tmp_path,
        f'with FileLogger("log.txt", folder=folder):\n    print("bye")\n    sys.exit({status})',
        expected=status,
    )
    assert last == lines[-1]


def test_an_exception_of_another_thread_is_printed_and_the_log_goes_on(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        """
        file = FileLogger("log.txt", folder=folder)
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        file.log_text("goes on")
        """,
    )
    assert "[stderr]: ZeroDivisionError: division by zero" in lines
    assert "[text][step=0] Text: goes on" in lines


def test_sigterm_loses_no_line(tmp_path: Path) -> None:
    shown, lines = of_script(
        tmp_path,
        """
        file = FileLogger("log.txt", folder=folder)
        print("working", flush=True)
        file.log_text("last")
        os.kill(os.getpid(), signal.SIGTERM)
        """,
        expected=-signal.SIGTERM,
    )
    assert ["[stdout]: working", "[text][step=0] Text: last"] == lines
    assert "working\n" == shown


def test_sigterm_as_an_exception_closes_the_log(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with FileLogger("log.txt", folder=folder):
            print("working")
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        """,
        expected=143,
    )
    assert ["[stdout]: working", "[exception]: SystemExit: 143"] == [lines[0], lines[-1]]


def test_the_end_of_the_interpreter_closes_the_log(tmp_path: Path) -> None:
    _, lines = of_script(tmp_path, 'file = FileLogger("log.txt", folder=folder)\nsys.stdout.write("no end")')
    assert ["[stdout]: no end"] == lines


def test_hooks_are_put_back(tmp_path: Path) -> None:
    before = sys.excepthook
    with FileLogger("log.txt", folder=tmp_path, config=QUIET), FileLogger("other.txt", folder=tmp_path, config=QUIET):
        assert before is not sys.excepthook
    assert before is sys.excepthook


def test_a_forked_child_does_not_close_the_log_of_its_parent(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        """
        file = FileLogger("log.txt", folder=folder)
        logger = Logger(State("run"), file)
        logger.run_event(Event.INIT)
        pid = os.fork()
        if not pid:
            logger.log_metrics({"a": 1})  # reported: it belongs to the parent
            logger.run_event(Event.EPOCH_END)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        pid = os.fork()
        if not pid:
            raise ValueError("of the child")
        os.waitpid(pid, 0)
        print("parent")
        logger.log_metrics({"a": 2})
        """,
    )
    others = [line for line in lines if not line.startswith("[stderr]")]  # there is no order between the two streams
    assert ["[stdout]: parent", '[metric][step=0]: {"a": 2}'] == others[-2:]
    assert 1 == sum("belongs to process" in line and "Traceback" not in line for line in lines if "failed" in line)
    assert 1 == sum("ValueError: of the child" in line for line in lines)
    assert not any(line.startswith("[exception]") for line in lines)


def test_flush_is_a_barrier(tmp_path: Path) -> None:
    shown, _ = of_script(
        tmp_path,
        """
        file = FileLogger("log.txt", folder=folder)
        for i in range(100):
            sys.stdout.write(f"{i}\\n")
            file.flush()
            assert open(folder + "/log.txt").read().splitlines()[-1] == f"[stdout]: {i}"
        """,
    )
    assert [str(i) for i in range(100)] == shown.split()


def test_a_full_disk_loses_lines_and_not_the_run_and_is_said_once(tmp_path: Path) -> None:
    """On a real file system of 64 KiB. What was lost is counted in the file when there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    _, lines = of_script(
        tmp_path,
        """
        import shutil, subprocess
        disk = folder + "/disk"
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
        open(disk + "/other", "w").write("x" * 16_000)
        file = FileLogger("log.txt", folder=disk)
        logger = Logger(State("run"), file)
        for i in range(100):
            logger.log_text(f"{i} " + "x" * 1000)
        file.flush()
        os.remove(disk + "/other")
        logger.log_text("room again")
        logger.close()
        print("run goes on")
        shutil.copy(disk + "/log.txt", folder)
        """,
        prefix=own_mounts(),
    )
    kept = [line for line in lines if line.startswith("[text]")]
    (lost,) = (line for line in lines if "could not be written and are lost" in line)
    assert "[text][step=0] Text: room again" == [line for line in lines if not line.startswith("[stderr]")][-1]
    warnings = [line for line in lines if "No space left on device" in line]
    n_lost = int(lost.split()[1])
    assert 100 + 1 + 1 <= len(kept) + n_lost <= 100 + 1 + 3 - len(warnings)


def test_a_folder_that_cannot_be_written_stops_nothing_and_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    shown = run_script(
        PROLOGUE
        + """
file = FileLogger("a file/log.txt", folder=folder)
logger = Logger(State("run"), file)
for i in range(3):
    logger.log_text("x")
    file.flush()
logger.close()
print("run goes on")
""",
        tmp_path,
    )
    assert 1 == shown.count("cannot write")
    assert "a file/log.txt: File exists" in shown
    assert shown.endswith("run goes on\n")


def test_it_works_under_pytest(tmp_path: Path) -> None:
    """Whose own capture replaces the same descriptors, in the process that the test runs in."""
    (tmp_path / "test_inner.py").write_text(
        "from wherry.loggers.destinations.file import FileLogger\n"
        "import os\n"
        "def test_prints(capfd, tmp_path):\n"
        "    with FileLogger('log.txt', folder=tmp_path):\n"
        "        os.write(1, b'printed\\n')\n"
        "    assert capfd.readouterr().out == 'printed\\n'\n"
        "    assert (tmp_path / 'log.txt').read_text() == '[stdout]: printed\\n'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert 0 == done.returncode, done.stdout + done.stderr


def test_logging_of_the_run_is_captured(tmp_path: Path) -> None:
    _, lines = of_script(
        tmp_path,
        'import logging\nwith FileLogger("log.txt", folder=folder):\n    logging.warning("careful")',
    )
    assert ["[stderr]: WARNING:root:careful"] == lines


def test_a_crash_of_a_callback_hook_is_shown_and_stops_no_other(tmp_path: Path) -> None:
    shown = run_script(
        """
        from wherry.loggers.capture.exit_hooks import before_traceback
        def broken(error):
            raise RuntimeError("broken hook")
        before_traceback(lambda error: print("first", error))
        before_traceback(broken)
        raise ValueError("no")
        """,
        expected=1,
    )
    assert {"RuntimeError: broken hook", "first no", "ValueError: no"} <= set(shown.splitlines())


def test_nothing_is_left_open(tmp_path: Path) -> None:
    before = open_files()
    for _ in range(3):
        with suppress(ValueError), FileLogger("log.txt", folder=tmp_path, config=QUIET) as file:
            file.log_text("x")
            raise ValueError
    assert set() == open_files() - before
    assert logging.getLogger("wherry").handlers == []


def test_a_log_that_is_removed_meanwhile_is_begun_anew_and_that_is_said(tmp_path: Path) -> None:
    shown = run_script(
        PROLOGUE
        + """
import shutil
file = FileLogger("logs/log.txt", folder=folder)
logger = Logger(State("run"), file)
logger.run_event(Event.INIT)
logger.log_text("before")
file.flush()
shutil.rmtree(os.path.join(folder, "logs"))
logger.log_text("after")
logger.log_text("and on")
logger.close()
""",
        tmp_path,
    )
    assert 1 == shown.count("log.txt was removed while it was being written")
    assert ["log.txt"] == os.listdir(tmp_path / "logs")
    lines = (tmp_path / "logs/log.txt").read_text().splitlines()
    assert ["after", "and on"] == [line.split(": ")[1] for line in lines if line.startswith("[text]")]
