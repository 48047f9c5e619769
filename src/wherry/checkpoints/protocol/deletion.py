"""Deleting sets, in two steps: a tombstone takes the manifest's place, and the objects go later.

Each step can be killed after each request: what is left is a set that is there, or a tombstone, with which the next prune goes
on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice

from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import Receipts, list_receipts, read_receipt
from wherry.checkpoints.protocol.documents import DamagedDocumentError, NewerFormatError, put_small, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import ReceiptName
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.checkpoints.protocol.uncommitted import sets_with_data
from wherry.checkpoints.protocol.uses import is_pinned, readers
from wherry.errors import AlreadyExistsError, ConfigError, NotFoundError
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectMeta, ObjectStore

log = logging.getLogger("wherry.checkpoints")

ABANDONED = "abandoned"
PRUNED = "pruned"
#: Keys in one call of delete_many().
_AT_ONCE = 1000


@dataclass(frozen=True)
class PruneDelays:
    """How long prune waits, in seconds by the store's clock.

    `abandon_after_s`: a set without a manifest is given up when its newest object is older. `grace_s`: the objects go so long
    after the tombstone was written, so that whoever has read the manifest before can end. `reader_s`: a reader that has not been
    heard of for longer is dead. `forget_after_s`: a tombstone whose objects are gone, and the record of an attempt that has left
    nothing, are removed when they are older: no agent comes back so late to commit the set, whose uploads have a deadline of a
    day.
    """

    abandon_after_s: float = 2 * 86_400.0
    grace_s: float = 6 * 3600.0
    reader_s: float = 3600.0
    forget_after_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError(f"{one.name} is {value!r}: give seconds, 0 or more")


class InUseError(ConfigError):
    """The set cannot be deleted: it is pinned, is being restored, or no other set is proven complete."""


class Deletion:
    """The steps of deleting sets of one run, at the time `now_s` of the store's clock; None: the store tells no times.

    `prove` is called before each step that takes something away: it raises unless another set is complete now, which stays, as
    this process has announced that it reads it.
    """

    def __init__(
        self, store: ObjectStore, keys: RunKeys, now_s: float | None, delays: PruneDelays, prove: Callable[[SetName], None]
    ) -> None:
        self._store = store
        self._keys = keys
        self._now_s = now_s
        self._delays = delays
        self._prove = prove

    def is_older(self, modified_s: float | None, age_s: float) -> bool:
        """Whether something is surely older than `age_s`, by the store's clock. Never where the store tells no times."""
        if age_s == 0:
            return True
        return modified_s is not None and self._now_s is not None and self._now_s - modified_s > age_s

    def is_used(self, name: SetName) -> bool:
        """Whether the set has a pin, or somebody is restoring it."""
        return is_pinned(self._store, self._keys, name) or bool(
            readers(self._store, self._keys, self._now_s, self._delays.reader_s, name)[0]
        )

    def bury(self, manifest: Manifest, resumed_from: Callable[[], Collection[SetName]]) -> bool:
        """Write the tombstone of a committed set. False: somebody uses it, so it stays.

        `prove` announces the set that stays before this looks for users: so of two who delete at once, each the set that the
        other one lets stay, one finds a user. The tombstone comes before the second look for users, who write first and look for
        the manifest then; and before the look for the sets that attempts were `resumed_from`, which are readers of them until
        they are recorded. Raises what `prove` raises.
        """
        self._prove(manifest.set)
        if self.is_used(manifest.set):
            return False
        key = self._keys.manifest(manifest.set)
        tombstone = Tombstone(manifest.set, PRUNED, manifest.to_bytes())
        put_small(self._store, key, tombstone.to_bytes(), if_absent=False)
        stays = True
        try:
            self._prove(manifest.set)  # a newer attempt may have begun
            stays = self.is_used(manifest.set) or manifest.set in resumed_from()
        finally:
            if stays:
                put_small(self._store, key, manifest.to_bytes(), if_absent=False)
        if stays:
            return False
        self._point_elsewhere(manifest.set)
        return True

    def abandon(self, name: SetName) -> bool:
        """Give up a set that has no manifest, and had no new object for `abandon_after_s`: write its tombstone, if nothing is
        there.

        A committer that is late reads it and reports the set as abandoned. False: the set is committed by now, or still grows.
        """
        if not self.is_quiet(name):
            return False
        self._prove(name)
        key = self._keys.manifest(name)
        try:
            put_small(self._store, key, Tombstone(name, ABANDONED).to_bytes(), if_absent=True)
        except AlreadyExistsError:
            return False
        return True

    def is_quiet(self, name: SetName) -> bool:
        """Whether the set has objects, and all of them are older than `abandon_after_s`: a listing that lags may show none."""
        metas = list(self._store.list(self._keys.data(name)))
        return bool(metas) and all(self.is_older(meta.modified_s, self._delays.abandon_after_s) for meta in metas)

    def put_back(self, tombstone: Tombstone) -> bool:
        """Put the manifest of a pruned set back, whose pin came while it was pruned; False if objects of it are gone."""
        key = self._keys.manifest(tombstone.set)
        if tombstone.manifest is None:
            return False
        manifest = Manifest.from_bytes(tombstone.manifest, key, tombstone.set)
        if Catalog(self._store, self._keys).missing(manifest):
            return False
        put_small(self._store, key, tombstone.manifest, if_absent=False)
        return True

    def remove_objects(self, name: SetName, referenced: set[str]) -> int | None:
        """Delete the objects of a set, but those of the `referenced` keys: the bytes that were freed. None: the set is in use, or
        has no tombstone by now whose grace is over, and nothing was deleted.

        The receipts go first: without them nobody commits the set again. Raises what `prove` raises.
        """
        self._prove(name)
        if self.is_used(name) or not self._has_due_tombstone(name):
            return None
        self._point_elsewhere(name)
        freed_bytes = 0
        for prefix in (self._keys.ranks(name), self._keys.data(name)):
            metas = (meta for meta in self._store.list(prefix) if meta.key not in referenced)
            while chunk := list(islice(metas, _AT_ONCE)):
                self._store.delete_many([meta.key for meta in chunk])
                freed_bytes += sum(max(0, meta.size_bytes) for meta in chunk)
        self._store.delete(self._keys.verified_of(name))
        return freed_bytes

    def _has_due_tombstone(self, name: SetName) -> bool:
        """Whether there is a tombstone whose grace is over. It is read first and its time is asked for then: the other way round
        the time may be that of a manifest which another prune has replaced in between.
        """
        try:
            is_tombstone = isinstance(Catalog(self._store, self._keys).read(name), Tombstone)
            return is_tombstone and self.is_older(self._store.head(self._keys.manifest(name)).modified_s, self._delays.grace_s)
        except NotFoundError:
            return False

    def forget(self, name: SetName, tombstone: ObjectMeta) -> bool:
        """Remove a tombstone that is older than `forget_after_s`, if no object of its set is left."""
        if not self.is_older(tombstone.modified_s, self._delays.forget_after_s):
            return False
        if next(iter(self._store.list(self._keys.data(name))), None) is not None:
            return False
        self._store.delete(tombstone.key)
        return True

    def _point_elsewhere(self, name: SetName) -> None:
        """Have the pointer not say a set that is deleted: a reader would believe it."""
        try:
            if Manifest.from_bytes(read_small(self._store, self._keys.pointer), self._keys.pointer).set != name:
                return
        except NotFoundError:
            return
        except (DamagedDocumentError, NewerFormatError):
            return  # nobody uses it
        self._store.delete(self._keys.pointer)


def being_saved(store: ObjectStore, keys: RunKeys, known: set[SetName]) -> dict[SetName, Receipts]:
    """The sets that have no manifest and no tombstone yet, with what their ranks have written. `known`: those that have one.

    It must be asked for after the tombstones of the sets whose objects are to go were read: who says later that it uses one of
    them looks for its manifest then, and finds a tombstone. One request for a thousand objects, and one for each such set.
    """
    return {name: list_receipts(store, keys, name) for name in sets_with_data(store, keys) if name not in known}


class ReferencedKeys:
    """The keys of objects that sets use which they do not lie in. What was read for the last call is not read again."""

    def __init__(self, store: ObjectStore, keys: RunKeys) -> None:
        self._store = store
        self._keys = keys
        self._read: dict[tuple[SetName, ReceiptName], frozenset[tuple[SetName, str]]] = {}

    def by_user(
        self, manifests: Sequence[Manifest], saving: Mapping[SetName, Receipts], leaving: Mapping[SetName, Manifest | None]
    ) -> dict[SetName, set[str]]:
        """The keys of objects of `leaving` that each set uses: one of the `manifests`, one that is being saved, or one that
        leaves itself, as it may be put back until its receipts are gone.

        One request for each receipt that may refer to one of them, and was not read before.
        """
        staying = [(one.set, each) for one in manifests if _may_use(one, leaving) for each in one.receipts]
        staying += [(name, each) for name, receipts in saving.items() for each in (*receipts.by_rank.values(), *receipts.doubled)]
        asked = [(*one, True) for one in staying]
        asked += [(one.set, each, False) for one in leaving.values() if one and _may_use(one, leaving) for each in one.receipts]
        asked = [one for one in asked if one[1].has_references]
        self._read = {one[:2]: used for one, used in zip(asked, each_at_once(self._used_by, asked), strict=True)}
        users: dict[SetName, set[str]] = {}
        for (user, _), used in self._read.items():
            users.setdefault(user, set()).update(self._keys.data(name) + text for name, text in used if name in leaving)
        return users

    def _used_by(self, asked: tuple[SetName, ReceiptName, bool]) -> frozenset[tuple[SetName, str]]:
        name, receipt, must_be_there = asked
        if (known := self._read.get((name, receipt))) is not None:
            return known
        try:
            content = read_receipt(self._store, self._keys, name, receipt)
        except NotFoundError:
            if must_be_there:
                raise
            return frozenset()
        return frozenset((one.set, one.name) for one in content.objects if one.set is not None)


def _may_use(manifest: Manifest, leaving: Mapping[SetName, object]) -> bool:
    return any(one.set in leaving for one in manifest.references)
