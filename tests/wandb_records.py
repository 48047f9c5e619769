"""Reads what W&B has written into a run's own file, offline, for tests; decoded by W&B's own protocol."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from support import wait_until

_BLOCK_BYTES = 32_768


def records(folder: Path) -> list[Any]:
    """All records of the one run. W&B's service ends the file shortly after ``finish()`` has returned."""
    wait_until(lambda: any(record.HasField("exit") for record in _records(folder)), what="W&B to write the end of the run")
    return _records(folder)


def _records(folder: Path) -> list[Any]:
    """Those that are there, decoded by W&B's own protocol.

    The file has a header of 7 bytes, then blocks of 32 KiB with chunks: CRC-32 (4 bytes), length (2), kind (1: whole, 2 to 4: the
    first, a middle, the last of several), as in LevelDB's log.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, found, parts = path.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if _BLOCK_BYTES - at % _BLOCK_BYTES < 7:
            at += _BLOCK_BYTES - at % _BLOCK_BYTES
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            found.append(Record.FromString(parts))
            parts = b""
    return found


def history(folder: Path) -> list[dict[str, Any]]:
    """What was logged, a mapping for each call; W&B writes the fields of a mapping one by one."""
    found = []
    for record in records(folder):
        if record.HasField("history"):
            line: dict[str, Any] = {}
            for item in record.history.item:
                *above, last = item.nested_key or [item.key]
                inner = line
                for key in above:
                    inner = inner.setdefault(key, {})
                inner[last] = json.loads(item.value_json)
            found.append(line)
    return found


def settings(folder: Path) -> dict[str, Any]:
    """The run's config."""
    found: dict[str, Any] = {}
    for record in records(folder):
        for updates in (record.run.config, record.config):
            found |= {"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in updates.update}
    return found
