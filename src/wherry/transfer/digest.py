"""A digest that a store has of an object in place of a CRC32C, computed of what has come."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

_BLOCK_BYTES = 2**20


class Digest:
    """Computes the digest of a file whose ranges are written in any order: each is read when all before it are there.

    `wanted` names the algorithm: ``md5:...``. Reading is done by the thread that waits for the ranges, from the page cache.
    """

    def __init__(self, wanted: str | None, path: Path) -> None:
        self._algorithm = (wanted or "").partition(":")[0]
        self._path = path
        self._sum = zlib.crc32(b"")
        self._hash = None if self._algorithm == "crc32" else hashlib.new(self._algorithm, usedforsecurity=False)
        self._at = 0
        self._waiting: dict[int, int] = {}

    def add(self, start: int, end: int) -> None:
        """Bytes [start, end) are there: read on until a byte is missing."""
        self._waiting[start] = end
        with open(self._path, "rb", buffering=0) as file:
            while (stop := self._waiting.pop(self._at, None)) is not None:
                file.seek(self._at)
                while self._at < stop and (block := file.read(min(_BLOCK_BYTES, stop - self._at))):
                    self._at += len(block)
                    if self._hash is None:
                        self._sum = zlib.crc32(block, self._sum)
                    else:
                        self._hash.update(block)

    def text(self) -> str:
        """The digest so far, in the form of ObjectMeta.digest."""
        return f"{self._algorithm}:{f'{self._sum:08x}' if self._hash is None else self._hash.hexdigest()}"
