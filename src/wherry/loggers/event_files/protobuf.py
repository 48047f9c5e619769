"""The part of Protobuf's wire encoding that event files need: https://protobuf.dev/programming-guides/encoding/

Each function returns the bytes of one field with its number; a message is the fields one after another. A field with its
default value means the same as no field, so callers may leave such fields out.
"""

from __future__ import annotations

import struct

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_ONE_BYTE = [bytes([number]) for number in range(128)]
_FLOAT = struct.Struct("<f")


def varint(number: int) -> bytes:
    """Seven bits a byte, low bits first; a negative number as its 64-bit two's complement, which takes ten bytes."""
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    """An int32, int64, enum or bool."""
    return varint(field << 3 | _VARINT) + varint(number)


def double(field: int, number: float) -> bytes:
    """A double."""
    return varint(field << 3 | _FIXED_64) + struct.pack("<d", number)


def float_field(field: int, number: float) -> bytes:
    """A float."""
    return varint(field << 3 | _FIXED_32) + float32(number)


def binary(field: int, content: bytes) -> bytes:
    """A bytes field, or a message that is already encoded."""
    return b"".join((varint(field << 3 | _BYTES), varint(len(content)), content))


def string(field: int, text: str) -> bytes:
    """A string. Readers drop a message whose string is not UTF-8, so lone surrogates become question marks."""
    return binary(field, text.encode("utf-8", "replace"))


def float32(number: float) -> bytes:
    """The four bytes of a float; a number that is too large becomes an infinity."""
    try:
        return _FLOAT.pack(number)
    except (OverflowError, struct.error):  # the latter for large integers
        return _FLOAT.pack(float("inf") if number > 0 else float("-inf"))
