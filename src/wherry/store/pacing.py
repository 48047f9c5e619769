"""A limit of bytes per second for the stores of one command, whatever the node's other processes do.

Each call pays for its bytes when they have moved: then a call's retries do not wait, and a command ends no sooner than its bytes
may take. What moves at once is small, so that they move evenly: see `paced()`.
"""

from __future__ import annotations

from dataclasses import replace

from wherry.config import MIB, TransferConfig
from wherry.store import ObjectStore
from wherry.store.governor import Governor
from wherry.store.metered import MeteredStore
from wherry.store.node_table import NodeTable
from wherry.store.options import MOST_IN_FLIGHT

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


class PacedStore(MeteredStore):
    """Lets bytes move as fast as `governor` says, both ways together: a call returns when its bytes are paid for.

    What the server copies by itself costs nothing.
    """

    def __init__(self, inner: ObjectStore, governor: Governor) -> None:
        super().__init__(inner, lambda key, n_bytes: governor.pay(n_bytes))
