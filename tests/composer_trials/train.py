"""Trains with Composer's Trainer, with wherry's destinations, until it ends or is killed: ``train.py URI STOP_AT RESULT``.

At batch STOP_AT (-1: never) it says so and waits to be killed; with ``pointer-2`` it does so between the second checkpoint, which
is in the store by then, and its pointer. WHERRY_TEST_DROP_IN: with the drop-in for Composer's uploader. At the end rank 0 writes
what the model and the optimizer hold to RESULT, as text that is equal only for equal bits.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from composer import Callback, Trainer
from composer.models import ComposerClassifier
from composer.utils import dist
from torch.utils.data import DataLoader, TensorDataset

from wherry.integrations.composer import ComposerLogger, RemoteUploaderDownloader
from wherry.loggers import ObjectStoreLogger, RunFolderLogger

URI, STOP_AT, RESULT = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def stop() -> None:
    sys.stdout.write(f"stopped at {STOP_AT}\n")
    sys.stdout.flush()
    signal.pause()


class Stop(Callback):  # type: ignore[misc]  # Composer is not installed where types are checked
    """Waits at a batch until the process is killed."""

    def batch_start(self, state: Any, logger: Any) -> None:
        if str(int(state.timestamp.batch)) == STOP_AT:
            stop()


class StopsAtPointer:
    """Waits before a pointer is handed over, until the process is killed."""

    numbers = itertools.count(1)

    def upload_file(self, state: Any, remote_file_name: str, file_path: Any, *, overwrite: bool = False) -> Any:
        if remote_file_name.endswith(".symlink") and f"pointer-{next(self.numbers)}" == STOP_AT:
            store.uploader.flush()
            stop()
        return super().upload_file(state, remote_file_name, file_path, overwrite=overwrite)  # type: ignore[misc]


class Ours(StopsAtPointer, ComposerLogger):
    """As wherry_composer() makes it."""


class DropIn(StopsAtPointer, RemoteUploaderDownloader):
    """In the place of Composer's own."""


def loggers() -> list[Any]:
    if "WHERRY_TEST_DROP_IN" not in os.environ:
        return [Ours(ObjectStoreLogger(URI), RunFolderLogger("runs"))]
    bucket, _, prefix = URI.removeprefix("s3://").partition("/")
    return [DropIn(f"s3://{bucket}", backend_kwargs={"prefix": prefix})]


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
destinations = loggers()
(store,) = (one for one in destinations[0].destinations if isinstance(one, ObjectStoreLogger))
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
    loggers=destinations,
    callbacks=[Stop()],
    progress_bar=False,
)
sys.stdout.write(f"began at {int(trainer.state.timestamp.batch)}\n")
sys.stdout.flush()
if trainer.state.timestamp.epoch < 4:  # else it was killed after its end
    trainer.fit()
if dist.get_global_rank() == 0:
    RESULT.write_text(digest({"model": network.state_dict(), "optimizer": trainer.state.optimizers[0].state_dict()}))
trainer.close()
