"""Runs examples/train_all.py as a user would, for tests."""

from __future__ import annotations

from pathlib import Path

from servers.warm_torch import run_script
from support import end_agent

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_all.py"


def run_example(folder: Path, *options: str) -> tuple[int, str]:
    """Run it in `folder`, with the folder ``bucket`` for a bucket, as the run "shapes": its exit status, and what it said."""
    quiet = {"WANDB_SILENT": "true", "WHERRY_SPOOL": str(folder / "spool")}
    # A busy machine may take longer than W&B's 30 s to start its service, without which W&B takes no part.
    quiet |= {"WANDB__SERVICE_WAIT": "120", "WANDB_INIT_TIMEOUT": "150"}
    # Where W&B keeps what it could not send yet, which is in the user's home else.
    quiet |= {"WANDB_DATA_DIR": str(folder / "wandb-data"), "WANDB_CACHE_DIR": str(folder / "wandb-cache")}
    with end_agent(folder / "spool"):
        return run_script(EXAMPLE, folder / "bucket", "--run-name", "shapes", *options, folder=folder, env=quiet)
