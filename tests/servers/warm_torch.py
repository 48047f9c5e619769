"""Programs of the tests that use torch or S3, forked from one process that has imported both: see servers/warm.py.

A new interpreter needs three seconds of a processor to import torch.distributed. The first argument of a program is its text, as
after ``python -c``.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TextIO

from servers.warm import Running, Warm
from support import environment_with_tests

_NEEDED = (
    "torch.distributed.distributed_c10d",
    "wherry.uploader",
    "wherry.checkpoints.checkpoints",
    "wherry.backends.s3.store",
    "botocore.session",
    "botocore.client",
    "botocore.args",
    "botocore.handlers",
    "botocore.httpsession",
    "botocore.signers",
)
_ENVIRONMENT = environment_with_tests({"OMP_NUM_THREADS": "1"})  # a process with threads must not fork
_IMPORTS = "WHERRY_TESTS_IMPORT"


#: For `imports`: what programs with FSDP or torch.distributed.checkpoint need.
DISTRIBUTED = "import checkpoint_sets.dcp_program"
#: argv: the script, then its arguments.
_SCRIPT = """
import runpy, sys


def run():
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


"""
#: As torchrun does with two ranks, which it forks: they need not import torch.
_TORCHRUN = """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

config = LaunchConfig(1, 1, 2, start_method="fork", max_restarts=0, rdzv_backend="c10d", rdzv_endpoint="localhost:0")
elastic_launch(config, run)()
"""


@functools.cache
def _warm(imports: str) -> Warm:
    return Warm("servers.warm_torch:program", env={**_ENVIRONMENT, _IMPORTS: imports})


def program() -> Callable[[], object]:
    """Import what takes long; return what runs a program's text."""
    for name in _NEEDED:
        importlib.import_module(name)
    exec(os.environ[_IMPORTS], {})  # noqa: S102  it is a test's own

    def run() -> None:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # it is the interpreter's own
        text = sys.argv[1]
        sys.argv = ["-c", *sys.argv[2:]]
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  it is a test's own

    return run


class TorchProgram:
    """A program that was started. In a ``with`` block it is killed if the block fails, and else waited for."""

    def __init__(
        self,
        text: str,
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        output: Path | None = None,
        imports: str = "",
        folder: Path | None = None,
    ) -> None:
        """Start it, in `folder` or the present one.

        Both its streams go to the file `output`, else to a pipe. `env` is added to the environment. `imports` is a text that
        imports more, before the programs are forked.
        """
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self.stdout: TextIO | None = None
        environment = environment_with_tests({"OMP_NUM_THREADS": "1", **(env or {})})
        with open(os.devnull) as nothing:
            if output is None:
                source, sink = os.pipe()
                self.stdout = open(source)  # noqa: SIM115  it is closed with the program
            else:
                sink = os.open(output, os.O_WRONLY | os.O_CREAT)
            try:
                texts = [text, *(os.fspath(argument) for argument in arguments)]
                self._running: Running = _warm(imports).start(
                    texts, folder or Path.cwd(), environment, (nothing.fileno(), sink, sink)
                )
            finally:
                os.close(sink)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._running.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it has not been waited for."""
        if self.returncode is None:
            os.kill(self._running.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Wait for its end; the exit code. TimeoutError."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._running.wait(timeout)
            return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Read its output to the end, and wait for it. subprocess.TimeoutExpired, and it is killed."""
        assert self.stdout is not None
        until_s = time.monotonic() + timeout
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        try:
            with self.stdout:
                text = self.stdout.read()
            self.wait(max(1.0, until_s - time.monotonic()))
        finally:
            timer.cancel()
        if time.monotonic() >= until_s:
            raise subprocess.TimeoutExpired("a program", timeout, text)
        return text, None

    def __enter__(self) -> TorchProgram:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            self.kill()
        self.wait(60.0)
        if self.stdout is not None:
            self.stdout.close()


def torchrun(
    script: Path, *arguments: str | os.PathLike[str], env: Mapping[str, str], output: Path | None = None
) -> TorchProgram:
    """Start a script as two ranks, in its own folder."""
    environment = {"GLOO_SOCKET_IFNAME": "lo", **env}
    text = _SCRIPT + _TORCHRUN
    return TorchProgram(text, script, *arguments, env=environment, output=output, imports=DISTRIBUTED, folder=script.parent)


def run_script(script: Path, *arguments: str | os.PathLike[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a script in `folder`: its exit status, and what it said."""
    with TorchProgram(_SCRIPT + "run()", script, *arguments, env=env, imports=DISTRIBUTED, folder=folder) as program:
        said, _ = program.communicate(280)
    return program.wait(0.0), said
