"""Where a growing file may be cut: after whole records, lines or TensorBoard's events.

An event file is a row of ``uint64 length, uint32 masked crc32c(length), data, uint32 masked crc32c(data)``, little-endian
(https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details).
"""

from __future__ import annotations

import os
import struct

from wherry.checksum import crc32c

_HEADER = struct.Struct("<QI")
_OVERHEAD_BYTES = _HEADER.size + 4
_BLOCK_BYTES = 2**16


def is_event_file(path: str) -> bool:
    """Whether the name is one under which TensorBoard looks for events."""
    return "tfevents" in path.rpartition("/")[2]


def cut_lines(file: int, start: int, size: int, max_bytes: int) -> int:
    """The end of the last whole line in [start, min(size, start + most)); `start` if there is none.

    A carriage return ends a line where there is no line feed: that is how progress bars are written. A line longer than `most`
    is cut there, so that it cannot hold the file up for ever.
    """
    end = min(size, start + max_bytes)
    returned = start
    at = end
    while at > start:
        begin = max(start, at - _BLOCK_BYTES)
        block = os.pread(file, at - begin, begin)
        if (found := block.rfind(b"\n")) >= 0:
            return begin + found + 1
        if returned == start and (found := block.rfind(b"\r")) >= 0:
            returned = begin + found + 1
        at = begin
    if returned > start:
        return returned
    return end if end - start >= max_bytes else start


def cut_events(file: int, boundary: int, start: int, size: int, max_bytes: int) -> tuple[int, int]:
    """The end of the last whole event in [start, min(size, start + most)), or `start`; and the boundary to give next time.

    `boundary` is the beginning of an event, at or before `start`. An event larger than `most` goes in one piece, when it is
    complete: TensorBoard takes half of one for the end of the file. Where the bytes are no events they are cut as they come.
    """
    at, cut = boundary, start
    buffer, base = b"", boundary
    while at + _OVERHEAD_BYTES <= size:
        if not base <= at <= base + len(buffer) - _HEADER.size:
            buffer, base = os.pread(file, min(_BLOCK_BYTES, size - at), at), at
            if len(buffer) < _HEADER.size:
                break  # it was truncated just now
        length, check = _HEADER.unpack_from(buffer, at - base)
        if check != masked_crc32c(buffer[at - base : at - base + 8]):
            return max(cut, min(size, start + max_bytes)), at
        following = at + _OVERHEAD_BYTES + length
        if following > size or (following > start + max_bytes and cut > start):
            break
        at = following
        cut = max(cut, at)
        if at >= start + max_bytes:
            break
    return cut, at


def masked_crc32c(data: bytes) -> int:
    """The checksum as event files keep it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
