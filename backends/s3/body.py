"""The bytes of a request: a range of an open file, which botocore may read twice, once to sign and once to send."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c

from wherry.backends.http.body import FileRange, body_of
from wherry.backends.http.wire_errors import ShortFile, UnreadableFile
from wherry.backends.local_file import opened_source
from wherry.backends.s3.error_table import DigestError
from wherry.errors import IntegrityError

BLOCK_BYTES = 2**20
#: Up to this size botocore is given bytes.
_IN_MEMORY_BYTES = 2**20


class Source:
    """Bytes [start, end) of an open file, as a body that botocore takes: bytes, or a seekable file, which may be read twice."""

    def __init__(self, file: int, start: int, end: int) -> None:
        self._file = file
        self._start = start
        self._end = end
        self._at = start

    @property
    def size_bytes(self) -> int:
        """How many bytes the range has."""
        return self._end - self._start

    def body(self) -> Any:
        """The request's body, at its start."""
        self._at = self._start
        return b"".join(iter(self.read, b"")) if self.size_bytes <= _IN_MEMORY_BYTES else self

    def content(self) -> bytes | FileRange:
        """The request's body for our own client: bytes if they are few, else where they are."""
        return body_of(self._file, self._start, self._end)

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Some of the next bytes, at most `size`; none at the end of the range."""
        left = self._end - self._at
        try:
            data = os.pread(self._file, min(size, left), self._at)
        except OSError as error:
            raise UnreadableFile(error) from error
        if not data and left and size:
            raise ShortFile(left)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As a file's, within the range."""
        self._at = offset + {os.SEEK_SET: self._start, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self.tell()

    def tell(self) -> int:
        """How far into the range the next read is."""
        return self._at - self._start

    def crc32c(self) -> int:
        """The checksum of the bytes that the file has now."""
        self._at, crc = self._start, 0
        while block := self.read(BLOCK_BYTES):
            crc = google_crc32c.extend(crc, block)
        return int(crc)


@contextmanager
def sending(path: Path, crc32c: int | None, *, start: int = 0, end: int | None = None) -> Iterator[Source]:
    """Open the file to send. If the server finds that the bytes do not match the checksum, check whether the file has changed."""
    with opened_source(path) as file:
        source = Source(file, start, os.fstat(file).st_size if end is None else end)
        try:
            yield source
        except DigestError as error:
            if crc32c is None or source.crc32c() == crc32c:
                raise
            raise IntegrityError(f"the file's bytes do not have the checksum that they must have: {error.message}") from error
