"""What a mirror's bucket holds, read by the layout that docs/mirror.md describes, and by none of wherry's mirror code.

Tests judge by it, and the product's reader must find the same: see `files_in()` and `read()`. Meant for buckets of tests: every
object is fetched whole, one after another.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import zstandard

from wherry.errors import NotFoundError
from wherry.mirror.reader.reader import MirrorReader
from wherry.store import ObjectStore

_SEGMENT = re.compile(r"_mirror/([^/]+)/segments/(.+)/(\d+)-(\d{20})(\.gz|\.zst)?", re.DOTALL)
_MANIFEST = re.compile(r"_mirror/([^/]+)/manifest\.json", re.DOTALL)


class _Segment(NamedTuple):
    start: int
    name: str
    modified_s: float


@dataclass
class _Listing:
    """Plain objects by name, segments by path, writer and generation, and the newest generations that manifests tell."""

    plain: set[str] = field(default_factory=set)
    segments: dict[str, dict[tuple[str, int], list[_Segment]]] = field(default_factory=lambda: defaultdict(dict))
    known: dict[tuple[str, str], int] = field(default_factory=dict)


class MirrorOracle:
    """Reads one mirrored prefix. `believes_manifests`: generations older than the newest that a manifest tells do not count."""

    def __init__(self, store: ObjectStore, prefix: str, *, believes_manifests: bool = True) -> None:
        self._store = store
        self._base = f"{prefix}/" if prefix else ""
        self._believes_manifests = believes_manifests

    def files(self) -> dict[str, bytes]:
        """All files, put together, by path."""
        listing = self._list()
        found = {path: self._put_together(listing, path) for path in sorted({*listing.plain, *listing.segments})}
        return {path: data for path, data in found.items() if data is not None}

    def read(self, path: str) -> bytes | None:
        """One file, put together; None if there is none."""
        return self._put_together(self._list(), path)

    def in_segments(self) -> set[str]:
        """The files of which segments count."""
        listing = self._list()
        return {path for path in listing.segments if self._tail(listing, path, None)[1]}

    def _list(self) -> _Listing:
        listing, manifests = _Listing(), {}
        for meta in list(self._store.list(self._base)):
            name = meta.key[len(self._base) :]
            if (match := _SEGMENT.fullmatch(name)) is not None:
                one = _Segment(int(match[4]), name, meta.modified_s or 0.0)
                listing.segments[match[2]].setdefault((match[1], int(match[3])), []).append(one)
            elif (match := _MANIFEST.fullmatch(name)) is not None:
                manifests[match[1]] = name
            elif not name.startswith("_mirror/") and (meta.size_bytes or not meta.key.endswith("/")):  # consoles' empty folders
                listing.plain.add(name)
        for writer, name in manifests.items() if self._believes_manifests else ():
            for entry in json.loads(self._get(name))["files"]:
                if entry["rule"] == "append":
                    key = (writer, entry["path"])
                    listing.known[key] = max(entry["generation"], listing.known.get(key, 0))
        return listing

    def _tail(self, listing: _Listing, path: str, plain: bytes | None) -> tuple[int, bytes]:
        """Where the segments that count begin, and what they have of the file; empty if none count."""
        newest: dict[str, int] = {}
        for writer, generation in listing.segments.get(path, {}):
            newest[writer] = max(generation, newest.get(writer, 0))
        tails: list[tuple[float, int, int, bytes]] = []
        for writer, generation in newest.items():
            if generation < listing.known.get((writer, path), 0):
                continue
            segments = [(one, self._inflated(one.name)) for one in sorted(listing.segments[path][writer, generation])]
            if segments[0][0].start > 0 and plain is not None:  # the plain object has what its own segments had
                segments = [(one, data) for one, data in segments if one.start + len(data) > len(plain)]
            if not segments:
                continue
            parts, last = list[bytes](), segments[0][0]
            end = last.start
            for one, data in segments:
                if one.start != end:  # a gap: what comes behind it does not count
                    break
                parts.append(data)
                end, last = end + len(data), one
            tails.append((last.modified_s, last.start, segments[0][0].start, b"".join(parts)))
        *_, start, found = max(tails, default=(0.0, 0, 0, b""))
        return start, found

    def _put_together(self, listing: _Listing, path: str) -> bytes | None:
        plain = self._get(path) if path in listing.plain else None
        start, tail = self._tail(listing, path, plain)
        if tail and start == 0:
            return tail
        if not tail:
            return plain
        assert plain is not None and len(plain) >= start, f"{path}: bytes {len(plain or b'')} to {start} are missing"
        return plain + tail[len(plain) - start :]

    def _inflated(self, name: str) -> bytes:
        data = self._get(name)
        if name.endswith(".gz"):
            return gzip.decompress(data)
        if name.endswith(".zst"):
            return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        return data

    def _get(self, name: str) -> bytes:
        with tempfile.NamedTemporaryFile() as file:
            self._store.get_file(f"{self._base}{name}", Path(file.name))
            return file.read()


def files_in(store: ObjectStore, prefix: str) -> dict[str, bytes]:
    """All files of a mirrored prefix, by path: as the oracle reads them, and the product's reader says the same."""
    expected = MirrorOracle(store, prefix).files()
    with tempfile.TemporaryDirectory() as scratch, MirrorReader(store, prefix, scratch=Path(scratch), in_flight=1) as reader:
        snapshot = reader.snapshot()
        assert not snapshot.trouble, dict(snapshot.trouble)
        found = {path: b"".join(reader.read(path)) for path in snapshot.files}
    sizes = {path: (len(expected.get(path, b"")), len(found.get(path, b""))) for path in {*expected, *found}}
    differing = {path: sizes for path, sizes in sizes.items() if expected.get(path) != found.get(path)}
    assert not differing, f"the oracle and the product's reader find other bytes: {differing}"
    return found


def read(store: ObjectStore, prefix: str, path: str) -> bytes:
    """One file of a mirrored prefix; empty if there is none. Errors are the product's reader's."""
    with tempfile.TemporaryDirectory() as scratch, MirrorReader(store, prefix, scratch=Path(scratch), in_flight=1) as reader:
        try:
            found = b"".join(reader.read(path))
        except NotFoundError:
            found = None
    assert MirrorOracle(store, prefix).read(path) == found, "the product's reader reads other bytes"
    return found or b""
