"""How users' programs really look: no main guard, no close(), forks, spawns, threads, notebooks, Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gate import Gate, wait_until
from support import without_waits
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def _names(gate: Gate) -> set[str]:
    return {path.name for path in gate.dest.iterdir()}


def test_script_without_close_drains_at_exit(gate: Gate) -> None:
    gate.open()
    code, output = gate.run("""
    import wherry
    def train():
        uploader = wherry.Uploader("gated://x")
        with uploader.open("a") as file:
            file.write(b"a")
    train()
    """)
    assert (0, "") == (code, without_waits(output))
    assert {"a"} == _names(gate)


def test_uncaught_exception_still_drains_and_shows_itself(gate: Gate) -> None:
    gate.open()
    code, output = gate.run("""
    import wherry
    with wherry.Uploader("gated://x") as uploader:
        uploader.open("a").close()
        raise RuntimeError("training diverged")
    """)
    assert 1 == code
    assert "training diverged" in output
    assert {"a"} == _names(gate)


def test_fork_after_use(gate: Gate) -> None:
    gate.open()
    code, output = gate.run("""
    import os, wherry
    uploader = wherry.Uploader("gated://x")
    uploader.open("before").close()
    if (child := os.fork()) == 0:
        writer = uploader.open("child")
        writer.close()
        assert writer.handle.wait(60)
        os._exit(0)
    uploader.open("parent").close()
    assert os.waitpid(child, 0)[1] == 0
    uploader.close()
    """)
    assert (0, "") == (code, output)
    assert {"before", "child", "parent"} == _names(gate)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_children_upload(gate: Gate, method: str) -> None:
    gate.open()
    # A script in a file without a main guard cannot use spawn at all, wherry or not; what wherry starts needs none.
    script = gate.folder / "train.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, wherry

        def child(i):
            with wherry.Uploader("gated://x") as uploader:
                uploader.open(f"child{{i}}").close()

        if __name__ == "__main__":
            uploader = wherry.Uploader("gated://x")
            uploader.open("parent").close()
            context = multiprocessing.get_context("{method}")
            children = [context.Process(target=child, args=(i,)) for i in range(3)]
            for one in children:
                one.start()
            for one in children:
                one.join()
            assert [one.exitcode for one in children] == [0, 0, 0]
        """)
    )
    done = subprocess.run(
        [sys.executable, script], env=gate.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (0, "") == (done.returncode, without_waits(done.stderr))
    assert {"parent", "child0", "child1", "child2"} == _names(gate)


def test_threads_share_an_uploader(gate: Gate) -> None:
    gate.open()
    code, output = gate.run("""
    import threading, wherry
    uploader = wherry.Uploader("gated://x")
    def work(n):
        for i in range(20):
            with uploader.open(f"{n}-{i}") as file:
                file.write(b"%d" % i)
        assert file.handle.wait(60)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    uploader.close()
    """)
    assert (0, "") == (code, output)
    assert 160 == len(_names(gate))


def test_many_ranks_share_a_spool_and_one_agent(gate: Gate) -> None:
    text = """
    import sys, wherry
    uploader = wherry.Uploader("gated://x")
    for i in range(20):
        uploader.open(f"rank{sys.argv[1]}-{i}").close()
    print("here", flush=True)
    """
    ranks = [gate.script(text, str(rank)) for rank in range(6)]
    for rank in ranks:  # an agent that has nothing to do for two seconds leaves, and a late rank would start another
        assert rank.stdout is not None
        assert "here\n" == rank.stdout.readline()
    gate.open()
    for rank in ranks:
        with rank:
            output, _ = rank.communicate(timeout=60)
        assert (0, output) == (rank.returncode, output)
    assert 120 == len(_names(gate))
    assert 1 == (gate.spool / "agent.log").read_text().count("is up")


def test_agent_closes_what_it_inherits(gate: Gate) -> None:
    """A GPU or a listening socket that the trainer had open must be free when the trainer is dead."""
    gate.run("""
    import os, wherry
    fd = os.open(os.environ["GATE"] + "/device", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(fd, True)
    wherry.Uploader("gated://x").open("a").close()
    os._exit(0)
    """)
    agent = gate.agent()
    open_files = {file.path for process in [agent, *agent.children()] for file in process.open_files()}
    assert str(gate.folder / "device") not in open_files
    gate.open()


def test_second_ctrl_c_leaves_the_rest_and_says_how_to_finish(gate: Gate) -> None:
    text = """
    import os, time, wherry
    uploader = wherry.Uploader("gated://x")
    for i in range(5):
        with uploader.open(f"{i}") as file:
            file.write(b"x" * 1000)
    print("training", flush=True)
    while True:
        time.sleep(0.05)  # a signal that comes as a call to the system begins does not interrupt that
    """
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", textwrap.dedent(text)],
        env=gate.environment, stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True,
    )  # fmt: skip
    os.close(secondary)
    seen = ""

    def read_until(pattern: str) -> None:
        nonlocal seen
        until_s = time.monotonic() + 60
        while not re.search(pattern, seen):
            assert time.monotonic() < until_s, seen
            if select.select([primary], [], [], 1.0)[0]:
                try:
                    seen += os.read(primary, 4096).decode(errors="replace")
                except OSError:  # the other end is closed: EIO on Linux
                    assert re.search(pattern, seen), seen

    read_until("training")
    os.killpg(process.pid, signal.SIGINT)
    read_until(r"uploading, 5 files left")
    os.killpg(process.pid, signal.SIGINT)
    read_until(rf"To wait: wherry drain --spool {re.escape(str(gate.spool))}")
    process.wait(60)
    os.close(primary)
    assert set() == _names(gate)
    gate.open()
    gate.drain()
    assert {"0", "1", "2", "3", "4"} == _names(gate)


def test_drain_at_exit_can_be_limited(gate: Gate) -> None:
    code, output = gate.run("""
    import wherry
    uploader = wherry.Uploader("gated://x", config=wherry.Config(drain_at_exit_s=0.1))
    uploader.open("a").close()
    """)
    assert 0 == code
    assert "1 upload to gated://x/ is not finished after 0.1 s" in output
    gate.open()
    gate.drain()
    assert {"a"} == _names(gate)


@pytest.mark.large
def test_notebook(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    gate.open()
    for name, value in gate.environment.items():
        monkeypatch.setenv(name, value)
    cells = [
        'import wherry\nuploader = wherry.Uploader("gated://x")',
        'handle = uploader.put(__import__("os").environ["GATE"] + "/file", "from-notebook")\nhandle.wait(60)',
        "handle.state.value",
    ]
    (gate.folder / "file").write_bytes(b"notebook")
    code: dict[str, object] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    notebook = nbformat.from_dict(  # type: ignore[no-untyped-call]  # the library has no types
        {
            "cells": [{**code, "id": f"cell{i}", "source": cell} for i, cell in enumerate(cells)],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    assert "'done'" == notebook.cells[2].outputs[0]["data"]["text/plain"]
    assert b"notebook" == (gate.dest / "from-notebook").read_bytes()
    wait_until(lambda: pid_of_agent(Spool(gate.spool)) is None, what="the agent to leave")
