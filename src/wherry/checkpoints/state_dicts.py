"""State dicts of torch in one file. Reading one unpickles no more than tensors and plain values."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from wherry.checkpoints.safetensors_file import read_safetensors, write_safetensors
from wherry.checkpoints.world import World
from wherry.errors import ConfigError, IntegrityError, MissingExtraError

log = logging.getLogger("wherry.checkpoints")

#: The formats of a state dict, and the endings of their files.
FORMATS = {"torch": "pt", "safetensors": "safetensors"}
#: What numbers and arrays of numpy are pickled with. They hold values, and nothing else.
_NUMPY = ("scalar", "_reconstruct", "ndarray", "dtype")
#: Classes that load() will refuse, of which the user was told; and the names and classes of the states that were looked through.
_told: set[str] = set()
_looked_through: set[int] = set()


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("a state dict needs torch: install it, or save a file or a folder") from error
    return torch


def check_format(name: str) -> str:
    """The name of a format, if it is one: ConfigError."""
    if name not in FORMATS:
        raise ConfigError(f"format {name!r}: a state dict is saved as {' or '.join(map(repr, FORMATS))}")
    return name


def state_name(world: World, format_name: str = "torch") -> str:
    """The name of a rank's state dict in its set."""
    return (f"rank-{world.rank:05d}" if world.size > 1 else "state") + f".{FORMATS[format_name]}"


def write_state(state: Mapping[str, object], file: IO[bytes], format_name: str = "torch") -> None:
    """Write it into an open file. ConfigError for what the format does not hold."""
    torch = _torch()
    if format_name == "safetensors":
        write_safetensors(state, file)
        return
    try:
        torch.save(state, file)
    except RuntimeError as error:  # torch's writer complains of its file, which hides that the disk is full
        if (behind := _os_error_behind(error)) is None:
            raise
        raise behind from error
    # It takes as long as pickling does, so it is done for the first of the states that a training loop saves.
    kind = hash(frozenset((name, type(value)) for name, value in state.items()))
    if kind not in _looked_through and hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):  # from torch 2.5 on
        _looked_through.add(kind)
        _warn_of_classes(torch, file)


def _os_error_behind(error: BaseException) -> OSError | None:
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__context__
    return behind


def _warn_of_classes(torch: Any, file: IO[bytes]) -> None:
    """Say now, and not when the job is resumed, what load() will not unpickle."""
    file.flush()
    file.seek(0)
    with _numpy_allowed(torch):
        refused = sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(file)) - _told)
    file.seek(0, 2)
    if refused:
        _told.update(refused)
        log.warning(
            "the state dict holds more than tensors and plain values: load() will refuse %s unless you allow it by "
            "torch.serialization.add_safe_globals",
            ", ".join(refused),
        )


def find_state(folder: Path, world: World) -> Path:
    """The file of this rank's state dict in a restored set. ConfigError says what is there in its place."""
    for format_name in FORMATS:
        if (path := folder / state_name(world, format_name)).is_file():
            return path
    found = ", ".join(sorted(one.name for one in folder.iterdir())[:5]) or "nothing"
    raise ConfigError(f"the set has no {state_name(world)} but {found}: restore() it and read it yourself")


def read_state(path: Path, map_location: object = None) -> dict[str, Any]:
    """The state dict of a file, memory-mapped where its format allows it: it stays readable when the file is removed.

    IntegrityError for a pickle that does more than to make tensors, numbers and plain values; ConfigError for anything else that
    is no state dict.
    """
    torch = _torch()
    _check_location(torch, map_location)
    if path.suffix == ".safetensors":
        return read_safetensors(path, map_location)
    with _numpy_allowed(torch):
        state = _unpickled(torch, path, map_location)
    if not isinstance(state, dict):
        raise ConfigError(f"{path.name} holds a {type(state).__name__}, not a state dict: restore() it and read it yourself")
    return state


def _unpickled(torch: Any, path: Path, map_location: object) -> object:
    how = {"map_location": map_location, "weights_only": True}
    try:
        try:
            return torch.load(path, mmap=True, **how)
        except (RuntimeError, ValueError):  # an older format, which cannot be mapped
            return torch.load(path, **how)
    except pickle.UnpicklingError as error:
        raise IntegrityError(
            f"{path.name} is refused: it holds more than tensors and plain values ({refused_by(error)})",
            operation="load",
            hint="if you trust who wrote it, allow its class by torch.serialization.add_safe_globals, or restore() the set",
        ) from error
    except (RuntimeError, EOFError) as error:
        if "torch.device('cpu')" in str(error):
            raise ConfigError(f"{path.name} was saved from a device that is not here: give map_location='cpu'") from error
        raise ConfigError(f"{path.name} is no file that torch.save() has written ({error})".splitlines()[0]) from error


def refused_by(error: pickle.UnpicklingError) -> str:
    """What torch.load(weights_only=True) has refused, in a few words: its own advise to switch that off."""
    if (found := re.search(r"GLOBAL ([\w.]+)", str(error))) is not None:
        return f"it would call {found[1]}"
    return str(error).rpartition("UnpicklingError: ")[2].rpartition("WeightsUnpickler error: ")[2].strip().splitlines()[0]


def _check_location(torch: Any, map_location: object) -> None:
    if map_location is None or callable(map_location) or isinstance(map_location, Mapping):
        return
    try:
        device = torch.device(map_location)
    except (RuntimeError, TypeError):
        raise ConfigError(f"map_location={map_location!r} is no device: give 'cpu', 'cuda:0', a dict or a function") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"map_location={map_location!r}: torch sees no such device here, give 'cpu'")


@contextmanager
def _numpy_allowed(torch: Any) -> Iterator[None]:
    """Let numbers and arrays of numpy be unpickled, which optimizers and samplers leave in their states."""
    if not hasattr(torch.serialization, "safe_globals"):
        yield
        return
    with torch.serialization.safe_globals(_numpy_classes()):
        yield


def _numpy_classes() -> Sequence[object]:
    try:
        import numpy as np
        from numpy._core import multiarray
    except ImportError:  # none, or one before numpy 2
        return []
    kinds = [kind for name in getattr(np.dtypes, "__all__", ()) if isinstance(kind := getattr(np.dtypes, name), type)]
    return [*(getattr(multiarray, name) for name in _NUMPY), *kinds]
