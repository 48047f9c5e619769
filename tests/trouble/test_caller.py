"""Uploads made in the caller, which has no agent to clean up after it: killed, interrupted, forked."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest

from gate import Gate
from support import run_script, wait_until

SETUP = """
import logging, os, signal, sys, threading
from pathlib import Path
import wherry
from support import CALLER, wait_until

gate = Path(os.environ["GATE"])
uploader = wherry.Uploader("gated://x", config=CALLER)

def write(name, data):
    with uploader.open(name) as file:
        file.write(data)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def contents(gate: Gate) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in gate.dest.iterdir()}


def test_what_a_killed_caller_was_sending_is_sent_by_the_next(gate: Gate) -> None:
    text = SETUP + "write('a', b'of the killed one')\n"
    with gate.script(text.replace("from support import CALLER, wait_until", CALLER_ALONE)) as process:
        wait_until(gate.puts, what="the put to begin")
        process.send_signal(signal.SIGKILL)
    gate.open()
    run_script(SETUP + "write('b', b'of the next'); uploader.close()", env=gate.environment, timeout_s=60.0)
    assert {"a": b"of the killed one", "b": b"of the next"} == contents(gate)


CALLER_ALONE = """
from wherry.config import AgentConfig, Config
CALLER = Config(agent=AgentConfig(run_in="caller"))
"""


def test_a_name_that_a_killed_caller_held_is_free_again(gate: Gate) -> None:
    text = SETUP + "write('a', b'older')\n"
    with gate.script(text.replace("from support import CALLER, wait_until", CALLER_ALONE)) as process:
        wait_until(gate.puts, what="the put to begin")
        process.send_signal(signal.SIGKILL)
    gate.open()
    run_script(SETUP + "write('a', b'newer'); uploader.close()", env=gate.environment, timeout_s=60.0)
    assert {"a": b"newer"} == contents(gate)


def test_an_agent_takes_over_from_a_killed_caller_and_lets_a_living_one_be(gate: Gate) -> None:
    text = (SETUP + "write(sys.argv[1], b'data')\n").replace("from support import CALLER, wait_until", CALLER_ALONE)
    with gate.script(text, "killed") as killed, gate.script(text, "living") as living:
        wait_until(lambda: len(gate.puts()) == 2, what="both puts to begin")
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        with gate.script("import sys, wherry; uploader = wherry.Uploader('gated://x'); sys.stdin.read()") as user:
            wait_until(lambda: len(gate.puts()) > 2, what="the agent to take over")
            gate.open()
            user.wait(60.0)
        assert 0 == living.wait(60.0), living.stdout.read() if living.stdout else ""
    assert {"killed": b"data", "living": b"data"} == contents(gate)
    assert 3 == len(gate.puts())  # only the job of the dead was sent twice, whichever of the two he had


def test_an_interrupted_upload_is_finished_at_the_end(gate: Gate) -> None:
    text = """
    def interrupt():
        wait_until(lambda: (gate / "puts").exists())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        write("a", b"accepted, then interrupted")
    except KeyboardInterrupt:
        print("interrupted")
    (gate / "is_open").touch()
    uploader.close()
    """
    assert "interrupted\n" == run_script(SETUP + textwrap.dedent(text), env=gate.environment, timeout_s=60.0)
    assert {"a": b"accepted, then interrupted"} == contents(gate)


def test_ctrl_c_in_the_close_says_that_uploads_stay_in_the_spool(gate: Gate) -> None:
    """There is no background that would send them."""
    text = """
    with suppress(KeyboardInterrupt):
        write("a", b"accepted, then interrupted")
    uploader.close()
    """
    setup = "from contextlib import suppress\n" + SETUP.replace("from support import CALLER, wait_until", CALLER_ALONE)
    with gate.script(setup + textwrap.dedent(text)) as process:
        for n_puts in (1, 2):
            wait_until(lambda n_puts=n_puts: len(gate.puts()) == n_puts, what="the put to begin")  # type: ignore[misc]
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60.0)
    assert f"left in the spool: 1 upload, 26 B. To send: wherry drain --spool {gate.spool}" in output
    assert "background" not in output
    gate.open()
    gate.drain()
    assert {"a": b"accepted, then interrupted"} == contents(gate)


def test_a_forked_child_uploads_large_files_by_itself(tmp_path: Path) -> None:
    """The threads of its parent are not there any more."""
    text = """
    import os, sys
    from pathlib import Path
    import wherry
    from support import CALLER, file_of

    folder = Path(sys.argv[1])
    uploader = wherry.Uploader(folder / "dest", config=CALLER)
    source = file_of(folder / "source", 70_000_000)
    uploader.put(source, "parent").result()
    pid = os.fork()
    if pid == 0:
        uploader.put(source, "child").result()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    uploader.close()
    assert source.read_bytes() == (folder / "dest" / "parent").read_bytes() == (folder / "dest" / "child").read_bytes()
    """
    env = {"WHERRY_SPOOL": str(tmp_path / "spool"), "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    run_script(text, tmp_path, env=env, timeout_s=60.0)
