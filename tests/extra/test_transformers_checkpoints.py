"""CheckpointCallback with the real Hugging Face Trainer, on a tiny model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wherry
from docs_programs import files_below, run_program
from support import end_agent, environment_with_tests

pytestmark = [pytest.mark.extra, pytest.mark.timeout(600)]  # each test starts the trainer several times

#: A script that trains 6 steps and saves every 2; sys.argv: the output_dir, the step to be killed at, and options as JSON.
SCRIPT = """
import json, os, signal, sys, torch, wherry
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from wherry.integrations.transformers import CheckpointCallback

output_dir, killed_at, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

class Told(Trainer):
    def training_step(self, *arguments, **more):
        if str(self.state.global_step) == killed_at:
            saved.checkpoints.flush()  # what was saved is in the bucket
            os.kill(os.getpid(), signal.SIGKILL)
        if self.args.process_index == 0:
            print("step", self.state.global_step + 1, flush=True)
        return super().training_step(*arguments, **more)

torch.manual_seed(0)
small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
model = BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=8, **small))
generator = torch.Generator().manual_seed(0)
data = [{"input_ids": torch.randint(0, 32, (8,), generator=generator), "labels": torch.tensor(i % 2)} for i in range(24)]
arguments = TrainingArguments(
    output_dir, max_steps=6, per_device_train_batch_size=2, save_steps=2, eval_steps=2, eval_strategy="steps",
    report_to="none", use_cpu=True, disable_tqdm=True, seed=3, **options,
)
saved = CheckpointCallback(wherry.Checkpoints("bucket", "my-run"))
trainer = Told(model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[saved])
resumed = saved.resume()
if arguments.process_index == 0:
    print("resumes from", resumed, flush=True)
trainer.train(resume_from_checkpoint=resumed)
if arguments.process_index == 0:
    print("weights", sum(p.double().sum().item() for p in model.parameters()), flush=True)
saved.checkpoints.close()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text(SCRIPT)
    with end_agent(tmp_path / "spool"):
        yield tmp_path


def train(folder: Path, output_dir: str, killed_at: int | None = None, *launcher: str, **options: object) -> list[str]:
    """What the script prints; a killed one must have been killed."""
    environment = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *launcher, "train.py", output_dir, str(killed_at), json.dumps(options)],
        env=environment_with_tests({**environment, "WHERRY_SPOOL": str(folder / "spool")}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode == 0) == (killed_at is None), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("step", "resumes", "weights"))]


@pytest.mark.ci
def test_a_killed_training_goes_on_from_the_bucket_on_an_empty_disk(folder: Path) -> None:
    assert ["resumes from None", *(f"step {n}" for n in range(1, 6))] == train(folder, "first", killed_at=5)
    said = train(folder, "second")
    assert ["resumes from second/checkpoint-4", "step 5", "step 6"] == said[:3]
    assert files_below(folder / "first/checkpoint-4") == files_below(folder / "second/checkpoint-4")
    assert {"checkpoint-4", "checkpoint-6"} == set(os.listdir(folder / "second"))
    with wherry.Checkpoints(folder / "bucket", "my-run", spool=folder / "spool") as checkpoints:
        sets = checkpoints.list()
        assert [2, 4, 6] == [one.step for one in sets]
        assert all({"eval_loss", "epoch"} <= set(one.metrics) for one in sets)
        assert sets[1].set == sets[2].parent
    shutil.rmtree(folder / "bucket")
    assert said[-1] == train(folder, "third")[-1]  # the same weights as without the kill


def test_folders_that_are_there_are_used_only_if_they_are_the_sets(folder: Path) -> None:
    train(folder, "saved")
    damaged = folder / "saved/checkpoint-6/model.safetensors"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "resumes from saved/checkpoint-6" == train(folder, "saved")[0]
    assert whole == damaged.read_bytes()
    inode = damaged.stat().st_ino
    train(folder, "saved")
    assert inode == damaged.stat().st_ino


def test_a_damaged_set_is_left_for_the_one_before_it(folder: Path) -> None:
    train(folder, "first")
    (newest,) = (folder / "bucket/my-run/checkpoints/data").glob("*_000000000006")
    model = newest / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\\xff")
    assert ["resumes from second/checkpoint-4", "step 5", "step 6"] == train(folder, "second")[:3]


def steps_in(folder: Path) -> list[int]:
    with wherry.Checkpoints(folder / "bucket", "my-run", spool=folder / "spool") as checkpoints:
        return [one.step for one in checkpoints.list()]


def test_the_limit_holds_in_the_bucket_and_the_best_stays(folder: Path) -> None:
    train(folder, "first", save_total_limit=1)
    assert [6] == steps_in(folder)
    shutil.rmtree(folder / "bucket")
    train(folder, "best", save_total_limit=2, load_best_model_at_end=True, metric_for_best_model="loss", learning_rate=1.0)
    history = json.loads((folder / "best/checkpoint-6/trainer_state.json").read_text())["log_history"]
    losses = {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}
    assert sorted({6, min(losses, key=losses.__getitem__)}) == steps_in(folder)


def test_two_ranks_save_one_set(folder: Path) -> None:
    first = train(folder, "first", 3, *TORCHRUN)
    assert ["resumes from None", "step 1", "step 2", "step 3"] == first
    said = train(folder, "second", None, *TORCHRUN)
    assert ["resumes from second/checkpoint-2", "step 3", "step 4"] == said[:3]
    with wherry.Checkpoints(folder / "bucket", "my-run", spool=folder / "spool") as checkpoints:
        assert [(2, 2), (4, 2), (6, 2)] == [(one.step, one.world) for one in checkpoints.list()]
        names = {one.name for _, one in checkpoints.catalog.objects(checkpoints.list()[-1])}
    assert {"rng_state_0.pth", "rng_state_1.pth", "model.safetensors", "optimizer.pt", "trainer_state.json"} <= names


def test_the_program_of_the_page_runs_and_resumes(folder: Path) -> None:
    for _ in range(2):
        run_program("trainer", folder, page="checkpoints", HF_HUB_OFFLINE="1")
        shutil.rmtree(folder / "checkpoints")
    assert [8, 16] == steps_in(folder)[:2]
