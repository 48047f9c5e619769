"""Steps of the protocol done wrongly, one at a time: each replaces a function of a private copy. The search has to find them all.

`copy` is the copy of the module in which the step is; what it imports is there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from checkpoint_sets.model.copies import Fault
from checkpoint_sets.model.search import Case
from checkpoint_sets.model.stage import actor_here
from wherry.errors import AlreadyExistsError

#: Each fault, with a case in which it shows, and a seed whose history of that case shows it.
FAULTS: list[tuple[Fault, Case, int]] = []
_Plant = Callable[[Any], object]


def _fault(module: str, scene: str, seed: int, **how: Any) -> Callable[[_Plant], _Plant]:
    """The decorated function plants the fault that its docstring names."""

    def note(plant: _Plant) -> _Plant:
        FAULTS.append((Fault(plant.__doc__ or "", module, plant), Case(scene, **how), seed))
        return plant

    return note


@_fault("reading", "reads", 143)
def _silent_reader(copy: Any) -> None:
    """A reader does not say that it restores a set."""
    copy._announce = lambda *_: None


@_fault("protocol.uses", "pins", 13)
def _blind_reader(copy: Any) -> None:
    """Who restores or pins a set does not look whether its manifest is still there."""
    copy.check_there = lambda *_: None


@_fault("protocol.deletion", "reads", 143)
def _no_look_for_readers(copy: Any) -> None:
    """Whoever deletes looks for pins only, and for no readers."""
    copy.readers = lambda *_: (set(), [])


@_fault("protocol.deletion", "pins", 0)
def _no_look_for_pins(copy: Any) -> None:
    """Whoever deletes looks for readers only, and for no pins."""
    copy.is_pinned = lambda *_: False


@_fault("protocol.deletion", "pins", 31)
def _look_before_only(copy: Any) -> None:
    """Whoever deletes looks for pins and readers before the tombstone is written, and not after it."""
    is_used, bury = copy.Deletion.is_used, copy.Deletion.bury

    def only_once(self: Any, name: Any) -> bool:
        self.is_used = lambda _: False
        return bool(is_used(self, name))

    def bury_after_one_look(self: Any, *given: Any) -> bool:
        self.is_used = lambda name: only_once(self, name)
        return bool(bury(self, *given))

    copy.Deletion.bury = bury_after_one_look


@_fault("protocol.deletion", "reads", 2)
def _no_grace(copy: Any) -> None:
    """Objects go without a grace."""
    copy.Deletion.is_older = lambda self, modified_s, age_s: True


@_fault("protocol.deletion", "pins", 125)
def _time_of_the_manifest(copy: Any) -> None:
    """The grace is counted from the time that the manifest's key had when it was listed."""
    copy.Deletion._has_due_tombstone = lambda self, name: isinstance(
        copy.Catalog(self._store, self._keys).read(name), copy.Tombstone
    )


@_fault("protocol.deletion", "late", 40)
def _abandons_what_grows(copy: Any) -> None:
    """A set is abandoned while its ranks send it."""
    copy.Deletion.is_quiet = lambda self, name: True


@_fault("protocol.deletion", "late", 28)
def _abandons_what_is_there(copy: Any) -> None:
    """The tombstone of a set that is abandoned replaces whatever is there."""
    _without_conditions(copy)


@_fault("prune", "deletes", 10)
def _stays_unannounced(copy: Any) -> None:
    """Who deletes a set does not say that the one which stays is in use."""
    copy.reading = lambda *_: nullcontext()


@_fault("protocol.commit", "small", 0)
def _rank_is_missing(copy: Any) -> None:
    """A set is committed when rank 0 has written its receipt."""
    copy.Receipts.missing_of = lambda self, world: [] if 0 in self.by_rank else [0]


@_fault("protocol.commit", "late", 0)
def _replaces_tombstones(copy: Any) -> None:
    """A manifest replaces whatever is there."""
    _without_conditions(copy)


@_fault("protocol.commit", "late", 0)
def _accepts_unread(copy: Any) -> None:
    """A committer takes whatever is under the manifest's key for its manifest."""

    def put_once(store: Any, keys: Any, manifest: Any) -> Any:
        with suppress(AlreadyExistsError):
            copy.put_small(store, keys.manifest(manifest.set), manifest.to_bytes(), if_absent=True)
        return manifest

    copy._put_once = put_once


@_fault("protocol.set_manifest", "small", 1)
def _signed_manifest(copy: Any) -> None:
    """The manifest says who has written it."""
    made = copy.manifest_of
    copy.manifest_of = lambda *given: replace(made(*given), metadata={"by": actor_here().name})


@_fault("protocol.uncommitted", "small", 46)
def _no_roll_forward(copy: Any) -> None:
    """Nobody commits the sets of those that are gone."""
    copy.uncommitted = lambda *_: []
    copy.commit_if_complete = lambda *_: None


@_fault("protocol.catalog", "small", 0)
def _believes_the_pointer(copy: Any) -> None:
    """The pointer is believed, and nothing newer is looked for."""
    newest_first = copy.Catalog._newest_first
    copy.Catalog._newest_first = lambda self: iter([pointed]) if (pointed := self._pointed_at()) else newest_first(self)


@_fault("protocol.catalog", "wide", 114, lagging="data")
def _believes_the_listing(copy: Any) -> None:
    """What a listing does not show is missing."""
    copy.Catalog._missing_or_none = lambda self, keyed: copy.Missing(keyed[0], 0, None)


@_fault("protocol.names", "starts", 3)
def _step_before_attempt(copy: Any) -> None:
    """The highest step is the newest, of whatever attempt."""
    copy.SetName.__lt__ = lambda self, other: (self.step, str(self)) < (other.step, str(other))


@_fault("protocol.attempts", "starts", 0)
def _attempt_is_replaced(copy: Any) -> None:
    """The record of an attempt replaces another one."""
    _without_conditions(copy)


@_fault("protocol.attempts", "starts", 2)
def _any_record_is_its_own(copy: Any) -> None:
    """Who finds an attempt's record takes it for its own."""
    put_own = copy._put_own
    copy._put_own = lambda store, key, attempt: put_own(store, key, attempt) or True


@_fault("prune", "starts", 3)
def _prunes_on(copy: Any) -> None:
    """A job prunes on when a newer attempt has begun."""
    copy.Pruner._check_own = lambda self: None


@_fault("prune", "starts", 1)
def _deletes_what_is_resumed_from(copy: Any) -> None:
    """The set that an attempt resumes from is not kept."""
    copy.Pruner._resumed_from = lambda self, number: set()


@_fault("start", "starts", 0)
def _each_rank_for_itself(copy: Any) -> None:
    """Each rank looks for the newest set itself."""
    begin = copy.begin
    copy.begin = lambda store, keys, world, number, newest: replace(
        begin(store, keys, world, number, newest), resumed_from=newest()
    )


@_fault("protocol.deletion", "shares", 0, shares=True)
def _references_are_not_seen(copy: Any) -> None:
    """The objects that newer sets use go with the set in which they are."""
    copy.ReferencedKeys.by_user = lambda *_: {}


@_fault("agent.comparing", "shares", 70, shares=True)
def _unannounced_use(copy: Any) -> None:
    """Who refers to an older set does not say so, before its receipt does."""
    copy.announce_use = lambda *_: True


def _without_conditions(copy: Any) -> None:
    put_small = copy.put_small
    copy.put_small = lambda store, key, data, if_absent: put_small(store, key, data, if_absent=False)
