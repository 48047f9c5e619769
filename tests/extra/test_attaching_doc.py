"""The programs of docs/attaching.md that need Lightning and transformers, as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs_programs import files_below, names, run_program
from support import end_agent

pytestmark = pytest.mark.extra


def logged(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "bucket/my-run/metrics.jsonl").read_text().splitlines()]


def test_the_lightning_program_of_the_page_runs(tmp_path: Path) -> None:
    with end_agent(tmp_path / "spool"):
        run_program("lightning", tmp_path)
    checkpoints = {name for name in files_below(tmp_path / "bucket") if name.endswith(".ckpt")}
    assert {f"my-run/checkpoints/epoch={epoch}-step={8 * (epoch + 1)}.ckpt" for epoch in (0, 1)} == checkpoints
    assert {"lr": 0.01} == json.loads((tmp_path / "bucket/my-run/hparams.json").read_text())
    assert [3, 7, 11, 15] == [line["step"] for line in logged(tmp_path) if "train/loss" in line]


def test_the_transformers_program_of_the_page_runs(tmp_path: Path) -> None:
    with end_agent(tmp_path / "spool"):
        run_program("transformers", tmp_path, HF_HUB_OFFLINE="1")
    for step in (8, 16):
        assert (tmp_path / f"bucket/my-run/checkpoints/checkpoint-{step}/model.safetensors").stat().st_size > 0
    assert [2, 4, 6, 8, 10, 12, 14, 16] == [line["step"] for line in logged(tmp_path) if "train/loss" in line]
    assert [16] == [line["step"] for line in logged(tmp_path) if "eval/loss" in line]


def test_every_program_of_the_page_is_run_by_a_test() -> None:
    assert ["plain", "ddp", "lightning", "transformers"] == names()
