"""save_state() and load_state() with the real Accelerate, on a tiny model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wherry
from support import end_agent

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]  # each test starts the trainer several times

#: A script that trains 6 steps and saves every 2; sys.argv: the step to be killed after.
SCRIPT = """
import os, signal, sys, torch, wherry
from accelerate import Accelerator
from accelerate.utils import set_seed
from wherry.integrations.accelerate import load_state, save_state

set_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
checkpoints = wherry.Checkpoints("bucket", "my-run")
restored = load_state(accelerator, checkpoints)
first_step = 0 if restored is None else restored.step
for step in range(first_step + 1, 7):
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print("step", step, flush=True)
    if step % 2 == 0:
        save_state(accelerator, checkpoints, step, metrics={"loss": loss.item()})
    if str(step) == sys.argv[1]:
        checkpoints.flush()
        accelerator.wait_for_everyone()
        os.kill(os.getpid(), signal.SIGKILL)
accelerator.print("weights", sum(p.double().sum().item() for p in model.parameters()), flush=True)
checkpoints.close()
accelerator.end_training()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with end_agent(tmp_path / "spool"):
        yield tmp_path


def train(folder: Path, run: str, launcher: tuple[str, ...], killed_after: int | None = None) -> list[str]:
    script = folder / f"{run}.py"
    script.write_text(SCRIPT.replace("my-run", run))
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(killed_after)],
        cwd=folder,
        env={**os.environ, "WHERRY_SPOOL": str(folder / "spool"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    expected = 0 if killed_after is None else 1 if launcher else -signal.SIGKILL
    assert expected == done.returncode, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("step", "weights"))]


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["1 process", "2 processes"])
def test_a_killed_training_goes_on_from_the_bucket(folder: Path, launcher: tuple[str, ...]) -> None:
    assert [f"step {n}" for n in range(1, 6)] == train(folder, "killed", launcher, killed_after=5)
    said = train(folder, "killed", launcher)
    assert ["step 5", "step 6"] == said[:-1]
    assert said[-1] == train(folder, "whole", launcher)[-1]
    with wherry.Checkpoints(folder / "bucket", "killed", spool=folder / "spool") as checkpoints:
        sets = checkpoints.list()
        names = {one.name for _, one in checkpoints.catalog.objects(sets[-1])}
    n_ranks = 2 if launcher else 1
    assert [(2, n_ranks), (4, n_ranks), (6, n_ranks)] == [(one.step, one.world) for one in sets]
    assert {"model.safetensors", "optimizer.bin", *(f"random_states_{rank}.pkl" for rank in range(n_ranks))} <= names
