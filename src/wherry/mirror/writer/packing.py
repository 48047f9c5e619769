"""Which objects of a file a store joins as they are, and which are too small for that and are sent again, together.

S3 joins objects of 5 MiB and more, but for the last one ("UploadPartCopy", API Reference). A flush(), a restart or a quiet minute
makes one smaller segment of a file whose others are large: only that one, and its neighbour where it needs one, is sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Where more than this share of a file would be sent again, the file itself is sent: one request, and nothing to tidy up.
_MOST_PACKED = 0.5


class Piece(NamedTuple):
    """An object that has `size_bytes` of the file from `start` on. Without a key it is to be made first, of the local file."""

    key: str
    start: int
    size_bytes: int


def pack(pieces: Sequence[Piece], least_bytes: int) -> list[Piece] | None:
    """The pieces with those that are too small put together, until each but the last has `least_bytes`.

    None where it is better to send the whole file.
    """
    found: list[Piece] = []
    run: list[Piece] = []
    for one in pieces:
        run.append(one)
        if sum(each.size_bytes for each in run) >= least_bytes:
            found.append(_together(run))
            run = []
    if run:
        found.append(_together(run))
    n_packed = sum(one.size_bytes for one in found if not one.key)
    return found if n_packed <= _MOST_PACKED * sum(one.size_bytes for one in pieces) else None


def _together(run: Sequence[Piece]) -> Piece:
    return run[0] if len(run) == 1 else Piece("", run[0].start, sum(one.size_bytes for one in run))
