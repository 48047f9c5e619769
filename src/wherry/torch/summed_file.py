"""A file that is written from the beginning to the end and knows the CRC32C of each stretch of it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

from wherry.checksum import BLOCK_BYTES, combine_crc32c, crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SummedFile(io.BufferedIOBase):
    """Writes to `file` and sums on the way. Each tell() ends a stretch: torch asks for it at the beginning of each item."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._start = 0
        self._crc = 0
        self._stretches: dict[int, tuple[int, int]] = {}

    def writable(self) -> bool:
        """Whether it can be written: yes."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`; returns how many bytes that is."""
        view = memoryview(data).cast("B")
        for at in range(0, len(view), BLOCK_BYTES):
            self._crc = crc32c(view[at : at + BLOCK_BYTES], self._crc)
        self._file.write(view)
        self._at += len(view)
        return len(view)

    def flush(self) -> None:
        """Hand buffered bytes to the operating system."""
        if not self._file.closed:
            self._file.flush()

    def tell(self) -> int:
        """How many bytes were written."""
        if self._at > self._start:
            self._stretches[self._start] = (self._at, self._crc)
            self._start, self._crc = self._at, 0
        return self._at

    def crc32c_of(self, start: int, end: int) -> int:
        """The CRC32C of bytes [start, end), at both of which tell() was called. KeyError for any others."""
        self.tell()
        crc = 0
        while start < end:
            stop, stretch = self._stretches[start]
            crc = combine_crc32c(crc, stretch, stop - start)
            start = stop
        if start != end:
            raise KeyError(end)
        return crc
