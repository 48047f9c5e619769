"""Whether two objects or files have the same bytes: by the checksums that stores keep, and by reading where none is kept."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wherry.checksum import crc32c

if TYPE_CHECKING:
    from wherry.store import ObjectMeta
    from wherry.uploader import Uploader

_CRC32C = "crc32c"


@dataclass(frozen=True)
class Compared:
    """Whether the bytes are the same, and how many of them were read to know."""

    are_same: bool
    read_bytes: int


def compare_bytes(source: Uploader, source_key: str, dest: Uploader, dest_key: str) -> Compared:
    """Compare two objects. A local file is always read: what is kept beside it says what it once was.

    Raises what the stores raise; IntegrityError for one that changes meanwhile.
    """
    one, other = _Content(source, source_key), _Content(dest, dest_key)
    if one.size_bytes != other.size_bytes or not one.size_bytes:
        return Compared(one.size_bytes == other.size_bytes, 0)
    kind = next(iter([kind for kind in one.stated if kind in other.stated] or [*one.stated, *other.stated, _CRC32C]))
    are_same = one.sum(kind) == other.sum(kind)
    return Compared(are_same, one.read_bytes + other.read_bytes)


class _Content:
    """An object, and its checksums: those that its store states, and those that are summed here."""

    def __init__(self, store: Uploader, key: str) -> None:
        self._view = store.view()
        self._meta = self._view.head(key)
        self.size_bytes = self._meta.size_bytes
        is_file = store.uri.scheme == "file" and self._view.queued(key) is None
        #: Kind -> checksum of the whole object.
        self.stated = {} if is_file else _stated(self._meta)
        self.read_bytes = 0

    def sum(self, kind: str) -> str:
        """The checksum of that kind, by reading all of the object if nobody states it."""
        if kind in self.stated:
            return self.stated[kind]
        self.read_bytes += self.size_bytes
        total = _Sum(kind)
        self._view.read(self._meta.key, total.take, end=self.size_bytes, if_match=self._meta.etag)
        return total.text()


class _Sum:
    """Sums the blocks that a store hands over in order; a call that is made again brings them again, from the first one."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._begin()

    def _begin(self) -> None:
        self._crc = 0
        self._hash = None if self._kind in (_CRC32C, "crc32") else hashlib.new(self._kind, usedforsecurity=False)

    def take(self, block: bytes | memoryview, at: int) -> None:
        if at == 0:
            self._begin()
        if self._hash is not None:
            self._hash.update(block)
        else:
            self._crc = (crc32c if self._kind == _CRC32C else zlib.crc32)(block, self._crc)

    def text(self) -> str:
        """As _stated() writes it."""
        return f"{self._crc:08x}" if self._hash is None else self._hash.hexdigest()


def _stated(meta: ObjectMeta) -> dict[str, str]:
    found = {} if meta.crc32c is None else {_CRC32C: f"{meta.crc32c:08x}"}
    if meta.digest is not None:
        kind, _, text = meta.digest.partition(":")
        found[kind] = text
    return found
