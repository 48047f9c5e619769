"""What the caller has given, checked before anything is done with it: each error names the argument, the rule and the remedy."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.checkpoints.protocol.names import MOST_ATTEMPTS
from wherry.checkpoints.world import World
from wherry.config import Config
from wherry.errors import ConfigError

_SETTINGS: dict[str, tuple[type, str]] = {
    "world": (World, "give a World"),
    "keep": (Keep, "give a wherry.Keep, such as wherry.Keep(last=3)"),
    "delays": (PruneDelays, "give a wherry.PruneDelays"),
    "config": (Config, "give a wherry.Config"),
    "storage_options": (Mapping, "give a dict"),
}


def whole(number: Any) -> Any:
    """An integer of numpy, or a tensor of one, as an int; anything else as it is, for who checks it."""
    if isinstance(number, (bool, str)):
        return number
    try:
        return operator.index(number)
    except (TypeError, ValueError):
        return number


def require(value: object, kind: type, name: str, remedy: str) -> None:
    """ConfigError unless the argument `name` is None or a `kind`."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{name}={value!r}: {remedy}, not {_a(value)}")


def check_settings(**settings: object) -> None:
    """ConfigError for one of a wrong type; `settings` by their names, which are those of the methods of Checkpoints."""
    for name, value in settings.items():
        kind, remedy = _SETTINGS[name]
        require(value, kind, name, remedy)


def attempt_of(attempt: object) -> int | None:
    """The number of an attempt, if one was given. ConfigError."""
    if (number := whole(attempt)) is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MOST_ATTEMPTS:
        raise ConfigError(f"attempt {attempt!r}: give a whole number from 1 to {MOST_ATTEMPTS}")
    return number


def source_of(source: object) -> Path:
    """The file or the folder to save. ConfigError for anything that names none."""
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
        raise ConfigError(f"source={source!r}: give a file, a folder or a state dict (a dict), or leave it out")
    return Path(source)


def folder_of(folder: object) -> Path:
    """Where to restore to: a name that a folder can have. ConfigError."""
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder) or "\0" in str(folder):
        raise ConfigError(f"folder={folder!r}: give the path of a folder that is not there yet")
    if not (path := Path(folder)).absolute().name:
        raise ConfigError(f"folder={str(path)!r} is the root of the file system: give the path of a folder below it")
    return path


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
