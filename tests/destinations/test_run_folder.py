"""RunFolderLogger: one folder a run, which stock tools read."""

from __future__ import annotations

import json
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from large import of_torch
from run_folders import RNG, Recorder, check_index, files_of, lines_of, log_all_kinds, metrics_of, refuse
from wherry.errors import ConfigError
from wherry.loggers.destinations.run_folder import RunFolderConfig, RunFolderLogger
from wherry.loggers.logger import Logger
from wherry.loggers.run.event import Event
from wherry.loggers.run.state import State
from wherry.loggers.run.timestamp import Timestamp

#: A list that holds itself.
ENDLESS: list[object] = []


ENDLESS.append(ENDLESS)


def test_all_kinds_are_readable_files_in_one_folder(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path / "run") as run:
        log_all_kinds(run, 7)
    assert files_of(tmp_path / "run") == {
        "hparams.json",
        "metrics.jsonl",
        "metrics.parquet",
        "wherry-summary.json",
        "text.jsonl",
        "traces.jsonl",
        "histograms.jsonl",
        "tables/scores.jsonl",
        "tables/scores.parquet",
        "media/index.jsonl",
        "media/images/pictures/7.png",
        "media/audio/tone/7.wav",
        "media/video/clip/7.mp4",
        "media/pointclouds/cloud/7.ply",
    }
    index = check_index(tmp_path / "run")
    assert {(line["kind"], line["key"], line["step"], tuple(line["shape"])) for line in index} == {
        ("image", "pictures", 7, (3, 8, 10)),
        ("audio", "tone", 7, (800,)),
        ("video", "clip", 7, (3, 1, 16, 16)),
        ("point_cloud", "cloud", 7, (20, 3)),
    }
    with wave.open(str(tmp_path / "run/media/audio/tone/7.wav")) as file:
        assert (file.getframerate(), file.getnframes()) == (8000, 800)
    assert lines_of(tmp_path / "run/text.jsonl")[0]["text"] == "größer\nthan"
    assert lines_of(tmp_path / "run/traces.jsonl")[0]["trace"] == {"x": [1, 2]}


def test_the_template_is_filled_when_something_is_logged_first_and_nothing_is_made_before(tmp_path: Path) -> None:
    run = RunFolderLogger(f"{tmp_path}/{{run_name}}/x", state=State("early"))
    assert not list(tmp_path.iterdir())
    with Logger(State("late"), run) as logger:
        logger.log_metrics({"loss": 1})
    names = ("environment.json", "metrics.jsonl", "metrics.parquet", "wherry-summary.json")
    assert files_of(tmp_path) == {f"late/x/{name}" for name in names}


def test_a_bad_template_or_setting_is_found_at_once() -> None:
    with pytest.raises(ConfigError, match="no_such_field"):
        RunFolderLogger("{no_such_field}")
    with pytest.raises(ConfigError, match="no_such_field"):
        RunFolderConfig(remote_folder="{no_such_field}")
    with pytest.raises(ConfigError, match="n_histogram_bins is 0"):
        RunFolderConfig(n_histogram_bins=0)


@pytest.mark.large
def test_hyperparameters_of_later_calls_and_runs_are_merged(tmp_path: Path) -> None:
    import torch

    with RunFolderLogger(tmp_path) as run:
        first: Any = {"lr": 0.1, "depth": 3, 5: "five"}
        run.log_hyperparameters(first)
        run.log_hyperparameters({"lr": float("nan"), "größe": torch.tensor(2.5, requires_grad=True)})
    with RunFolderLogger(tmp_path) as run:
        run.log_hyperparameters({"resumed": True, "path": Path("a/b")})
    expected = {"lr": "NaN", "depth": 3, "5": "five", "größe": 2.5, "resumed": True, "path": "a/b"}
    assert json.loads((tmp_path / "hparams.json").read_text(), parse_constant=refuse) == expected


def test_a_file_of_hyperparameters_that_somebody_broke_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hparams.json").write_text("{mine")
    with RunFolderLogger(tmp_path) as run, pytest.raises(ValueError, match=r"hparams\.json is no JSON object"):
        run.log_hyperparameters({"lr": 0.1})
    assert (tmp_path / "hparams.json").read_text() == "{mine"


def test_without_a_step_the_calls_of_a_name_are_counted(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        for _ in range(3):
            run.log_metrics({"a": 1})
            run.log_text("x", "first")
        run.log_text("x", "second")
    assert [line["step"] for line in lines_of(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert [line["step"] for line in lines_of(tmp_path / "text.jsonl")] == [0, 1, 2, 0]


def test_a_router_gives_the_batch_as_step_and_its_events_the_phase(tmp_path: Path) -> None:
    state = State("r")
    with Logger(state, RunFolderLogger(tmp_path)) as logger:
        state.timestamp = Timestamp(batch=4)
        logger.log_metrics({"a": 1})
        logger.run_event(Event.EVAL_START)
        logger.log_metrics({"a": 2})
        logger.run_event(Event.EVAL_END)
        logger.log_metrics({"a": 3}, step=2)
        logger.log_traces({"what": "trace"})
    of_eval = {"step": 4, "epoch": 0, "phase": "eval", "a": 2}
    assert metrics_of(tmp_path) == [{"step": 4, "epoch": 0, "a": 1}, of_eval, {"step": 2, "epoch": 0, "a": 3}]
    assert lines_of(tmp_path / "traces.jsonl")[0]["step"] == 4


def test_several_images_of_a_step_are_numbered_and_none_replaces_another(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (5, 3, 4, 4), np.uint8)
    with RunFolderLogger(tmp_path) as run:
        run.log_images(images[:2], "batch", step=3)
        run.log_images(images[2], "batch", step=3)
        run.log_images(images[3], "one", step=3)
        run.log_images(images[3], "one", step=4)
        run.log_images(images[4], "one", step=3)
    index = check_index(tmp_path)
    assert [line["path"].removeprefix("media/images/") for line in index] == [
        "batch/3-0.png",
        "batch/3-1.png",
        "batch/3-2.png",
        "one/3.png",
        "one/4.png",
        "one/3-1.png",
    ]
    for line, image in zip(index, images[[0, 1, 2, 3, 3, 4]], strict=True):
        assert np.array_equal(np.array(Image.open(tmp_path / line["path"])), np.moveaxis(image, 0, -1))


def test_masks_are_indexed_pngs_with_the_names_of_their_classes(tmp_path: Path) -> None:
    images, labels = RNG.integers(0, 256, (2, 3, 4, 6), np.uint8), RNG.integers(0, 3, (2, 4, 6))
    with RunFolderLogger(tmp_path) as run:
        run.log_images(images, "street", step=1, masks={"truth": labels}, mask_class_labels={0: "road", 1: "sky"})
        run.log_images(images[0], "street", step=2, masks={"truth": labels[0]}, mask_class_labels={2: "car"})
    masks = [line for line in check_index(tmp_path) if line["kind"] == "mask"]
    assert [line["path"] for line in masks] == [f"media/masks/street/truth/{name}.png" for name in ("1-0", "1-1", "2")]
    assert [line["image"] for line in masks] == [f"media/images/street/{name}.png" for name in ("1-0", "1-1", "2")]
    for line, mask in zip(masks, [*labels, labels[0]], strict=True):
        picture = Image.open(tmp_path / line["path"])
        assert picture.mode == "P"
        assert np.array_equal(np.array(picture), mask)
    classes = json.loads((tmp_path / "media/masks/street/classes.json").read_text())
    assert classes == {"0": "road", "1": "sky", "2": "car"}


def test_histograms_have_edges_and_counts(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path, config=RunFolderConfig(n_histogram_bins=4)) as run:
        run.log_histogram([0.0, 1.0, 4.0, float("nan"), float("inf")], "w", 2)
        run.log_histogram([float("nan")], "none", 2)
    first, second = lines_of(tmp_path / "histograms.jsonl")
    assert first["edges"] == [0, 1, 2, 3, 4]
    assert first["counts"] == [1, 1, 0, 1]
    assert [first[name] for name in ("n", "n_nan", "n_inf", "min", "max", "sum", "sum_squares")] == [3, 1, 1, 0, 4, 5, 17]
    assert (second["n"], second["min"]) == (0, "NaN")


@pytest.mark.large
def test_pandas_reads_metrics_tables_and_index(tmp_path: Path) -> None:
    import pandas as pd

    with RunFolderLogger(tmp_path) as run:
        for step in range(50):
            run.log_metrics({"loss": float("nan") if step == 7 else 1 / (step + 1), "inf": float("-inf")}, step)
            run.log_metrics({"val/acc": step / 100}, step)
        run.log_table(["name", "score"], [["a", 1.5], ["b", float("inf")]], "scores", 3)
        run.log_images(np.zeros((4, 4)), "i", step=3)
        live = pd.read_json(tmp_path / "metrics.jsonl", lines=True)
    assert live.shape == (100, 5)
    assert live["loss"].dtype == float
    assert live["loss"][2] == 0.5
    assert np.isnan(live["loss"][14])
    assert live["inf"][0] == float("-inf")
    table = pd.read_json(tmp_path / "tables/scores.jsonl", lines=True)
    assert (list(table.columns), list(table["name"]), list(table["score"])) == (
        ["t", "step", "name", "score"],
        ["a", "b"],
        [1.5, float("inf")],
    )
    assert list(pd.read_json(tmp_path / "media/index.jsonl", lines=True)["path"]) == ["media/images/i/3.png"]


def test_parquet_has_numbers_where_json_has_none(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        rows: list[Any] = [
            {"loss": float("nan"), "n": 1, "flag": True, "big": 2**70, "mixed": 1, "text": "NaN or not"},
            {"loss": float("inf"), "n": 2, "flag": False, "mixed": "one", "late": 0.5},
        ]
        for step, row in enumerate(rows):
            run.log_metrics(row, step)
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.column_names == ["t", "step", "loss", "n", "flag", "big", "mixed", "text", "late"]
    columns = table.to_pydict()
    assert np.isnan(columns["loss"][0])
    assert columns["loss"][1] == float("inf")
    assert (columns["n"], columns["flag"], columns["big"]) == ([1, 2], [True, False], [float(2**70), None])
    assert (columns["mixed"], columns["text"], columns["late"]) == (["1", "one"], ["NaN or not", None], [None, 0.5])
    assert {name: str(table.schema.field(name).type) for name in ("step", "loss", "flag", "mixed")} == {
        "step": "int64",
        "loss": "double",
        "flag": "bool",
        "mixed": "string",
    }


def test_parquet_is_made_of_all_that_was_ever_logged_and_not_again_without_need(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path, config=RunFolderConfig(parquet=False)) as run:
        run.log_table(["a"], [[1]], "untouched later")
        run.log_metrics({"loss": 1.0})
    assert not [name for name in files_of(tmp_path) if name.endswith(".parquet")]
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"other": 2.0})
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 2
    assert pq.read_table(tmp_path / "tables/untouched later.parquet").to_pydict()["a"] == [1]
    before = (tmp_path / "tables/untouched later.parquet").stat()
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"loss": 3.0})
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 3
    assert (tmp_path / "tables/untouched later.parquet").stat().st_ino == before.st_ino


def test_many_rows_and_columns_that_come_late_are_all_in_parquet(tmp_path: Path) -> None:
    n = 60_000  # more than a row group
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"a": 1})
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b"".join(b'{"t": 1.0, "step": %d, "a": %d}\n' % (i, i) for i in range(n)))
        run.log_metrics({"late": 0.5}, n)
    table = pq.read_table(tmp_path / "metrics.parquet").to_pydict()
    assert len(table["step"]) == n + 2
    assert sum(filter(None, table["a"])) == 1 + n * (n - 1) // 2
    assert [0.5] == [value for value in table["late"] if value is not None]


@pytest.mark.extra
def test_duckdb_reads_metrics_tables_and_parquet(tmp_path: Path) -> None:
    import duckdb

    with RunFolderLogger(tmp_path) as run:
        for step in range(50):
            run.log_metrics({"loss": 1 / (step + 1), "bad": float("nan") if step else 2.0}, step)
        run.log_table(["name", "score"], [["a", 1.5], ["b", 2.5]], "scores", 3)
        metrics, tables, parquet = (f"{tmp_path}/{name}" for name in ("metrics.jsonl", "tables/*.jsonl", "metrics.parquet"))
        live = duckdb.read_json(metrics).aggregate("count(*), max(loss), max(bad::DOUBLE)").fetchall()
    assert live[0][:2] == (50, 1.0)
    assert np.isnan(live[0][2])
    rows = duckdb.read_json(tables).order("score DESC").project("name, score").fetchall()
    assert rows == [("b", 2.5), ("a", 1.5)]
    ((least, n, total),) = duckdb.read_parquet(parquet).aggregate("min(loss), count(bad), sum(bad)").fetchall()
    assert (least, n) == (1 / 50, 50)
    assert np.isnan(total)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array(0.5), 0.5),
        (np.array([0.5]), 0.5),
        (np.float64("nan"), "NaN"),
        of_torch(lambda torch: torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        of_torch(lambda torch: torch.tensor(0.5, requires_grad=True), 0.5),
        of_torch(lambda torch: torch.tensor([[0.25]]), 0.25),
        of_torch(lambda torch: torch.tensor(float("nan")), "NaN"),
        (True, True),
        (None, None),
        (2**80, 2**80),
        ("text \ud800", "text \ud800"),
        ([1, 2], [1, 2]),
        (np.array([1, 2]), [1, 2]),
        (complex(1, 2), "(1+2j)"),
        (Path("a"), "a"),
        (ENDLESS, ["..."]),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_any_value_of_a_metric_is_a_line_of_strict_json(value: Any, written: object, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({"before": 1.5, "value": value}, 0)
    assert metrics_of(tmp_path) == [{"step": 0, "before": 1.5, "value": written}]


def test_any_key_of_a_metric_is_kept(tmp_path: Path) -> None:
    keys: list[Any] = [
        "a b",
        "a/b",
        "größe",
        "学习率",
        "x" * 300,
        'quo"te',
        "new\nline",
        "",
        7,
        None,
        True,
        ("a", 1),
        "t",
        "step",
        "phase",
    ]
    with RunFolderLogger(tmp_path) as run:
        run.log_metrics({key: i for i, key in enumerate(keys)}, 5)
        alike: Any = {1: "a", "1": "b"}
        run.log_metrics(alike, 6)
        run.log_metrics({}, 7)
    first, second, third = metrics_of(tmp_path)
    assert first == {"step": 5} | {(f"{key}_" if key in ("t", "step", "phase") else str(key)): i for i, key in enumerate(keys)}
    assert second == {"step": 6, "1": "a", "1_": "b"}
    assert third == {"step": 7}
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 3


@pytest.mark.parametrize(
    "key", ["a b", "a/b", "/abs", "../../up", "a:b*", "größe", "x" * 300, 7, "", ".hidden", "a/../b", "{run_name}"]
)
def test_any_key_of_media_and_tables_makes_files_in_the_folder(key: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    run = RunFolderLogger(tmp_path / "run/r")
    with Logger(State("r"), [run, recorder]) as logger:
        logger.log_images(np.zeros((4, 4)), key, masks={key: np.zeros((4, 4), int)}, mask_class_labels={0: key})
        logger.log_table(["a"], [[1]], key)
        logger.log_text("x", key)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {line["key"] for line in check_index(tmp_path / "run/r")} == {str(key), f"{key}/{key}"}
    assert {name for name, _ in recorder.uploads} == files_of(tmp_path / "run")


def test_a_table_with_ragged_rows_is_a_clear_error_and_nothing_of_it_is_written(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        with pytest.raises(ValueError, match=r"table 'scores': row 1 has 1 values, and there are 2 columns"):
            run.log_table(["a", "b"], [[1, 2], [3]], "scores")
        run.log_table(["a"], [], "empty")
    assert files_of(tmp_path) == set()


@pytest.mark.large
def test_a_tables_cells_may_be_objects_and_its_columns_any(tmp_path: Path) -> None:
    import torch

    cell = np.array([1.5, 2.5])
    rows: Sequence[Sequence[object]] = [[Path("p"), cell, {"k": 1}, float("nan"), torch.tensor(2.0), object, None]]
    columns: Any = ["step", "a", "a", "t", 5, "größe", "none"]
    with RunFolderLogger(tmp_path) as run:
        run.log_table(columns, rows, "odd", 3)
        cell[:] = 0
    (line,) = lines_of(tmp_path / "tables/odd.jsonl")
    del line["t"]
    assert line == {
        "step": 3,
        "step_": "p",
        "a": [1.5, 2.5],
        "a_": {"k": 1},
        "t_": "NaN",
        "5": 2.0,
        "größe": "<class 'object'>",
        "none": None,
    }
    assert pq.read_table(tmp_path / "tables/odd.parquet").to_pydict()["a_"] == ['{"k": 1}']


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4)),
        np.full((3, 4, 4), 7, np.uint8),
        np.full((4, 4, 3), 2.5),
        np.full((4, 4), np.nan),
        of_torch(lambda torch: torch.ones(1, 4, 4, dtype=torch.bfloat16, requires_grad=True)),
        [[0.0, 1.0], [1.0, 0.0]],
        np.ones((4, 4), bool),
    ],
    ids=["zeros", "constant uint8", "channel last beyond 1", "nan", "bfloat16", "lists", "bool"],
)
def test_any_image_is_a_picture(image: object, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_images(image, "i", step=0)
    (line,) = check_index(tmp_path)
    with Image.open(tmp_path / line["path"]) as picture:
        picture.load()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (4,), (2, 2, 3, 4, 4), (7, 9, 11, 13)])
def test_what_is_no_image_is_a_value_error_that_names_it(shape: tuple[int, ...], tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run, pytest.raises(ValueError, match="val/pictures"):
        run.log_images(np.zeros(shape), "val/pictures")
    assert files_of(tmp_path) == set()


@pytest.mark.parametrize(
    "mask",
    [np.zeros((5, 4), int), np.zeros((4, 4)) + 0.5, [np.zeros((4, 4), int)] * 2, np.full((4, 4), -1), np.full((4, 4), 70_000)],
)
def test_a_mask_that_does_not_fit_is_a_value_error_and_the_image_is_written_without_it(mask: object, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run, pytest.raises(ValueError, match="street/truth"):
        run.log_images(np.zeros((3, 4, 4)), "street", masks={"truth": mask}, mask_class_labels={1: "road"})
    assert files_of(tmp_path) == {"media/index.jsonl", "media/images/street/0.png"}


def test_media_that_are_changed_after_the_call_are_written_as_they_were(tmp_path: Path) -> None:
    image, sound, values = np.full((64, 64), 255, np.uint8), np.full(100, 0.5, np.float32), np.ones(10)
    with RunFolderLogger(tmp_path) as run:
        run.log_images(image, "i", step=0)
        run.log_audio(sound, "a", step=0)
        run.log_histogram(values, "h", 0)
        image[:], sound[:], values[:] = 0, 0, 0
    assert np.array(Image.open(tmp_path / "media/images/i/0.png")).min() == 255
    with wave.open(str(tmp_path / "media/audio/a/0.wav")) as file:
        assert set(np.frombuffer(file.readframes(100), "<i2")) == {16384}
    assert lines_of(tmp_path / "histograms.jsonl")[0]["min"] == 1


def test_silence_a_single_frame_and_a_single_point_are_media(tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        run.log_audio(np.zeros(100), "silence", step=0)
        run.log_video(np.zeros((1, 3, 8, 8), np.uint8), "still", step=0)
        run.log_point_cloud([[0.0, 1.0, float("nan")]], "point", 0)
        run.log_point_cloud(np.zeros((2, 5, 3)), "batch", 0)
    assert [line["path"].removeprefix("media/") for line in check_index(tmp_path)] == [
        "audio/silence/0.wav",
        "video/still/0.mp4",
        "pointclouds/point/0.ply",
        "pointclouds/batch/0-0.ply",
        "pointclouds/batch/0-1.ply",
    ]


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_rates_that_are_none_are_value_errors_that_name_the_key(rate: float, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run:
        with pytest.raises(ValueError, match="noise: sample_rate_hz is"):
            run.log_audio(np.zeros(10), "noise", rate)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="clip: frames_per_s is"):
            run.log_video(np.zeros((2, 8, 8)), "clip", rate)


@pytest.mark.parametrize("values", [[], ["a"], np.zeros(0)])
def test_what_is_no_distribution_is_a_value_error_that_names_it(values: object, tmp_path: Path) -> None:
    with RunFolderLogger(tmp_path) as run, pytest.raises(ValueError, match="weights/1"):
        run.log_histogram(values, "weights/1")


def test_levelled_figures_of_all_sorts_are_taken(tmp_path: Path) -> None:
    data: Mapping[str, object] = {"loss": 0.5, "lr": [0.1, 0.2], "note": "hi", "what": object}
    with Logger(State("r"), RunFolderLogger(tmp_path)) as logger:
        logger.metric("epoch", data)
    assert metrics_of(tmp_path) == [{"step": 0, "loss": 0.5, "lr/0": 0.1, "lr/1": 0.2}]
    assert lines_of(tmp_path / "text.jsonl")[0]["text"] == "hi"
    assert lines_of(tmp_path / "traces.jsonl")[0]["trace"] == "<class 'object'>"
