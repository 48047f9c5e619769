"""A forked child logs, whatever other threads of its parent were doing: a DataLoader's worker must not wait for them for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import run_script

#: What has the lock, and what a worker does.
NOWHERE = "open(os.devnull, 'w')"
CASES = {
    "console": (
        f"it = ConsoleLogger({NOWHERE}, config=ConsoleConfig(force=True, every_s=0))",
        "it.log_metrics({'a': 1})",
    ),
    "memory": ("it = InMemoryLogger()", "it.log_metrics({'a': 1}); it.log_text('a'); it.keys()"),
    "bar": (
        f"it = ProgressBarLogger({NOWHERE}, config=ProgressBarConfig(force=True)); it.epoch_start(State('r'), None)",
        "it.log_metrics({'a': 1})",
    ),
    "router": (
        "logger = Logger(State('r'), InMemoryLogger()); it = logger._routes[0]; it.is_open = False",
        "logger.log_metrics({'a': 1})",
    ),
    "typed": ("it = MultiLogger()", "it.log_scalar('a', 1.0)"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_forked_child_logs_while_a_thread_of_its_parent_is_inside_the_logger(tmp_path: Path, case: str) -> None:
    make, use = CASES[case]
    script = f"""
        import os, signal, threading, warnings
        from wherry.loggers import *

        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: that it works is the point
        {make}
        held, go_on = threading.Event(), threading.Event()
        def hold():
            with it._lock:
                held.set()
                go_on.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        if not (child := os.fork()):
            signal.alarm(30)  # else it waits for ever
            {use}
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        go_on.set()
        thread.join()
        assert code == 0, code
        {use}  # and the parent goes on
    """
    run_script(script, tmp_path)
