"""How the ranks of one start of a job come to have one attempt."""

from __future__ import annotations

import time
from collections.abc import Callable

from wherry.checkpoints.protocol.attempts import Attempt, claim, claim_number, find_number, find_start, join_number, take_place
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.reading import reading
from wherry.checkpoints.restore import PrunedWhileRestoringError
from wherry.checkpoints.world import World
from wherry.errors import AlreadyExistsError, ConfigError
from wherry.store import ObjectStore

#: How long the other ranks wait for rank 0 to record the attempt.
_START_S = 120.0
#: Sets that may be deleted, one after the other, between the moments that they are found and announced.
_MOST_PRUNED = 10


def begin(
    store: ObjectStore,
    keys: RunKeys,
    world: World,
    number: int | None,
    newest: Callable[[], SetName | None],
    *,
    patience_s: float = _START_S,
) -> Attempt:
    """The attempt of this start: rank 0 records it, with the set that `newest()` finds; the others learn it from rank 0.

    `number` is what the user has given on all ranks, if they have. Without a broadcast each other rank takes its place in the
    attempt, once: the ranks of a second start with the same number, or start id, are refused as its rank 0 is, so that they add
    nothing to what the first one has saved. On a store without conditional writes that is not sure for starts at the same moment.

    ConfigError where nothing says which ranks belong together, or if rank 0 records nothing for `patience_s`; AlreadyExistsError
    for a number, or a start, that was recorded before, and for a number below that of a later attempt.
    """
    if number is not None:
        if world.rank == 0:
            return _resuming(store, keys, newest, lambda found: claim_number(store, keys, number, found))
        attempt = join_number(store, keys, number)
    elif world.can_agree:
        agreed = world.agree(_resuming(store, keys, newest, lambda found: claim(store, keys, found)) if world.rank == 0 else None)
        assert agreed is not None, "rank 0 has recorded one"
        return agreed
    elif (start := world.start) is None:
        raise ConfigError(
            f"nothing tells {world.size} ranks which start of the job this is: start torch.distributed first, or use torchrun "
            "with --rdzv-id, or give attempt= the same new number on all of them"
        )
    elif world.rank == 0:
        if find_start(store, keys, start) is not None:
            raise _used_before(keys, start)
        try:
            return _resuming(store, keys, newest, lambda found: claim(store, keys, found, start))
        except AlreadyExistsError as error:
            raise _used_before(keys, start) from error
    else:
        attempt = _wait_for(lambda: find_start(store, keys, start), start, patience_s)
    take_place(store, keys, attempt, world.rank)
    return attempt


def _resuming(
    store: ObjectStore, keys: RunKeys, newest: Callable[[], SetName | None], record: Callable[[SetName | None], Attempt]
) -> Attempt:
    """Record the attempt with the newest set, which another job that is alive does not prune meanwhile.

    As for any reader: it is announced before the manifest is looked at. Prune looks for readers, and for attempts then, when it
    has written the tombstone.
    """
    for is_last in (*[False] * _MOST_PRUNED, True):
        found = newest()
        if found is None:
            break
        try:
            with reading(store, keys, found):
                return record(found)
        except PrunedWhileRestoringError:
            if is_last:
                raise
    return record(None)


def recorded(store: ObjectStore, keys: RunKeys, number: int, *, patience_s: float = _START_S) -> Attempt:
    """The record that rank 0 makes of the attempt that the user has numbered, which this waits for; ConfigError after a while."""
    return _wait_for(lambda: find_number(store, keys, number), f"attempt={number}", patience_s)


def _used_before(keys: RunKeys, start: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"an earlier start of this job had the same id ({start})",
        operation="begin",
        uri=keys.base,
        hint="give torchrun a new --rdzv-id at each start, or give attempt= a new number on all ranks",
    )


def _wait_for(look: Callable[[], Attempt | None], called: str, patience_s: float) -> Attempt:
    until_s = time.monotonic() + patience_s
    wait_s = 0.2
    while (found := look()) is None:
        if time.monotonic() > until_s:
            raise ConfigError(
                f"rank 0 has not recorded the attempt of this start ({called}) for {patience_s:g} s: is it running?"
            )
        time.sleep(wait_s)
        wait_s = min(5.0, wait_s * 1.5)
    return found
