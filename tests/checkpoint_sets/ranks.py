"""Ranks in processes of their own that torch.distributed joins (gloo): what each of them runs, and what it says."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

from servers.warm_torch import TorchProgram

#: argv: where they meet, then the text's own.
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


def run_ranks(
    n_ranks: int, folder: Path, text: str, *arguments: str | os.PathLike[str], imports: str = "", timeout_s: float = 120.0
) -> list[str]:
    """Run a text on so many ranks, which has `rank`, `world`, `arguments` and `dist`: what each of them printed, on both streams.

    `folder` is where they meet; `imports` is run before they part. A rank that does not end well does not end the others.
    """
    meeting = folder / f"meeting-{os.urandom(4).hex()}"
    outputs = [Path(f"{meeting}-{rank}") for rank in range(n_ranks)]
    whole_text = _BEGIN + textwrap.dedent(text) + _END
    ranks = [
        TorchProgram(
            whole_text,
            meeting,
            *arguments,
            env={"RANK": f"{rank}", "WORLD_SIZE": f"{n_ranks}", "LOCAL_RANK": f"{rank}"},
            output=output,
            imports=imports,
        )
        for rank, output in enumerate(outputs)
    ]
    until_s = time.monotonic() + timeout_s
    try:
        for rank in ranks:
            rank.wait(max(0.1, until_s - time.monotonic()))
    except TimeoutError:
        for rank in ranks:
            rank.kill()
        lines = (f"{output.name}:\n{output.read_text()}" for output in outputs)
        raise TimeoutError("\n".join([f"the ranks have not ended within {timeout_s:g} s, and have said", *lines])) from None
    return [output.read_text() for output in outputs]
