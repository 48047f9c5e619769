"""SignalEvent: what a signal handler sets, and the main thread waits for."""

from __future__ import annotations

import pytest

from support import run_script
from wherry.posix.signal_event import SignalEvent


@pytest.mark.parametrize("event", ["line", "return"])
def test_a_signal_at_any_moment_of_a_wait_ends_it(event: str) -> None:
    """Threading's own event waits for ever, if the signal comes while wait() has its lock."""
    script = """
    import os
    import signal
    import sys

    from wherry.posix.signal_event import SignalEvent

    def waits(event, at):
        told, n_seen = SignalEvent(), 0
        signal.signal(signal.SIGUSR1, lambda *_: told.set())

        def trace(frame, kind, argument):
            nonlocal n_seen
            if kind == event and not told.is_set():
                n_seen += 1
                if n_seen == at:
                    os.kill(os.getpid(), signal.SIGUSR1)
            return trace

        sys.settrace(trace)
        try:
            told.wait(0.01)
        finally:
            sys.settrace(None)
        return told.is_set()

    at = 1
    while waits(sys.argv[1], at):
        at += 1
    print(at > 1)
    """
    assert "True\n" == run_script(script, event)


def test_it_stays_set() -> None:
    told = SignalEvent()
    assert (False, False) == (told.wait(0.001), told.is_set())
    told.set()
    assert (True, True, True) == (told.wait(60.0), told.wait(60.0), told.is_set())
