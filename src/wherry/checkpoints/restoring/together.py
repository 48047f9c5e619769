"""All ranks during one restore: one set for all of them, and one outcome.

Where torch.distributed is up, rank 0 finds the sets and all ranks try the same one at the same time. If one of them finds damage,
all give that set up together. Without it each rank restores for itself what was agreed on when the job started, and none of them
ever takes another set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from wherry.checkpoints.world import World, portable_error, process_group
from wherry.errors import PermanentError, StoreError, WherryError

log = logging.getLogger("wherry.checkpoints")

#: Of the process group for a restore: a rank waits while others download. One that dies is noticed at once.
_LONGEST_RESTORE = timedelta(hours=24)
_T = TypeVar("_T")


class OtherRankFailedError(PermanentError):
    """Another rank could not restore the set, so no rank goes on with it. Names the ranks and what each of them said."""


class Together:
    """The ranks of one restore. `group`: torch's process group of all of them; None: this rank is alone."""

    def __init__(self, rank: int, group: Any = None) -> None:
        self.rank = rank
        self.group = group

    @property
    def is_alone(self) -> bool:
        """Whether this rank restores for itself."""
        return self.group is None

    def first(self, find: Callable[[], _T]) -> _T:
        """What `find` gives on rank 0, on every rank; an error that it raises there is raised on every rank."""
        if self.group is None:
            return find()
        distributed = process_group()
        box: list[Any] = [None]
        if self.rank == 0:
            try:
                box = [(find(), None)]
            except (WherryError, OSError) as error:
                box = [(None, portable_error(error))]
        with _naming_the_dead():
            distributed.broadcast_object_list(box, src=0, group=self.group)
        found, failure = box[0]
        if failure is not None:
            raise failure
        result: _T = found
        return result

    def each(self, value: _T) -> list[_T]:
        """What each rank gives, by rank, on every rank."""
        if self.group is None:
            return [value]
        distributed = process_group()
        found: list[Any] = [None] * distributed.get_world_size(self.group)
        with _naming_the_dead():
            distributed.all_gather_object(found, value, group=self.group)
        return found

    def settle(self, error: Exception | None, damage: type[StoreError], what: str) -> Exception | None:
        """Tell all ranks how it went on this one. None: well on all of them. Else what all of them have to raise, each in its own
        words if it has any: `damage` if that is what somebody has found, and nobody has another error.
        """
        if self.group is None:
            return error
        said = self.each(None if error is None else (isinstance(error, damage), f"{type(error).__name__}: {error}"))
        others = [(rank, one) for rank, one in enumerate(said) if one is not None and not one[0]]
        damaged = [(rank, one) for rank, one in enumerate(said) if one is not None and one[0]]
        if others:
            if error is not None and not isinstance(error, damage):
                return error
            words = "; ".join(f"rank {rank} says {text}" for rank, (_, text) in others[:3])
            return OtherRankFailedError(
                f"{len(others)} of {len(said)} ranks could not restore it: {words}", operation="restore", uri=what
            )
        if damaged:
            if error is not None:
                return error
            rank, (_, text) = damaged[0]
            return damage(f"rank {rank} has found it damaged: {text}", operation="restore", uri=what)
        return None


@contextmanager
def together(world: World, wanted: bool | None) -> Iterator[Together]:
    """The ranks of a restore, with a process group of their own where torch.distributed is up; alone if that is not `wanted`.

    The group uses gloo, so that no device is needed, and the time-outs of the program's own group do not end a long download.
    """
    distributed = process_group() if world.size > 1 and wanted is not False else None
    if distributed is None:
        yield Together(world.rank)
        return
    group = distributed.new_group(backend="gloo", timeout=_LONGEST_RESTORE)
    try:
        yield Together(world.rank, group)
    finally:
        distributed.destroy_process_group(group)


@contextmanager
def _naming_the_dead() -> Iterator[None]:
    """Say in our words what torch.distributed says of a rank that is gone."""
    try:
        yield
    except RuntimeError as error:
        raise OtherRankFailedError(
            f"the ranks cannot agree any more, so this one restores nothing alone; torch.distributed says: {error}",
            operation="restore",
        ) from error
