"""MLflowLogger with the real mlflow and a local database: what it wrote is read by MLflow's own client."""

from __future__ import annotations

import json
import math
import threading
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wherry.errors import AlreadyExistsError, ConfigError, NotFoundError, StoreError, UploadFailed
from wherry.loggers import Logger, LoggerDestination, MLflowConfig, MLflowLogger, RunFolderLogger, State
from wherry.loggers.destinations.mlflow import mlflow_name

pytestmark = [
    pytest.mark.extra,
    # MLflow's own, of SQLAlchemy, of pydantic, and of the connections that it keeps open.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::sqlalchemy.exc.SADeprecationWarning"),
]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for all, as making one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # MLflow makes mlruns in it
    return tmp_path


def state_of(rank: int = 0, run_name: str = "run-a") -> State:
    return State(run_name, rank=rank, local_rank=rank, world_size=4, local_world_size=4, node_rank=0)


def logger_in(folder: Path, uri: str, **options: Any) -> MLflowLogger:
    """Each test has an experiment of its own."""
    config = MLflowConfig(tracking_uri=uri, staging_folder=str(folder / "staging"), **options)
    return MLflowLogger(folder.name, config=config, state=state_of())


def client_of(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def runs_of(folder: Path, uri: str) -> list[Any]:
    found = client_of(uri).get_experiment_by_name(folder.name)
    return (
        [] if found is None else list(client_of(uri).search_runs([found.experiment_id], order_by=["attributes.start_time ASC"]))
    )


def run_of(folder: Path, uri: str) -> Any:
    (run,) = runs_of(folder, uri)
    return run


def points(folder: Path, uri: str, name: str) -> list[tuple[int, float]]:
    history = client_of(uri).get_metric_history(run_of(folder, uri).info.run_id, name)
    return [(one.step, one.value) for one in history]


def artifact(folder: Path, uri: str, name: str) -> Path:
    (folder / "read").mkdir(exist_ok=True)
    return Path(client_of(uri).download_artifacts(run_of(folder, uri).info.run_id, name, str(folder / "read")))


def artifacts(folder: Path, uri: str, below: str | None = None) -> list[str]:
    return sorted(one.path for one in client_of(uri).list_artifacts(run_of(folder, uri).info.run_id, below))


def test_figures_arrive_in_order_also_where_steps_go_back(folder: Path, uri: str) -> None:
    with logger_in(folder, uri) as logger:
        for step in (5, 3, 4, 4):
            logger.log_metrics({"loss": step / 2}, step)
        logger.log_metrics({"loss": 9.0})
    assert sorted([(5, 2.5), (3, 1.5), (4, 2.0), (0, 9.0)]) == sorted(set(points(folder, uri, "loss")))
    run = run_of(folder, uri)
    assert ("run-a", "FINISHED") == (run.info.run_name, run.info.status)
    assert "mlflow.user" in run.data.tags


def test_thousands_of_figures_arrive(folder: Path, uri: str) -> None:
    with logger_in(folder, uri) as logger:
        for step in range(500):
            logger.log_metrics({f"m{i}": step for i in range(5)}, step)
    for i in range(5):
        assert list(range(500)) == sorted(step for step, _ in points(folder, uri, f"m{i}"))


def test_odd_values_and_names_are_kept(folder: Path, uri: str) -> None:
    import torch

    odd = {"nan": math.nan, "infinity": -math.inf, "zero-d": np.array(2.5), "bf16": torch.tensor([0.5], dtype=torch.bfloat16)}
    names: dict[Any, float] = {"a,b": 1.0, "a?b": 2.0, "k" * 300: 3.0, "../up": 4.0, "": 5.0, 7: 6.0, "ü/ö": 7.0, "huge": 10**400}
    with logger_in(folder, uri) as logger:
        logger.log_metrics({**odd, "grad": torch.ones((), requires_grad=True)}, 1)  # type: ignore[dict-item]
        logger.log_metrics(names, 2)
        logger.log_metrics({}, 3)
        with pytest.raises(ValueError, match="vector"):
            logger.log_metrics({"kept": 1.0, "vector": np.zeros(2)}, 4)  # type: ignore[dict-item]
    found = run_of(folder, uri).data.metrics
    assert math.isnan(found["nan"]) and found["infinity"] < -1e308
    assert (2.5, 0.5, 1.0, 1.0) == tuple(found[name] for name in ("zero-d", "bf16", "grad", "kept"))
    assert {mlflow_name(name): value for name, value in names.items() if name != "huge"}.items() <= found.items()
    assert found["huge"] > 1e308


def test_names_never_meet() -> None:
    names = ["a,b", "a?b", "a_b", mlflow_name("a,b"), "a:b", "x" * 300, "x" * 301, "", "../a", "a//b", "a/b"]
    made = [mlflow_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert ("a_b", "a/b") == (made[2], made[-1])
    assert all(len(name) <= 250 for name in made)


def test_hyperparameters_are_parameters_and_a_new_value_is_a_tag(folder: Path, uri: str) -> None:
    many = {f"p{i:03}": i for i in range(250)}
    with logger_in(folder, uri) as logger:
        logger.log_hyperparameters(
            {"lr": 3e-6, "nested": {"betas": [0.9, 1.0], "none": None}, "empty": {}, "long": "x" * 7000, "odd": Path("p")}
        )
        logger.log_hyperparameters({"lr": 1e-3, "nested": {"none": None}, "long": "x" * 7000, **many})
    run = run_of(folder, uri)
    expected = {"lr": "3e-06", "nested/betas": "[0.9, 1.0]", "nested/none": "None", "empty": "{}", "long": "x" * 6000, "odd": "p"}
    assert expected | {name: str(value) for name, value in many.items()} == run.data.params
    assert ("0.001", None) == (run.data.tags.get("lr"), run.data.tags.get("long"))
    assert "x" * 7000 == artifact(folder, uri, "hyperparameters/long.txt").read_text()


def test_images_are_in_the_grid_with_their_masks(folder: Path, uri: str) -> None:
    images = np.zeros((2, 3, 8, 6), np.uint8)
    images[1, 0] = 200
    masks = np.zeros((2, 8, 6), np.int64)
    masks[:, :4] = 1
    with logger_in(folder, uri) as logger:
        logger.log_images(images, "val/a b", step=3, masks={"truth": masks}, mask_class_labels={1: "cat"})
        logger.log_images(np.ones((4, 4), np.uint8), "dark", step=4)
        logger.log_images(np.zeros((4, 4)), "ümlaut " * 60, step=5)
    names = [name for name in artifacts(folder, uri, "images") if name.endswith(".png")]
    keys = [name.removeprefix("images/").partition("+timestamp")[0] for name in names]
    assert {"val~a b~0+step+3", "val~a b~1+step+3", "val~a b~truth~0+step+3", "val~a b~truth~1+step+3", "dark+step+4"} < set(keys)
    assert 6 == len(keys)
    shown = {key: np.asarray(Image.open(artifact(folder, uri, name))) for key, name in zip(keys, names, strict=True)}
    assert (200, 1) == (shown["val~a b~1+step+3"][0, 0, 0], shown["dark+step+4"].max())
    assert np.array_equal(masks[0], np.asarray(Image.open(artifact(folder, uri, "masks/val/a b/truth/0/3.png"))))
    assert "true" == run_of(folder, uri).data.tags["mlflow.loggedImages"].lower()


@pytest.mark.parametrize("label", [-1, -100, 256, 1000])
def test_a_label_that_is_no_byte_is_refused_at_the_call_the_image_arrives_and_255_too(folder: Path, uri: str, label: int) -> None:
    mask = np.zeros((4, 4), np.int64)
    mask[0, 0] = label
    with logger_in(folder, uri) as logger:
        with pytest.raises(ValueError, match=rf"^val/truth: .* 0 to 255, and this one has {label}; map an ignore label"):
            logger.log_images(np.zeros((4, 4)), "val", step=0, masks={"truth": mask})
        mask[0, 0] = 255
        logger.log_images(np.zeros((4, 4)), "val", step=1, masks={"truth": mask})
    assert np.array_equal(mask, np.asarray(Image.open(artifact(folder, uri, "masks/val/truth/1.png"))))
    assert ["masks/val/truth/1.png"] == artifacts(folder, uri, "masks/val/truth")
    shown = [name for name in artifacts(folder, uri, "images") if name.endswith(".png")]
    assert 2 + 1 == len(shown)  # both images, and one drawn over


def test_an_error_is_said_under_the_name_of_its_call_and_the_next_one_is_made(
    folder: Path, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow_logger = logger_in(folder, uri)
    with Logger(state_of(), mlflow_logger) as logger:
        logger.log_video(np.zeros((2, 4, 4)), "clip", frames_per_s=5000)
        mlflow_logger._calls.flush()
        logger.log_metrics({"loss": 1.0}, 0)
        with pytest.raises(StoreError, match=r"^log_video clip: ValueError: frames_per_s is 5000"):
            mlflow_logger.flush()
    (said,) = [record.getMessage() for record in caplog.records if record.name == "wherry"]
    assert said.startswith("MLflowLogger.log_video failed: clip is not logged: frames_per_s is 5000")
    assert [(0, 1.0)] == points(folder, uri, "loss")


def test_a_table_grows_and_mlflow_loads_it(folder: Path, uri: str) -> None:
    with logger_in(folder, uri) as logger:
        logger.log_table(["a", "step"], [[1, "x"], [np.float32(0.5), {"odd": None}]], "val/table", 1)
        logger.log_table(["a", "step"], [[2, "y"]], "val/table", 2)
        logger.log_table(["a"], [], "empty", 2)
    table = json.loads(artifact(folder, uri, "tables/val/table.json").read_text())
    assert ["step", "a", "step_"] == table["columns"]
    assert [[1, 1.0, "x"], [1, 0.5, '{"odd": null}'], [2, 2.0, "y"]] == table["data"]


def test_every_other_kind_is_a_file(folder: Path, uri: str) -> None:
    with logger_in(folder, uri) as logger:
        logger.log_traces({"algorithm": {"alpha": [1]}})
        logger.log_text("first", "text", 2)
        logger.log_text("second", "text", 2)
        logger.log_histogram(np.r_[np.zeros(3), 1.0, np.nan], "histogram", 3)
        logger.log_audio(np.zeros(800), "audio", 8000, 4)
        logger.log_video(np.zeros((1, 5, 7)), "video", step=5)
        logger.log_point_cloud(np.eye(3), "points", 6)
    assert {"alpha": [1]} == json.loads(artifact(folder, uri, "traces/algorithm/0.json").read_text())
    texts = [artifact(folder, uri, f"text/text/{name}.txt").read_text() for name in ("2", "2-1")]
    assert ["first", "second"] == texts
    histogram = json.loads(artifact(folder, uri, "histograms/histogram/3.json").read_text())
    assert (4, 1, [0.0, 1.0]) == (sum(histogram["counts"]), histogram["n_nan"], [histogram["edges"][0], histogram["edges"][-1]])
    with wave.open(str(artifact(folder, uri, "audio/audio/4.wav")), "rb") as sound:
        assert (8000, 800) == (sound.getframerate(), sound.getnframes())
    assert b"ftyp" in artifact(folder, uri, "video/video/5.mp4").read_bytes()[:16]
    assert artifact(folder, uri, "pointclouds/points/6.ply").read_bytes().startswith(b"ply\n")


def test_bad_shapes_are_errors_and_leave_nothing(folder: Path, uri: str) -> None:
    with logger_in(folder, uri) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
        with pytest.raises(ValueError, match="picture"):
            logger.log_images(np.zeros(3), "picture")
        with pytest.raises(ValueError, match="row 1 has 1 values"):
            logger.log_table(["a", "b"], [[1, 2], [3]])
    assert [] == artifacts(folder, uri)


def test_several_threads_log_at_once(folder: Path, uri: str) -> None:
    def work(number: int) -> None:
        for step in range(25):
            logger.log_metrics({f"thread-{number}": step}, step)

    with logger_in(folder, uri) as logger:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(4):
        assert list(range(25)) == sorted(step for step, _ in points(folder, uri, f"thread-{number}"))


def test_an_uploaded_file_is_an_artifact_and_comes_back(folder: Path, uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    source, back = folder / "source", folder / "deep/back"
    source.write_bytes(b"first")
    name = "run-a/ep 1 ü.pt"
    with logger_in(folder, uri) as logger:
        assert logger.can_upload_files()
        logger.upload_file(None, name, source, overwrite=False)
        source.write_bytes(b"changed")
        capfd.readouterr()
        logger.download_file(name, str(back), progress_bar=False)
        assert "%|" not in capfd.readouterr().err
        assert b"first" == back.read_bytes()
        with pytest.raises(AlreadyExistsError, match=r"back exists"):
            logger.download_file(name, str(back))
        logger.upload_file(None, name, source, overwrite=True)
        logger.download_file(name, str(back), overwrite=True)
        assert b"changed" == back.read_bytes()
        with pytest.raises(NotFoundError, match="no such artifact"):
            logger.download_file("nothing", str(folder / "nothing"))
        source.write_bytes(b"refused")
        logger.upload_file(None, name, source, overwrite=False)
        with pytest.raises(UploadFailed, match=r"run-a/ep 1 ü\.pt .*give overwrite=True"):
            logger.flush()
    assert b"changed" == artifact(folder, uri, name).read_bytes()
    assert [] == list((folder / "staging").iterdir())


def test_a_folder_is_uploaded_whole(folder: Path, uri: str) -> None:
    (folder / "checkpoint/deep").mkdir(parents=True)
    (folder / "checkpoint/a").write_text("A")
    (folder / "checkpoint/deep/b").write_text("B")
    with logger_in(folder, uri) as logger:
        logger.upload_file(None, "run/checkpoint-2", folder / "checkpoint")
        logger.download_file("run/checkpoint-2", str(folder / "back"))
        logger.download_file("run/checkpoint-2/a", str(folder / "one"))
    assert ("A", "B", "A") == tuple((folder / name).read_text() for name in ("back/a", "back/deep/b", "one"))


def test_a_run_is_continued_by_name_if_asked(folder: Path, uri: str) -> None:
    (folder / "file").write_text("kept")
    with logger_in(folder, uri) as logger:
        logger.upload_file(None, "file", folder / "file")
        logger.log_hyperparameters({"lr": 1})
        logger.log_metrics({"loss": 1.0}, 0)
    with logger_in(folder, uri, resume=True) as logger:
        logger.download_file("file", str(folder / "back"))
        logger.log_hyperparameters({"lr": 1})
        logger.log_metrics({"loss": 2.0}, 1)
    assert [(0, 1.0), (1, 2.0)] == points(folder, uri, "loss")
    assert "FINISHED" == run_of(folder, uri).info.status
    assert "kept" == (folder / "back").read_text()
    with logger_in(folder, uri) as logger:
        logger.log_metrics({"loss": 3.0}, 0)
    assert 2 == len(runs_of(folder, uri))


def test_other_ranks_have_no_run_and_can_download(folder: Path, uri: str) -> None:
    (folder / "file").write_text("of rank 0")
    with logger_in(folder, uri) as logger:
        logger.upload_file(None, "file", folder / "file")
    config = MLflowConfig(tracking_uri=uri, resume=True, staging_folder=str(folder / "staging"))
    with MLflowLogger(folder.name, config=config, state=state_of(rank=2)) as other:
        other.log_metrics({"loss": 1.0}, 0)
        assert not other.can_upload_files()
        other.upload_file(None, "mine", folder / "file")
        other.download_file("file", str(folder / "back"))
    assert "of rank 0" == (folder / "back").read_text()
    assert (["file"], {}) == (artifacts(folder, uri), run_of(folder, uri).data.metrics)
    config = MLflowConfig(tracking_uri=uri, rank_zero_only=False)
    with MLflowLogger(folder.name, config=config, state=state_of(rank=2)) as other:
        other.log_metrics({"loss": 1.0}, 0)
    assert ["run-a", "run-a-rank2"] == [run.info.run_name for run in runs_of(folder, uri)]


def test_after_the_close_every_call_says_so(folder: Path, uri: str) -> None:
    logger = logger_in(folder, uri)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.close()
    logger.close()
    with pytest.raises(RuntimeError, match=r"MLflowLogger .* closed>: make a new one"):
        logger.log_metrics({"loss": 1.0}, 1)
    with pytest.raises(RuntimeError, match="make a new one"):
        logger.upload_file(None, "x", __file__)


class Late(LoggerDestination):
    """Hands over a file in its close()."""

    def close(self, state: State, logger: Logger) -> None:
        logger.upload_file("{run_name}/late", __file__)


def test_under_a_logger_files_handed_over_at_the_close_arrive_and_the_run_has_failed(folder: Path, uri: str) -> None:
    destinations = [logger_in(folder, uri), Late(), RunFolderLogger(folder / "runs")]
    with pytest.raises(RuntimeError, match="boom"), Logger(state_of(), destinations) as logger:
        logger.log_metrics({"loss": 1.0})
        raise RuntimeError("boom")
    assert {"run-a/late", "run-a/metrics.jsonl"} <= set(artifacts(folder, uri, "run-a"))
    assert "FAILED" == run_of(folder, uri).info.status


class Broken(MLflowLogger):
    """The tracker's server is gone by the time that something is sent."""

    def _send_params(self, run: Any, texts: Mapping[str, str]) -> None:
        run.client.log_param("0" * 32, "lr", 1)  # of a run that there is not


def test_what_failed_later_is_raised_once_as_an_error_of_ours(folder: Path, uri: str) -> None:
    config = MLflowConfig(tracking_uri=uri, staging_folder=str(folder / "staging"))
    with Broken(folder.name, config=config, state=state_of()) as logger:
        logger.log_hyperparameters({"lr": 1})
        with pytest.raises(NotFoundError, match="0000"):
            logger.flush()
        logger.log_metrics({"loss": 1.0}, 0)
        logger.flush()
    assert [(0, 1.0)] == points(folder, uri, "loss")


def test_a_run_that_cannot_begin_is_told_and_costs_nothing_after(folder: Path) -> None:
    config = MLflowConfig(tracking_uri="nonsense://nowhere")
    with MLflowLogger("x", config=config, state=state_of()) as logger:
        with pytest.raises(Exception, match="nonsense") as first:
            logger.log_metrics({"loss": 1.0}, 0)
        with pytest.raises(type(first.value)) as second:
            logger.log_metrics({"loss": 1.0}, 1)
    assert first.value is second.value


def test_nonsense_in_the_config_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_staged_bytes is 0"):
        MLflowConfig(max_staged_bytes=0)
    with pytest.raises(ConfigError, match="max_staged_bytes is 'a': it must be a number"):
        MLflowConfig(max_staged_bytes="a")  # type: ignore[arg-type]
