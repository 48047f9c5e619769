"""TensorBoardLogger: what it writes, read back by a reader of our own. What TensorBoard makes of it: tests/extra."""

from __future__ import annotations

import io
import json
import math
import struct
import wave
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from boards import HEIGHT, WIDTH, image, state_of, written
from large import of_torch
from tfevents import Value, event_files, fields, read_events, read_scalars
from wherry.loggers import Logger
from wherry.loggers.destinations.tensorboard import TensorBoardConfig, TensorBoardLogger


@pytest.fixture
def board(tmp_path: Path) -> TensorBoardLogger:
    return TensorBoardLogger(tmp_path, state=state_of())


def the_one(values: list[tuple[int, Value]]) -> Value:
    ((_, value),) = values
    return value


def text_of(value: Value) -> str:
    assert ("text", ()) == (value.plugin, value.shape)
    (text,) = value.strings
    return text.decode()


def pictures(value: Value) -> list[Image.Image]:
    assert "images" == value.plugin
    width, height, encoded = value.strings
    opened: Image.Image = Image.open(io.BytesIO(encoded))
    assert (int(width), int(height)) == opened.size
    return [opened]


def test_metrics_are_curves(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_metrics({"loss": 0.5, "acc": 0.25}, step=10)
    board.log_metrics({"loss": 0.25}, step=11)
    board.close()
    assert {"loss": [(10, 0.5), (11, 0.25)], "acc": [(10, 0.25)]} == read_scalars(tmp_path)


def test_metrics_are_there_before_any_flush(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_metrics({"loss": 0.5}, step=10)
    assert {"loss": [(10, 0.5)]} == read_scalars(tmp_path)
    board.close()


def test_without_a_step_the_calls_are_counted(board: TensorBoardLogger, tmp_path: Path) -> None:
    for _ in range(2):
        board.log_metrics({"loss": 1.0})
        board.log_metrics({"acc": 1.0})
        board.log_text("a", "one")
    board.log_text("b", "other")
    found = {tag: [step for step, _ in values] for tag, values in written(board, tmp_path).items()}
    assert {"loss": [0, 2], "acc": [1, 3], "one": [0, 1], "other": [0]} == found


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.array(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        of_torch(lambda torch: torch.tensor(0.5, requires_grad=True), 0.5),
        of_torch(lambda torch: torch.tensor([0.5], dtype=torch.bfloat16), 0.5),
        (True, 1.0),
        (10**400, math.inf),
        (-math.inf, -math.inf),
    ],
)
def test_whatever_is_a_number_can_be_logged(board: TensorBoardLogger, tmp_path: Path, number: float, expected: float) -> None:
    board.log_metrics({"a": number}, 0)
    board.close()
    assert {"a": [(0, expected)]} == read_scalars(tmp_path)


def test_nan_is_kept(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_metrics({"a": math.nan, "b": 1.0}, 0)
    board.close()
    scalars = read_scalars(tmp_path)
    assert math.isnan(scalars["a"][0][1])
    assert [(0, 1.0)] == scalars["b"]


def test_what_is_no_number_is_an_error_that_names_it_and_the_others_are_written(board: TensorBoardLogger, tmp_path: Path) -> None:
    metrics: Mapping[str, object] = {"a": 1.0, "wrong": np.zeros(3), "b": 2.0}
    with pytest.raises(ValueError, match="wrong"):
        board.log_metrics(metrics, 0)  # type: ignore[arg-type]
    board.close()
    assert {"a": [(0, 1.0)], "b": [(0, 2.0)]} == read_scalars(tmp_path)


@pytest.mark.parametrize("key", ["a b", "a/b/c", "Größe 漢字 🚣", "x" * 300, ""])
def test_any_name_can_be_logged(board: TensorBoardLogger, tmp_path: Path, key: str) -> None:
    board.log_metrics({key: 1.0}, 0)
    board.close()
    assert {key: [(0, 1.0)]} == read_scalars(tmp_path)


def test_a_key_that_is_no_string_becomes_one(board: TensorBoardLogger, tmp_path: Path) -> None:
    metrics: Mapping[object, float] = {3: 1.0, None: 2.0, (1, 2): 3.0}
    board.log_metrics(metrics, 0)  # type: ignore[arg-type]
    board.close()
    assert {"3": [(0, 1.0)], "None": [(0, 2.0)], "(1, 2)": [(0, 3.0)]} == read_scalars(tmp_path)


def test_a_step_may_go_back_and_nothing_is_written_for_nothing(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_metrics({}, 5)
    board.log_hyperparameters({})
    assert [] == event_files(tmp_path)
    for step in (5, 3, -1):
        board.log_metrics({"a": 1.0}, step)
    board.close()
    assert [5, 3, -1] == [step for step, _ in read_scalars(tmp_path)["a"]]


def test_a_name_belongs_to_the_kind_that_used_it_first(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_metrics({"loss": 1.0}, 0)
    board.log_text("low", "loss", 0)
    board.log_histogram([1.0, 2.0], "loss", 0)
    board.log_histogram([1.0, 2.0], "late", 0)  # written later, and yet the first
    board.log_metrics({"late": 1.0}, 0)
    board.log_text("low", "loss", 1)
    board.log_metrics({"loss": 1.0, "loss (text)": 3.0}, 1)
    found = {tag: [value.plugin for _, value in values] for tag, values in written(board, tmp_path).items()}
    expected = {
        "loss": ["", ""],
        "loss (text)": ["text", "text"],
        "loss (histogram)": ["histograms"],
        "loss (text) (scalar)": [""],
        "late": ["histograms"],
        "late (scalar)": [""],
    }
    assert expected == found


def session(value: Value) -> dict[int, list[bytes | int]]:
    assert ("hparams", (0,)) == (value.plugin, value.shape)
    return fields(value.plugin_data)


def hparams_of(value: Value) -> dict[str, object]:
    (start,) = session(value)[3]
    assert isinstance(start, bytes)
    found: dict[str, object] = {}
    for entry in fields(start)[1]:
        assert isinstance(entry, bytes)
        ((key,), (content,)) = (fields(entry)[number] for number in (1, 2))
        assert isinstance(key, bytes)
        assert isinstance(content, bytes)
        ((kind, (one,)),) = fields(content).items()
        if isinstance(one, bytes):
            found[key.decode()] = struct.unpack("<d", one)[0] if kind == 2 else one.decode()
        else:
            found[key.decode()] = bool(one)
    return found


@pytest.mark.large
def test_hyperparameters_of_several_calls_are_one_record_and_a_table(board: TensorBoardLogger, tmp_path: Path) -> None:
    import torch

    board.log_hyperparameters({"lr": 3e-6, "optimizer": {"name": "adamw", "betas": [0.9, 0.95]}, "amp": True})
    board.log_hyperparameters({"none": None, "bad": math.nan, "big": np.int64(12), 7: torch.tensor(0.5)})  # type: ignore[dict-item]
    board.log_metrics({"loss": 1.0}, 0)
    found = written(board, tmp_path)
    expected = {
        "lr": 3e-6,
        "optimizer/name": "adamw",
        "optimizer/betas": "[0.9, 0.95]",
        "amp": True,
        "none": "None",
        "bad": "nan",
        "big": 12.0,
        "7": 0.5,
    }
    assert expected == hparams_of(the_one(found["_hparams_/session_start_info"]))
    table = text_of(found["hyperparameters"][-1][1])
    assert "| lr | 3e-06 |" in table
    assert "| optimizer/betas | \\[0.9, 0.95\\] |" in table
    assert "| bad | nan |" in table


def test_later_hyperparameters_are_in_the_table(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_hyperparameters({"a": 1})
    board.flush()
    board.log_hyperparameters({"b": 2})
    found = written(board, tmp_path)
    assert {"a": 1.0} == hparams_of(the_one(found["_hparams_/session_start_info"]))
    assert ["| name | value |\n| --- | --- |\n| a | 1 |", "| name | value |\n| --- | --- |\n| a | 1 |\n| b | 2 |"] == [
        text_of(value) for _, value in found["hyperparameters"]
    ]


@pytest.mark.parametrize(("error", "expected"), [(None, 1), (ValueError("no"), 2)])
def test_the_end_of_the_session_says_how_it_ended(tmp_path: Path, error: Exception | None, expected: int) -> None:
    board = TensorBoardLogger(tmp_path)
    logger = Logger(state_of(), [board])
    logger.log_hyperparameters({"a": 1})
    logger.error = error
    logger.close()
    (end,) = session(the_one(written(board, tmp_path)["_hparams_/session_end_info"]))[4]
    assert isinstance(end, bytes)
    assert [expected] == fields(end)[1]


def test_text_is_kept_as_it_is(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_text("**a**\n漢字", "prompt", 3)
    ((step, value),) = written(board, tmp_path)["prompt"]
    assert (3, "**a**\n漢字") == (step, text_of(value))


def test_a_table_is_markdown_whatever_is_in_it(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_table(["a", "b|c"], [[1, "x|y\n<b>*z*"], [None, [1, 2]]], "table", 0)
    expected = "| a | b\\|c |\n| --- | --- |\n| 1 | x\\|y<br>&lt;b&gt;\\*z\\* |\n| null | \\[1, 2\\] |"
    assert expected == text_of(the_one(written(board, tmp_path)["table"]))


def test_a_long_table_is_cut_and_says_so(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path, config=TensorBoardConfig(max_table_rows=2), state=state_of())
    board.log_table(["a"], [[number] for number in range(5)], "table", 0)
    expected = "| a |\n| --- |\n| 0 |\n| 1 |\n\n3 more rows are not shown."
    assert expected == text_of(the_one(written(board, tmp_path)["table"]))


def test_a_ragged_table_is_refused_by_name(board: TensorBoardLogger) -> None:
    with pytest.raises(ValueError, match="'table': row 1"):
        board.log_table(["a", "b"], [[1, 2], [3]], "table", 0)
    board.close()


def test_traces_are_shown_as_they_are(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_traces({"algorithm": {"a": [1, math.nan]}, "text": "<b>\n```\nx"})
    board.log_traces({"text": "again"})
    found = written(board, tmp_path)
    assert {"a": [1, "NaN"]} == json.loads(text_of(the_one(found["traces/algorithm"])))
    assert [(0, "    <b>\n    ```\n    x"), (1, "    again")] == [(step, text_of(value)) for step, value in found["traces/text"]]


def test_images_of_a_call_have_a_tag_each(board: TensorBoardLogger, tmp_path: Path) -> None:
    one = image()
    board.log_images([one, one[::-1], one[:, :2]], "samples", step=4)
    found = written(board, tmp_path)
    for number, expected in enumerate([one, one[::-1], one[:, :2]]):
        ((step, value),) = found.pop(f"samples/{number}")
        (picture,) = pictures(value)
        assert 4 == step
        np.testing.assert_array_equal(expected, np.moveaxis(np.asarray(picture), -1, 0))
    assert {} == found


@pytest.mark.large
def test_channels_may_be_last_and_tensors_are_images(board: TensorBoardLogger, tmp_path: Path) -> None:
    import torch

    one = image()
    board.log_images(torch.tensor(np.moveaxis(one, 0, -1)), "last", channels_last=True, step=0)
    (picture,) = pictures(the_one(written(board, tmp_path)["last"]))
    np.testing.assert_array_equal(np.moveaxis(one, 0, -1), np.asarray(picture))


def test_what_is_logged_may_be_changed_at_once(board: TensorBoardLogger, tmp_path: Path) -> None:
    one, numbers = image(), np.arange(100.0)
    original = one.copy()
    board.log_images(one, "samples", step=0)
    board.log_histogram(numbers, "numbers", 0)
    one[:] = 0
    numbers[:] = 0.0
    found = written(board, tmp_path)
    (picture,) = pictures(the_one(found["samples"]))
    np.testing.assert_array_equal(np.moveaxis(original, 0, -1), np.asarray(picture))
    histogram = the_one(found["numbers"]).array
    assert histogram is not None
    assert 99.0 == histogram[-1, 1]


@pytest.mark.parametrize("several", [False, True])
def test_masks_are_drawn_over_their_images(board: TensorBoardLogger, tmp_path: Path, several: bool) -> None:
    grey = np.full((3, HEIGHT, WIDTH), 100, np.uint8)
    mask = np.zeros((HEIGHT, WIDTH), np.int64)
    mask[0, 0], mask[1, 1] = 1, 2
    images: object = [grey, grey] if several else grey
    masks: dict[str, object] = {"truth": [mask, mask] if several else mask, "guess": np.stack([mask * 0] * (1 + several))}
    board.log_images(images, "samples", step=0, masks=masks, mask_class_labels={1: "cat", 2: "dog"})
    found = written(board, tmp_path)
    ends = ["/0", "/1"] if several else [""]
    assert {f"{name}{end}" for name in ("samples", "samples/truth", "samples/guess") for end in ends} == set(found)
    for end in ends:
        truth = the_one(found[f"samples/truth{end}"])
        assert "1 cat: #800000, 2 dog: #008000" == truth.description
        (picture,) = pictures(truth)
        drawn = np.asarray(picture)
        assert [114, 50, 50] == drawn[0, 0].tolist()
        assert [50, 114, 50] == drawn[1, 1].tolist()
        assert [100, 100, 100] == drawn[2, 2].tolist()
        (picture,) = pictures(the_one(found[f"samples/guess{end}"]))
        assert {100} == set(np.asarray(picture).flat)


def test_label_0_is_drawn_if_it_has_a_name(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_images(
        np.full((3, HEIGHT, WIDTH), 255, np.uint8),
        "a",
        step=0,
        masks={"m": np.zeros((HEIGHT, WIDTH), int)},
        mask_class_labels={0: "sky"},
    )
    (picture,) = pictures(the_one(written(board, tmp_path)["a/m"]))
    assert {128} == set(np.asarray(picture).flat)  # its colour is black, as in the indexed PNGs


@pytest.mark.parametrize("mask", [np.zeros((3, 3), int), np.zeros((2, HEIGHT, WIDTH), int)])
def test_masks_that_do_not_fit_are_refused_by_name(board: TensorBoardLogger, mask: object) -> None:
    with pytest.raises(ValueError, match="samples/truth"):
        board.log_images(image(), "samples", step=0, masks={"truth": mask})
    board.close()


@pytest.mark.parametrize("images", [[], np.zeros((0, HEIGHT, WIDTH)), np.zeros((2, 7, 8, 5)), np.zeros(4), ["a"]])
def test_what_is_no_image_is_refused_by_name_at_once(board: TensorBoardLogger, tmp_path: Path, images: object) -> None:
    with pytest.raises(ValueError, match="samples"):
        board.log_images(images, "samples", step=0)
    assert {} == written(board, tmp_path)


@pytest.mark.large
def test_a_histogram_keeps_edges_and_counts(board: TensorBoardLogger, tmp_path: Path) -> None:
    import torch

    values = torch.tensor([0.0, 1.0, 1.0, 4.0, math.nan, math.inf], requires_grad=True)
    board.log_histogram(values, "weights", 2)
    ((step, value),) = written(board, tmp_path)["weights"]
    assert (2, "histograms", (64, 3)) == (step, value.plugin, value.shape)
    assert value.array is not None
    left, right, counts = value.array.T
    assert (0.0, 4.0, 4.0) == (left[0], right[-1], counts.sum())
    np.testing.assert_array_equal(left[1:], right[:-1])


@pytest.mark.parametrize("values", [[math.nan], [2.0, 2.0], [True, False]])
def test_any_numbers_have_a_histogram(board: TensorBoardLogger, tmp_path: Path, values: list[float]) -> None:
    board.log_histogram(values, "weights", 0)
    value = the_one(written(board, tmp_path)["weights"])
    assert value.array is not None
    assert np.isfinite(value.array).all()
    assert sum(map(math.isfinite, values)) == value.array[:, 2].sum()


@pytest.mark.parametrize("values", [["a", "b"], [], [[1.0], [1.0, 2.0]], [None]])
def test_what_is_no_number_has_no_histogram(board: TensorBoardLogger, tmp_path: Path, values: object) -> None:
    with pytest.raises(ValueError, match="weights"):
        board.log_histogram(values, "weights", 0)
    assert {} == written(board, tmp_path)


def test_sound_is_a_wav_file(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_audio(np.sin(np.linspace(0, 100, 8000)).astype(np.float32), "tone", 8000, 1)
    ((step, value),) = written(board, tmp_path)["tone"]
    assert (1, "audio") == (step, value.plugin)
    with wave.open(io.BytesIO(value.strings[0])) as sound:
        assert (8000, 8000, 1) == (sound.getframerate(), sound.getnframes(), sound.getnchannels())


def test_a_video_is_an_animated_image(board: TensorBoardLogger, tmp_path: Path) -> None:
    frames = np.zeros((5, 3, HEIGHT, WIDTH), np.uint8)
    for number in range(5):
        frames[number, :, 0, number] = 255
    board.log_video(frames, "clip", 10.0, 0)
    (picture,) = pictures(the_one(written(board, tmp_path)["clip"]))
    assert ("GIF", 5) == (picture.format, getattr(picture, "n_frames"))  # noqa: B009


def test_points_are_a_mesh_of_vertices(board: TensorBoardLogger, tmp_path: Path) -> None:
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    points[2, 1] = np.nan
    board.log_point_cloud(points, "cloud", 0)
    value = the_one(written(board, tmp_path)["cloud_VERTEX"])
    assert ("mesh", (1, 4, 3)) == (value.plugin, value.shape)
    data = fields(value.plugin_data)
    assert [b"cloud"] == data[2]
    assert ([1], [2], [b"\x01\x04\x03"]) == (data[3], data[7], data[6])
    assert value.array is not None
    expected = points.copy()
    expected[2] = points[0]
    np.testing.assert_array_equal(expected[None], value.array)


def test_of_a_large_cloud_a_part_is_shown(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path, config=TensorBoardConfig(max_points=100), state=state_of())
    board.log_point_cloud(np.random.default_rng(0).random((1000, 3)), "cloud", 0)
    assert (1, 100, 3) == the_one(written(board, tmp_path)["cloud_VERTEX"]).shape


def test_rates_of_nothing_are_refused_by_name_at_once(board: TensorBoardLogger, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tone: sample_rate_hz is 0"):
        board.log_audio(np.zeros(10), "tone", 0)
    with pytest.raises(ValueError, match="clip: frames_per_s is 0"):
        board.log_video(np.zeros((2, 3, HEIGHT, WIDTH)), "clip", 0)
    assert {} == written(board, tmp_path)


def test_media_have_the_time_of_their_call(tmp_path: Path) -> None:
    times = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    board = TensorBoardLogger(tmp_path, state=state_of(), now=lambda: next(times))
    board.log_images(image(), "samples", step=0)
    called_at_s = next(times) - 1.0
    board.close()
    assert [called_at_s] == [event.wall_time_s for event in read_events(*event_files(tmp_path))]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, bool])
def test_masks_of_any_whole_type_are_drawn(board: TensorBoardLogger, tmp_path: Path, dtype: type) -> None:
    mask: object = np.eye(HEIGHT, WIDTH).astype(dtype)
    board.log_images(np.zeros((3, HEIGHT, WIDTH), np.uint8), "a", step=0, masks={"m": mask})
    (picture,) = pictures(the_one(written(board, tmp_path)["a/m"]))
    assert [64, 0, 0] == np.asarray(picture)[0, 0].tolist()
