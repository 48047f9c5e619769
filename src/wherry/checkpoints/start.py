"""How the ranks of one start of a job come to have one attempt."""

from __future__ import annotations

import time
from collections.abc import Callable

from wherry.checkpoints.protocol.attempts import Attempt, claim, claim_number, find_start
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.world import World
from wherry.errors import ConfigError
from wherry.store import ObjectStore

#: How long the other ranks wait for rank 0 to record the attempt.
_START_S = 120.0


def begin(store: ObjectStore, keys: RunKeys, world: World, number: int | None, newest: Callable[[], SetName | None]) -> Attempt:
    """The attempt of this start: rank 0 records it, with the set that `newest()` finds; the others learn it from rank 0.

    `number` is what the user has given on all ranks, if they have. ConfigError where nothing says which ranks belong together;
    AlreadyExistsError for a number, or a start, that was recorded before.
    """
    if number is not None:
        return claim_number(store, keys, number, newest()) if world.rank == 0 else Attempt(f"{number:09d}")
    if world.can_agree:
        agreed = world.agree(claim(store, keys, newest(), world.start) if world.rank == 0 else None)
        assert agreed is not None, "rank 0 has recorded one"
        return agreed
    if world.start is None:
        raise ConfigError(
            f"nothing tells {world.size} ranks which start of the job this is: start torch.distributed first, or use torchrun "
            "with --rdzv-id, or give attempt= the same new number on all of them"
        )
    return claim(store, keys, newest(), world.start) if world.rank == 0 else _find(store, keys, world.start)


def _find(store: ObjectStore, keys: RunKeys, start: str) -> Attempt:
    until_s = time.monotonic() + _START_S
    wait_s = 0.2
    while (found := find_start(store, keys, start)) is None:
        if time.monotonic() > until_s:
            raise ConfigError(f"rank 0 has not recorded the attempt of this start ({start}) for {_START_S:g} s: is it running?")
        time.sleep(wait_s)
        wait_s = min(5.0, wait_s * 1.5)
    return found
