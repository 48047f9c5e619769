"""The real command ``wherry`` in processes of its own: as a script runs it, and as a person at a terminal does."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from fcntl import ioctl
from pathlib import Path

import pytest

from gate import Gate
from programs import Program
from servers.warm import Running, Warm
from support import end_agent

#: Makes standard input the controlling terminal, so that a Ctrl-C typed there is a signal to the whole group.
_LAUNCH = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
_WHERRY = [sys.executable, "-m", "wherry.cli"]
WARM_COMMANDS = Warm("servers.warm_command:command")


def is_plain(command: str) -> bool:
    """Is this `wherry` with its arguments, with nothing that a shell does but to split them and to take off quotes?"""
    return re.fullmatch(r"wherry( [\w./:=@,-]+| '[^']*')+", command) is not None


class CommandLine:
    """Runs ``wherry`` in `folder`, with a spool of its own there that is made by the first command which needs one."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.environment = {**os.environ, **(environment or {}), "WHERRY_SPOOL": str(self.spool), "COLUMNS": "80"}

    def run(
        self, *arguments: object, expected: int = 0, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> tuple[str, str]:
        """Run one command to its end: (stdout, stderr). Its exit code must be `expected`."""
        given, environment = [*map(str, arguments)], {**self.environment, **(env or {})}
        if WARM_COMMANDS.can_run(environment):
            done = WARM_COMMANDS.run(given, self.folder, environment, stdin, 90.0)
        else:
            done = subprocess.run(
                [*_WHERRY, *given],
                cwd=self.folder,
                env=environment,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
        assert expected == done.returncode, (done.stdout, done.stderr)
        return done.stdout, done.stderr

    def refuse(self, *arguments: object, expected: int, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
        """Run a command that must fail, with a message on stderr, nothing on stdout and no traceback: that message."""
        out, err = self.run(*arguments, expected=expected, env=env, stdin=stdin)
        assert "" == out
        assert err.startswith("wherry: ")
        assert "Traceback" not in err
        return err

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command that goes on; its stderr is a pipe."""
        return Program(
            [*_WHERRY, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


class Terminal:
    """A command, of `program`, on a terminal of 24 lines: what it shows, and what is typed."""

    def __init__(
        self,
        line: CommandLine,
        *arguments: object,
        program: Sequence[str] = _WHERRY,
        columns: int = 80,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.seen = ""
        self._primary, secondary = pty.openpty()
        ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in line.environment.items() if name != "COLUMNS"} | {
            "TERM": "xterm",
            **(env or {}),
        }
        streams = (secondary, secondary, secondary)
        self._process: Running | Program[bytes]
        if program is _WHERRY and WARM_COMMANDS.can_run(environment):
            self._process = WARM_COMMANDS.start([*map(str, arguments)], line.folder, environment, streams, on_a_terminal=True)
        else:
            command = [sys.executable, "-c", _LAUNCH, *program, *map(str, arguments)]
            stdin, stdout, stderr = streams
            self._process = Program(
                command, cwd=line.folder, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
        os.close(secondary)

    def read_until(self, pattern: str, timeout_s: float = 60.0) -> None:
        """Wait until what was shown since the start matches."""
        until_s = time.monotonic() + timeout_s
        while not re.search(pattern, self.seen):
            assert time.monotonic() < until_s, self.seen
            if select.select([self._primary], [], [], 1.0)[0] and not self._read():
                assert re.search(pattern, self.seen), self.seen

    def _read(self) -> bool:
        try:
            data = os.read(self._primary, 65536)
        except OSError:  # the other end is closed: EIO on Linux
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def type(self, text: str) -> None:
        """Type; ``\\x03`` is Ctrl-C."""
        os.write(self._primary, text.encode())

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        while self._read():
            pass
        code = self._process.wait(60)
        os.close(self._primary)
        return code


@pytest.fixture
def line(tmp_path: Path) -> Iterator[CommandLine]:
    """A command line; the agent of its spool is ended after the test."""
    line = CommandLine(tmp_path)
    with end_agent(line.spool):
        yield line


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


@pytest.fixture
def gated(gate: Gate) -> Iterator[CommandLine]:
    """A command line whose uploads to ``gated://x`` wait until the gate opens."""
    line = CommandLine(gate.folder, gate.environment)
    with end_agent(line.spool):
        yield line
