"""Programs of the tests that are forked from one process which has imported what they need.

To import it takes longer than what many of them do then: half a second of a processor for a command ``wherry``, of which the
tests run thousands, nine seconds for a training with Composer. A process that is forked is one of its own in all else: it has its
own arguments, environment, folder and standard files, and it ends as any interpreter does. What an interpreter reads of its
environment when it starts is the same for all of them: see Warm.can_run().
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from fcntl import ioctl
from pathlib import Path

#: Set for one program only, these need an interpreter that starts with them.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "TZ", "LD_", "COVERAGE_", "SSL_", "OMP_")


class Running:
    """A program that was forked."""

    def __init__(self, answers: socket.socket) -> None:
        self._socket = answers
        self._lines = answers.makefile("r")
        self.pid = int(self._lines.readline())

    def wait(self, timeout_s: float) -> int:
        """Wait for its end: its exit code, negative for a signal. TimeoutError when it takes too long."""
        self._socket.settimeout(timeout_s)
        code = int(self._lines.readline())
        self.close()
        return code

    def kill(self) -> None:
        """SIGKILL, if it has not been waited for."""
        if not self._lines.closed:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait no more."""
        self._lines.close()
        self._socket.close()


class Warm:
    """A process that is started when it is needed first, and ends with the process that has started it.

    `prepare` is a function of no arguments, "module:name", of a module in tests/: it imports what is needed, and returns what a
    forked process calls. `env` is what the interpreter starts with.
    """

    def __init__(self, prepare: str, python: str | Path = sys.executable, env: Mapping[str, str] = os.environ) -> None:
        self._command = [str(python), __file__, prepare]
        self._env = env
        self._lock = threading.Lock()
        self._pid = 0
        self._control: socket.socket | None = None
        self._started_with: dict[str, str] = {}

    def can_run(self, env: Mapping[str, str]) -> bool:
        """Whether an interpreter that starts with this environment reads the same of it."""
        self._connected()
        return _read_at_start(env) == self._started_with

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        streams: tuple[int, int, int],
        *,
        on_a_terminal: bool = False,
    ) -> Running:
        """Start the program. `on_a_terminal`: in a session of its own, of which standard input is the controlling terminal."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._connected(), [b"!"], [theirs.fileno(), *streams])
        ours.sendall(json.dumps([list(arguments), str(cwd), dict(env), on_a_terminal]).encode() + b"\n")
        return Running(ours)

    def run(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: str, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run the program to its end, as subprocess.run() with its streams captured."""
        with ExitStack() as open_files:
            (read_in, write_in), (read_out, write_out), (read_err, write_err) = (os.pipe() for _ in range(3))
            to_stdin = open_files.enter_context(open(write_in, "wb", buffering=0))
            from_command = [open_files.enter_context(open(one, "rb", buffering=0)) for one in (read_out, read_err)]
            try:
                running = self.start(arguments, cwd, env, (read_in, write_out, write_err))
            finally:
                for one in (read_in, write_out, write_err):
                    os.close(one)
            open_files.callback(running.close)
            until_s = time.monotonic() + timeout_s
            try:
                out, err = _communicate(to_stdin, from_command, stdin.encode(), until_s)
                code = running.wait(max(1.0, until_s - time.monotonic()))
            except TimeoutError:
                running.kill()
                raise subprocess.TimeoutExpired(arguments, timeout_s) from None
            return subprocess.CompletedProcess(arguments, code, _text(out), _text(err))

    def _connected(self) -> socket.socket:
        with self._lock:
            if self._control is None or self._pid != os.getpid():
                self._pid, self._started_with = os.getpid(), _read_at_start(self._env)
                self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    process = subprocess.Popen(
                        [*self._command, str(theirs.fileno())],
                        env=dict(self._env),
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,  # as no terminal is, the streams that the forked ones have are those for pipes
                        stdout=subprocess.DEVNULL,
                    )
                atexit.register(self._end, self._pid, self._control, process)
            return self._control

    @staticmethod
    def _end(pid: int, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        if pid == os.getpid():
            control.close()
            process.wait(10)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}


def _communicate(to_stdin: io.FileIO, sources: Sequence[io.FileIO], given: bytes, until_s: float) -> tuple[bytes, bytes]:
    """Write what a command is given, and read what it says, to the end of both streams. TimeoutError when it takes too long."""
    said = {source.fileno(): bytearray() for source in sources}
    with selectors.DefaultSelector() as waiting:
        for source in sources:
            waiting.register(source, selectors.EVENT_READ)
        if given:
            os.set_blocking(to_stdin.fileno(), False)
            waiting.register(to_stdin, selectors.EVENT_WRITE)
        else:
            to_stdin.close()
        while waiting.get_map():
            if not (ready := waiting.select(until_s - time.monotonic())) and time.monotonic() >= until_s:
                raise TimeoutError
            for key, _ in ready:
                if key.fileobj is to_stdin:
                    with suppress(BlockingIOError):
                        try:
                            given = given[os.write(key.fd, given) :]
                        except BrokenPipeError:
                            given = b""
                    if not given:
                        waiting.unregister(to_stdin)
                        to_stdin.close()
                elif data := os.read(key.fd, 65536):
                    said[key.fd] += data
                else:
                    waiting.unregister(key.fileobj)
    out, err = said.values()
    return bytes(out), bytes(err)


def _text(data: bytes) -> str:
    return io.TextIOWrapper(io.BytesIO(data), "utf-8").read()


def _serve(control: socket.socket) -> list[int]:
    """Fork a process for each program, which returns with its files; the others return at the end, with none."""
    while True:
        _, files, _, _ = socket.recv_fds(control, 1, 4)
        if not files or os.fork() == 0:
            return files
        for file in files:
            os.close(file)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become_a_program(files: Sequence[int]) -> None:
    """Read what is to be run from the first of the files; a child goes on as it, with the others as its streams."""
    with socket.socket(fileno=files[0]) as asked, asked.makefile("r") as lines:
        arguments, cwd, env, on_a_terminal = json.loads(lines.readline())
        if program := os.fork():
            for file in files[1:]:
                os.close(file)
            asked.sendall(f"{program}\n".encode())
            _, status = os.waitpid(program, 0)
            asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
    for stream, file in enumerate(files[1:]):
        os.dup2(file, stream)
        os.close(file)
    if on_a_terminal:
        os.setsid()
        ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is the interpreter's own
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = cwd
    sys.argv[1:] = arguments


def _main() -> None:
    sys.path[0] = str(Path(__file__).parent.parent)
    control = socket.socket(fileno=int(sys.argv.pop()))
    module, _, name = sys.argv.pop().partition(":")
    program = getattr(importlib.import_module(module), name)()
    assert threading.active_count() == 1, "a process with threads must not fork"
    gc.collect()
    gc.freeze()
    with control:
        files = _serve(control)
    if files:
        _become_a_program(files)
        program()


if __name__ == "__main__":
    _main()
