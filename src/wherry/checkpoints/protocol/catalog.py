"""Finding sets: the newest that is complete, in few requests, and the proof that it is."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from wherry.checkpoints.protocol.commit import read_receipt
from wherry.checkpoints.protocol.documents import DamagedDocumentError, NewerFormatError, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import SetObject, Total, mark_of, total_of
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone, manifest_or_tombstone
from wherry.errors import NotFoundError
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectStore

log = logging.getLogger("wherry.checkpoints")


@dataclass(frozen=True)
class Missing:
    """An object of a set that is not in the store, or has another size there (`found_bytes`)."""

    key: str
    size_bytes: int
    found_bytes: int | None


class Catalog:
    """The sets of one run, as the store shows them. Nothing is kept between two calls, but which sets the log was told of."""

    def __init__(self, store: ObjectStore, keys: RunKeys) -> None:
        self.store = store
        self.keys = keys
        self._told: set[SetName] = set()

    def _pass_over(self, name: SetName, why: object) -> None:
        if name not in self._told:  # newest() may look twice
            self._told.add(name)
            log.warning("the set %s is passed over: %s", name, why)

    def names(self, *, after: SetName | None = None) -> list[SetName]:
        """The sets that have a manifest or a tombstone, from the oldest to the newest; those newer than `after`."""
        return sorted(name for name in self._sizes(after) if name != after)

    def _sizes(self, first: SetName | None = None) -> dict[SetName, int]:
        """The bytes of each manifest or tombstone, of the set `first` and newer ones."""
        start_after = "" if first is None else f"{self.keys.manifests}{first}"
        listed = self.store.list(self.keys.manifests, start_after=start_after)
        sizes = ((self.keys.set_of_manifest(meta.key), meta.size_bytes) for meta in listed)
        return {name: size for name, size in sizes if name is not None and (first is None or name >= first)}

    def read(self, name: SetName) -> Manifest | Tombstone:
        """What lies under the key of a set's manifest. NotFoundError, DamagedDocumentError, NewerFormatError."""
        key = self.keys.manifest(name)
        return manifest_or_tombstone(read_small(self.store, key), key, name)

    def manifests(self) -> list[Manifest]:
        """All sets that are committed and not pruned, from the oldest to the newest; those that cannot be read are logged."""
        found = each_at_once(self._manifest_or_none, self.names())
        return [one for one in found if one is not None]

    def _manifest_or_none(self, name: SetName) -> Manifest | None:
        try:
            there = self.read(name)
        except NotFoundError:  # deleted since it was listed
            return None
        except (DamagedDocumentError, NewerFormatError) as error:
            self._pass_over(name, error)
            return None
        return there if isinstance(there, Manifest) else None

    def newest(self) -> Manifest | None:
        """The newest set that is proven complete: the highest attempt that has one, in it the highest step.

        Three requests where the pointer is up to date: the pointer, a listing of what is newer, a listing of the set's objects.
        When a set is passed over, another may have been committed and this one deleted since they were listed: so it is listed
        again, until it shows nothing else that is newer than what was found.
        """
        passed_over: list[SetName] | None = None
        while True:
            found, is_first = self._newest_of_a_listing()
            if is_first:
                return found
            newer = self.names(after=None if found is None else found.set)
            if newer == passed_over:
                return found
            passed_over = newer

    def _newest_of_a_listing(self) -> tuple[Manifest | None, bool]:
        """The first set that is complete, and whether none was passed over before it."""
        is_first = True
        for manifest in self._newest_first():
            if manifest is not None and self._is_complete(manifest):
                return manifest, is_first
            is_first = False
        return None, is_first

    def _is_complete(self, manifest: Manifest) -> bool:
        try:
            missing = self.missing(manifest)
        except NewerFormatError as error:  # of a receipt
            self._pass_over(manifest.set, error)
            return False
        if missing:
            self._pass_over(
                manifest.set,
                f"{len(missing)} of its objects are missing or have another size, first "
                f"{missing[0].key.partition(self.keys.data(manifest.set))[2] or missing[0].key}",
            )
        return not missing

    def newest_first(self) -> Iterator[Manifest]:
        """The sets from the newest on; the older ones are listed only when the first do not do."""
        return (one for one in self._newest_first() if one is not None)

    def _newest_first(self) -> Iterator[Manifest | None]:
        """The same, with None for each that has no manifest, or none that can be read."""
        pointed = self._pointed_at()
        sizes = self._sizes(None if pointed is None else pointed.set)
        yield from (self._manifest_or_none(name) for name in sorted(sizes, reverse=True) if pointed is None or name > pointed.set)
        if pointed is None:
            return
        # Who deletes a set may be killed before the pointer forgets it: its tombstone is larger than its manifest.
        is_there = sizes.get(pointed.set) == len(pointed.to_bytes())
        yield pointed if is_there else self._manifest_or_none(pointed.set)
        yield from (self._manifest_or_none(name) for name in reversed(self.names()) if name < pointed.set)

    def _pointed_at(self) -> Manifest | None:
        try:
            return Manifest.from_bytes(read_small(self.store, self.keys.pointer), self.keys.pointer)
        except NotFoundError:
            return None
        except (DamagedDocumentError, NewerFormatError) as error:
            log.warning("the pointer is not used: %s", error)
            return None

    def missing(self, manifest: Manifest) -> list[Missing]:
        """The objects of a set that are not there, or have another size; none: the set is complete.

        One listing of the set's prefix, and of each that it refers to, is enough when all is there. A listing may lag: so what it
        does not show is asked for by name before it is called missing. A receipt that is not there or damaged is missing, too.
        """
        if self._listing_proves(manifest):
            return []
        try:
            objects = self.objects(manifest)
        except (NotFoundError, DamagedDocumentError) as error:
            return [Missing(error.uri, 0, None)]
        found = each_at_once(self._missing_or_none, objects)
        return [one for one in found if one is not None]

    def _listing_proves(self, manifest: Manifest) -> bool:
        data, ranks = self.keys.data(manifest.set), self.keys.ranks(manifest.set)
        own, receipts = Total(), set()
        for meta in self.store.list(data):
            if meta.key.startswith(ranks):
                receipts.add(meta.key[len(ranks) :])
            else:
                own += total_of([(meta.key[len(data) :], meta.size_bytes)])
        if own != manifest.own or not receipts.issuperset(one.text for one in manifest.receipts):
            return False
        return all(self._marks(one.set).issuperset(one.marks) for one in manifest.references)

    def _marks(self, name: SetName) -> set[int]:
        data = self.keys.data(name)
        return {mark_of(meta.key[len(data) :], meta.size_bytes) for meta in self.store.list(data)}

    def _missing_or_none(self, keyed: tuple[str, SetObject]) -> Missing | None:
        key, size_bytes = keyed[0], keyed[1].size_bytes
        try:
            found_bytes = self.store.head(key).size_bytes
        except NotFoundError:
            return Missing(key, size_bytes, None)
        return None if found_bytes == size_bytes else Missing(key, size_bytes, found_bytes)

    def objects(self, manifest: Manifest, ranks: Collection[int] | None = None) -> list[tuple[str, SetObject]]:
        """All objects of a set, or those of some ranks, each with its key, by name: from the receipts, one request a rank."""
        found: dict[str, tuple[str, SetObject]] = {}
        for objects in each_at_once(partial(self.objects_of, manifest), range(manifest.world) if ranks is None else ranks):
            for key, one in objects:
                if one.name in found:
                    raise DamagedDocumentError(
                        f"two ranks name an object {one.name!r}", operation="read", uri=self.keys.manifest(manifest.set)
                    )
                found[one.name] = (key, one)
        return [found[name] for name in sorted(found, key=str.encode)]

    def objects_of(self, manifest: Manifest, rank: int) -> list[tuple[str, SetObject]]:
        """The objects that one rank has saved, each with its key: one request."""
        receipt = read_receipt(self.store, self.keys, manifest.set, manifest.receipts[rank])
        return [(self.keys.data(one.set or manifest.set) + one.name, one) for one in receipt.objects]
