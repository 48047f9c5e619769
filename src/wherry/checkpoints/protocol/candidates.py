"""Which objects of an earlier set a new one may refer to (``dedupe=True``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import read_receipt
from wherry.checkpoints.protocol.documents import DamagedDocumentError, NewerFormatError, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.errors import NotFoundError
from wherry.store import ObjectStore

log = logging.getLogger("wherry.checkpoints")

#: Sets that are tried when the newest ones are pruned, or cannot be read.
_MOST_TRIED = 3
#: Receipts of a set that another number of ranks has saved.
_MOST_RECEIPTS = 8
#: One receipt refers to so many sets at most, those that have most of its bytes: each costs a listing in every proof.
MOST_SETS = 16


def earlier_sets(store: ObjectStore, keys: RunKeys, name: SetName) -> Iterator[Manifest]:
    """The committed sets before `name`, from the newest on, a few at most: one request for the first, by the pointer.

    They may have become tombstones since.
    """
    tried: SetName | None = None
    try:
        pointed = Manifest.from_bytes(read_small(store, keys.pointer), keys.pointer)
        if pointed.set < name:
            tried = pointed.set
            yield pointed
    except (NotFoundError, DamagedDocumentError, NewerFormatError) as error:
        log.debug("the pointer is not used: %s", error)
    catalog = Catalog(store, keys)
    earlier = [one for one in catalog.names() if one < name and one != tried]
    for one in reversed(earlier[-_MOST_TRIED:]):
        try:
            there = catalog.read(one)
        except (NotFoundError, DamagedDocumentError, NewerFormatError) as error:
            log.debug("the set %s is not used: %s", one, error)
            continue
        if isinstance(there, Manifest):
            yield there


def objects_to_share(store: ObjectStore, keys: RunKeys, manifest: Manifest, rank: int, world: int) -> dict[str, SetObject]:
    """The objects of a set that `rank` of `world` may refer to, by name; each has a SHA-256, and the set that it lies in.

    They are those of the same rank, in one request. If another number of ranks has saved the set, those of a few more.
    """
    ranks = [rank] if rank < manifest.world else []
    if world != manifest.world:
        ranks = sorted({*ranks, *range(min(_MOST_RECEIPTS - len(ranks), manifest.world))})
    found: list[SetObject] = []
    for each in ranks:
        try:
            receipt = read_receipt(store, keys, manifest.set, manifest.receipts[each])
        except (NotFoundError, DamagedDocumentError, NewerFormatError) as error:
            log.warning("no object of rank %d of the set %s is referred to: %s", each, manifest.set, error)
            continue
        found += [
            SetObject(one.name, one.size_bytes, one.crc32c, one.sha256, one.set or manifest.set)
            for one in receipt.objects
            if one.sha256 is not None
        ]
    sizes: dict[SetName | None, int] = {}
    for one in found:
        sizes[one.set] = sizes.get(one.set, 0) + one.size_bytes
    largest = sorted(sizes, key=lambda one: (-sizes[one], str(one)))[:MOST_SETS]
    return {one.name: one for one in found if one.set in largest}
