"""Steps: what is one, and that another is refused by name before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from large import of_torch
from wherry.loggers import ConsoleLogger, InMemoryLogger, LoggerDestination, RunFolderLogger, TensorBoardLogger
from wherry.loggers.values.checks import to_step

DESTINATIONS: dict[str, Callable[[Path], LoggerDestination]] = {
    "console": lambda folder: ConsoleLogger(),
    "memory": lambda folder: InMemoryLogger(),
    "run folder": RunFolderLogger,
    "tensorboard": TensorBoardLogger,
}


@pytest.mark.parametrize("step", [3, 3.0, np.int32(3), np.array(3), of_torch(lambda torch: torch.tensor(3))])
def test_any_whole_number_is_a_step(step: object) -> None:
    assert 3 == to_step(step, "x")


@pytest.mark.parametrize("step", ["3", 0.5, 2**63, -(2**63), float("nan"), float("inf"), None, [1, 2]])
def test_nothing_else_is_one(step: object) -> None:
    with pytest.raises(ValueError, match=r"^loss: the step is .*: it must be a whole number of at most 63 bits"):
        to_step(step, "loss")


@pytest.mark.parametrize("kind", DESTINATIONS)
@pytest.mark.parametrize("step", ["x", 2**63])
def test_a_step_that_is_none_is_refused_and_the_next_call_is_taken(tmp_path: Path, kind: str, step: object) -> None:
    destination = DESTINATIONS[kind](tmp_path)
    with pytest.raises(ValueError, match="the step is"):
        destination.log_metrics({"loss": 1.0}, step)  # type: ignore[arg-type]
    destination.log_metrics({"loss": 1.0}, 3)
    destination.close()  # type: ignore[call-arg]
