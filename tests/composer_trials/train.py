"""Trains with Composer's Trainer, with wherry's destinations, until it ends or is killed: ``train.py URI STOP_AT RESULT``.

At batch STOP_AT (-1: never) it says so and waits to be killed. At the end rank 0 writes what the model and the optimizer hold to
RESULT, as text that is equal only for equal bits.
"""

from __future__ import annotations

import hashlib
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from composer import Callback, Trainer
from composer.models import ComposerClassifier
from composer.utils import dist
from torch.utils.data import DataLoader, TensorDataset

from wherry.integrations.composer import wherry_composer
from wherry.loggers import ObjectStoreLogger, RunFolderLogger

URI, STOP_AT, RESULT = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])


class Stop(Callback):  # type: ignore[misc]  # Composer is not installed where types are checked
    """Waits at a batch until the process is killed."""

    def batch_start(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.batch) == STOP_AT:
            sys.stdout.write(f"stopped at {STOP_AT}\n")
            sys.stdout.flush()
            signal.pause()


def digest(state: Any) -> str:
    """A text that tells any two states apart that differ in one bit."""
    if isinstance(state, torch.Tensor):
        bits = state.detach().cpu().contiguous().numpy().tobytes()
        return f"{state.dtype} {tuple(state.shape)} {hashlib.sha256(bits).hexdigest()}"
    if isinstance(state, dict):
        return "\n".join(f"{key}: {digest(state[key])}" for key in state)
    if isinstance(state, (list, tuple)):
        return "\n".join(map(digest, state))
    return repr(state)


torch.manual_seed(1)
inputs = torch.randn(64, 8)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
model = ComposerClassifier(network, num_classes=2)
dist.initialize_dist("cpu")
trainer = Trainer(
    model=model,
    train_dataloader=DataLoader(data, batch_size=8, sampler=dist.get_sampler(data, shuffle=True)),
    max_duration="4ep",
    optimizers=torch.optim.Adam(model.parameters(), 1e-2),
    run_name="my-run",
    seed=17,
    device="cpu",
    save_folder="{run_name}/checkpoints",
    save_filename="ep{epoch}-ba{batch}-rank{rank}.pt",
    autoresume=True,
    loggers=[wherry_composer(ObjectStoreLogger(URI), RunFolderLogger("runs"))],
    callbacks=[Stop()],
    progress_bar=False,
)
sys.stdout.write(f"began at {int(trainer.state.timestamp.batch)}\n")
sys.stdout.flush()
trainer.fit()
if dist.get_global_rank() == 0:
    RESULT.write_text(digest({"model": network.state_dict(), "optimizer": trainer.state.optimizers[0].state_dict()}))
trainer.close()
