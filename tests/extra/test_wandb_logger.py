"""WandbLogger with the real wandb, offline: what it wrote is read from the run's own file and folder."""

from __future__ import annotations

import json
import math
import os
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support import run_script
from wandb_records import history, records, settings
from wherry.errors import AlreadyExistsError, ConfigError, NotFoundError, StoreError, UploadFailed, WherryError
from wherry.loggers import Event, Logger, LoggerDestination, RunFolderLogger, State, WandbConfig, WandbLogger
from wherry.loggers.destinations.wandb import artifact_name

pytestmark = pytest.mark.extra


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where all that W&B writes is."""
    for kind in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(tmp_path / f"wandb-{kind.lower()}"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "120")  # W&B's 30 s may be too few on a busy machine
    return tmp_path


def config(folder: Path, **options: Any) -> WandbConfig:
    return WandbConfig(mode="offline", folder=str(folder), staging_folder=str(folder / "staging"), **options)


def state_of(rank: int = 0) -> State:
    return State("run-a", rank=rank, local_rank=rank, world_size=4, local_world_size=4, node_rank=0)


def logger_in(folder: Path, **options: Any) -> WandbLogger:
    return WandbLogger("project", config=config(folder, **options), state=state_of())


def media_file(folder: Path, path: str) -> Path:
    (run,) = folder.glob("wandb/offline-run-*/files")
    return run / path


def said_by_us(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without what W&B says."""
    return [record.getMessage() for record in caplog.records if record.name == "wherry"]


def test_steps_that_go_back_lose_nothing(folder: Path) -> None:
    with logger_in(folder) as logger:
        for step in (5, 3, 4, 4):
            logger.log_metrics({"loss": step / 2}, step)
        logger.log_metrics({"loss": 9.0})
    assert [(5, 2.5), (3, 1.5), (4, 2.0), (4, 2.0), (0, 9.0)] == [(line["step"], line["loss"]) for line in history(folder)]
    axes = {
        record.metric.glob_name or record.metric.name: record.metric for record in records(folder) if record.HasField("metric")
    }
    assert "step" == axes["*"].step_metric


def test_an_alert_is_one_of_wandbs(folder: Path) -> None:
    with logger_in(folder) as logger:
        logger.alert("loss is NaN", "at step 5", "ERROR")
    (alert,) = (record.alert for record in records(folder) if record.HasField("alert"))
    assert ("loss is NaN", "at step 5", "ERROR") == (alert.title, alert.text, alert.level)


def test_several_calls_of_one_step_are_one_row(folder: Path) -> None:
    with Logger(state_of(), logger_in(folder)) as logger:
        for step in range(3):
            logger.log_metrics({"loss": step / 2}, step)
            logger.log_text("a text", "said", step)
            logger.log_metrics({"accuracy": step / 4}, step)
    rows = history(folder)
    assert [(0, 0.0, 0.0), (1, 0.5, 0.25), (2, 1.0, 0.5)] == [(row["step"], row["loss"], row["accuracy"]) for row in rows]
    assert ["html-file"] * 3 == [row["said"]["_type"] for row in rows]


def test_a_name_that_comes_again_at_its_step_replaces_nothing(folder: Path) -> None:
    with logger_in(folder) as logger:
        for loss in (1.0, 2.0):
            logger.log_metrics({"loss": loss}, 5)
        logger.log_metrics({"other": 3.0}, 5)
    assert [(5, 1.0, None), (5, 2.0, 3.0)] == [(row["step"], row["loss"], row.get("other")) for row in history(folder)]


def test_a_flush_ends_the_row_and_an_empty_one_is_never_written(folder: Path) -> None:
    import wandb

    mine = wandb.init(project="mine", mode="offline", dir=str(folder))
    with logger_in(folder) as logger:
        logger.flush()
        logger.log_metrics({"loss": 1.0}, 7)
        logger.flush()
        logger.flush()
        logger.log_metrics({"loss": 2.0}, 8)
    mine.log({"after": 3.0})
    mine.finish()
    assert [("loss", 1.0), ("loss", 2.0), ("after", 3.0)] == [
        next((key, line[key]) for key in ("loss", "after") if key in line) for line in history(folder)
    ]


def test_odd_values_and_names_are_kept(folder: Path) -> None:
    import torch

    odd = {"nan": math.nan, "infinity": -math.inf, "zero-d": np.array(2.5), "bf16": torch.tensor([0.5], dtype=torch.bfloat16)}
    names: dict[Any, float] = {"with blank/ü.c": 1.0, "k" * 300: 2.0, 7: 3.0, "_step": 4.0, "step": 5.0, "": 6.0}
    with logger_in(folder) as logger:
        logger.log_metrics({**odd, "grad": torch.ones((), requires_grad=True)}, 1)  # type: ignore[dict-item]
        logger.log_metrics(names, 2)
        logger.log_metrics({}, 3)
        with pytest.raises(ValueError, match="vector"):
            logger.log_metrics({"kept": 1.0, "vector": np.zeros(2)}, 4)  # type: ignore[dict-item]
    first, second, third = history(folder)
    assert math.isnan(float(first["nan"])) and -math.inf == float(first["infinity"])
    assert (2.5, 0.5, 1.0) == (first["zero-d"], first["bf16"], first["grad"])
    assert (1.0, 2.0, 3.0, 4.0, 5.0) == tuple(second[name] for name in ("with blank/ü.c", "k" * 300, "7", "_step_", "step_"))
    assert (2, 1.0, 4) == (second["step"], third["kept"], third["step"])


def test_hyperparameters_are_the_config_and_may_change(folder: Path) -> None:
    with logger_in(folder) as logger:
        logger.log_hyperparameters({"lr": 3e-6, "nested": {"betas": [0.9, math.inf]}, "odd": object(), "5": None})
        logger.log_hyperparameters({"lr": 1e-3})
    found = settings(folder)
    assert (1e-3, {"betas": [0.9, "Infinity"]}, None) == (found["lr"], found["nested"], found["5"])
    assert found["odd"].startswith("<object object")


@pytest.mark.parametrize("use_table", [True, False])
def test_images_have_their_masks(folder: Path, use_table: bool) -> None:
    images = np.zeros((2, 3, 8, 6), np.uint8)
    images[1, 0] = 200
    masks = np.zeros((2, 8, 6), np.int64)
    masks[:, :4] = 1
    with logger_in(folder) as logger:
        logger.log_images(images, "val/a:b", step=3, masks={"truth": masks}, mask_class_labels={1: "cat"}, use_table=use_table)
    (line,) = history(folder)
    (key,) = set(line) - {"step", "_step", "_runtime", "_timestamp", "_wandb"}
    assert key.startswith("val/a_b-") and 3 == line["step"]
    if use_table:
        table = json.loads(media_file(folder, line[key]["path"]).read_text())
        shown = [row[0] for row in table["data"]]
    else:
        names = [media_file(folder, "") / name for name in line[key]["filenames"]]
        assert [0, 200] == [int(np.asarray(Image.open(name))[0, 0, 0]) for name in names]
        shown = [{"masks": each} for each in line[key]["all_masks"]]
    assert 2 == len(shown)
    if not use_table:
        mask = np.asarray(Image.open(media_file(folder, shown[0]["masks"]["truth"]["path"])))
        assert np.array_equal(masks[0], mask)


@pytest.mark.parametrize("label", [-1, -100, 256, 1000])
def test_a_label_that_is_no_byte_is_refused_at_the_call_the_image_arrives_and_255_too(
    folder: Path, label: int, caplog: pytest.LogCaptureFixture
) -> None:
    mask = np.zeros((4, 4), np.int64)
    mask[0, 0] = label
    with logger_in(folder) as logger:
        with pytest.raises(ValueError, match=rf"^val/truth: .* 0 to 255, and this one has {label}; map an ignore label"):
            logger.log_images(np.zeros((4, 4)), "val", masks={"truth": mask}, use_table=False)
        mask[0, 0] = 255
        logger.log_images(np.zeros((4, 4)), "val", masks={"truth": mask}, use_table=False)
        logger.log_metrics({"loss": 1.0})
    assert [] == said_by_us(caplog)
    refused, shown = [line["val"] for line in history(folder) if "val" in line]
    assert (1, False) == (refused["count"], "all_masks" in refused)
    kept = np.asarray(Image.open(media_file(folder, shown["all_masks"][0]["truth"]["path"])))
    assert np.array_equal(mask, kept)


def test_an_error_is_said_under_the_name_of_its_call_and_the_next_one_is_made(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wandb_logger = logger_in(folder)
    with Logger(state_of(), wandb_logger) as logger:
        logger.log_video(np.zeros((2, 4, 4)), "clip", frames_per_s=5000)
        wandb_logger._calls.flush()
        logger.log_metrics({"loss": 1.0})
        with pytest.raises(StoreError, match=r"^log_video clip: ValueError: frames_per_s is 5000"):
            wandb_logger.flush()
    (said,) = said_by_us(caplog)
    assert said.startswith("WandbLogger.log_video failed: clip is not logged: frames_per_s is 5000")
    assert [1.0] == [line["loss"] for line in history(folder)]


def test_an_error_of_wandb_itself_is_said_under_the_name_of_its_call(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    import wandb

    mine = wandb.init(project="mine", mode="offline", dir=str(folder))
    wandb_logger = logger_in(folder)
    with Logger(state_of(), wandb_logger) as logger:
        mine.finish()
        logger.log_traces({"notes": "text"})
        wandb_logger._calls.flush()
        logger.run_event(Event.BATCH_END)
        with pytest.raises(WherryError, match=r"^log_traces traces/notes: .*finished"):
            wandb_logger.flush()
    (said,) = said_by_us(caplog)
    assert said.startswith("WandbLogger.log_traces failed: traces/notes is not logged: ") and "finished" in said


def test_an_image_of_0_and_1_stays_dark(folder: Path) -> None:
    with logger_in(folder) as logger:
        logger.log_images(np.ones((4, 4), np.uint8), "dark", use_table=False)
    (line,) = history(folder)
    assert 1 == np.asarray(Image.open(media_file(folder, line["dark"]["filenames"][0]))).max()


def test_every_kind_of_media_arrives(folder: Path) -> None:
    with logger_in(folder) as logger:
        logger.log_table(["a", "b"], [[1, "x"], [np.float32(0.5), {"odd": None}]], "table", 1)
        logger.log_traces({"algorithm": {"alpha": [1]}})
        logger.log_text("<b>no & bold</b>", "text", 2)
        logger.log_histogram(np.r_[np.zeros(3), 1.0, np.nan], "histogram", 3)
        logger.log_audio(np.zeros(800), "audio", 8000, 4)
        logger.log_video(np.zeros((1, 5, 7)), "video", step=5)
        logger.log_point_cloud(np.r_[np.eye(3), [[np.nan] * 3]], "points", 6)
    found = {
        key: (value, line["step"]) for line in history(folder) for key, value in line.items() if key[0] != "_" and key != "step"
    }
    assert {"table": 1, "traces/algorithm": 0, "text": 2, "histogram": 3, "audio": 4, "video": 5, "points": 6} == {
        key: step for key, (_, step) in found.items()
    }
    assert [[1, "x"], [0.5, '{"odd": null}']] == json.loads(media_file(folder, found["table"][0]["path"]).read_text())["data"]
    assert "&lt;b&gt;no &amp; bold" in media_file(folder, found["text"][0]["path"]).read_text()
    assert '{"alpha": [1]}' in media_file(folder, found["traces/algorithm"][0]["path"]).read_text().replace("&quot;", '"')
    assert (4, 3) == (sum(found["histogram"][0]["values"]), found["histogram"][0]["values"][0])
    with wave.open(str(media_file(folder, found["audio"][0]["path"])), "rb") as sound:
        assert (8000, 800) == (sound.getframerate(), sound.getnframes())
    assert b"ftyp" in media_file(folder, found["video"][0]["path"]).read_bytes()[:16]
    clouds = found["points"][0]["filenames"]
    assert np.eye(3).tolist() == json.loads(media_file(folder, f"media/object3D/{clouds[0]}").read_text())


@pytest.mark.parametrize("key", ["a b" * 100, "../../up", "ü/ö", "a:b?"])
def test_media_of_odd_names_stay_in_the_run(folder: Path, key: str) -> None:
    with logger_in(folder) as logger:
        logger.log_images(np.zeros((4, 4)), key, use_table=False)
        logger.log_text("text", key)
    assert 2 == len(history(folder))
    (files,) = folder.glob("wandb/offline-run-*/files")
    for path in folder.rglob("*.png"):
        assert files in path.parents


def test_bad_shapes_are_errors_and_leave_nothing(folder: Path) -> None:
    with logger_in(folder) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
        with pytest.raises(ValueError, match="picture"):
            logger.log_images(np.zeros(3), "picture")
        with pytest.raises(ValueError, match="row 1 has 1 values"):
            logger.log_table(["a", "b"], [[1, 2], [3]])
        with pytest.raises(ValueError, match="sample_rate_hz"):
            logger.log_audio(np.zeros(3), sample_rate_hz=0)
    assert 1 == len(history(folder))


def test_what_is_logged_is_what_it_was_at_the_call(folder: Path) -> None:
    image, values, settings_of = np.zeros((4, 4), np.uint8), np.zeros(4), {"a": [1]}
    with logger_in(folder) as logger:
        logger.log_images(image, "image", use_table=False)
        logger.log_histogram(values, "histogram")
        logger.log_hyperparameters(settings_of)
        image[:], values[:] = 255, 7.0
        settings_of["a"].append(2)
    found = {key: value for line in history(folder) for key, value in line.items()}
    assert 0 == np.asarray(Image.open(media_file(folder, found["image"]["filenames"][0]))).max()
    assert 0.0 < found["histogram"]["bins"][-1] < 1.0
    assert [1] == settings(folder)["a"]


def test_several_threads_log_at_once(folder: Path) -> None:
    def work(number: int) -> None:
        for step in range(25):
            logger.log_metrics({f"thread-{number}": step}, step)

    with logger_in(folder) as logger:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(4):
        assert list(range(25)) == [line["step"] for line in history(folder) if f"thread-{number}" in line]


def test_an_uploaded_file_is_an_artifact_and_comes_back(folder: Path) -> None:
    source, back = folder / "source", folder / "deep/back"
    source.write_bytes(b"first")
    with logger_in(folder) as logger:
        assert logger.can_upload_files()
        logger.upload_file(None, "run-a/ep1.pt", source, overwrite=False)
        source.write_bytes(b"changed")
        logger.download_file("run-a/ep1.pt", str(back))
        assert b"first" == back.read_bytes()
        with pytest.raises(AlreadyExistsError, match=r"back exists"):
            logger.download_file("run-a/ep1.pt", str(back))
        logger.upload_file(None, "run-a/ep1.pt", source, overwrite=True)
        logger.download_file("run-a/ep1.pt", str(back), overwrite=True, progress_bar=False)
        assert b"changed" == back.read_bytes()
        with pytest.raises(NotFoundError, match="offline"):
            logger.download_file("nothing", str(folder / "nothing"))
        logger.upload_file(None, "run-a/ep1.pt", source, overwrite=False)
        with pytest.raises(UploadFailed, match=r"run-a/ep1\.pt .*overwrite=True adds a version"):
            logger.flush()
        with pytest.raises(FileNotFoundError, match="missing"):
            logger.upload_file(None, "x", folder / "missing")
        with pytest.raises(ConfigError, match="leave or repeat"):
            logger.upload_file(None, "../x", source)
    requests = [record.request.log_artifact.artifact or record.artifact for record in records(folder)]
    made = [one for one in requests if one.name] or [record.artifact for record in records(folder) if record.HasField("artifact")]
    assert {artifact_name("run-a/ep1.pt")} == {one.name for one in made}
    assert {"run-a/ep1.pt"} == {entry.path for one in made for entry in one.manifest.contents}
    assert [] == list((folder / "staging").iterdir())


def test_a_folder_is_one_artifact(folder: Path) -> None:
    (folder / "checkpoint/deep").mkdir(parents=True)
    (folder / "checkpoint/a").write_text("A")
    (folder / "checkpoint/deep/b").write_text("B")
    with logger_in(folder) as logger:
        logger.upload_file(None, "run/checkpoint-2", folder / "checkpoint")
        logger.download_file("run/checkpoint-2", str(folder / "back"))
    assert ("A", "B") == ((folder / "back/a").read_text(), (folder / "back/deep/b").read_text())


def test_names_of_artifacts_never_meet() -> None:
    names = ["a/b", "a.b", "a b", "ab", artifact_name("a/b"), "ü", "x" * 200, "x" * 201]
    made = [artifact_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert ["a.b", "ab"] == [made[1], made[3]]
    assert all(len(name) <= 128 for name in made)


def test_after_the_close_every_call_says_so(folder: Path) -> None:
    logger = logger_in(folder)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.close()
    logger.close()
    calls: list[Any] = [
        lambda: logger.log_metrics({"loss": 1.0}, 1),
        lambda: logger.log_text("text"),
        lambda: logger.log_images(np.zeros((4, 4))),
        lambda: logger.upload_file(None, "x", __file__),
        lambda: logger.download_file("x", str(folder / "x")),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="WandbLogger project closed>: make a new one"):
            call()
    assert 1 == len(history(folder))


class Late(LoggerDestination):
    """Hands over a file in its close()."""

    def close(self, state: State, logger: Logger) -> None:
        logger.upload_file("{run_name}/late", __file__)


def test_under_a_logger_files_handed_over_at_the_close_arrive_and_the_run_has_failed(folder: Path) -> None:
    destinations = [logger_in(folder), Late(), RunFolderLogger(folder / "runs")]
    with pytest.raises(RuntimeError, match="boom"), Logger(state_of(), destinations) as logger:
        logger.log_metrics({"loss": 1.0})
        raise RuntimeError("boom")
    made = {record.artifact.name for record in records(folder) if record.HasField("artifact")}
    made |= {r.request.log_artifact.artifact.name for r in records(folder) if r.HasField("request")}
    assert {artifact_name("run-a/late"), artifact_name("run-a/metrics.jsonl")} <= made
    assert [1] == [record.exit.exit_code for record in records(folder) if record.HasField("exit")]


def test_other_ranks_have_no_run_unless_asked_for(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "file").write_text("x")
    with WandbLogger("project", config=config(folder), state=state_of(rank=2)) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
        assert not logger.can_upload_files()
        logger.upload_file(None, "file", folder / "file")
        logger.upload_file(None, "file", folder / "file")
    assert ["has no run on rank 2"] == ["has no run on rank 2" for line in caplog.messages if "no run on rank 2" in line]
    assert not (folder / "wandb").exists()
    with WandbLogger("project", config=config(folder, rank_zero_only=False), state=state_of(rank=2)) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
    (run,) = [record.run for record in records(folder) if record.HasField("run")][:1]
    assert ("run-a-rank2", "run-a") == (run.display_name, run.run_group)


def test_a_run_that_was_active_is_used_and_stays(folder: Path) -> None:
    import wandb

    mine = wandb.init(project="mine", mode="offline", dir=str(folder))
    with logger_in(folder) as logger:
        logger.log_metrics({"loss": 1.0}, 7)
    mine.log({"after": 2.0})
    mine.finish()
    assert [("loss", 7), ("after", 7)] == [
        (next(key for key in ("loss", "after") if key in line), line.get("step")) for line in history(folder)
    ]


def test_a_run_that_cannot_begin_is_told_once_and_costs_nothing_after(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(folder / "none"))
    monkeypatch.setenv("HOME", str(folder))
    options = {"mode": "online", "folder": str(folder), "init_options": {"settings": {"login_timeout": 1.0}}}
    with WandbLogger("project", config=WandbConfig(**options), state=state_of()) as logger:  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="begin a run") as first:
            logger.log_metrics({"loss": 1.0}, 0)
        with pytest.raises(ConfigError) as second:
            logger.log_metrics({"loss": 1.0}, 1)
    assert first.value is second.value


def test_nonsense_in_the_config_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"init_options has .'project'."):
        WandbConfig(init_options={"project": "x"})
    with pytest.raises(ConfigError, match="step_metric"):
        WandbConfig(step_metric="_step")
    with pytest.raises(ConfigError, match="max_pending_bytes is 0"):
        WandbConfig(max_pending_bytes=0)
    with pytest.raises(ConfigError, match=r"WandbConfig.mode is 'foo': use one of 'online', 'offline', 'shared', 'disabled'"):
        WandbConfig(mode="foo")  # type: ignore[arg-type]


@pytest.fixture
def package_hidden() -> Iterator[str]:
    yield "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == {name!r} else f(n, *a)\n"


def test_without_the_package_the_extra_is_named(package_hidden: str) -> None:
    for package, kind in (("wandb", "WandbLogger"), ("mlflow", "MLflowLogger")):
        script = package_hidden.format(name=package) + f"from wherry.loggers import {kind}\n{kind}()"
        said = run_script(script, expected=1)
        assert f"MissingExtraError: {kind} needs {package}, which is not installed: pip install 'wherry[{package}]'" in said


def test_a_forked_child_is_told_whose_it_is(folder: Path) -> None:
    script = """
    import os, sys
    from wherry.loggers import State, WandbConfig, WandbLogger
    logger = WandbLogger("p", config=WandbConfig(mode="offline", folder=sys.argv[1]), state=State("r"))
    logger.log_metrics({"a": 1.0}, 0)
    logger.flush()
    pid = os.fork()
    if pid == 0:
        try:
            logger.log_metrics({"a": 2.0}, 1)
        except RuntimeError as error:
            print(error, flush=True)
        logger.close()
        os._exit(0)
    os.waitpid(pid, 0)
    logger.log_metrics({"a": 3.0}, 2)
    logger.close()
    """
    said = run_script(script, folder, env={name: os.environ[name] for name in os.environ if name.startswith("WANDB_")})
    assert "which this one was forked from: make one here" in said
    assert [0, 2] == [line["step"] for line in history(folder)]


def test_a_folder_is_that_of_the_program_and_not_of_a_service_that_was_there(tmp_path: Path) -> None:
    """W&B's service outlives a run, serves child processes, too, and keeps the working directory that it was started in."""
    script = """
    import os
    from pathlib import Path
    from wherry.loggers import State, WandbConfig, WandbLogger
    for name in ("a", "b"):
        Path(name).mkdir()
        os.chdir(name)
        with WandbLogger("p", config=WandbConfig(mode="offline", folder="runs"), state=State("r")) as logger:
            logger.log_metrics({"loss": 1.0}, 0)
        os.chdir("..")
    """
    chdir = f"import os; os.chdir({str(tmp_path)!r})\n"
    run_script(chdir + dedent(script), env={name: os.environ[name] for name in os.environ if name.startswith("WANDB_")})
    for name in ("a", "b"):
        assert [0] == [line["step"] for line in history(tmp_path / name / "runs")]
