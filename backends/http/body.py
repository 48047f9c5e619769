"""What a request sends: a few bytes, or where to find many."""

from __future__ import annotations

import os
from dataclasses import dataclass

from wherry.backends.http.wire_errors import ShortFile, UnreadableFile

#: Up to this size a body is read at once and sent without asking for permission first, which takes a round trip.
_IN_MEMORY_BYTES = 2**20


@dataclass(frozen=True)
class FileRange:
    """A body: bytes [start, end) of an open file, between a few others."""

    file: int
    start: int
    end: int
    before: bytes = b""
    after: bytes = b""


def body_of(file: int, start: int, end: int, before: bytes = b"", after: bytes = b"") -> bytes | FileRange:
    """Bytes [start, end) of an open file, as the body of a request. Raises ShortFile, UnreadableFile."""
    if start < end and (missing := end - os.fstat(file).st_size) > 0:
        raise ShortFile(missing)
    if end - start > _IN_MEMORY_BYTES:
        return FileRange(file, start, end, before, after)
    pieces, at = [before], start
    while at < end:
        try:
            piece = os.pread(file, end - at, at)
        except OSError as error:
            raise UnreadableFile(error) from error
        if not piece:
            raise ShortFile(end - at)
        pieces.append(piece)
        at += len(piece)
    return b"".join([*pieces, after])
