"""Ranks in processes of their own that torch.distributed joins (gloo): what each of them runs, and what it says."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from support import environment_with_tests

#: One process imports what takes seconds; for each line of stdin ranks are forked from it, each of which goes on after the loop.
_PARENT = """
import json, os, signal, sys
from pathlib import Path
import torch.distributed as dist
import torch.distributed.distributed_c10d
import wherry, wherry.checkpoints.checkpoints, wherry.uploader

for line in sys.stdin:
    order = json.loads(line)
    exec(order["imports"])
    world, arguments = order["n_ranks"], order["arguments"]
    for rank in range(world):
        if os.fork() == 0:
            break
    else:
        for _ in range(world):
            os.wait()
        os.write(1, b"ended")
        continue
    break
else:
    sys.exit()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
said = os.open(f"{order['meeting']}-{rank}", os.O_WRONLY | os.O_CREAT)
os.dup2(said, 1)
os.dup2(said, 2)
os.environ.clear()
os.environ.update(order["environ"], RANK=f"{rank}", WORLD_SIZE=f"{world}", LOCAL_RANK=f"{rank}")
dist.init_process_group("gloo", init_method=f"file://{order['meeting']}", rank=rank, world_size=world)
exec(order["text"])
if dist.is_initialized():
    dist.destroy_process_group()
"""


@functools.lru_cache
def _parent() -> tuple[subprocess.Popen[bytes], Callable[[], None]]:
    """The process from which all ranks of this one's tests are forked, and what ends it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        env=environment_with_tests({"OMP_NUM_THREADS": "1"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )

    def end() -> None:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()

    atexit.register(end)
    return parent, end


def run_ranks(
    n_ranks: int, folder: Path, text: str, *arguments: str | os.PathLike[str], imports: str = "", timeout_s: float = 120.0
) -> list[str]:
    """Run a text on so many ranks, which has `rank`, `world`, `arguments` and `dist`: what each of them printed, on both streams.

    `folder` is where they meet; `imports` is run before they part. A rank that does not end well does not end the others.
    """
    order = {
        "n_ranks": n_ranks,
        "meeting": str(folder / f"meeting-{os.urandom(4).hex()}"),
        "imports": imports,
        "text": textwrap.dedent(text),
        "arguments": [os.fspath(argument) for argument in arguments],
        "environ": environment_with_tests({"OMP_NUM_THREADS": "1"}),
    }
    parent, end = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(order).encode() + b"\n")
    if not select.select([parent.stdout], [], [], timeout_s)[0] or parent.stdout.read(5) != b"ended":
        _parent.cache_clear()
        atexit.unregister(end)
        end()
        said = (f"{path.name}:\n{path.read_text()}" for path in sorted(folder.glob(f"{Path(str(order['meeting'])).name}-*")))
        raise TimeoutError("\n".join([f"the ranks have not ended within {timeout_s:g} s, and have said", *said]))
    return [Path(f"{order['meeting']}-{rank}").read_text() for rank in range(n_ranks)]
