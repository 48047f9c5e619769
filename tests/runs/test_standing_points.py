"""A point that a restart has overwritten counts in no column, and an infinity is never the best."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from wherry.loggers import RunFolderLogger


def log(folder: Path, values: dict[int, float]) -> None:
    with RunFolderLogger(folder) as run:
        for step, value in values.items():
            run.log_metrics({"loss": value}, step)


def resumed(folder: Path, second: Path) -> None:
    log(folder, {step: 0.01 if step == 150 else 2 - step / 200 for step in range(200)})
    log(second, {step: 4 - step / 200 for step in range(100, 300)})


@pytest.mark.parametrize("kept", ["summary", "no summary", "version 1"])
@pytest.mark.parametrize("attempt", [".", "attempt-2"])
def test_an_overwritten_point_is_not_the_best(attempt: str, kept: str, tmp_path: Path, open_runs: Any) -> None:
    folder = tmp_path / "runs/a"
    resumed(folder, folder / attempt)
    for path in folder.rglob("wherry-summary.json"):
        found = json.loads(path.read_bytes())
        if kept == "no summary":
            path.unlink()
        elif kept == "version 1":
            metrics = {"loss": [2.505, 299, 0.01, 150, 3.5, 100, 400, 0]}
            path.write_text(json.dumps({**found, "version": 1, "metrics": metrics}))
    (row,) = open_runs(tmp_path / "runs").rows()
    loss = row.metrics["loss"]
    assert (loss.min, loss.min_step, loss.max_step, loss.n_points) == (pytest.approx(1.505), 99, 100, 300)
    assert (loss.last_step, loss.is_partial) == (299, False)
    assert row.attempt == 2


def test_infinities_are_counted_and_are_not_the_best(tmp_path: Path, open_runs: Any) -> None:
    log(tmp_path / "runs/a", {0: 2.0, 1: -math.inf, 2: 1.0, 3: math.inf, 4: math.nan})
    (row,) = open_runs(tmp_path / "runs").rows()
    loss = row.metrics["loss"]
    assert (loss.last, loss.min, loss.max, loss.n_points, loss.n_nan, loss.n_inf) == (1.0, 1.0, 2.0, 5, 1, 2)


def test_restarts_in_its_own_folder_are_counted_in_what_the_writer_and_the_reader_add(tmp_path: Path, open_runs: Any) -> None:
    folder = tmp_path / "runs/a"
    for first in (0, 30, 20):
        log(folder, dict.fromkeys(range(first, 50), 1.0))
    with open(folder / "metrics.jsonl", "a") as file:  # behind the summary
        file.write('{"t": 1e9, "step": 10, "loss": 1.0}\n')
    (row,) = open_runs(tmp_path / "runs").rows()
    assert row.attempt == 4
