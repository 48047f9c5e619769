"""The threads of a worker, and the main thread's pauses."""

from __future__ import annotations

import threading

from support import wait_until
from wherry.agent.crew import Crew


def test_no_call_is_begun_while_the_journal_is_written_and_those_under_way_go_on() -> None:
    crew = Crew(2, lambda: None)
    begun, may_end, ended, next_one = (threading.Event() for _ in range(4))

    def long_one() -> None:
        begun.set()
        assert may_end.wait(60.0)
        ended.set()

    def write() -> str:
        crew.start(next_one.set)
        may_end.set()
        assert ended.wait(60.0)
        wait_until(lambda: len(crew) == 1)  # the long one is gone, the next one has a thread of its own
        assert not next_one.wait(0.1)
        return "written"

    crew.start(long_one)
    assert begun.wait(60.0)
    assert "written" == crew.paused(write)
    assert next_one.wait(60.0)
    crew.shutdown()


def test_an_error_while_the_journal_is_written_ends_the_pause() -> None:
    crew = Crew(1, lambda: None)

    def fail() -> None:
        raise OSError("full")

    try:
        crew.paused(fail)
    except OSError:
        done = threading.Event()
        crew.start(done.set)
        assert done.wait(60.0)
    else:
        raise AssertionError("no error")
    crew.shutdown()
