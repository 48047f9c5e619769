"""WherryCheckpointIO and WherryModelCheckpoint with Lightning's real Trainer, on a tiny model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import wherry
from checkpoint_sets.ranks import run_ranks
from docs_programs import names, run_program
from support import end_agent

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]  # each test starts Lightning several times

#: A script that fits; sys.argv: the package, ckpt_path, the step to be killed at, the number of epochs of two steps, of devices.
SCRIPT = """
import importlib, os, signal, sys, torch, wherry

L = importlib.import_module(sys.argv[1])
from wherry.integrations.lightning import WherryCheckpointIO, WherryModelCheckpoint

class Model(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        if str(self.global_step) == sys.argv[3]:
            io.teardown()  # what was saved is in the bucket
            os.kill(os.getpid(), signal.SIGKILL)
        print("step", self.global_step + 1, flush=True)
        return (self.layer(batch) - 1).square().mean()

    def on_train_epoch_end(self):
        self.log("val/loss", [3.0, 0.0, 1.0, 2.0][self.current_epoch])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

torch.manual_seed(0)
io = WherryCheckpointIO(wherry.Checkpoints("../bucket", "my-run"))
saved = WherryModelCheckpoint(monitor="val/loss", save_top_k=2, save_last=True)
devices = int(sys.argv[5])
options = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False, "devices": devices}
if devices > 1:
    options["strategy"] = "ddp"
trainer = L.Trainer(max_epochs=int(sys.argv[4]), callbacks=[saved], plugins=[io], **options)
model = Model()
data = torch.utils.data.DataLoader(torch.linspace(0, 1, 8 * devices).repeat(4, 1).T.contiguous(), batch_size=4)
ckpt_path = None if sys.argv[2] == "None" else sys.argv[2]
trainer.fit(model, data, ckpt_path=ckpt_path)
if trainer.is_global_zero:
    print("weights", float(model.layer.weight.double().sum()), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WHERRY_SPOOL", str(tmp_path / "spool"))
    with end_agent(tmp_path / "spool"):
        yield tmp_path


def fit(
    folder: Path,
    machine: str,
    ckpt_path: str | None,
    epochs: int,
    *,
    killed_at: int | None = None,
    package: str = "lightning",
) -> list[str]:
    """What the script prints. Each `machine` has an empty disk at first."""
    disk = folder / machine
    disk.mkdir(exist_ok=True)
    (disk / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py", package, str(ckpt_path), str(killed_at), str(epochs), "1"],
        cwd=disk,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == (0 if killed_at is None else -signal.SIGKILL), said
    return re.findall(r"^(?:step|weights) \S+$", said, re.MULTILINE)


def sets(folder: Path) -> list[tuple[int, dict[str, float], str]]:
    with wherry.Checkpoints(folder / "bucket", "my-run", spool=folder / "spool") as checkpoints:
        return [(one.step, dict(one.metrics), os.path.basename(str(one.metadata["path"]))) for one in checkpoints.list()]


@pytest.mark.parametrize("package", [pytest.param("lightning", marks=pytest.mark.ci), "pytorch_lightning"])
def test_last_is_the_newest_set_on_an_empty_disk(folder: Path, package: str) -> None:
    fit(folder, "first", "last", 4, killed_at=5, package=package)
    assert ["step 5", "step 6", "step 7", "step 8"] == (said := fit(folder, "second", "last", 4, package=package))[:-1]
    assert said[-1] == fit(folder, "third", None, 4, package=package)[-1]  # the weights are those of a start that nobody killed
    assert not list((folder / "second").rglob("epoch*.ckpt"))


def test_what_save_top_k_leaves_is_what_stays_in_the_bucket(folder: Path) -> None:
    fit(folder, "first", None, 4)
    expected = [
        (4, {"val/loss": 0.0}, "epoch=1-step=4.ckpt"),
        (6, {"val/loss": 1.0}, "epoch=2-step=6.ckpt"),
        (6, {}, "last.ckpt"),
    ]
    assert expected == sets(folder)


def test_sets_that_are_replaced_while_they_are_committed_are_deleted(folder: Path) -> None:
    """Sets that are saved at once are committed in any order."""
    import torch

    from wherry.integrations.lightning import WherryCheckpointIO

    io = WherryCheckpointIO(wherry.Checkpoints(folder / "bucket", "my-run"))
    for step in range(100):
        io.save_checkpoint({"global_step": step, "weights": torch.ones(4)}, f"{step % 5}.ckpt")
        time.sleep(step % 7 * 0.01)
    io.teardown()
    assert [(step, {}, f"{step % 5}.ckpt") for step in range(95, 100)] == sets(folder)


def test_best_is_the_best_set_on_an_empty_disk(folder: Path) -> None:
    fit(folder, "first", None, 4)
    assert ["step 5", "step 6"] == fit(folder, "second", "best", 3)[:-1]


def test_starts_leave_no_last_ckpt_but_the_newest_and_what_it_was_resumed_from(folder: Path) -> None:
    for epochs in (1, 2, 3):
        fit(folder, "machine", "last", epochs)
    assert [4, 6] == [step for step, _, name in sets(folder) if name == "last.ckpt"]


def said_by_ranks(folder: Path, machine: str, epochs: int, script: str = SCRIPT) -> list[str]:
    """What two ranks print that fit with ckpt_path="last". One process imports Lightning: that may take minutes."""
    disk = folder / machine
    disk.mkdir()
    arguments = ["lightning", "last", "None", str(epochs), "2"]
    text = f"os.chdir({str(disk)!r})\nsys.argv[1:] = {arguments}\n{script}"
    return run_ranks(2, folder, text, imports="import lightning\n", timeout_s=500)


def fit_on_ranks(folder: Path, machine: str, epochs: int) -> list[list[str]]:
    said = said_by_ranks(folder, machine, epochs)
    assert all("Traceback" not in one for one in said), "\n".join(said)
    return [re.findall(r"^step \S+$", one, re.MULTILINE) for one in said]


def test_two_ranks_load_one_set_and_rank_0_saves(folder: Path) -> None:
    assert [[f"step {step}" for step in range(1, 5)]] * 2 == fit_on_ranks(folder, "first", 2)
    assert [["step 5", "step 6"]] * 2 == fit_on_ranks(folder, "second", 3)
    assert (6, {}, "last.ckpt") == sets(folder)[-1]


def test_ranks_of_which_one_has_not_seen_the_first_set_all_end(folder: Path) -> None:
    """An agent that an earlier start has left commits it between the looks of two ranks."""
    fit(folder, "first", None, 1)
    late = SCRIPT.replace("trainer.fit(", "io.last = io.last if os.environ['RANK'] == '1' else lambda: None\ntrainer.fit(")
    for one in said_by_ranks(folder, "second", 2, late):
        assert 'the run got its first set while the ranks looked for "last"' in one, one
        assert "step 3" not in one


def test_a_strategy_that_saves_by_itself_is_refused(folder: Path) -> None:
    sharding = SCRIPT.replace('"ddp"', "L.pytorch.strategies.ModelParallelStrategy()").replace("devices > 1", "True")
    (folder / "train.py").write_text(sharding)
    done = subprocess.run(
        [sys.executable, "train.py", "lightning", "None", "None", "1", "1"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "ConfigError: ModelParallelStrategy writes its shards itself" in done.stderr, done.stderr


def test_the_program_of_the_page_runs_and_resumes(folder: Path) -> None:
    for _ in range(2):
        run_program("lightning", folder, page="checkpoints", PYTHONWARNINGS="ignore")
    assert [24] == sorted({step for step, _, name in sets(folder) if name == "last.ckpt"})


def test_every_program_of_the_page_is_run_by_a_test() -> None:
    assert ["trainer", "lightning", "ray", "torch_checkpointing"] == names("checkpoints")
