"""DaemonThreadPool: a pool of threads that works while the interpreter ends."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import Future

import pytest

from support import run_script
from wherry.posix.thread_pool import DaemonThreadPool, each_at_once


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_lanes_work_side_by_side_and_give_back_errors() -> None:
    lanes = DaemonThreadPool(2, "test-lanes")
    meet = threading.Barrier(2, timeout=60)
    futures = [lanes.submit(meet.wait) for _ in range(2)]
    assert {0, 1} == {future.result(60) for future in futures}
    with pytest.raises(ZeroDivisionError):
        lanes.submit(lambda: 1 // 0).result(60)
    lanes.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-lanes")]


def test_no_more_threads_than_lanes_and_than_calls_are_started() -> None:
    lanes = DaemonThreadPool(3, "few-lanes")
    for _ in range(2):
        lanes.submit(int).result(60)
    assert 1 <= len(threads_of("few-lanes")) <= 2
    lanes.start()
    assert 3 == len(threads_of("few-lanes"))
    lanes.shutdown()


def test_a_pool_that_was_shut_down_takes_nothing_and_cancels_what_waits() -> None:
    lanes = DaemonThreadPool(1, "shut-lanes")
    begun, may_end = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert may_end.wait(60)
        return "done"

    first: Future[str] = lanes.submit(work)
    waiting = lanes.submit(work)
    assert begun.wait(60)
    lanes.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    may_end.set()
    assert "done" == first.result(60)
    with pytest.raises(RuntimeError, match="shut-lanes was shut down"):
        lanes.submit(int)


def test_the_threads_of_a_pool_that_was_dropped_end() -> None:
    lanes = DaemonThreadPool(2, "dropped-lanes")
    lanes.start()
    del lanes
    gc.collect()
    until_s = time.monotonic() + 60.0
    while threads_of("dropped-lanes"):
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize("begun", ["", "lanes.start()", "lanes.submit(int).result()"])
def test_calls_are_made_while_the_interpreter_ends(begun: str) -> None:
    """Also by a pool none of whose threads was started in time: by the thread that submits."""
    script = f"""
    import atexit
    from wherry.posix.thread_pool import DaemonThreadPool

    lanes = DaemonThreadPool(2, "lanes")
    {begun}

    @atexit.register
    def end():
        print([future.result() for future in [lanes.submit(divmod, i, 2) for i in range(4)]])
        lanes.shutdown()
    """
    assert "[(0, 0), (0, 1), (1, 0), (1, 1)]\n" == run_script(script)


def test_ctrl_c_while_a_thread_is_started_ends_all_calls() -> None:
    """The pool knows of that thread, which would take another's end otherwise, and that other would be awaited for ever."""
    script = """
    import sys
    import threading
    from wherry.posix.thread_pool import each_at_once

    stopped, seen = threading.Event(), []

    def strike(frame, event, argument):
        if frame.f_code.co_name == "wait" and frame.f_back.f_code.co_name == "start":
            seen.append(frame)
            if len(seen) == 3:
                raise KeyboardInterrupt

    sys.settrace(strike)
    try:
        each_at_once(lambda number: stopped.wait(60), range(64), stop=stopped.set)
    except KeyboardInterrupt:
        print("ended", stopped.is_set(), [thread.name for thread in threading.enumerate()])
    """
    assert "ended True ['MainThread']\n" == run_script(script)


@pytest.mark.parametrize(
    "wait", ["first_done([never])", "result_of(never)", "wait_for(changed, lambda: False)", "wait_for_end(asleep)"]
)
def test_ctrl_c_that_interrupts_no_call_ends_each_wait(wait: str) -> None:
    """As it is when it comes just before the call: here another thread is told."""
    script = f"""
    import signal
    import threading
    import time
    from concurrent.futures import Future
    from wherry.posix.thread_pool import first_done, result_of, wait_for, wait_for_end

    never, changed = Future(), threading.Condition()

    def strike():
        time.sleep(0.2)  # nobody can tell when the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    asleep = threading.Thread(target=threading.Event().wait, daemon=True)
    asleep.start()
    try:
        threading.Thread(target=strike).start()
        with changed:
            {wait}
    except KeyboardInterrupt:
        print("ended")
    """
    assert "ended\n" == run_script(script)


def test_the_first_error_of_calls_side_by_side_tells_the_others_to_stop() -> None:
    stopped = threading.Event()

    def call(number: int) -> None:
        if number == 0:
            raise ZeroDivisionError
        assert stopped.wait(60)

    with pytest.raises(ZeroDivisionError):
        each_at_once(call, range(64), stop=stopped.set)
