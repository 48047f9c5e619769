"""Background: everything accepted is done, in order, once; errors are raised once; exits and forks lose nothing."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from gate import wait_until
from wherry.loggers.files.background import Background


def fail(text: str) -> None:
    raise ValueError(text)


def test_work_is_done_in_order_by_one_thread_that_is_not_the_callers() -> None:
    background = Background("test")
    done: list[int] = []
    threads: set[int] = set()

    def work(i: int) -> None:
        done.append(i)
        threads.add(threading.get_ident())

    for i in range(100):
        background.submit(partial(work, i))
    background.flush()
    assert done == list(range(100))
    assert threading.get_ident() not in threads


def test_no_thread_is_left_when_there_is_nothing_to_do() -> None:
    background = Background("idle")
    background.submit(lambda: None)
    background.flush()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "wherry-idle"])


def test_flush_waits_for_what_was_submitted_before() -> None:
    background = Background("test")
    gate = threading.Event()
    done: list[str] = []

    def work() -> None:
        gate.wait(60)
        done.append("first")

    background.submit(work)
    waiting = threading.Thread(target=background.flush)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.set()
    waiting.join(60)
    assert not waiting.is_alive()
    assert done == ["first"]


def test_submit_blocks_while_too_much_is_pending_and_goes_on_when_there_is_room() -> None:
    background = Background("test", max_pending_bytes=10)
    gate = threading.Event()
    background.submit(lambda: gate.wait(60), pending_bytes=8)
    second = threading.Thread(target=lambda: background.submit(lambda: None, pending_bytes=8))
    second.start()
    second.join(0.05)
    assert second.is_alive()
    gate.set()
    second.join(60)
    assert not second.is_alive()
    background.close()


def test_work_that_is_larger_than_the_bound_is_accepted_when_nothing_is_pending() -> None:
    background = Background("test", max_pending_bytes=10)
    done: list[int] = []
    for i in range(3):
        background.submit(partial(done.append, i), pending_bytes=1000)
    background.close()
    assert done == [0, 1, 2]


def test_the_first_error_is_raised_once_and_later_work_is_done() -> None:
    background = Background("test")
    done: list[int] = []
    background.submit(lambda: fail("first"))
    background.submit(lambda: fail("second"))
    background.submit(lambda: done.append(1))
    with pytest.raises(ValueError, match="first"):
        background.flush()
    background.flush()
    assert done == [1]


def test_work_that_exits_neither_ends_the_thread_nor_the_program() -> None:
    background = Background("test")
    done: list[int] = []
    background.submit(lambda: sys.exit(3))
    background.submit(lambda: done.append(1))
    with pytest.raises(SystemExit):
        background.flush()
    assert done == [1]


def test_work_may_submit_and_flush_without_waiting_for_itself() -> None:
    background = Background("test", max_pending_bytes=10)
    done: list[str] = []

    def work() -> None:
        background.submit(lambda: done.append("inner"), pending_bytes=10)
        background.flush()
        done.append("outer")

    background.submit(work, pending_bytes=10)
    background.flush()
    background.close()
    assert done == ["outer", "inner"]


def test_after_close_submit_is_a_clear_error() -> None:
    background = Background("run folder")
    background.submit(lambda: None)
    background.close()
    background.close()
    with pytest.raises(RuntimeError, match="run folder is closed"):
        background.submit(lambda: None)


def test_several_threads_may_submit() -> None:
    background = Background("test", max_pending_bytes=50)
    done: list[int] = []

    def submit_many() -> None:
        for i in range(200):
            background.submit(partial(done.append, i), pending_bytes=7)

    threads = [threading.Thread(target=submit_many) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    background.flush()
    assert sorted(done) == sorted(list(range(200)) * 5)


def test_a_program_that_ends_without_close_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom wherry.loggers.files.background import Background\n"
        "background = Background('exit')\n"
        "def work(i):\n    time.sleep(0.01)\n    Path(sys.argv[1], str(i)).touch()\n"
        "for i in range(10):\n    background.submit(lambda i=i: work(i))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert len(list(tmp_path.iterdir())) == 10


def test_what_is_submitted_in_an_atexit_function_is_done(tmp_path: Path) -> None:
    program = (
        "import atexit, sys\nfrom pathlib import Path\nfrom wherry.loggers.files.background import Background\n"
        "background = Background('exit')\n"
        "@atexit.register\ndef last():\n"
        "    background.submit(Path(sys.argv[1], 'last').touch)\n    background.close()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "last").exists()


def _touch_in_child(background: Background, path: Path) -> None:
    background.submit(path.touch)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # from Python 3.12 on; that it works is the point
def test_a_forked_child_has_its_own_empty_queue_and_loses_nothing_either(tmp_path: Path) -> None:
    background = Background("fork")
    gate = threading.Event()
    done: list[str] = []

    def work() -> None:
        gate.wait(60)
        done.append("parent")

    background.submit(work)
    child = multiprocessing.get_context("fork").Process(target=_touch_in_child, args=(background, tmp_path / "child"))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert (tmp_path / "child").exists()
    gate.set()
    background.close()
    assert done == ["parent"]
    assert os.listdir(tmp_path) == ["child"]


def test_without_a_thread_the_work_is_done_by_the_caller() -> None:
    """As at the system's limit of threads; a tiny limit on memory makes a thread's stack impossible."""
    program = (
        "import resource, threading\nfrom wherry.loggers.files.background import Background\n"
        "background, done = Background('none'), []\n"
        "threading.stack_size(1 << 30)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)\n"
        "background.submit(lambda: done.append(threading.current_thread() is threading.main_thread()))\n"
        "background.close()\nprint(done)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[True]"
