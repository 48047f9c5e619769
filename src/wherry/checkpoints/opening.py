"""Checkpoints in another process: what is pickled of them, and how they are opened from it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from wherry.checkpoints.protocol.attempts import Attempt
from wherry.checkpoints.world import World
from wherry.config import Config
from wherry.errors import ConfigError
from wherry.store.portable_secrets import portable
from wherry.store.registry import backend_for
from wherry.uploader import Uploader

_T = TypeVar("_T")


class Opening(NamedTuple):
    """What Checkpoints are opened with, without secrets, and the attempt that they have agreed on."""

    uri: str
    run_name: str
    world: World
    storage_options: Mapping[str, Any]
    spool: str
    config: Config
    number: int | None
    dedupe: bool
    attempt: Attempt | None


def opening_of(
    uploader: Uploader,
    run_name: str,
    world: World,
    storage_options: Mapping[str, Any],
    *,
    number: int | None,
    dedupe: bool,
    attempt: Attempt | None,
) -> Opening:
    """What a pickle has. ConfigError for a secret that is in no variable of the environment, and for a store of one process."""
    if backend_for(uploader.uri.scheme).process_local:
        raise ConfigError(f"{uploader.uri} is seen by this process only: no other process can save there")
    options = portable(uploader.uri.scheme, storage_options, storage_options)
    spool = str(uploader.spool.folder)
    return Opening(str(uploader.uri), run_name, world, options, spool, uploader.config, number, dedupe, attempt)


#: Those that were opened from a pickle in this process: another pickle of the same ones finds them here.
_opened: dict[tuple[int, bytes], Any] = {}


def opened_again(kind: Callable[..., _T], opening: Opening) -> _T:
    """The Checkpoints of this opening, in this process."""
    known = (os.getpid(), pickle.dumps(opening))
    if known not in _opened:
        _opened[known] = kind(
            opening.uri,
            opening.run_name,
            attempt=opening.number,
            world=opening.world,
            dedupe=opening.dedupe,
            storage_options=opening.storage_options,
            spool=opening.spool,
            config=opening.config,
        )
    found: _T = _opened[known]
    return found
