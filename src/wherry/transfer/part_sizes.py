"""How a file is divided: into parts of an upload, or into ranges that are summed or read one by one."""

from __future__ import annotations

from wherry.checksum import PIECE_BYTES
from wherry.config import MIB, TransferConfig
from wherry.errors import PermanentError
from wherry.store import Capabilities

#: A part is about the size of the file by this: what is in flight when a worker is killed, and sent again, is little of it.
_PARTS_WANTED = 512
#: Where it is known how fast parts go, a part takes so long, and costs less than the transactions that more parts would take;
#: but there are so many of them that all places are used to the end.
_PART_S = 0.25
_LEAST_PARTS = 64
#: Beyond this size a part gains no speed, and costs more when it fails.
_LARGE_PART_BYTES = 64 * MIB


def part_size_for(size_bytes: int, transfer: TransferConfig, capabilities: Capabilities, bytes_per_s: float | None = None) -> int:
    """The size of parts: as configured; larger, in whole MiB, for large files and where the limit of parts asks for it.

    `bytes_per_s`: how fast one part of several has gone to this store lately; None: nobody knows.
    """
    wanted = size_bytes // _PARTS_WANTED
    if bytes_per_s is not None:
        wanted = min(size_bytes // _LEAST_PARTS, int(bytes_per_s * _PART_S))
    least = max(-(-size_bytes // capabilities.max_parts), min(wanted, _LARGE_PART_BYTES))
    size = max(transfer.part_size_bytes, capabilities.min_part_size_bytes)
    if least > size:
        size = -(-least // PIECE_BYTES) * PIECE_BYTES
    if size > capabilities.max_part_size_bytes:
        raise PermanentError(f"{size_bytes} bytes are more than the store's {capabilities.max_parts} parts can hold")
    return size


def threshold_bytes(transfer: TransferConfig, capabilities: Capabilities) -> int:
    """From which size on a file is sent in parts."""
    most = capabilities.max_put_size_bytes
    return transfer.multipart_threshold_bytes if most is None else min(transfer.multipart_threshold_bytes, most)


def split(size_bytes: int, piece_bytes: int) -> list[tuple[int, int]]:
    """The ranges [start, end) that cover `size_bytes`, in order; none for nothing."""
    return [(start, min(start + piece_bytes, size_bytes)) for start in range(0, size_bytes, piece_bytes)]
