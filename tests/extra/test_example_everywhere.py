"""examples/train_all.py, read back by the large packages: TensorBoard's own reader, DuckDB, W&B's file, MLflow's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from example_run import run_example
from wandb_records import history, records, settings

pytestmark = [
    pytest.mark.extra,
    pytest.mark.timeout(300),
    # MLflow's own, of the libraries that it uses.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::sqlalchemy.exc.SADeprecationWarning"),
]

FIGURES = {"train/loss", "eval/iou_nothing", "eval/iou_disk", "eval/iou_box", "typed/weight_norm"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    status, said = run_example(folder)
    assert 0 == status, said
    assert "failed" not in said, said  # a destination that takes no part is only warned of
    return folder


@pytest.fixture(scope="module")
def mlflow_run(folder: Path) -> tuple[Any, Any]:
    """MLflow's client and the run."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/runs/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'shapes'")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def test_tensorboards_reader_finds_every_kind(folder: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "runs/shapes/tb/rank0"), size_guidance={"tensors": 0})
    reader.Reload()
    kinds = {tag: reader.SummaryMetadata(tag).plugin_data.plugin_name for tag in reader.Tags()["tensors"]}
    assert dict.fromkeys(FIGURES, "scalars").items() <= kinds.items()
    images = ("shapes/0", "shapes/truth/0", "shapes/prediction/0", "learning", "typed/filters")
    assert dict.fromkeys(images, "images").items() <= kinds.items()
    others = {"loss": "audio", "hidden_VERTEX": "mesh", "first layer": "histograms", "model": "text", "overlap": "text"}
    assert others.items() <= kinds.items()
    assert list(range(90)) == [event.step for event in reader.Tensors("train/loss")]


def test_duckdb_reads_the_figures_of_the_run_folder(folder: Path) -> None:
    import duckdb

    for name in ("metrics.jsonl", "metrics.parquet"):
        query = f"""select count("train/loss"), max(step), count("eval/iou_box") from '{folder}/runs/shapes/{name}'"""  # noqa: S608
        with duckdb.connect() as connection:
            assert [(90, 90, 3)] == connection.execute(query).fetchall()


def test_wandb_has_every_kind(folder: Path) -> None:
    lines = history(folder / "runs")
    assert list(range(90)) == [line["step"] for line in lines if "train/loss" in line]
    assert set().union(*lines) >= {*FIGURES, "shapes", "overlap", "model", "first layer", "hidden", "learning", "loss"}
    kinds = {value["_type"] for line in lines for value in line.values() if isinstance(value, dict) and "_type" in value}
    assert {"table-file", "html-file", "histogram", "video-file", "audio-file"} <= kinds
    assert 3e-3 == settings(folder / "runs")["optimizer"]["lr"]
    artifacts = {record.artifact.name for record in records(folder / "runs") if record.HasField("artifact")}
    assert 3 == len([name for name in artifacts if "checkpoints" in name])


def test_mlflow_has_every_kind(folder: Path, mlflow_run: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # where the database says that the artifacts are
    client, run = mlflow_run
    assert "FINISHED" == run.info.status
    assert set(run.data.metrics) >= FIGURES
    assert "0.003" == run.data.params["optimizer/lr"]
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert list(range(90)) == sorted(figure.step for figure in losses)
    assert {"images", "masks", "tables", "text", "traces", "histograms", "audio", "video", "pointclouds"} <= {
        one.path for one in client.list_artifacts(run.info.run_id)
    }
    checkpoints = client.list_artifacts(run.info.run_id, "shapes/checkpoints")
    assert [f"shapes/checkpoints/ep0{epoch}.pt" for epoch in range(3)] == sorted(one.path for one in checkpoints)
