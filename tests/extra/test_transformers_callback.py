"""WherryCallback with the real Hugging Face Trainer, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs_programs import files_below
from support import end_agent, run_script

pytestmark = pytest.mark.extra

#: A script that trains; sys.argv: the step to fail at. On two ranks under torchrun, too.
SCRIPT = """
import sys, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from wherry.integrations.transformers import WherryCallback
from wherry.loggers import LoggerDestination, ObjectStoreLogger, RunFolderLogger

class Told(LoggerDestination):
    def run_event(self, event, state, logger):
        if not state.rank:
            print("told", event.value, state.timestamp.epoch, state.timestamp.batch, state.phase)

class Failing(Trainer):
    def training_step(self, *arguments, **options):
        if str(self.state.global_step) == sys.argv[1]:
            raise RuntimeError("boom")
        return super().training_step(*arguments, **options)

small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
model = BertForSequenceClassification(BertConfig(vocab_size=32, max_position_embeddings=8, **small))
data = [{"input_ids": torch.randint(0, 32, (8,)), "labels": torch.tensor(i % 2)} for i in range(8)]
wherry = WherryCallback(RunFolderLogger("runs/{run_name}"), ObjectStoreLogger("bucket"), Told())
options = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "run_name": "r", "save_total_limit": 1}
arguments = TrainingArguments(
    "saved", max_steps=4, per_device_train_batch_size=2, save_steps=2, logging_steps=1, eval_strategy="epoch", **options
)
trainer = Failing(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[wherry])
trainer.train()
trainer.evaluate()
trainer.predict(data)
"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERRY_SPOOL", str(tmp_path / "spool"))
    with end_agent(tmp_path / "spool"):
        yield tmp_path


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "bucket/r/metrics.jsonl").read_text().splitlines()]


@pytest.mark.ci
def test_figures_arguments_events_and_checkpoints_arrive(folder: Path) -> None:
    said = run_script(SCRIPT, "never", env=OFFLINE, timeout_s=120)

    steps = [("batch_start", 0), ("batch_end", 1), ("batch_start", 1), ("batch_end", 2)]
    steps += [("batch_start", 2), ("batch_end", 3), ("batch_start", 3)]
    expected = ["init 0 0 train", "fit_start 0 0 train", "epoch_start 0 0 train"]
    expected += [f"{event} 0 {batch} train" for event, batch in steps]
    expected += ["batch_end 1 4 train", "epoch_end 1 4 train", "eval_start 1 4 valid", "eval_end 1 4 train", "fit_end 1 4 train"]
    expected += 2 * ["eval_start 1 4 valid", "eval_end 1 4 train"]
    assert expected == [line.removeprefix("told ") for line in said.splitlines() if line.startswith("told ")]

    lines = lines_of(folder)
    assert [1, 2, 3, 4] == [line["step"] for line in lines if "train/loss" in line]
    assert [("eval", 4), ("eval", 4)] == [(line["phase"], line["step"]) for line in lines if "eval/loss" in line]
    logged = json.loads((folder / "bucket/r/hparams.json").read_text())
    assert (2, 16) == (logged["per_device_train_batch_size"], logged["model"]["hidden_size"])
    for step in (2, 4):  # save_total_limit has deleted the first one here
        assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= files_below(
            folder / f"bucket/r/checkpoints/checkpoint-{step}"
        )
    assert ["checkpoint-4"] == [path.name for path in (folder / "saved").iterdir()]
    assert "r/metrics.parquet" in files_below(folder / "bucket")


def test_checkpoints_of_two_trainers_with_one_callback_are_both_kept(folder: Path) -> None:
    second = """
arguments.output_dir = "other"
Failing(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[wherry]).train()
"""
    run_script(SCRIPT + second, "never", env=OFFLINE, timeout_s=120)
    for place, name in (("saved", "checkpoint-4"), ("other", "other/checkpoint-4")):
        local, remote = folder / place / "checkpoint-4", folder / "bucket/r/checkpoints" / name
        assert (local / "model.safetensors").read_bytes() == (remote / "model.safetensors").read_bytes()
    assert (folder / "saved/checkpoint-4/model.safetensors").read_bytes() != (
        folder / "other/checkpoint-4/model.safetensors"
    ).read_bytes()


def test_an_exception_closes_everything(folder: Path) -> None:
    said = run_script(SCRIPT, "3", env=OFFLINE, timeout_s=120, expected=1)
    assert said.endswith("RuntimeError: boom\n")
    assert [1, 2, 3] == [line["step"] for line in lines_of(folder)]
    assert {"r/metrics.parquet", "r/checkpoints/checkpoint-2/model.safetensors"} <= files_below(folder / "bucket")


def test_of_two_ranks_one_logs_and_uploads_the_files_of_both(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    launcher = ["--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    place = ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    code = "import runpy, sys; sys.argv[0] = 'torchrun'; "
    code += "runpy.run_module('torch.distributed.run', run_name='__main__')"
    run_script(code, *launcher, *place, "train.py", "never", env={**OFFLINE, "GLOO_SOCKET_IFNAME": "lo"}, timeout_s=150)
    assert [1, 2, 3, 4] == [line["step"] for line in lines_of(folder) if "train/loss" in line]
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= files_below(folder / "bucket/r/checkpoints/checkpoint-4")


def test_importing_it_without_transformers_names_what_is_missing() -> None:
    hide = "import sys; sys.modules['transformers'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", hide + "import wherry.integrations.transformers"], capture_output=True, text=True, timeout=60
    )
    assert "pip install 'transformers[torch]'" in done.stderr
