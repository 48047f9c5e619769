"""TensorBoardLogger: what it writes, read back by a reader of our own. What TensorBoard makes of it: tests/extra."""

from __future__ import annotations

import io
import json
import math
import signal
import struct
import subprocess
import sys
import threading
import wave
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from large import of_torch
from support import CALLER, run_script
from tfevents import Value, event_files, fields, read_events, read_scalars, read_values
from wherry.errors import ConfigError
from wherry.loggers import Event, Logger, LoggerDestination, ObjectStoreLogger, State, Timestamp
from wherry.loggers.destinations.tensorboard import TensorBoardConfig, TensorBoardLogger

WIDTH, HEIGHT = 6, 4


def state_of(rank: int = 0, world_size: int = 1, run_name: str = "run") -> State:
    return State(run_name, rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size, node_rank=0)


@pytest.fixture
def board(tmp_path: Path) -> TensorBoardLogger:
    return TensorBoardLogger(tmp_path, state=state_of())


def written(board: TensorBoardLogger, folder: Path) -> dict[str, list[tuple[int, Value]]]:
    """Close it and read everything: tag -> (step, value)."""
    board.close()
    found: dict[str, list[tuple[int, Value]]] = {}
    for step, value in read_values(folder):
        found.setdefault(value.tag, []).append((step, value))
    return found


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


class Uploads(LoggerDestination):
    """Takes files, as they are at that moment."""

    def __init__(self) -> None:
        self.taken: dict[str, bytes] = {}
        self.overwrites: list[bool] = []

    def can_upload_files(self) -> bool:
        return True

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        assert remote_file_name not in self.taken
        self.taken[remote_file_name] = file_path.read_bytes()
        self.overwrites.append(overwrite)
        return None


# figures


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


# settings


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


# text


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


# media


def image() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 255, (3, HEIGHT, WIDTH), np.uint8)


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


# lasting


def test_flush_is_a_barrier_that_sigkill_cannot_break(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        import numpy as np
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(sys.argv[1])
        board.log_hyperparameters({"lr": 0.5})
        for step in range(50):
            board.log_metrics({"loss": float(step)}, step)
            board.log_images(np.random.default_rng(step).integers(0, 255, (3, 256, 256), np.uint8), "noise", step=step)
            board.log_histogram(np.arange(10_000), "numbers", step)
        board.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    run_script(script, tmp_path, expected=-signal.SIGKILL, env={"RUN_NAME": "run"})
    steps: dict[str, list[int]] = {}
    for step, value in read_values(tmp_path):
        steps.setdefault(value.tag, []).append(step)
    everything = list(range(50))
    assert {"hyperparameters": [0], "_hparams_/session_start_info": [0]} | dict.fromkeys(
        ("loss", "noise", "numbers"), everything
    ) == steps


def test_flush_raises_what_encoding_raised_once(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_text("a", "samples")
    board._background.submit(lambda: print(1 / 0))
    board.log_images(image(), "other", step=0)
    with pytest.raises(ZeroDivisionError):
        board.flush()
    board.flush()
    assert {"samples", "other"} == set(written(board, tmp_path))


def test_nothing_is_lost_where_nobody_closes(tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(sys.argv[1])
        board.log_metrics({"loss": 1.0}, 0)
        board.log_images(np.zeros((3, 300, 300), np.uint8), "samples", step=0)
    """
    run_script(script, tmp_path)
    assert ["loss", "samples"] == [value.tag for _, value in read_values(tmp_path)]


def test_a_closed_one_says_so_by_name(board: TensorBoardLogger, tmp_path: Path) -> None:
    board.log_metrics({"a": 1.0}, 0)
    board.close()
    board.close()
    board.flush()
    calls: list[Callable[[], None]] = [
        lambda: board.log_metrics({"a": 1.0}),
        lambda: board.log_hyperparameters({"a": 1}),
        lambda: board.log_text("a"),
        lambda: board.log_table(["a"], [[1]]),
        lambda: board.log_traces({"a": 1}),
        lambda: board.log_images(image()),
        lambda: board.log_histogram([1.0]),
        lambda: board.log_audio(np.zeros(10)),
        lambda: board.log_video(np.zeros((2, 3, 4, 4), np.uint8)),
        lambda: board.log_point_cloud(np.zeros((5, 3))),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"TensorBoardLogger .* closed.*: make a new one"):
            call()
    assert {"a": [(0, 1.0)]} == read_scalars(tmp_path)


def test_threads_lose_nothing(board: TensorBoardLogger, tmp_path: Path) -> None:
    def log(number: int) -> None:
        for step in range(100):
            board.log_metrics({f"m{number}": float(step)}, step)
            if step % 25 == 0:
                board.log_images(image(), f"i{number}", step=step)
                board.log_text("x", f"t{number}")

    threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {tag: [step for step, _ in values] for tag, values in written(board, tmp_path).items()}
    expected: dict[str, list[int]] = {}
    for number in range(4):
        expected |= {f"m{number}": list(range(100)), f"i{number}": [0, 25, 50, 75], f"t{number}": [0, 1, 2, 3]}
    assert expected == found
    assert 1 == len(event_files(tmp_path))


def test_the_child_of_a_fork_can_log_too(tmp_path: Path) -> None:
    script = """
        import os, sys
        import numpy as np
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(sys.argv[1])
        picture = np.zeros((3, 300, 300), np.uint8)
        board.log_metrics({"parent": 1.0}, 0)
        board.log_images(picture, "parent picture", step=0)
        child = os.fork()
        if child == 0:
            board.log_metrics({"child": 1.0}, 0)
            board.log_images(picture, "child picture", step=0)
            board.flush()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        board.close()
    """
    run_script(script, tmp_path)
    each = sorted(sorted(value.tag for event in read_events(path) for value in event.values) for path in event_files(tmp_path))
    assert [["child", "child picture"], ["parent", "parent picture"]] == each


def test_writing_needs_neither_tensorboard_nor_an_image_library_for_figures(tmp_path: Path) -> None:
    script = """
        import sys
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        board = TensorBoardLogger(sys.argv[1])
        board.log_hyperparameters({"lr": 0.5})
        board.log_metrics({"loss": 1.0}, 0)
        board.log_text("a")
        board.log_table(["a"], [[1]])
        board.close()
        print([name for name in ("numpy", "PIL", "tensorboard", "google.protobuf", "torch") if name in sys.modules])
    """
    assert "[]\n" == run_script(script, tmp_path)


# places


def test_each_rank_has_a_folder(tmp_path: Path) -> None:
    for rank in range(2):
        board = TensorBoardLogger(tmp_path / "{run_name}", config=TensorBoardConfig(rank_zero_only=False))
        with Logger(state_of(rank, 2), [board]) as logger:
            logger.log_metrics({"loss": float(rank)}, 0)
    folders = {path.parent.relative_to(tmp_path): read_scalars(path.parent) for path in event_files(tmp_path)}
    assert {Path(f"run/rank{rank}"): {"loss": [(0, float(rank))]} for rank in range(2)} == folders


def test_by_default_other_ranks_write_nothing(tmp_path: Path) -> None:
    with Logger(state_of(1, 2), [TensorBoardLogger(tmp_path)]) as logger:
        logger.log_hyperparameters({"a": 1})
        logger.log_metrics({"loss": 1.0}, 0)
        logger.run_event(Event.EPOCH_END)
        logger.run_event(Event.FIT_END)
    assert [] == list(tmp_path.iterdir())


def test_the_run_of_the_router_names_the_folder(tmp_path: Path) -> None:
    logger = Logger(State("mine", Timestamp(batch=7)), [TensorBoardLogger(tmp_path / "{run_name}")])
    logger.log_metrics({"loss": 1.0})  # before any event
    logger.close()
    assert {"loss": [(7, 1.0)]} == read_scalars(tmp_path / "mine" / "rank0")


@pytest.mark.parametrize("folder", ["runs/{unknown}", "runs/{"])
def test_a_bad_template_is_refused_at_once(folder: str) -> None:
    with pytest.raises(ConfigError):
        TensorBoardLogger(folder)
    with pytest.raises(ConfigError):
        TensorBoardConfig(remote_folder=folder)


@pytest.mark.parametrize("name", ["max_file_bytes", "max_file_age_s", "n_histogram_bins", "max_table_rows", "max_points"])
def test_a_bound_of_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"TensorBoardConfig.{name} is 0"):
        TensorBoardConfig(**{name: 0})  # type: ignore[arg-type]


# files for the store


def test_closed_files_are_handed_over_once_and_the_last_at_the_close(tmp_path: Path) -> None:
    uploads = Uploads()
    folder = tmp_path / "with {braces}"  # a name that is a template to Logger.upload_file, if it is not escaped
    config = TensorBoardConfig(max_file_bytes=2000)
    board = TensorBoardLogger(str(folder).replace("{", "{{").replace("}", "}}"), config=config)
    with Logger(state_of(), [board, uploads]) as logger:
        handed_over = []
        for step in range(200):
            logger.log_metrics({"loss": float(step)}, step)
            logger.run_event(Event.BATCH_END)
            handed_over.append(len(uploads.taken))
    assert 3 < handed_over[-1] < len(uploads.taken)
    assert {f"run/tb/rank0/{path.name}": path.read_bytes() for path in event_files(folder)} == uploads.taken
    assert {False} == set(uploads.overwrites)
    assert [(step, float(step)) for step in range(200)] == read_scalars(folder)["loss"]


def test_an_object_store_has_what_tensorboard_reads(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    board = TensorBoardLogger(tmp_path / "runs", config=TensorBoardConfig(max_file_bytes=1000))
    store = ObjectStoreLogger(bucket, spool=tmp_path / "spool", config=CALLER)
    with Logger(state_of(), [board, store]) as logger:
        for step in range(100):
            logger.log_metrics({"loss": float(step)}, step)
            logger.run_event(Event.BATCH_END)
    assert 3 < len(event_files(bucket / "run" / "tb" / "rank0"))
    assert [(step, float(step)) for step in range(100)] == read_scalars(bucket)["loss"]


def test_a_file_of_some_age_is_handed_over_also_when_nothing_is_logged(tmp_path: Path) -> None:
    now_s = [1000.0]
    uploads = Uploads()
    board = TensorBoardLogger(tmp_path, config=TensorBoardConfig(max_file_age_s=60.0), now=lambda: now_s[0])
    with Logger(state_of(), [board, uploads]) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
        counts = []
        for seconds in (0.0, 59.0, 1.0, 300.0):
            now_s[0] += seconds
            logger.run_event(Event.BATCH_END)
            counts.append(len(uploads.taken))
    assert [0, 0, 1, 1] == counts
    assert 1 == len(uploads.taken) == len(event_files(tmp_path))


@pytest.mark.parametrize("upload", [True, False])
def test_where_nothing_uploads_age_closes_no_file(tmp_path: Path, upload: bool) -> None:
    now_s = [1000.0]
    uploads = Uploads()
    board = TensorBoardLogger(tmp_path, config=TensorBoardConfig(upload=upload), now=lambda: now_s[0])
    with Logger(state_of(), [board] if upload else [board, uploads]) as logger:
        for step in range(5):
            logger.log_metrics({"loss": 1.0}, step)
            logger.run_event(Event.BATCH_END)
            now_s[0] += 1000.0
    assert 1 == len(event_files(tmp_path))
    assert {} == uploads.taken


def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with Logger(state_of(), [TensorBoardLogger(tmp_path / "file")]) as logger:  # a folder that cannot be made
        for step in range(3):
            logger.log_metrics({"loss": 1.0}, step)
    assert 1 == sum("TensorBoardLogger.log_metrics failed" in message for message in caplog.messages)


def test_a_disk_that_is_full_at_the_close_keeps_nothing_open_and_nothing_back(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from tfevents import event_files, read_scalars
        from pathlib import Path
        from wherry.loggers import Logger, LoggerDestination, State
        from wherry.loggers.destinations.tensorboard import TensorBoardLogger
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        class Uploads(LoggerDestination):
            def can_upload_files(self):
                return True
            def upload_file(self, state, remote_file_name, file_path, *, overwrite):
                print(read_scalars(file_path.parent))
        logger = Logger(State("run"), [TensorBoardLogger(sys.argv[1]), Uploads()])
        logger.log_hyperparameters({"a": 1})
        logger.log_metrics({"loss": 0.5}, 0)
        (path,) = event_files(Path(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, resource.RLIM_INFINITY))
        logger.close()
    """
    said = run_script(script, tmp_path)
    assert "TensorBoardLogger.close failed: [Errno 27] File too large; this event is lost" in said
    assert "{'loss': [(0, 0.5)]}" in said


def test_the_levels_of_the_router_arrive(tmp_path: Path) -> None:
    with Logger(state_of(), [TensorBoardLogger(tmp_path)]) as logger:
        logger.metric("epoch", {"loss": {"train": 0.5}, "note": "good"})
    found = {value.tag: value.number for _, value in read_values(tmp_path)}
    assert {"loss/train": 0.5, "note": None} == found


def test_a_light_import_and_a_light_start() -> None:
    program = (
        "import wherry.loggers.destinations.tensorboard, sys; print([n for n in ('numpy', 'PIL', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "[]\n" == done.stdout


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, bool])
def test_masks_of_any_whole_type_are_drawn(board: TensorBoardLogger, tmp_path: Path, dtype: type) -> None:
    mask: object = np.eye(HEIGHT, WIDTH).astype(dtype)
    board.log_images(np.zeros((3, HEIGHT, WIDTH), np.uint8), "a", step=0, masks={"m": mask})
    (picture,) = pictures(the_one(written(board, tmp_path)["a/m"]))
    assert [64, 0, 0] == np.asarray(picture)[0, 0].tolist()
