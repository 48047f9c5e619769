"""Manifests: a set exists for readers when its manifest does. Tombstones take their place when a set is given up or deleted.

The manifest is a function of the names of the receipts, of the receipt of rank 0 and of those receipts that refer to older sets:
two committers write the same bytes. It lists receipts and not objects, so that it stays small: about 1 MB for 10,000 ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wherry.checkpoints.protocol.documents import DamagedDocumentError, Document, dump
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.protocol.receipt import Receipt, ReceiptName, Total, mark_of, metrics_of

MANIFEST_FORMAT = "wherry-checkpoint"
MANIFEST_VERSION = 1
TOMBSTONE_FORMAT = "wherry-checkpoint-tombstone"
TOMBSTONE_VERSION = 1
_MARK = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Reference:
    """Objects of an older set that this one uses: their bytes, and the mark of each, by which a listing proves it to be there."""

    set: SetName
    size_bytes: int
    marks: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """One complete set. `receipts` are by rank. `size_bytes` and `n_objects` count objects of older sets that it uses, too."""

    set: SetName
    kind: str
    receipts: tuple[ReceiptName, ...] = field(repr=False)  # of ten thousand ranks in the worst case
    references: tuple[Reference, ...] = field(default=(), repr=False)
    parent: SetName | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The step of the training that it was saved at."""
        return self.set.step

    @property
    def world(self) -> int:
        """How many ranks have saved it."""
        return len(self.receipts)

    @property
    def own(self) -> Total:
        """The sum of the objects that lie below its own prefix."""
        return sum((one.own for one in self.receipts), Total())

    @property
    def n_objects(self) -> int:
        """How many objects it has."""
        return self.own.n_objects + sum(len(one.marks) for one in self.references)

    @property
    def size_bytes(self) -> int:
        """The bytes of all its objects."""
        return self.own.size_bytes + self.shared_bytes

    @property
    def shared_bytes(self) -> int:
        """The bytes of those of its objects that older sets have."""
        return sum(one.size_bytes for one in self.references)

    def to_bytes(self) -> bytes:
        """The manifest as it is stored; equal manifests have equal bytes."""
        return dump(MANIFEST_FORMAT, MANIFEST_VERSION, self._fields())

    def _fields(self) -> dict[str, object]:
        return {
            "set": str(self.set),
            "attempt": self.set.attempt,
            "step": self.set.step,
            "kind": self.kind,
            "world": self.world,
            "n_objects": self.n_objects,
            "size_bytes": self.size_bytes,
            "parent": None if self.parent is None else str(self.parent),
            "metrics": dict(self.metrics),
            "metadata": dict(self.metadata),
            "receipts": [one.text for one in self.receipts],
            "references": [
                {"set": str(one.set), "size_bytes": one.size_bytes, "marks": [f"{mark:016x}" for mark in one.marks]}
                for one in self.references
            ],
        }

    @classmethod
    def from_bytes(cls, data: bytes, key: str, expected: SetName | None = None) -> Manifest:
        """Read a manifest, of the set `expected` if one is. DamagedDocumentError, NewerFormatError."""
        manifest = _from_document(Document(data, key, MANIFEST_FORMAT, MANIFEST_VERSION))
        if expected is not None and manifest.set != expected:
            raise Document(data, key, MANIFEST_FORMAT, MANIFEST_VERSION).damaged(
                f"it is of the set {manifest.set}, not {expected}"
            )
        return manifest


@dataclass(frozen=True)
class Tombstone:
    """Under a manifest's key: the set is gone. `reason`: ``abandoned`` (it was never complete) or ``pruned``.

    When it was written is what the store says of the object. `manifest`: that of a pruned set, so that it can be put back.
    """

    set: SetName
    reason: str
    manifest: bytes | None = None

    def to_bytes(self) -> bytes:
        """The tombstone as it is stored."""
        manifest = None if self.manifest is None else self.manifest.decode()
        return dump(TOMBSTONE_FORMAT, TOMBSTONE_VERSION, {"set": str(self.set), "reason": self.reason, "manifest": manifest})


def manifest_or_tombstone(data: bytes, key: str, expected: SetName) -> Manifest | Tombstone:
    """Read what lies under a manifest's key. DamagedDocumentError, NewerFormatError."""
    try:
        return _manifest_or_tombstone(data, key, expected)
    except DamagedDocumentError as error:
        error.hint = "delete this object, then prune: it is written again if the receipts of all ranks are there"
        raise


def _manifest_or_tombstone(data: bytes, key: str, expected: SetName) -> Manifest | Tombstone:
    if f'"format":"{TOMBSTONE_FORMAT}"'.encode() not in data[:4096]:
        return Manifest.from_bytes(data, key, expected)
    document = Document(data, key, TOMBSTONE_FORMAT, TOMBSTONE_VERSION)
    if document.take("set", str) != str(expected):
        raise document.damaged(f"it is of the set {document.content['set']}, not {expected}")
    manifest = document.take_or_none("manifest", str)
    return Tombstone(expected, document.take("reason", str), None if manifest is None else manifest.encode())


def manifest_of(name: SetName, receipts: Sequence[ReceiptName], first: Receipt, referring: Sequence[Receipt]) -> Manifest:
    """The manifest of a set, from the names of all its receipts, the receipt of rank 0, and those that refer to older sets."""
    marks: dict[SetName, list[int]] = {}
    shared_bytes: dict[SetName, int] = {}
    for receipt in referring:
        for one in receipt.objects:
            if one.set is not None:
                marks.setdefault(one.set, []).append(mark_of(one.name, one.size_bytes))
                shared_bytes[one.set] = shared_bytes.get(one.set, 0) + one.size_bytes
    return Manifest(
        name,
        first.kind,
        tuple(sorted(receipts, key=lambda one: one.rank)),
        tuple(Reference(each, shared_bytes[each], tuple(sorted(marks[each]))) for each in sorted(marks)),
        first.parent,
        first.metrics,
        first.metadata,
    )


def _from_document(document: Document) -> Manifest:
    def set_of(text: str, what: str) -> SetName:
        if (name := SetName.parse(text)) is None:
            raise document.damaged(f"{what} {text!r} is no set")
        return name

    receipts = []
    for at, text in enumerate(document.take("receipts", list)):
        name = ReceiptName.parse(document.check(text, str, "a receipt"))
        if name is None or name.rank != at:
            raise document.damaged(f"{text!r} is not the receipt of rank {at}")
        receipts.append(name)
    if not receipts or {one.world for one in receipts} != {len(receipts)}:
        raise document.damaged(f"it has {len(receipts)} receipts, whose names say another number of ranks")
    references = []
    for each in document.take("references", list):
        entry = document.check(each, dict, "a reference")
        marks = [
            document.check(mark, str, "a mark") for mark in document.check(entry.get("marks"), list, "the marks of a reference")
        ]
        if not all(_MARK.fullmatch(mark) for mark in marks):
            raise document.damaged("a mark is none")
        source = set_of(document.check(entry.get("set"), str, "the set of a reference"), "the reference")
        size_bytes = document.check(entry.get("size_bytes"), int, "the size of a reference")
        references.append(Reference(source, size_bytes, tuple(int(mark, 16) for mark in marks)))
    parent = document.take_or_none("parent", str)
    metrics = metrics_of(document)
    return Manifest(
        set_of(document.take("set", str), "it says that it is of"),
        document.take("kind", str),
        tuple(receipts),
        tuple(references),
        None if parent is None else set_of(parent, "the parent"),
        metrics,
        document.take_plain("metadata"),
    )
