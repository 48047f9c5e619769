"""InMemoryLogger: what was logged, as numpy arrays."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from large import of_torch
from support import called_in, run_script
from wherry.errors import ConfigError
from wherry.loggers import Logger, State
from wherry.loggers.destinations.in_memory import InMemoryConfig, InMemoryLogger


@pytest.fixture
def memory() -> InMemoryLogger:
    return InMemoryLogger()


def test_a_figure_is_a_series_of_steps_and_values(memory: InMemoryLogger) -> None:
    memory.log_metrics({"loss": 0.5, "lr": 3e-6}, 1)
    memory.log_metrics({"loss": 0.25}, 2)
    series = memory.series("loss")
    assert [1, 2] == series.steps.tolist()
    assert [0.5, 0.25] == series.values.tolist()
    assert ("int64", "float64") == (series.steps.dtype.name, series.values.dtype.name)
    assert ["loss", "lr"] == memory.keys()
    assert {"loss": 0.25, "lr": 3e-6} == memory.most_recent_values
    assert {"loss": 2, "lr": 1} == memory.most_recent_steps


@pytest.mark.large
def test_steps_are_kept_in_the_order_of_the_calls_also_when_they_go_back(memory: InMemoryLogger) -> None:
    for step, value in ((10, 1), (5, 2), (10, 3)):
        memory.log_metrics({"a": value}, step)
    assert [10, 5, 10] == memory.series("a").steps.tolist()
    table = memory.to_pandas()
    assert {5: 2.0, 10: 3.0} == table["a"].to_dict()


def test_without_a_step_calls_are_counted(memory: InMemoryLogger) -> None:
    for _ in range(3):
        memory.log_metrics({"a": 1})
    assert [0, 1, 2] == memory.series("a").steps.tolist()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), math.nan),
        (float("-inf"), -math.inf),
        (np.float32(0.5), 0.5),
        (np.array(3), 3.0),
        (np.array([[2]]), 2.0),
        of_torch(lambda torch: torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), 0.5),
        (True, 1.0),
        (np.int64(7), 7.0),
    ],
    ids=repr,
)
def test_any_number_is_a_value(memory: InMemoryLogger, value: float, expected: float) -> None:
    memory.log_metrics({"a": value}, np.int64(1))  # type: ignore[arg-type]
    np.testing.assert_array_equal([expected], memory.series("a").values)


@pytest.mark.parametrize("key", ["a b", "a/b", "ключ", "k" * 300, 5, None, ("a", 1), "\ud800", ""])
def test_any_key_is_a_name(memory: InMemoryLogger, key: object) -> None:
    memory.log_metrics({key: 1.0})  # type: ignore[dict-item]
    memory.log_hyperparameters({key: 1.0})  # type: ignore[dict-item]
    assert [str(key)] == memory.keys() == list(memory.hyperparameters)


def test_a_value_that_is_no_number_is_an_error_and_the_others_are_kept(memory: InMemoryLogger) -> None:
    with pytest.raises(ValueError, match="bad"):
        memory.log_metrics({"a": 1, "bad": [1, 2], "b": 2}, 1)  # type: ignore[dict-item]
    assert {"a": 1.0, "b": 2.0} == memory.most_recent_values


def test_a_figure_that_was_never_logged_is_an_error_that_names_those_that_were(memory: InMemoryLogger) -> None:
    memory.log_metrics({"loss": 1})
    with pytest.raises(KeyError, match="'los' was logged; there are 'loss'"):
        memory.series("los")


def test_what_was_returned_and_what_was_given_do_not_change_what_is_kept(memory: InMemoryLogger) -> None:
    layers, image, row = [1], np.zeros((4, 4), np.uint8), [{"a": 1}]
    memory.log_hyperparameters({"layers": layers})
    memory.log_images(image)
    memory.log_table(["a"], [row])
    memory.log_metrics({"a": 1}, 1)
    layers.append(2)
    image[:] = 255
    row[0]["a"] = 2
    memory.series("a").values[:] = 9
    memory.most_recent_values["a"] = 9
    memory.tables["Table"].clear()
    memory.hyperparameters.clear()
    assert {"layers": [1]} == memory.hyperparameters
    assert 0 == memory.images["Images"][0].value.images[0].max()
    assert [[{"a": 1}]] == memory.tables["Table"][0].value.rows
    assert [1.0] == memory.series("a").values.tolist()


@pytest.mark.large
def test_every_kind_is_kept_by_name_and_step_in_its_canonical_shape(memory: InMemoryLogger) -> None:
    import torch

    images = torch.rand(2, 3, 4, 5)
    masks = {"truth": np.ones((2, 4, 5), int), "prediction": [np.zeros((4, 5), int)] * 2}
    memory.log_images(images, "pictures", step=3, masks=masks, mask_class_labels={1: "cat"})
    memory.log_table(["a", "b"], [[1, "x"]], "rows", 3)
    memory.log_text("hello", "prompt", 3)
    memory.log_histogram(np.arange(10.0), "weights", 3)
    memory.log_audio(np.zeros(100), "sound", 8000, 3)
    memory.log_video(np.zeros((1, 4, 4), np.uint8), "clip", 5.0, 3)
    memory.log_point_cloud(np.zeros((7, 3)), "points", 3)
    memory.log_traces({"algorithm": {"name": "sam"}})
    (pictures,) = memory.images["pictures"]
    assert [(3, 4, 5)] * 2 == [image.shape for image in pictures.value.images]
    assert {"truth": [(4, 5)] * 2, "prediction": [(4, 5)] * 2} == {
        name: [mask.shape for mask in kept] for name, kept in pictures.value.masks.items()
    }
    assert {1: "cat"} == pictures.value.mask_class_labels
    assert ["a", "b"] == memory.tables["rows"][0].value.columns
    assert "hello" == memory.texts["prompt"][0].value
    assert 10 == memory.histograms["weights"][0].value.n
    assert ((100,), 8000) == (memory.audio["sound"][0].value.samples.shape, memory.audio["sound"][0].value.sample_rate_hz)
    assert ((1, 1, 4, 4), 5.0) == (memory.videos["clip"][0].value.frames.shape, memory.videos["clip"][0].value.frames_per_s)
    assert (1, 7, 3) == memory.point_clouds["points"][0].value.shape
    assert {"name": "sam"} == memory.traces["algorithm"][0].value
    assert {3} == {
        kept[0].step
        for shelf in (memory.images, memory.tables, memory.texts, memory.histograms, memory.audio, memory.videos)
        for kept in shelf.values()
    }


def test_media_are_copied_by_the_log_call_and_brought_into_their_form_once_when_they_are_read(memory: InMemoryLogger) -> None:
    image, sound, video = np.full((3, 4, 5), 0.5), np.full((2, 100), 0.5), np.full((6, 3, 4, 5), 0.5)

    def log() -> None:
        memory.log_images(image, "x", masks={"truth": np.ones((4, 5), int)})
        memory.log_audio(sound, "x", 8000)
        memory.log_video(video, "x")

    def read() -> None:
        images, sounds, videos = memory.images["x"], memory.audio["x"], memory.videos["x"]
        found[:] = [images[0].value.images, sounds[0].value.samples, videos[0].value.frames]

    found: list[Any] = []
    conversions = {"to_images", "to_audio", "to_video"}
    assert set() == conversions & called_in(log)
    for given in (image, sound, video):
        given[:] = 1.0
    memory.close()
    assert conversions == conversions & called_in(read)
    first = list(found)
    assert set() == conversions & called_in(read)
    assert [True] * 3 == [one is other for one, other in zip(first, found, strict=True)]
    images, samples, frames = found
    assert [{128}, {0.5}, {128}] == [set(array.reshape(-1).tolist()) for array in (images[0], samples, frames)]
    masks = memory.images["x"][0].value.masks
    assert ([(3, 4, 5)], (4, 5)) == ([one.shape for one in images], masks["truth"][0].shape)


def test_several_threads_that_read_get_the_same_arrays(memory: InMemoryLogger) -> None:
    memory.log_images(np.zeros((3, 400, 400)))
    found: list[object] = []
    start = threading.Barrier(4)

    def read() -> None:
        start.wait()
        found.append(memory.images["Images"][0].value)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 == len({id(one) for one in found})


def test_the_newest_are_kept_where_there_is_a_bound() -> None:
    memory = InMemoryLogger(config=InMemoryConfig(max_points=10, max_kept=2))
    for step in range(35):
        memory.log_metrics({"a": step}, step)
        memory.log_text(str(step), step=step)
    assert list(range(25, 35)) == memory.series("a").steps.tolist()
    assert list(range(25, 35)) == memory.series("a").values.tolist()
    assert [33, 34] == [kept.step for kept in memory.texts["Text"]]


def test_wrong_shapes_are_errors_that_name_them(memory: InMemoryLogger) -> None:
    calls: list[Callable[[], None]] = [
        lambda: memory.log_images(np.zeros(4), "name"),
        lambda: memory.log_images(np.zeros((4, 4)), "name", masks={"m": np.zeros((3, 3), int)}),
        lambda: memory.log_images([np.zeros((4, 4))] * 2, "name", masks={"m": [np.zeros((4, 4), int)]}),
        lambda: memory.log_table(["a", "b"], [[1]], "name"),
        lambda: memory.log_audio(np.zeros((5, 5, 5)), "name"),
        lambda: memory.log_video(np.zeros(3), "name"),
        lambda: memory.log_point_cloud(np.zeros((2, 2)), "name"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="name"):
            call()
    for shelf in (memory.tables, memory.audio, memory.videos, memory.point_clouds):
        assert {} == shelf
    assert [(1, {}), (2, {})] == [(len(kept.value.images), kept.value.masks) for kept in memory.images["name"]]


@pytest.mark.large
def test_pandas_gets_a_row_a_step_and_a_column_a_figure(memory: InMemoryLogger) -> None:
    memory.log_metrics({"a": 1, "b": 2}, 2)
    memory.log_metrics({"a": 3}, 1)
    table = memory.to_pandas()
    assert ("step", [1, 2], ["a", "b"]) == (table.index.name, table.index.tolist(), table.columns.tolist())
    np.testing.assert_array_equal([[3, np.nan], [1, 2]], table.to_numpy())
    assert InMemoryLogger().to_pandas().empty


def test_it_is_imported_without_numpy_and_says_what_is_missing_without_pandas() -> None:
    said = run_script(
        """
        import sys
        from wherry.loggers.destinations.in_memory import InMemoryLogger
        memory = InMemoryLogger()
        print([name for name in ("numpy", "pandas", "torch") if name in sys.modules])
        sys.modules["pandas"] = None
        try:
            memory.to_pandas()
        except ImportError as error:
            print(error)
        """
    )
    assert ["[]", "InMemoryLogger.to_pandas() needs pandas: pip install pandas"] == said.splitlines()


def test_values_of_several_threads_are_all_kept(memory: InMemoryLogger) -> None:
    def log() -> None:
        for i in range(500):
            memory.log_metrics({"a": i, "b": i}, i)

    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in ("a", "b"):
        series = memory.series(key)
        assert 2000 == len(series.steps)
        np.testing.assert_array_equal(series.steps, series.values)


def test_it_can_be_read_after_the_close_and_not_written(memory: InMemoryLogger) -> None:
    with Logger(State("run"), memory) as logger:
        logger.log_metrics({"a": 1})
    assert {"a": 1.0} == memory.most_recent_values
    with pytest.raises(RuntimeError, match="this InMemoryLogger is closed: make a new one"):
        memory.log_metrics({"a": 1})


@pytest.mark.parametrize("options", [{"max_points": 0}, {"max_kept": -1}])
def test_a_senseless_option_is_an_error_that_names_it(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        InMemoryConfig(**options)
