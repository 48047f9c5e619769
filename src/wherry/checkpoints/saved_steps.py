"""Which steps this rank has saved, so that each of its sets gets a name of its own."""

from __future__ import annotations

import logging

from wherry.checkpoints.protocol.names import SetName
from wherry.errors import AlreadyExistsError

log = logging.getLogger("wherry.checkpoints")


class SavedSteps:
    """The steps that one rank of `world_size` has saved in its attempt, each with its newest version."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._versions: dict[int, int] = {}
        self._given_up: set[int] = set()
        self._last_step = -1

    def next_version(self, step: int, *, overwrite: bool) -> int:
        """The version that a set of this step gets. AlreadyExistsError without `overwrite` for a step that is saved already.

        A save that has raised has saved nothing, so a job of one rank just saves the step again. On several ranks it takes all of
        them: the others have handed over their parts of the set that failed.
        """
        version = self._versions.get(step, 0) + 1
        if version > 1 and not overwrite:
            if step not in self._given_up:
                raise self._refused(step, "is saved already by this attempt", "overwrite=True makes a newer set")
            if self._world_size > 1:
                raise self._refused(step, "could not be saved by this rank", "save it again on all ranks, with overwrite=True")
        if step < self._last_step:
            log.warning(
                "step %d is saved after step %d of the same attempt: the highest step stays the newest set", step, self._last_step
            )
        return version

    def _refused(self, step: int, why: str, hint: str) -> AlreadyExistsError:
        return AlreadyExistsError(f"step {step} {why}", operation="save", uri=str(step), hint=hint)

    def begun(self, name: SetName) -> None:
        """Note that the set has this name now."""
        self._versions[name.step] = name.version
        self._given_up.discard(name.step)
        self._last_step = max(name.step, self._last_step)

    def given_up(self, name: SetName) -> None:
        """Note that this rank's part of the set will not come."""
        if self._versions.get(name.step) == name.version:
            self._given_up.add(name.step)
            self._last_step = max((step for step in self._versions if step not in self._given_up), default=-1)
