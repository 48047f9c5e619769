"""Runs examples/train_all.py as a user would, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import end_agent

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_all.py"


def run_example(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """In `folder`, with the folder ``bucket`` for a bucket, and the run's name "shapes"."""
    quiet = {"WANDB_SILENT": "true", "OMP_NUM_THREADS": "1", "WHERRY_SPOOL": str(folder / "spool")}
    # A busy machine may take longer than W&B's 30 s to start its service, without which W&B takes no part.
    quiet |= {"WANDB__SERVICE_WAIT": "120", "WANDB_INIT_TIMEOUT": "150"}
    # Where W&B keeps what it could not send yet, which is in the user's home else.
    quiet |= {"WANDB_DATA_DIR": str(folder / "wandb-data"), "WANDB_CACHE_DIR": str(folder / "wandb-cache")}
    command = [sys.executable, str(EXAMPLE), str(folder / "bucket"), "--run-name", "shapes", *options]
    environment = {**os.environ, **quiet}
    with end_agent(folder / "spool"):
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False)
