"""The names that frameworks give the folders of checkpoints, and the steps in them."""

from __future__ import annotations

import re

from wherry.checkpoints.protocol.names import MOST_STEPS
from wherry.errors import ConfigError

_NUMBERED = re.compile(r"(\d+)$")


def step_of(folder: str) -> int | None:
    """The number at the end of a folder's name; None if there is none. ConfigError if it is too large for a step.

    >>> step_of("checkpoint_000100")
    100
    """
    numbered = _NUMBERED.search(folder)
    if numbered is None:
        return None
    if int(numbered[1]) > MOST_STEPS:
        raise ConfigError(f"the checkpoint {folder!r}: the number at its end is its step, from 0 to {MOST_STEPS}")
    return int(numbered[1])
