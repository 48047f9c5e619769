"""A limit of bytes per second for the stores of one command, whatever the node's other processes do.

Each call pays for its bytes when they have moved: then a call's retries do not wait, and a command ends no sooner than its bytes
may take. What moves at once is small, so that they move evenly: see `paced()`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wherry.config import MIB, TransferConfig
from wherry.store import ObjectMeta, ObjectStore, Part, PutOptions, StoredPart, TakeBlock
from wherry.store.governor import Governor
from wherry.store.node_table import NodeTable
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.wrappers import WrappedStore

#: A piece takes so long at the limit, as far as its size goes: S3 takes no parts of less than 5 MiB.
_PIECE_S = 0.25
_LEAST_PIECE_BYTES = MIB
_PIECES_AT_ONCE = 2


def command_governor(max_bytes_per_s: float) -> Governor:
    """A governor that the stores of one process share with nobody else."""
    return Governor(NodeTable(), "this command", MOST_IN_FLIGHT, max_bytes_per_s=max_bytes_per_s)


def paced(transfer: TransferConfig, governor: Governor) -> TransferConfig:
    """The configuration with pieces that take a quarter of a second each at the limit: bytes then move evenly, not by bursts."""
    if governor.max_bytes_per_s is None:
        return transfer
    piece_bytes = max(_LEAST_PIECE_BYTES, int(governor.max_bytes_per_s * _PIECE_S))
    part_size_bytes = min(transfer.part_size_bytes, piece_bytes)
    return replace(
        transfer,
        multipart_threshold_bytes=min(transfer.multipart_threshold_bytes, max(part_size_bytes, 8 * MIB)),
        part_size_bytes=part_size_bytes,
        parts_in_flight=min(transfer.parts_in_flight, _PIECES_AT_ONCE),
        range_size_bytes=min(transfer.range_size_bytes, piece_bytes),
        ranges_in_flight=min(transfer.ranges_in_flight, _PIECES_AT_ONCE),
    )


class PacedStore(WrappedStore):
    """Lets bytes move as fast as `governor` says, both ways together. What the server copies by itself costs nothing."""

    def __init__(self, inner: ObjectStore, governor: Governor) -> None:
        super().__init__(inner)
        self._governor = governor

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's; returns when its bytes are paid for."""
        made = super().put_file(key, path, put)
        self._governor.pay(made.size_bytes)
        return made

    def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
        """As the inner store's; each is paid for before the next is given out."""
        for place, made in super().put_many(puts, most):
            self._governor.pay(made.size_bytes)
            yield place, made

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the inner store's; returns when its bytes are paid for."""
        stored = super().put_part(key, upload_id, path, part)
        self._governor.pay(part.end - part.start)
        return stored

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the inner store's; returns when its bytes are paid for."""
        crc = super().get_file(key, path, start=start, end=end, if_match=if_match)
        self._governor.pay((os.stat(path).st_size if end is None else end) - start)
        return crc

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the inner store's; without `end`, which says how many bytes these are, paid for block by block."""

        def paying(block: bytes | memoryview, at: int) -> None:
            take(block, at)
            self._governor.pay(len(block))

        super().read(key, paying if end is None else take, start=start, end=end, if_match=if_match)
        self._governor.pay(0 if end is None else end - start)
