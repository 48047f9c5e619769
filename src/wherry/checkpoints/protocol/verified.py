"""What has come of reading every byte of a set, for people. No decision is made by it: a bucket may say anything."""

from __future__ import annotations

from dataclasses import dataclass

from wherry.checkpoints.protocol.documents import DamagedDocumentError, Document, NewerFormatError, dump, put_small, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.errors import NotFoundError
from wherry.store import ObjectStore

_FORMAT = "wherry-checkpoint-verified"
_VERSION = 1


@dataclass(frozen=True)
class LastVerified:
    """Whether all bytes of a set were right when they were last read, and when that was by the store's clock."""

    is_right: bool
    at_s: float | None


def note_verified(store: ObjectStore, keys: RunKeys, name: SetName, *, is_right: bool) -> None:
    """Write down that every byte of the set was read."""
    data = dump(_FORMAT, _VERSION, {"set": str(name), "right": is_right})
    put_small(store, keys.verified_of(name), data, if_absent=False)


def when_verified(store: ObjectStore, keys: RunKeys) -> dict[SetName, float | None]:
    """The sets that have such a record, each with the time of it: one request for a thousand."""
    listed = ((SetName.parse(meta.key[len(keys.verified) :].removesuffix(".json")), meta) for meta in store.list(keys.verified))
    return {name: meta.modified_s for name, meta in listed if name is not None}


def read_verified(store: ObjectStore, keys: RunKeys, name: SetName, at_s: float | None) -> LastVerified | None:
    """What the record of a set says; None if it says nothing that can be understood."""
    key = keys.verified_of(name)
    try:
        document = Document(read_small(store, key), key, _FORMAT, _VERSION)
        if document.take("set", str) != str(name):
            return None
        return LastVerified(document.take("right", bool), at_s)
    except (NotFoundError, DamagedDocumentError, NewerFormatError):
        return None
