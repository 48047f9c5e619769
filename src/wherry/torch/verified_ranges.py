"""Byte ranges of objects, fetched side by side into memory and each compared with its CRC32C before it is given out."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wherry.checksum import crc32c_of_file, format_crc32c, join_crc32c
from wherry.errors import IntegrityError
from wherry.posix.thread_pool import DaemonThreadPool, result_of
from wherry.store import ObjectStore
from wherry.store.memory_file import file_in_memory

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Ranges are fetched in pieces of this size, so many at once; so many bytes wait in memory to be taken.
_PIECE_BYTES = 16 * 2**20
_AT_ONCE = 16
_MOST_BYTES = _AT_ONCE * _PIECE_BYTES
#: Ranges of one object with no more than this between them are fetched by one request: it costs less than a request of its own.
_GAP_BYTES = 64 * 2**10


@dataclass(frozen=True, order=True)
class Range:
    """Bytes [start, end) of an object, and their CRC32C."""

    key: str
    start: int
    end: int
    crc32c: int


@dataclass
class _Span:
    """Ranges of one object that are fetched together: bytes [start, end)."""

    key: str
    start: int
    end: int
    ranges: list[Range] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class VerifiedRanges:
    """Fetches ranges of objects: what is given out is what was saved."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def fetch(self, wanted: Sequence[Range]) -> Iterator[tuple[Range, View]]:
        """Each range with its bytes, which can be read until the next one is asked for; in the order of keys and offsets.

        NotFoundError; IntegrityError for bytes that came wrong twice. What is in the way of a request is retried by the store.
        """
        # The pool ends before the files: a thread that still has to open one would find another file under its number.
        with ExitStack() as files, ExitStack() as threads:
            pool = DaemonThreadPool(_AT_ONCE, "wherry-ranges")
            threads.callback(pool.shutdown, cancel_futures=True)
            begun: deque[tuple[_Span, Path, ExitStack, list[Future[int | None]]]] = deque()
            n_bytes = 0
            for span in [*self._spans(wanted), None]:
                while begun and (span is None or n_bytes + span.size_bytes > _MOST_BYTES):
                    ready, path, closing, pieces = begun.popleft()
                    yield from self._checked(ready, path, [result_of(piece) for piece in pieces])
                    closing.close()
                    n_bytes -= ready.size_bytes
                if span is not None:
                    closing = files.enter_context(ExitStack())
                    path = closing.enter_context(file_in_memory())
                    begun.append((span, path, closing, [pool.submit(get) for get in self._gets(span, path)]))
                    n_bytes += span.size_bytes

    def _spans(self, wanted: Sequence[Range]) -> Iterator[_Span]:
        current: _Span | None = None
        is_ranged = self._store.capabilities.ranged_get
        for one in sorted(set(wanted)):
            if current is not None and current.key == one.key:
                end = max(current.end, one.end)
                is_near = one.start <= current.end + _GAP_BYTES and end - current.start <= _PIECE_BYTES
                if is_near or one.end <= current.end or not is_ranged:
                    current.end = end
                    current.ranges.append(one)
                    continue
            if current is not None:
                yield current
            current = _Span(one.key, one.start, one.end, [one])
        if current is not None:
            yield current

    def _gets(self, span: _Span, path: Path) -> list[Callable[[], int | None]]:
        def get(start: int) -> int | None:
            return self._store.get_file(span.key, path, start=start, end=min(start + step, span.end))

        step = _PIECE_BYTES if self._store.capabilities.ranged_get else max(1, span.size_bytes)
        return [lambda start=start: get(start) for start in range(span.start, span.end, step)]  # type: ignore[misc]

    def _checked(self, span: _Span, path: Path, crcs: list[int | None]) -> Iterator[tuple[Range, View]]:
        known = [crc for crc in crcs if crc is not None]
        is_summed = len(span.ranges) == 1 and len(known) == len(crcs)
        with open(path, "rb", buffering=0) as file:
            for one in span.ranges:
                crc = join_crc32c(known, _PIECE_BYTES, span.size_bytes) if is_summed else crc32c_of_file(path, one.start, one.end)
                if crc != one.crc32c:
                    crc = self._again(one, path)
                if crc != one.crc32c:
                    raise IntegrityError(
                        f"bytes {one.start}-{one.end - 1} came wrong, twice: with CRC32C {format_crc32c(crc)}, saved were "
                        f"{format_crc32c(one.crc32c)}",
                        operation="load",
                        uri=one.key,
                    )
                yield one, View(file.fileno(), one.start, one.end)

    def _again(self, one: Range, path: Path) -> int:
        for start in range(one.start, one.end, _PIECE_BYTES):
            self._store.get_file(one.key, path, start=start, end=min(start + _PIECE_BYTES, one.end))
        return crc32c_of_file(path, one.start, one.end)


class View(io.RawIOBase):
    """Bytes [start, end) of an open file, as a file of their own."""

    def __init__(self, descriptor: int, start: int, end: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self._end = end
        self._at = start

    def part(self, offset: int, length: int) -> IO[bytes]:
        """So many bytes from an offset in it on, buffered."""
        return io.BufferedReader(View(self._descriptor, self._start + offset, self._start + offset + length), 2**20)

    def readinto(self, buffer: Buffer, /) -> int:
        """Read into a buffer; how many bytes."""
        view = memoryview(buffer).cast("B")[: max(0, self._end - self._at)]
        n_bytes = os.preadv(self._descriptor, [view], self._at) if len(view) else 0
        self._at += n_bytes
        return n_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As in any file."""
        base = {io.SEEK_SET: self._start, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        if base + offset < self._start:
            raise ValueError(f"offset {offset} lies before the file's beginning")
        self._at = base + offset
        return self._at - self._start

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def seekable(self) -> bool:
        """Whether it can be sought in: yes."""
        return True
