"""State dicts of torch in one file. Reading one unpickles no more than tensors and plain values."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from wherry.checkpoints.world import World
from wherry.errors import ConfigError, IntegrityError, MissingExtraError


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("a state dict needs torch: install it, or save a file or a folder") from error
    return torch


def state_name(world: World) -> str:
    """The name of a rank's state dict in its set."""
    return f"rank-{world.rank:05d}.pt" if world.size > 1 else "state.pt"


def write_state(state: Mapping[str, object], file: IO[bytes]) -> None:
    """torch.save() into an open file."""
    _torch().save(state, file)


def read_state(path: Path, map_location: object = None) -> dict[str, Any]:
    """torch.load() with ``weights_only=True``, memory-mapped where possible. IntegrityError for a pickle that does more."""
    torch = _torch()
    try:
        state = torch.load(path, map_location=map_location, weights_only=True, mmap=True)
    except (RuntimeError, ValueError):  # an older format, which cannot be mapped
        try:
            state = torch.load(path, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            raise _refused(path, error) from error
    except pickle.UnpicklingError as error:
        raise _refused(path, error) from error
    if not isinstance(state, dict):
        raise ConfigError(f"{path.name} holds a {type(state).__name__}, not a state dict: restore() it and read it yourself")
    return state


def _refused(path: Path, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"{path.name} is refused: it holds more than tensors and plain values ({error})".splitlines()[0],
        operation="load",
        hint="restore() it and load it yourself if you trust who wrote it",
    )
