"""Several images, sounds or videos as one value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wherry.loggers.run.state import State
from wherry.loggers.typed.multi import MultiLogger
from wherry.loggers.typed.sink import BaseLoggerConfig, Collected, CollectingLogger
from wherry.loggers.typed.sinks import Sinks
from wherry.loggers.values.grid import image_grid, spaced


class Sink(CollectingLogger[BaseLoggerConfig]):
    """Keeps the last that it wrote."""

    def __init__(self) -> None:
        super().__init__(BaseLoggerConfig("sink", write_every_n_seconds=0))
        self.found = Collected()

    def write(self, state: State) -> None:
        self.found = self.take(state.phase)


def collected(log: MultiLogger) -> Collected:
    sink = Sink()
    Sinks([sink]).step(State("run"), log)
    return sink.found


def flat(value: int, *shape: int) -> Any:
    return np.full(shape, value, np.uint8)


def test_four_images_make_two_rows_with_pixels_between_them() -> None:
    grid = image_grid([flat(value, 3, 4, 4) for value in (10, 20, 30, 40)], sep=2)
    assert (3, 10, 10) == grid.shape
    corners = [int(grid[0, y, x]) for y in (0, 9) for x in (0, 9)]
    assert [10, 20, 30, 40] == corners
    assert not grid[:, 4:6].any()
    assert not grid[:, :, 4:6].any()


def test_grey_colour_and_transparent_images_share_a_grid() -> None:
    grid = image_grid([flat(10, 1, 2, 2), flat(20, 3, 2, 2), flat(30, 4, 2, 2)])
    assert 4 == grid.shape[0]
    assert [10, 10, 10, 255] == grid[:, 0, 0].tolist()
    assert {10, 20, 30} <= set(grid[0].flatten().tolist())


def test_the_cells_are_as_large_as_the_largest_image() -> None:
    grid = image_grid([flat(10, 1, 2, 2), flat(20, 1, 6, 3)])
    assert (1, 6, 6) == grid.shape
    assert 4 * 10 + 18 * 20 == int(grid.sum())


def test_of_many_so_many_are_shown_the_first_and_the_last_among_them() -> None:
    assert [0, 4, 9] == spaced(list(range(10)), 3)
    assert [0] == spaced(list(range(10)), 1)
    assert [0, 1] == spaced([0, 1], None)
    with pytest.raises(ValueError, match="at most 0 of 10"):
        spaced(list(range(10)), 0)


def test_images_sounds_and_videos_of_a_batch_are_logged_as_one() -> None:
    log = MultiLogger()
    log.log_images("images", np.zeros((8, 3, 5, 6)), max_images=4, sep=1)
    log.log_audios("audios", np.ones((3, 100)) / 2, sample_rate_hz=1000, sep_ms=10)
    log.log_videos("videos", [np.zeros((4, 3, 5, 6)), np.ones((2, 3, 5, 6))], sep=1)
    found = collected(log)
    assert (3, 11, 13) == found.images["value", "images"].shape
    audio, sample_rate = found.audios["value", "audios"]
    assert (320, 1000) == (len(audio), sample_rate)
    assert 300 == int(np.count_nonzero(audio))
    video = found.videos["value", "videos"]
    assert 4 == len(video)
    assert video[3].any(), "the shorter one stays at its last frame"


@pytest.mark.parametrize(
    ("call", "value"), [("log_audios", np.zeros(5)), ("log_videos", np.zeros((4, 5))), ("log_images", np.zeros((0, 3, 4, 4)))]
)
def test_what_is_no_batch_is_reported_with_its_name_and_shape(call: str, value: Any, caplog: pytest.LogCaptureFixture) -> None:
    log = MultiLogger()
    getattr(log, call)("them", value, namespace="task")
    assert Collected() == collected(log)
    assert "task/them" in caplog.text
    assert str(value.shape) in caplog.text
