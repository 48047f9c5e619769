"""How a file is divided: into parts of an upload, or into ranges that are summed or read one by one."""

from __future__ import annotations

from wherry.checksum import PIECE_BYTES
from wherry.config import MIB, TransferConfig
from wherry.errors import PermanentError
from wherry.store import Capabilities

#: A part is about the size of the file by this: what is in flight when a worker is killed, and sent again, is little of it.
_PARTS_WANTED = 512
#: Beyond this size a part gains no speed, and costs more when it fails.
_LARGE_PART_BYTES = 64 * MIB


def part_size_for(size_bytes: int, transfer: TransferConfig, capabilities: Capabilities) -> int:
    """The size of parts: as configured; larger, in whole MiB, for large files and where the limit of parts asks for it."""
    least = max(-(-size_bytes // capabilities.max_parts), min(size_bytes // _PARTS_WANTED, _LARGE_PART_BYTES))
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
