"""Ranks in processes of their own that torch.distributed joins (gloo): what each of them runs, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from support import environment_with_tests

_BEGIN = """
import os, signal, sys
from pathlib import Path
import torch.distributed as dist
import wherry

rank, world, arguments = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=world)
"""
_END = """
if dist.is_initialized():
    dist.destroy_process_group()
"""


def run_ranks(n_ranks: int, folder: Path, text: str, *arguments: str | os.PathLike[str], timeout_s: float = 120.0) -> list[str]:
    """Run a text on so many ranks, which has `rank`, `world`, `arguments` and `dist`: what each of them printed, on both streams.

    `folder` is where they meet. A rank that does not end well does not end the others.
    """
    meeting = folder / f"meeting-{os.urandom(4).hex()}"
    command = [sys.executable, "-c", _BEGIN + textwrap.dedent(text) + _END, str(meeting), *map(str, arguments)]
    ranks = [
        subprocess.Popen(
            command,
            env=environment_with_tests(
                {"RANK": str(rank), "WORLD_SIZE": str(n_ranks), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(n_ranks)
    ]
    try:
        return [one.communicate(timeout=timeout_s)[0] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
