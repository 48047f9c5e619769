"""Ranks in processes of their own that torch.distributed joins (gloo): what each of them runs, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

from support import environment_with_tests

#: One process imports what takes seconds; the ranks are forked from it.
_BEGIN = """
import os, signal, sys
from pathlib import Path
import torch.distributed as dist
import torch.distributed.distributed_c10d
import wherry, wherry.checkpoints
"""
_FORK = """
meeting, world, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
for rank in range(world):
    if os.fork() == 0:
        break
else:
    for _ in range(world):
        os.wait()
    sys.exit()
said = os.open(f"{meeting}-{rank}", os.O_WRONLY | os.O_CREAT)
os.dup2(said, 1)
os.dup2(said, 2)
os.environ.update(RANK=f"{rank}", WORLD_SIZE=f"{world}", LOCAL_RANK=f"{rank}")
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
"""
_END = """
if dist.is_initialized():
    dist.destroy_process_group()
"""


def run_ranks(
    n_ranks: int, folder: Path, text: str, *arguments: str | os.PathLike[str], imports: str = "", timeout_s: float = 120.0
) -> list[str]:
    """Run a text on so many ranks, which has `rank`, `world`, `arguments` and `dist`: what each of them printed, on both streams.

    `folder` is where they meet; `imports` is run before they part. A rank that does not end well does not end the others.
    """
    meeting = folder / f"meeting-{os.urandom(4).hex()}"
    program = _BEGIN + imports + _FORK + textwrap.dedent(text) + _END
    command = [sys.executable, "-c", program, str(meeting), str(n_ranks), *map(str, arguments)]
    with subprocess.Popen(command, env=environment_with_tests({"OMP_NUM_THREADS": "1"}), start_new_session=True) as parent:
        try:
            parent.wait(timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
    return [Path(f"{meeting}-{rank}").read_text() for rank in range(n_ranks)]
