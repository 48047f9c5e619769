"""Receipts: what one rank says of its objects of a set, when all of them are verified in the store.

The name of a receipt sums its content up: its own CRC32C, the number of its rank's objects, their bytes and a sum over their
names and sizes. So a committer learns all that a manifest needs from one listing, without a request for each rank; and a reader
proves from a listing of the set that each object is there with its size.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from wherry.checkpoints.protocol.documents import Document, dump
from wherry.checkpoints.protocol.names import SetName
from wherry.checksum import crc32c, format_crc32c, parse_crc32c
from wherry.errors import ConfigError
from wherry.uri import check_name

RECEIPT_FORMAT = "wherry-checkpoint-receipt"
RECEIPT_VERSION = 1
#: Ranks that a world may have.
MOST_RANKS = 99_999
_RANKS = r"([0-9]{5})-of-([0-9]{5})"
_NAME = re.compile(rf"{_RANKS}-([0-9a-f]{{8}})-([0-9]{{1,9}})-([0-9]{{1,18}})-([0-9a-f]{{16}})(-refs)?\.json")
_FAILED = re.compile(rf"failed-{_RANKS}\.json")
_USES = re.compile(rf"uses-{_RANKS}-([0-9a-f_]{{22,31}})\.json")


@dataclass(frozen=True)
class SetObject:
    """One object of a set: its name in the set, its size and its CRC32C.

    `sha256`, in hex, is there with ``dedupe=True``. `set`: the older set that has the object, under the same name, where its
    bytes were there already. That is the set which has sent them, and never one that refers to them itself.
    """

    name: str
    size_bytes: int
    crc32c: int
    sha256: str | None = None
    set: SetName | None = None


@dataclass(frozen=True)
class Total:
    """How many objects, their bytes, and the sum over their names and sizes modulo 2**64: equal for equal objects only."""

    n_objects: int = 0
    size_bytes: int = 0
    names_sum: int = 0

    def __add__(self, other: Total) -> Total:
        return Total(
            self.n_objects + other.n_objects, self.size_bytes + other.size_bytes, (self.names_sum + other.names_sum) % 2**64
        )


def mark_of(name: str, size_bytes: int) -> int:
    """What stands for an object's name in its set and its size: the first eight bytes of their SHA-256."""
    return int.from_bytes(hashlib.sha256(f"{size_bytes} {name}".encode(errors="surrogateescape")).digest()[:8], "big")


def total_of(objects: Iterable[tuple[str, int]]) -> Total:
    """Sum up objects, each with its name in the set and its size.

    The sum of their marks does not depend on the order, so ranks' sums can be added.
    """
    total = Total()
    for name, size_bytes in objects:
        total += Total(1, size_bytes, mark_of(name, size_bytes))
    return total


@dataclass(frozen=True)
class ReceiptName:
    """What a receipt's name says. `own`: the sum of the objects that lie below the set's own prefix."""

    text: str
    rank: int
    world: int
    crc32c: int
    own: Total
    has_references: bool

    @classmethod
    def parse(cls, text: str) -> ReceiptName | None:
        """What the name says; None if it is none of ours."""
        found = _NAME.fullmatch(text)
        if found is None or not 0 <= int(found[1]) < int(found[2]):
            return None
        own = Total(int(found[4]), int(found[5]), int(found[6], 16))
        return cls(text, int(found[1]), int(found[2]), int(found[3], 16), own, found[7] is not None)


def failed_name(rank: int, world: int) -> str:
    """The name of what a rank writes in place of a receipt when one of its objects cannot be stored."""
    return f"failed-{rank:05d}-of-{world:05d}.json"


def failed_rank(name: str) -> int | None:
    """The rank whose failure has this name; None if it is none."""
    found = _FAILED.fullmatch(name)
    return None if found is None else int(found[1])


def uses_name(rank: int, world: int, source: SetName) -> str:
    """The name of what a rank writes before its receipt may refer to objects that the older set `source` has, or refers to."""
    return f"uses-{rank:05d}-of-{world:05d}-{source}.json"


def used_set(name: str) -> SetName | None:
    """The older set that a rank has announced to use by this name; None if it is another name."""
    found = _USES.fullmatch(name)
    return None if found is None else SetName.parse(found[3])


@dataclass(frozen=True)
class Receipt:
    """What one rank says of its part of a set. `failed`: why it is not there; then there are no objects.

    `kind`: file, folder, state (a state dict of torch) or dcp (torch.distributed.checkpoint). `parent`: the set that this job
    resumed from. `metrics` and `metadata` are those of rank 0, in the manifest.
    """

    set: SetName
    rank: int
    world: int
    kind: str
    objects: tuple[SetObject, ...] = ()
    parent: SetName | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    failed: str | None = None

    def own_total(self) -> Total:
        """The sum of the objects that lie below the set's own prefix."""
        return total_of((one.name, one.size_bytes) for one in self.objects if one.set is None)

    def to_bytes(self) -> bytes:
        """The receipt as it is stored; equal receipts have equal bytes."""
        objects = [
            {
                "name": one.name,
                "size_bytes": one.size_bytes,
                "crc32c": format_crc32c(one.crc32c),
                **({"sha256": one.sha256} if one.sha256 is not None else {}),
                **({"set": str(one.set)} if one.set is not None else {}),
            }
            for one in sorted(self.objects, key=lambda one: one.name.encode())
        ]
        return dump(
            RECEIPT_FORMAT,
            RECEIPT_VERSION,
            {
                "set": str(self.set),
                "rank": self.rank,
                "world": self.world,
                "kind": self.kind,
                "objects": objects,
                "parent": None if self.parent is None else str(self.parent),
                "metrics": dict(self.metrics),
                "metadata": dict(self.metadata),
                "failed": self.failed,
            },
        )

    def name(self, data: bytes) -> str:
        """The name of its object, `data` being to_bytes()."""
        if self.failed is not None:
            return failed_name(self.rank, self.world)
        own = self.own_total()
        references = "-refs" if any(one.set is not None for one in self.objects) else ""
        return (
            f"{self.rank:05d}-of-{self.world:05d}-{crc32c(data):08x}-{own.n_objects}-{own.size_bytes}-{own.names_sum:016x}"
            f"{references}.json"
        )

    @classmethod
    def from_bytes(cls, data: bytes, key: str, expected: SetName) -> Receipt:
        """Read a receipt of the set `expected`. DamagedDocumentError, NewerFormatError."""
        document = Document(data, key, RECEIPT_FORMAT, RECEIPT_VERSION)
        if document.take("set", str) != str(expected):
            raise document.damaged(f"it is of the set {document.content['set']}, not {expected}")
        parent = document.take_or_none("parent", str)
        return cls(
            expected,
            document.take("rank", int),
            document.take("world", int),
            document.take("kind", str),
            tuple(_object(document, one, expected) for one in document.take("objects", list)),
            _set(document, parent) if parent is not None else None,
            metrics_of(document),
            document.take_plain("metadata"),
            document.take_or_none("failed", str),
        )


def metrics_of(document: Document) -> dict[str, float]:
    """The metrics that a receipt or a manifest has."""
    metrics = document.take_plain("metrics")
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > sys.float_info.max:
            raise document.damaged(f"the metric {name!a} is no number")
    return metrics


def _set(document: Document, text: str) -> SetName:
    if (name := SetName.parse(text)) is None:
        raise document.damaged(f"{text!r} is no set")
    return name


def _object(document: Document, content: object, of_receipt: SetName) -> SetObject:
    entry = document.check(content, dict, "an object")
    name = document.check(entry.get("name"), str, "an object's name")
    try:
        if check_name(name) != name:
            raise document.damaged(f"the name {name!a} is not in Unicode form NFC")
    except ConfigError as error:
        raise document.damaged(str(error)) from error
    crc = parse_crc32c(document.check(entry.get("crc32c"), str, f"the CRC32C of {name}"))
    if crc is None:
        raise document.damaged(f"the CRC32C of {name} is none")
    sha256, source = entry.get("sha256"), entry.get("set")
    if sha256 is not None and not re.fullmatch("[0-9a-f]{64}", document.check(sha256, str, f"the SHA-256 of {name}")):
        raise document.damaged(f"the SHA-256 of {name} is none")
    size_bytes = document.check(entry.get("size_bytes"), int, f"the size of {name}")
    of_set = None if source is None else _set(document, document.check(source, str, f"the set of {name}"))
    if of_set is not None and of_set >= of_receipt:
        raise document.damaged(f"{name} is in the set {of_set}, which is not older")
    return SetObject(name, size_bytes, crc, sha256, of_set)
