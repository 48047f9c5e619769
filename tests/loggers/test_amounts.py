"""What is too much for one call is refused before memory is taken for it, with its shape, the limit and a remedy."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from large import of_torch
from wherry.loggers import InMemoryLogger, Logger, LoggerDestination, RunFolderLogger, State, TensorBoardLogger
from wherry.loggers.values.canonical import to_image
from wherry.loggers.values.deep_copy import deep_copy

HUGE = np.broadcast_to(np.uint8(7), (100_000, 100_000))
MiB = 2**20

CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "image": (lambda to: to.log_images(HUGE, "big"), "100000 x 100000"),
    "batch": (lambda to: to.log_images([HUGE[:50_000], HUGE[:50_000]], "big"), "2 x 50000 x 100000"),
    "list": (lambda to: to.log_images([[0] * 100_000] * 100_000, "big"), "100000 x 100000"),
    "mask": (lambda to: to.log_images(np.zeros((8, 8)), "big", masks={"m": HUGE}), "100000 x 100000"),
    "masks": (lambda to: to.log_images(np.zeros((8, 8)), "big", masks={"m": [HUGE]}), "1 x 100000 x 100000"),
    "histogram": (lambda to: to.log_histogram(HUGE, "big"), "100000 x 100000"),
    "audio": (lambda to: to.log_audio(np.broadcast_to(np.float32(0), (10**10,)), "big"), "10000000000"),
    "video": (lambda to: to.log_video(np.broadcast_to(np.uint8(0), (1000, 3, 2000, 2000)), "big"), "1000 x 3 x 2000 x 2000"),
    "points": (lambda to: to.log_point_cloud(np.broadcast_to(np.float32(0), (10**9, 3)), "big"), "1000000000 x 3"),
}


@pytest.fixture(params=["memory", "folder", "board"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> LoggerDestination:
    if request.param == "memory":
        return InMemoryLogger()
    return (RunFolderLogger if request.param == "folder" else TensorBoardLogger)(tmp_path, state=State("run"))


def peak_of(act: Callable[[], object]) -> int:
    """The most memory that it takes at a time; numpy's is counted."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("call", [*CALLS, of_torch(lambda torch: torch.zeros(1).expand(100_000, 100_000), name="tensor")])
def test_what_is_too_much_for_memory_is_refused_before_memory_is_taken(destination: LoggerDestination, call: Any) -> None:
    log, shape = CALLS[call] if isinstance(call, str) else (lambda to: to.log_images(call, "big"), "100000 x 100000")
    destination.log_images(np.zeros((8, 8)), "small")  # what is imported or made at first is so now
    destination.log_histogram([1.0], "small")

    def act() -> None:
        with pytest.raises(
            ValueError, match=rf"^big.*: its shape is {shape}, \d+\.\d GiB, and at most 4 GiB are logged in one call"
        ):
            log(destination)

    assert peak_of(act) < 10 * MiB
    destination.close(State("run"), None)  # type: ignore[arg-type]


def test_a_table_of_too_many_cells_is_refused_before_its_rows_are_read(destination: LoggerDestination) -> None:
    def act() -> None:
        with pytest.raises(
            ValueError, match="table 'big': 100000 rows of 1000 columns are 100000000 cells, and at most 10000000"
        ):
            destination.log_table(["c"] * 1000, [[0] * 1000] * 100_000, "big")

    assert peak_of(act) < 10 * MiB
    destination.close(State("run"), None)  # type: ignore[arg-type]


@pytest.mark.large
def test_what_waits_for_a_destination_takes_no_more_than_was_given(caplog: pytest.LogCaptureFixture) -> None:
    ready: list[bool] = []

    class Late(InMemoryLogger):
        def is_ready(self, state: State) -> bool:
            return bool(ready)

    memory = Late()
    logger = Logger(State("run"), memory)
    import torch

    expanded = torch.zeros(1).expand(100_000, 100_000)
    assert peak_of(lambda: logger.log_images(HUGE, "big")) < 10 * MiB
    logger.log_traces({"big": expanded})
    ready.append(True)
    logger.log_images(np.zeros((8, 8)), "small")
    logger.close()
    assert ["small"] == list(memory.images)
    assert expanded.shape == memory.traces["big"][0].value.shape  # type: ignore[attr-defined]
    (said,) = caplog.messages
    assert "its shape is 100000 x 100000" in said


def test_a_copy_of_what_is_repeated_is_independent_of_it() -> None:
    row = np.zeros(1, np.uint8)
    copied = deep_copy(np.broadcast_to(row, (100_000, 100_000)))
    row[0] = 9
    assert ((100_000, 100_000), 0) == (copied.shape, copied[5, 7])


def test_what_fits_is_logged() -> None:
    assert (1, 3, 4) == to_image(np.broadcast_to(np.uint8(7), (3, 4)), "small").shape
