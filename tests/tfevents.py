"""Reads event files, for tests: knows the formats from their sources and shares nothing with the writer, not even checksums."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_DTYPES = {1: "<f4", 2: "<f8"}


@dataclass(frozen=True)
class Value:
    """One value of a summary: a number, or a tensor of strings or numbers."""

    tag: str
    number: float | None = None
    plugin: str = ""
    plugin_data: bytes = b""
    description: str = ""
    shape: tuple[int, ...] = ()
    strings: tuple[bytes, ...] = ()
    array: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Event:
    """One event."""

    wall_time_s: float
    step: int
    version: str
    values: tuple[Value, ...]


def event_files(folder: Path) -> list[Path]:
    """The event files below a folder, in the order in which TensorBoard reads them."""
    return sorted(path for path in folder.rglob("*tfevents*") if path.is_file())


def read_events(*files: Path, may_be_torn: bool = False) -> list[Event]:
    """All events but the first of each file, which says the version and is checked.

    AssertionError for a file that is torn; with `may_be_torn` it is read up to there, as TensorBoard does.
    """
    found = []
    for file in files:
        events = [_event(record) for record in _records(file.read_bytes(), may_be_torn)]
        if may_be_torn and not events:
            continue  # torn before its first
        first, *events = events
        assert ("brain.Event:2", ()) == (first.version, first.values), file
        found += events
    return found


def read_values(folder: Path) -> list[tuple[int, Value]]:
    """All values below a folder, each with its step."""
    return [(event.step, value) for event in read_events(*event_files(folder)) for value in event.values]


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All curves below a folder: tag -> (step, number), in order."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for step, value in read_values(folder):
        if value.number is not None:
            curves.setdefault(value.tag, []).append((step, value.number))
    return curves


def fields(message: bytes) -> dict[int, list[bytes | int]]:
    """A message's fields: number -> contents, each an integer or bytes."""
    found: dict[int, list[bytes | int]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        content: bytes | int
        if kind == 0:
            content, at = _varint(message, at)
        else:
            size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else _varint(message, at)
            content = message[at : at + size]
            assert size == len(content), "a field is cut off"
            at += size
        found.setdefault(key >> 3, []).append(content)
    return found


def _records(data: bytes, may_be_torn: bool) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        if may_be_torn and (len(data) < at + 16 or len(data) < at + 16 + struct.unpack_from("<Q", data, at)[0]):
            return
        length, length_crc = struct.unpack_from("<QI", data, at)
        record = data[at + 12 : at + 12 + length]
        (data_crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert (length_crc, data_crc) == (_masked_crc32c(data[at : at + 8]), _masked_crc32c(record)), f"torn at byte {at}"
        yield record
        at += 16 + length


def _event(record: bytes) -> Event:
    message = fields(record)
    (wall_time_s,) = struct.unpack("<d", _bytes(message, 1))
    (step,) = message.get(2, [0])
    assert isinstance(step, int)
    values = tuple(_value(fields(_whole(one))) for one in fields(_bytes(message, 5)).get(1, ()))
    return Event(wall_time_s, step - 2**64 if step >= 2**63 else step, _bytes(message, 3).decode(), values)


def _value(message: dict[int, list[bytes | int]]) -> Value:
    tag = _bytes(message, 1).decode()
    if 2 in message:
        return Value(tag, struct.unpack("<f", _bytes(message, 2))[0])
    metadata, tensor = fields(_bytes(message, 9)), fields(_bytes(message, 8))
    for field in {4, 5, 6} & message.keys():
        return _value_of_a_kind(tag, field, message, _bytes(metadata, 3).decode())
    plugin = fields(_bytes(metadata, 1))
    shape = tuple(_whole_number(fields(_whole(dim)).get(1, [0])) for dim in fields(_bytes(tensor, 2)).get(2, ()))
    (kind,) = tensor[1]
    dtype = _DTYPES.get(kind) if isinstance(kind, int) else None
    array = np.frombuffer(_bytes(tensor, 4), dtype).reshape(shape).astype(np.float64) if dtype else None
    strings = tuple(_whole(one) for one in tensor.get(8, ()))
    return Value(tag, None, _bytes(plugin, 1).decode(), _bytes(plugin, 2), _bytes(metadata, 3).decode(), shape, strings, array)


def _value_of_a_kind(tag: str, kind: int, message: dict[int, list[bytes | int]], description: str) -> Value:
    """An image (strings: width, height, file), a histogram (array: left, right, count), or sound (strings: file)."""
    content = fields(_bytes(message, kind))
    if kind == 4:
        sizes = (str(_whole_number(content[field])).encode() for field in (2, 1))
        return Value(tag, None, "images", b"", description, strings=(*sizes, _bytes(content, 4)))
    if kind == 6:
        return Value(tag, None, "audio", b"", description, strings=(_bytes(content, 4),))
    right, counts = (np.frombuffer(_bytes(content, field), "<f8") for field in (6, 7))
    (least,) = struct.unpack("<d", _bytes(content, 1))
    array = np.stack([np.concatenate([[least], right[:-1]]), right, counts], axis=1)
    return Value(tag, None, "histograms", b"", description, array.shape, (), array)


def _bytes(message: dict[int, list[bytes | int]], field: int) -> bytes:
    contents = message.get(field, [b""])
    assert 1 == len(contents), f"field {field} stands there {len(contents)} times"
    return _whole(contents[0])


def _whole(content: bytes | int) -> bytes:
    assert isinstance(content, bytes)
    return content


def _whole_number(contents: list[bytes | int]) -> int:
    (content,) = contents
    assert isinstance(content, int)
    return content


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
        shift += 7


def _masked_crc32c(data: Iterable[int]) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table_entry(index: int) -> int:
    for _ in range(8):
        index = (index >> 1) ^ (0x82F63B78 if index & 1 else 0)
    return index


_TABLE = [_table_entry(index) for index in range(256)]
