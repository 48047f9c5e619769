"""A store that tells how many bytes each call has moved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from wherry.store import ObjectMeta, ObjectStore, Part, PutOptions, StoredPart, TakeBlock
from wherry.store.wrappers import WrappedStore

#: Called with an object's key and a number of its bytes, from any thread, in the thread that moved them.
Moved = Callable[[str, int], object]


class MeteredStore(WrappedStore):
    """Calls `moved` for bytes that went either way, before the call that moved them returns; not for what a server copies."""

    def __init__(self, inner: ObjectStore, moved: Moved) -> None:
        super().__init__(inner)
        self._moved = moved

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        made = super().put_file(key, path, put)
        self._moved(key, made.size_bytes)
        return made

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        """As the inner store's; `moved` is called for each before it is given out."""
        for place, made in super().put_many(puts, most):
            self._moved(made.key, made.size_bytes)
            yield place, made

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the inner store's."""
        stored = super().put_part(key, upload_id, path, part)
        self._moved(key, part.end - part.start)
        return stored

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the inner store's."""
        crc = super().get_file(key, path, start=start, end=end, if_match=if_match)
        self._moved(key, (os.stat(path).st_size if end is None else end) - start)
        return crc

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the inner store's; without `end`, which says how many bytes these are, `moved` is called block by block."""

        def counted(block: bytes | memoryview, at: int) -> None:
            take(block, at)
            self._moved(key, len(block))

        super().read(key, counted if end is None else take, start=start, end=end, if_match=if_match)
        if end is not None:
            self._moved(key, end - start)
