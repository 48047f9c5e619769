"""KeptRows: the table of a reader as it was when it was last read whole, in one file of the cache.

A run of which no object has changed, and whose state cannot change by time alone, is not read again: a thousand runs then take
one file in place of a thousand, and no request but those of the listing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from wherry.runs.objects.discovery import Found
from wherry.runs.objects.disk_cache import DiskCache
from wherry.runs.objects.place import version_of
from wherry.runs.records import KeySummary, RunRow
from wherry.store import ObjectMeta

#: Another number for another form of the file, and whenever rows are made otherwise.
_FORM = "rows 3"
#: Whoever has written last may write on; the other states stay as they are until an object is new.
_CHANGES_BY_TIME = "live"


class KeptRows:
    """The rows of the places that `name` stands for; without a `cache` nothing is kept. For one thread at a time."""

    def __init__(self, cache: DiskCache | None, name: str) -> None:
        self._cache = cache
        self._name = f"{_FORM} {name}"
        self._rows: dict[str, tuple[str, RunRow]] | None = None
        self._read_s = 0.0
        self._next: dict[str, tuple[str, RunRow]] = {}
        self._versions: tuple[Sequence[ObjectMeta], str] | None = None

    def of_before(self, now_s: float) -> tuple[Sequence[RunRow], float | None]:
        """All rows as they were, and how many seconds ago that was; None if nothing was kept."""
        rows = [self._aged(row, now_s) for _, row in self._loaded().values()]
        return rows, max(0.0, now_s - self._read_s) if rows else None

    def row(self, run_id: str, found: Found, now_s: float) -> RunRow | None:
        """The row of a run that is as it was; None if it is to be read."""
        version, row = self._loaded().get(run_id, ("", None))
        if row is None or row.trouble is not None or row.state == _CHANGES_BY_TIME or version != self._version(found):
            return None
        self._next[run_id] = version, row
        return self._aged(row, now_s)

    def take(self, row: RunRow, found: Found, now_s: float) -> None:
        """Keep a row that was read."""
        self._next[row.id] = self._version(found), row.aged(-now_s)  # ages are those of another time

    def save(self, now_s: float) -> None:
        """Write down all that row() and take() have had since the last call: the whole table."""
        kept = self._loaded()
        is_new = kept.keys() != self._next.keys() or any(kept[run_id] is not one for run_id, one in self._next.items())
        self._rows, self._next, self._versions, self._read_s = self._next, {}, None, now_s
        if is_new and self._cache is not None:
            rows = {run_id: [version, _row_as_json(row)] for run_id, (version, row) in self._rows.items()}
            self._cache.put(self._name, json.dumps({"read_s": now_s, "rows": rows}).encode())

    def _loaded(self) -> dict[str, tuple[str, RunRow]]:
        if self._rows is None:
            self._rows = {}
            data = None if self._cache is None else self._cache.get(self._name)
            try:
                found = json.loads(data or b"{}")
                self._rows = {run_id: (version, _row_of_json(row)) for run_id, (version, row) in found.get("rows", {}).items()}
                self._read_s = float(found.get("read_s", 0.0))
            except (ValueError, TypeError, LookupError, AttributeError):  # damaged on the disk: as if it were not there
                self._rows = {}
        return self._rows

    def _aged(self, row: RunRow, now_s: float) -> RunRow:
        return row.aged(now_s)

    def _version(self, found: Found) -> str:
        """What tells one state of a run's objects from another. The runs of one mirror share their objects."""
        if self._versions is None or self._versions[0] is not found.objects:
            text = "\n".join(f"{meta.key} {meta.size_bytes} {version_of(meta)}" for meta in found.objects)
            self._versions = found.objects, hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
        return f"{self._versions[1]} {found.path}"


def _row_as_json(row: RunRow) -> Mapping[str, object]:
    return {**vars(row), "metrics": {key: list(vars(one).values()) for key, one in row.metrics.items()}}


def _row_of_json(found: dict[str, Any]) -> RunRow:
    return RunRow(**{**found, "metrics": {key: KeySummary(*one) for key, one in found["metrics"].items()}})
