"""Files that several ranks, or nodes, have under one name: a set takes each name once."""

from __future__ import annotations

import os
from pathlib import Path

from wherry.checkpoints.world import World


def files_below(folder: Path) -> list[str]:
    """The names of all files below the folder, relative to it."""
    found = [Path(top, name) for top, _, names in os.walk(folder) for name in names]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def own_names(world: World, here: list[str]) -> list[str]:
    """Of the names that are here those that no rank before this one has. All ranks call it, at the same place."""
    owners: dict[str, int] = {}
    for rank, names in enumerate(world.gather(here)):
        for name in names:
            owners.setdefault(name, rank)
    return [name for name in here if owners[name] == world.rank]
