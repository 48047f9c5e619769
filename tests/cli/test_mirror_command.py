"""``wherry mirror DIR URI -- COMMAND``: the command's signals and exit code are its own, and what it wrote is stored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line import CommandLine, Terminal
from gate import wait_until
from programs import Program

#: Writes to the log until it is told to end; says which signal told it.
_UNTIL_TOLD = """
import os, pathlib, signal, sys
def end(number, frame):
    pathlib.Path("run/a.log").write_text(f"told {number}\\n")
    sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, end)
pathlib.Path("run/a.log").write_text("ready\\n")
pathlib.Path("pid").write_text(str(os.getpid()))
while True:
    signal.pause()
"""
#: Runs a command; two signals come when it has been waited for and its exit code is not yet known.
_TOLD_BETWEEN = """
import os, signal, subprocess
from wherry.cli.shell.child_command import ChildCommand
wait = subprocess.Popen.wait
def wait_and_be_told(process):
    code = wait(process)
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
    return code
subprocess.Popen.wait = wait_and_be_told
command = ChildCommand(["bash", "-c", "exit 7"])
with command.signals():
    command.run()
"""
_DEAD = ("s3://bucket/x", "-o", "endpoint_url=http://127.0.0.1:9", "-o", "anonymous=true")


@pytest.fixture(autouse=True)
def hangup_is_not_ignored() -> Iterator[None]:
    """As it is for all below `nohup`: what the tests start would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def beside(line: CommandLine, target: tuple[str, ...], program: str) -> Iterator[subprocess.Popen[str]]:
    """A mirror beside a program that has begun."""
    (line.folder / "run").mkdir(exist_ok=True)
    with line.start("mirror", "run", *target, "--", sys.executable, "-c", program) as process:
        wait_until((line.folder / "pid").exists, what="the command")
        try:
            yield process
        finally:
            process.kill()


def stored(line: CommandLine) -> str:
    return (line.folder / "bucket/a.log").read_text()


@pytest.mark.parametrize(("ending", "code"), [("exit 0", 0), ("exit 5", 5), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_the_exit_code_is_that_of_the_command(line: CommandLine, ending: str, code: int) -> None:
    (line.folder / "run").mkdir()
    script = f"echo said; echo written > run/a.log; {ending}"
    out, err = line.run("mirror", "run", "bucket", "--", "bash", "-c", script, expected=code)
    assert "said\n" == out, "standard output is the command's"
    assert "complete  1 file," in err
    assert "written\n" == stored(line)


def test_options_behind_the_dashes_are_those_of_the_command(line: CommandLine) -> None:
    (line.folder / "run").mkdir()
    out, _ = line.run("mirror", "start", "run", "bucket", "--no-seal", "--", "echo", "--json", "-x", "--", "y")
    assert "--json -x -- y\n" == out


@pytest.mark.parametrize(("command", "code", "message"), [("no-such", 127, "command not found"), ("./run", 126, "cannot be run")])
def test_a_command_that_is_not_there_mirrors_nothing(line: CommandLine, command: str, code: int, message: str) -> None:
    (line.folder / "run").mkdir()
    assert message in line.refuse("mirror", "run", "bucket", "--", command, expected=code)
    assert not (line.folder / "bucket").exists()


def test_a_command_that_an_empty_variable_left_out_is_refused(line: CommandLine) -> None:
    (line.folder / "run").mkdir()
    _, err = line.run("mirror", "run", "bucket", "--", expected=2)
    assert "no command follows the --" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_command_whose_end_is_waited_for(line: CommandLine, number: signal.Signals) -> None:
    with beside(line, ("bucket",), _UNTIL_TOLD) as process:
        process.send_signal(number)
        assert 7 == process.wait(60)
    assert f"told {int(number)}\n" == stored(line)


def test_ctrl_c_on_a_terminal_reaches_the_command_once_each(line: CommandLine) -> None:
    (line.folder / "run").mkdir()
    script = "n=0; trap 'n=$((n+1)); echo int $n; [ $n = 2 ] && exit 9' INT; echo begun; while :; do read -t 1; done"
    terminal = Terminal(line, "mirror", "run", "bucket", "--", "bash", "-c", script)
    terminal.read_until("begun")
    terminal.type("\x03")
    terminal.read_until("int 1")
    terminal.type("\x03")
    assert 9 == terminal.end()
    assert "int 2" in terminal.seen
    assert "int 3" not in terminal.seen


def test_a_second_signal_after_the_end_of_the_command_ends_the_sending(line: CommandLine) -> None:
    with beside(line, _DEAD, _UNTIL_TOLD) as process:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "told" in (line.folder / "run/a.log").read_text(), what="the command's end")
        pid = int((line.folder / "pid").read_text())
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the command to be waited for")
        process.send_signal(signal.SIGTERM)
        assert 7 == process.wait(60)
        assert process.stderr is not None
        assert "wherry mirror resume" in process.stderr.read()


def test_a_signal_between_the_end_of_the_command_and_its_code_is_not_lost() -> None:
    with Program([sys.executable, "-c", _TOLD_BETWEEN], stderr=subprocess.PIPE, text=True) as process:
        _, err = process.communicate(timeout=60)
    assert 7 == process.returncode
    assert "wherry mirror resume" in err


def test_an_unsent_rest_has_an_exit_code_of_its_own_only_if_the_command_has_not(line: CommandLine) -> None:
    (line.folder / "run").mkdir()
    script = "echo written > run/a.log; wherry mirror resume run2 bucket --writer w > /dev/null; exit "
    (line.folder / "run2").mkdir()
    (line.folder / "wherry").write_text(f'#!/bin/sh\nexec {sys.executable} -m wherry.cli "$@"\n')
    (line.folder / "wherry").chmod(0o755)
    path = {"PATH": f"{line.folder}:{os.environ['PATH']}"}
    for code, expected in ((0, 1), (3, 3)):
        (line.folder / "run2/b.log").write_text(f"{code}")
        words = ("mirror", "run", "bucket", "--writer", "w", "--", "bash", "-c", f"{script}{code}")
        _, err = line.run(*words, expected=expected, env=path)
        assert "another process mirrors as 'w'" in err
        assert "not all is stored. To send the rest: wherry mirror resume" in err


def test_a_killed_wherry_leaves_the_command_alone_and_loses_nothing(line: CommandLine) -> None:
    with beside(line, ("bucket",), _UNTIL_TOLD) as process:
        process.send_signal(signal.SIGKILL)
        assert -signal.SIGKILL == process.wait(60)
        os.kill(int((line.folder / "pid").read_text()), signal.SIGTERM)  # it lives
        wait_until(lambda: "told" in (line.folder / "run/a.log").read_text(), what="the command's end")
    line.run("mirror", "resume", "run", "bucket")
    assert "told 15\n" == stored(line)


def test_what_nohup_ignores_the_command_ignores(line: CommandLine) -> None:
    (line.folder / "run").mkdir()
    words = [sys.executable, "-m", "wherry.cli", "mirror", "run", "bucket", "--", "bash", "-c", "kill -HUP $$; exit 4"]
    with Program(["nohup", *words], cwd=line.folder, env=line.environment, stdout=subprocess.DEVNULL) as process:
        assert 4 == process.wait(60)
