"""A store of which only reading is left, and the count of what was asked of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from wherry.errors import PermanentError
from wherry.runs.records import Usage
from wherry.store import Capabilities, ObjectMeta, ObjectStore, Page, PutOptions, TakeBlock

#: List prices of S3 (Standard, us-east-1) and of GCS (Standard), alike to a digit: https://aws.amazon.com/s3/pricing/,
#: https://cloud.google.com/storage/pricing. Transfer out of the cloud is not in them: it depends on where the reader is.
LIST_USD = 5.0 / 1e6
GET_USD = 0.4 / 1e6
#: What a gigabyte costs in a month (Standard).
GIGABYTE_MONTH_USD = 0.023
#: Stores list so many objects in one answer.
_PAGE = 1000


class Tally:
    """Counts what all stores of one reader are asked. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_lists = self._n_gets = self._n_bytes = 0
        self._usd = 0.0

    def note(self, *, lists: int = 0, gets: int = 0, n_bytes: int = 0, is_free: bool = False) -> None:
        """Add requests and bytes."""
        with self._lock:
            self._n_lists += lists
            self._n_gets += gets
            self._n_bytes += n_bytes
            self._usd += 0.0 if is_free else lists * LIST_USD + gets * GET_USD

    def usage(self) -> Usage:
        """The sums so far."""
        with self._lock:
            return Usage(self._n_lists, self._n_gets, self._n_bytes, self._usd)


class ReadingStore(ObjectStore):
    """Reads from another store, counts each call in `tally`, and refuses to write, whoever asks and however.

    Every wrapper around it ends here, so nothing that is given such a store can change a bucket. Calls cost nothing if `is_free`.
    """

    def __init__(self, inner: ObjectStore, tally: Tally, *, is_free: bool) -> None:
        self._inner = inner
        self._tally = tally
        self._is_free = is_free

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # read each time: a backend may learn its own late
        """The inner store's."""
        return self._inner.capabilities

    @property
    def n_requests(self) -> int | None:
        """The inner store's."""
        return self._inner.n_requests

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the inner store's."""
        self._tally.note(gets=1, n_bytes=0 if end is None else end - start, is_free=self._is_free)
        return self._inner.get_file(key, path, start=start, end=end, if_match=if_match)

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the inner store's."""

        def counted(block: bytes | memoryview, at: int) -> None:
            self._tally.note(n_bytes=len(block))
            take(block, at)

        self._tally.note(gets=1, is_free=self._is_free)
        self._inner.read(key, counted, start=start, end=end, if_match=if_match)

    def head(self, key: str) -> ObjectMeta:
        """As the inner store's."""
        self._tally.note(gets=1, is_free=self._is_free)
        return self._inner.head(key)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the inner store's."""
        self._tally.note(lists=1, is_free=self._is_free)
        for number, meta in enumerate(self._inner.list(prefix, start_after=start_after), 1):
            if number % _PAGE == 0:
                self._tally.note(lists=1, is_free=self._is_free)
            yield meta

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """As the inner store's."""
        for page in self._inner.pages(prefix, one_level=one_level, mark=mark):
            self._tally.note(lists=1, is_free=self._is_free)
            yield page

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """Refused."""
        _refuse("put", key)

    def delete(self, key: str) -> None:
        """Refused."""
        _refuse("delete", key)

    def close(self) -> None:
        """Close the inner store."""
        self._inner.close()


def _refuse(operation: str, key: str) -> NoReturn:
    raise PermanentError("a reader of runs changes nothing", operation=operation, uri=key, hint="use wherry.Uploader to write")


def read_bytes(store: ObjectStore, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
    """Bytes [start, end) of an object, in one request."""
    found = bytearray()

    def take(block: bytes | memoryview, at: int) -> None:
        if at == start:  # a call that is made again hands all blocks over again
            found.clear()
        found.extend(block)

    if start < end:
        store.read(key, take, start=start, end=end, if_match=if_match)
    return bytes(found)
