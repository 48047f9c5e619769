"""What keeps a set from being pruned: a pin, the readers that are restoring it, and newer sets that are saved with its objects.

Whoever wants to keep a set writes first and looks at the manifest then; whoever deletes one writes the tombstone first and looks
for pins and readers then. So one of the two sees the other.
"""

from __future__ import annotations

from wherry.checkpoints.protocol.documents import dump, put_small, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import uses_name
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone, manifest_or_tombstone
from wherry.errors import NotFoundError
from wherry.store import ObjectStore

_USES_FORMAT = "wherry-checkpoint-uses"
_PIN_FORMAT = "wherry-checkpoint-pin"
_READER_FORMAT = "wherry-checkpoint-reader"
_CLOCK_FORMAT = "wherry-checkpoint-clock"
_VERSION = 1


def store_now_s(store: ObjectStore, keys: RunKeys) -> float | None:
    """The time by the store's own clock: that of a small object which is written for it. None: the store tells no times."""
    put_small(store, keys.clock, dump(_CLOCK_FORMAT, _VERSION, {}), if_absent=False)
    return store.head(keys.clock).modified_s


def pin(store: ObjectStore, keys: RunKeys, name: SetName) -> None:
    """Keep a set until it is unpinned. NotFoundError if it is not committed, or is being deleted: then there is no pin."""
    key = keys.pin(name)
    put_small(store, key, dump(_PIN_FORMAT, _VERSION, {"set": str(name)}), if_absent=False)
    try:
        check_there(store, keys, name, "pin")
    except NotFoundError:
        store.delete(key)
        raise


def check_there(store: ObjectStore, keys: RunKeys, name: SetName, operation: str) -> None:
    """NotFoundError if the set has no manifest, or a tombstone in its place."""
    key = keys.manifest(name)
    there = manifest_or_tombstone(read_small(store, key), key, name)
    if isinstance(there, Tombstone):
        raise NotFoundError(f"the set {name} was {there.reason}", operation=operation, uri=key)


def unpin(store: ObjectStore, keys: RunKeys, name: SetName) -> None:
    """Let prune delete the set again; no error if it has no pin."""
    store.delete(keys.pin(name))


def pinned(store: ObjectStore, keys: RunKeys) -> set[SetName]:
    """The sets that have a pin."""
    texts = (meta.key[len(keys.pins) :] for meta in store.list(keys.pins))
    names = (SetName.parse(text.removesuffix(".json")) for text in texts)
    return {name for name in names if name is not None}


def is_pinned(store: ObjectStore, keys: RunKeys, name: SetName) -> bool:
    """Whether the set has a pin: asked for by name, which no listing that lags can hide."""
    try:
        store.head(keys.pin(name))
    except NotFoundError:
        return False
    return True


def announce_reader(store: ObjectStore, keys: RunKeys, name: SetName, token: str) -> str:
    """Say that somebody is restoring the set, or still is. Returns the key; whoever has ended deletes it."""
    key = keys.reader(name, token)
    put_small(store, key, dump(_READER_FORMAT, _VERSION, {"set": str(name)}), if_absent=False)
    return key


def readers(
    store: ObjectStore, keys: RunKeys, now_s: float | None, silent_s: float, name: SetName | None = None
) -> tuple[set[SetName], list[str]]:
    """The sets (or this one, if it is) that somebody is restoring; and the keys of readers that said so more than `silent_s` ago.

    A store that tells no times has no such readers.
    """
    found: set[SetName] = set()
    silent: list[str] = []
    for meta in store.list(keys.readers if name is None else f"{keys.readers}{name}-"):
        of_set = SetName.parse(meta.key[len(keys.readers) :].partition("-")[0])
        if of_set is None:
            continue
        if now_s is not None and meta.modified_s is not None and now_s - meta.modified_s > silent_s:
            silent.append(meta.key)
        else:
            found.add(of_set)
    return found, silent


def announce_use(store: ObjectStore, keys: RunKeys, name: SetName, rank: int, world: int, source: Manifest) -> bool:
    """Say that a rank's part of the set `name`, which has no manifest yet, may refer to the objects of the set `source`.

    True: `source` was there after that was written, so its objects, and those that it refers to itself, stay until `name` is
    committed, when its own references keep them, or is given up. False: it was not, so nothing of it may be used. Two requests.
    """
    key = keys.ranks(name) + uses_name(rank, world, source.set)
    put_small(store, key, dump(_USES_FORMAT, _VERSION, {"set": str(name), "uses": str(source.set)}), if_absent=False)
    manifest_key = keys.manifest(source.set)
    try:
        return manifest_or_tombstone(read_small(store, manifest_key), manifest_key, source.set) == source
    except NotFoundError:
        return False
