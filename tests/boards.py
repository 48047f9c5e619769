"""Reading what a TensorBoardLogger has written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfevents import Value, read_values
from wherry.loggers import State
from wherry.loggers.destinations.tensorboard import TensorBoardLogger

WIDTH, HEIGHT = 6, 4


def state_of(rank: int = 0, world_size: int = 1, run_name: str = "run") -> State:
    return State(run_name, rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size, node_rank=0)


def written(board: TensorBoardLogger, folder: Path) -> dict[str, list[tuple[int, Value]]]:
    """Close it and read everything: tag -> (step, value)."""
    board.close()
    found: dict[str, list[tuple[int, Value]]] = {}
    for step, value in read_values(folder):
        found.setdefault(value.tag, []).append((step, value))
    return found


def image() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 255, (3, HEIGHT, WIDTH), np.uint8)
