"""Plain objects that the store makes of others: it joins a file's segments, or copies the object of a renamed file.

S3 joins objects of 5 MiB and more, but for the last one ("UploadPartCopy", API Reference). A flush(), a restart or a quiet minute
makes one smaller segment of a file whose others are large: only that one, and its neighbour where it needs one, is sent again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from wherry.checksum import format_crc32c
from wherry.errors import NotFoundError, StoreError
from wherry.mirror.format.layout import Segment, chain, key_for, writer_folder
from wherry.mirror.writer.state_db import Record, Stored
from wherry.store import CRC32C_METADATA, TEMPORARY_MARK, TOKEN_METADATA, Capabilities, ObjectStore, PutOptions
from wherry.uri import check_name

log = logging.getLogger("wherry.mirror")

#: Smaller files are sent again: one request, where listing, joining and tidying take four and more, each as long as a megabyte
#: takes at 100 Mbit/s; ten thousand small files must not take four times as long to close.
WORTH_JOINING_BYTES = 2**20
#: After so many in a row the store is not asked for a while: each may have been tried for as long as a call may take.
_MOST_FAILED_JOINS = 3
_NO_JOINS_S = 600.0
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


@dataclass(eq=False)
class Joiner:
    """Has a store make objects of others. `put_range` makes a range of a local file an object: (name, file, start, bytes).

    After several failures in a row the store is not asked for a while. Any thread may call.
    """

    store: ObjectStore
    prefix: str
    writer: str
    put_range: Callable[[str, Path, int, int], None]
    _n_failed: int = field(default=0, init=False)
    _not_before_s: float = field(default=0.0, init=False)

    def may_join(self, size_bytes: int) -> bool:
        """Whether the store can join, and the file is large enough that it saves something."""
        is_able = self.store.capabilities.min_joined_bytes is not None and time.monotonic() >= self._not_before_s
        return is_able and size_bytes >= WORTH_JOINING_BYTES

    def join(self, name: str, source: Path, record: Record, found: Sequence[Segment]) -> bool:
        """Make the object `name` of a file's segments, which are among those `found`. False if that cannot be.

        The segments of a file that was sealed before go on where its plain object ends, which is then the first piece.
        """
        segments = chain([one for one in found if one.generation == record.generation], record.generation)
        if any(one.compression for one in segments):
            return False
        pieces = [Piece(one.key, one.start, one.size_bytes) for one in segments]
        if segments and segments[0].start > 0:
            try:
                plain = self.store.head(key_for(self.prefix, check_name(record.path)))
            except NotFoundError:
                return False
            pieces = [Piece(plain.key, 0, plain.size_bytes), *(one for one in pieces if one.start >= plain.size_bytes)]
        can = self.store.capabilities
        if not _is_whole(pieces, record.acked, can) or (parts := pack(pieces, can.min_joined_bytes or 0)) is None:
            return False
        return self._join_parts(name, parts, source, record)

    def copy(self, stored: Stored, name: str, status: os.stat_result) -> bool:
        """Make the object `name` a copy of another. False if that cannot be, or if the file is not the stored one any more."""
        if ((status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns) != (stored.file, stored.size, stored.mtime_ns):
            return False
        if not self.may_join(stored.size) or stored.size > self.store.capabilities.max_part_size_bytes:
            return False
        return self._make(name, [key_for(self.prefix, check_name(stored.name))], stored.size, stored.crc32c)

    def _join_parts(self, name: str, parts: Sequence[Piece], source: Path, record: Record) -> bool:
        """Join the parts; those without a key are put for that time."""
        mark = hashlib.sha256(name.encode()).hexdigest()[:16]
        # Listings do not show such names. What a kill leaves the seal that is made again overwrites, and deletes.
        packs = {
            one.start: f"{writer_folder(self.writer)}{TEMPORARY_MARK}pack-{mark}-{one.start:020d}" for one in parts if not one.key
        }
        keys = [one.key or key_for(self.prefix, packs[one.start]) for one in parts]
        try:
            for one in parts:
                if not one.key:
                    self.put_range(packs[one.start], source, one.start, one.size_bytes)
            return self._make(name, keys, record.acked, record.crc32c)
        finally:
            if packs:
                self.store.delete_many([key_for(self.prefix, one) for one in packs.values()])

    def _make(self, name: str, keys: Sequence[str], size: int, crc: int) -> bool:
        """Have the store make the object `name` of others. False if it did not, or if the result has another checksum."""
        metadata = {TOKEN_METADATA: secrets.token_hex(16), CRC32C_METADATA: format_crc32c(crc)}
        try:
            self.store.join(key_for(self.prefix, name), keys, size, PutOptions(crc32c=crc, metadata=metadata))
        except StoreError as error:  # whatever it is: the file is here, and a store that is down will say so again
            self._n_failed += 1
            self._not_before_s = time.monotonic() + (_NO_JOINS_S if self._n_failed >= _MOST_FAILED_JOINS else 0.0)
            log.info("%s is sent again, for the store did not make it of %d objects: %s", name, len(keys), error)
            return False
        self._n_failed = 0
        return True


def _is_whole(pieces: Sequence[Piece], size: int, can: Capabilities) -> bool:
    """Whether objects that follow one another are the whole file, and not larger or more than a store joins."""
    at = 0
    for one in pieces:
        if one.start != at or one.size_bytes > can.max_part_size_bytes:
            return False
        at += one.size_bytes
    return at == size and 0 < len(pieces) <= can.max_parts
