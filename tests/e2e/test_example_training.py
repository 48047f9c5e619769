"""examples/train_all.py: every kind of value is in every destination, readable with stock tools, and all of it in the bucket."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import pytest
from PIL import Image
from plyfile import PlyData

from example_run import run_example
from tfevents import event_files, read_scalars, read_values

pytestmark = pytest.mark.timeout(300)

N_STEPS = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    status, said = run_example(folder)
    assert 0 == status, said
    assert "is not logged" not in said
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """The run's folder, as the destinations have left it."""
    return folder / "runs" / "shapes"


def test_figures_are_read_by_pandas(run: Path) -> None:
    import pandas as pd

    lines = pd.read_json(run / "metrics.jsonl", lines=True, precise_float=True)
    losses = lines.dropna(subset="train/loss").set_index("step")["train/loss"]
    assert list(range(N_STEPS)) == losses.index.tolist()
    assert losses.iloc[-10:].mean() < 0.1 * losses.iloc[0]
    assert [30, 60, 90] == lines.dropna(subset="eval/iou_disk")["step"].tolist()
    assert len(lines.dropna(subset="typed/weight_norm")) >= 2
    assert lines["train/loss"].dropna().tolist() == pd.read_parquet(run / "metrics.parquet")["train/loss"].dropna().tolist()


def test_settings_tables_texts_and_traces_are_json(run: Path) -> None:
    import pandas as pd

    assert {"name": "AdamW", "lr": 3e-3} == json.loads((run / "hparams.json").read_text())["optimizer"]
    table = pd.read_json(run / "tables" / "overlap.jsonl", lines=True)
    assert ["nothing", "disk", "box"] * 3 == table["class"].tolist()
    assert "Conv2d" in json.loads((run / "text.jsonl").read_text().splitlines()[0])["text"]
    assert 3 == len((run / "traces.jsonl").read_text().splitlines())
    assert {"first layer"} == set(pd.read_json(run / "histograms.jsonl", lines=True)["key"])


def test_media_are_read_by_stock_readers(run: Path) -> None:
    import pandas as pd

    index = pd.read_json(run / "media" / "index.jsonl", lines=True)
    assert {"image", "mask", "audio", "video", "point_cloud"} == set(index["kind"])
    assert all((run / path).stat().st_size == size for path, size in zip(index["path"], index["size_bytes"], strict=True))
    with Image.open(run / "media/masks/shapes/truth/90-0.png") as mask:
        assert ("P", {0, 1, 2}) == (mask.mode, {label for _, label in mask.getcolors() or ()})
    with wave.open(str(run / "media/audio/loss/90.wav")) as sound:
        assert (16_000, 400 * N_STEPS) == (sound.getframerate(), sound.getnframes())
    assert len(PlyData.read(run / "media/pointclouds/hidden/90.ply")["vertex"].data) > 1000
    assert b"ftyp" == (run / "media/video/learning/90.mp4").read_bytes()[4:8]


def test_the_same_is_in_tensorboards_files(run: Path) -> None:
    curves = read_scalars(run / "tb")
    assert list(range(N_STEPS)) == [step for step, _ in curves["train/loss"]]
    plugins = {value.tag: value.plugin for _, value in read_values(run / "tb") if value.plugin}
    wanted = {"shapes/0": "images", "shapes/truth/3": "images", "learning": "images", "loss": "audio", "hidden_VERTEX": "mesh"}
    wanted |= {
        "first layer": "histograms",
        "model": "text",
        "overlap": "text",
        "traces/memory": "text",
        "hyperparameters": "text",
    }
    assert {} == {tag: (plugin, sorted(plugins)) for tag, plugin in wanted.items() if plugin != plugins.get(tag)}


def test_the_log_has_what_was_printed(run: Path) -> None:
    text = (run / "log.txt").read_text()
    for line in ("[hyperparameter]: optimizer", "[metric][step=89]", "[table][step=90]", "[trace]: memory"):
        assert line in text


def test_all_of_it_is_in_the_bucket(folder: Path, run: Path) -> None:
    import torch

    bucket = folder / "bucket" / "shapes"
    here = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    there = {path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file()}
    checkpoints = {f"checkpoints/ep{epoch:02d}.pt" for epoch in range(3)}
    assert here | checkpoints == there
    assert len(event_files(bucket)) == len(event_files(run))
    for name in here - {".wherry-run.json"}:  # which says here, too, that the store's is ours
        assert (run / name).read_bytes() == (bucket / name).read_bytes(), name
    assert {"model", "optimizer"} == set(torch.load(bucket / "checkpoints/ep02.pt", weights_only=True))


def test_a_run_that_fails_ends_with_its_traceback_and_is_in_the_bucket(tmp_path: Path) -> None:
    status, said = run_example(tmp_path, "--fail")
    assert 1 == status, said
    last = "RuntimeError: the loss is not a number; not really, but it might have been"
    for folder in (tmp_path / "runs", tmp_path / "bucket"):
        assert f"[exception]: {last}" == (folder / "shapes" / "log.txt").read_text().splitlines()[-1]
    assert (tmp_path / "bucket/shapes/checkpoints/ep00.pt").exists()
