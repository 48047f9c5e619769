"""Reading a run folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.destinations.run_folder import RunFolderLogger
from wherry.loggers.run.state import State

RNG = np.random.default_rng(5)


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is no JSON")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Every line, by the strict reading of JSON."""
    return [json.loads(line, parse_constant=refuse) for line in path.read_text().split("\n")[:-1]]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "t"} for line in lines_of(folder / "metrics.jsonl")]


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def check_index(folder: Path) -> list[dict[str, Any]]:
    """The index, after every file in it was compared with its line."""
    index = lines_of(folder / "media/index.jsonl")
    for line in index:
        data = (folder / line["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (line["size_bytes"], line["sha256"])
    return index


def log_all_kinds(run: RunFolderLogger, step: int | None = None) -> None:
    run.log_hyperparameters({"lr": 0.1, "model": {"depth": 3}})
    run.log_metrics({"loss": 0.5, "val/acc": 1}, step)
    run.log_images(RNG.integers(0, 256, (3, 8, 10), np.uint8), "pictures", step=step)
    run.log_table(["name", "score"], [["a", 1.5], ["b", None]], "scores", step)
    run.log_traces({"shapes": {"x": [1, 2]}})
    run.log_text("größer\nthan", "notes", step)
    run.log_histogram(RNG.normal(size=1000), "weights", step)
    run.log_audio(np.sin(np.arange(800) / 10), "tone", 8000, step)
    run.log_video(np.zeros((3, 16, 16), np.uint8), "clip", step=step)
    run.log_point_cloud(RNG.normal(size=(20, 3)), "cloud", step)


class Recorder(LoggerDestination):
    """Keeps what it is given, as an uploading destination would."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[tuple[str, bytes]] = []

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        self.uploads.append((remote_file_name, Path(file_path).read_bytes()))
