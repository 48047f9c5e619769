"""A live run of three TensorBoard writers, mirrored to S3 and pulled: the real TensorBoard shows every point on the copy.

Needs TensorBoard, tensorboardX and PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import textwrap
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.real import S3Server
from support import wait_until
from wherry.mirror import Mirror, MirrorConfig

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

ROUNDS, STEPS = 3, 20
LIVELY = MirrorConfig(max_lag_s=1.0, settle_s=0.5, segment_bytes=2000, max_requests_per_hour=10_000_000, exit_on_sigterm=False)

#: Each logs STEPS more points for every line on its standard input, flushes, and answers with a line.
WRITERS = {
    "wherry": """
        from wherry.loggers import State
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(folder, state=State("run", rank=0, local_rank=0, world_size=1, local_world_size=1, node_rank=0))
        log, flush, close = (lambda step: board.log_metrics({"loss": 1 / (1 + step)}, step)), board.flush, board.close
    """,
    "torch": """
        from torch.utils.tensorboard import SummaryWriter
        board = SummaryWriter(folder)
        log, flush, close = (lambda step: board.add_scalar("loss", 1 / (1 + step), step)), board.flush, board.close
    """,
    "tensorboardX": """
        from tensorboardX import SummaryWriter
        board = SummaryWriter(folder, max_queue=1, flush_secs=1)  # its flush() leaves what the queue has just given out
        log, flush, close = (lambda step: board.add_scalar("loss", 1 / (1 + step), step)), board.flush, board.close
    """,
}
_LOOP = """
for line in sys.stdin:
    first = int(line)
    for step in range(first, first + {steps}):
        log(step)
    flush()
    print("flushed", flush=True)
close()
"""


class Writer:
    """A process that trains, as far as TensorBoard can tell."""

    def __init__(self, kind: str, folder: Path) -> None:
        script = f"import sys\nfolder = sys.argv[1]\n{textwrap.dedent(WRITERS[kind])}{_LOOP.format(steps=STEPS)}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def log(self, first: int) -> None:
        """Log some steps, and return when they are flushed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{first}\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()) != "flushed\n":
            assert line, "the writer has ended"

    def close(self) -> int:
        self._process.communicate(timeout=60)
        return self._process.returncode


class Board:
    """TensorBoard's HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def _json(self, path: str, **parameters: str) -> Any:
        with self._opener.open(f"{self._url}data/{path}?{urllib.parse.urlencode(parameters)}", timeout=60) as answer:
            return json.loads(answer.read())

    def steps(self) -> dict[str, list[int]]:
        """The steps that it shows of each run's loss."""
        printable = {}
        for run, tags in self._json("plugin/scalars/tags").items():
            for tag in tags:
                points = self._json("plugin/scalars/scalars", run=run, tag=tag)
                printable[run.partition("/")[0]] = [step for _, step, _ in points]
        return printable


def shows(board: Board, wanted: dict[str, list[int]]) -> bool:
    return board.steps() == wanted


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[Board]:
    """The real server at its default flags, on a free port."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    said = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                said.append(line)
                if found := re.search(r" at (http://127\.0\.0\.1:\d+/)", line):
                    yield Board(found[1])
                    return
            raise AssertionError("TensorBoard did not start: " + "".join(said))
        finally:
            process.terminate()
            process.stdout.read()


@contextlib.contextmanager
def following(uri: str, folder: Path, server: S3Server, options: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``wherry pull --follow`` in a process of its own."""
    options.write_text(json.dumps(server.options))
    command = [sys.executable, "-m", "wherry.cli", "pull", uri, str(folder), "--follow", "--interval", "0.5"]
    with subprocess.Popen([*command, "--options-file", str(options)], stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_tensorboard_shows_every_point_of_a_live_run_on_a_pulled_copy(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    runs, copy = tmp_path / "runs", tmp_path / "copy"
    uri = f"s3://{seaweedfs_server.bucket}/tensorboard/run"
    (copy / "empty").mkdir(parents=True)
    with (
        Mirror(runs, uri, storage_options=seaweedfs_server.options, spool=tmp_path / "spool", config=LIVELY) as mirror,
        following(uri, copy, seaweedfs_server, tmp_path / "options.json") as pulling,
        tensorboard(copy) as board,
    ):
        writers = {kind: Writer(kind, runs / kind) for kind in WRITERS}
        inodes: dict[Path, int] = {}
        for number in range(ROUNDS):
            for writer in writers.values():
                writer.log(number * STEPS)
            wanted = {kind: list(range((number + 1) * STEPS)) for kind in WRITERS}
            wait_until(functools.partial(shows, board, wanted), 120.0, f"TensorBoard to show round {number}")
            found = {path: path.stat().st_ino for path in copy.rglob("*tfevents*")}
            assert inodes.items() <= found.items()
            inodes = found
        assert [0, 0, 0] == [writer.close() for writer in writers.values()]
        assert mirror.close(60.0).is_complete
        assert 0 == pulling.wait(60)
        assert wanted == board.steps()
    for path in runs.rglob("*tfevents*"):
        assert path.read_bytes() == (copy / path.relative_to(runs)).read_bytes()
    with tensorboard(copy) as board:  # another one, that has never seen it grow
        wait_until(functools.partial(shows, board, wanted), 60.0, "TensorBoard to show the sealed run")
