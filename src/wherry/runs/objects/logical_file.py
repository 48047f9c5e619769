"""LogicalFile: a file of a run by offsets, whether it is one object or segments, each byte fetched once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

from wherry.mirror.format.layout import Assembly, Segment
from wherry.mirror.reader.reader import blocks
from wherry.runs.objects.place import Place, version_of
from wherry.store import ObjectMeta

_MD5 = re.compile("[0-9a-f]{32}")


class LogicalFile:
    """One file as `assembly` says it is put together. Bytes of segments are compared with the store's checksums; ranges of a
    plain object are not, as its checksum is of the whole.

    NotFoundError, IntegrityError when an object is gone or replaced by now: look at the run anew.
    """

    def __init__(self, place: Place, assembly: Assembly) -> None:
        self._place = place
        self.assembly = assembly
        #: Whether every byte that was read so far was compared with a checksum.
        self.is_checked = True
        self._extents: list[tuple[int, int, ObjectMeta | Segment]] | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes it has as far as they are in the store. May fetch the last segment, if it is compressed."""
        extents = self.extents()
        return extents[-1][1] if extents else 0

    @property
    def source(self) -> str:
        """What the first bytes are of: it stays the same while segments are added, and tells one file from another."""
        plain, segments = self.assembly.plain, self.assembly.segments
        if plain is not None:
            return f"{plain.key} {version_of(plain)}"
        return f"{segments[0].key} {segments[0].etag or segments[0].modified_s}" if segments else ""

    def extents(self) -> list[tuple[int, int, ObjectMeta | Segment]]:
        """(start, end, the object) of all pieces, in order."""
        if self._extents is None:
            found: list[tuple[int, int, ObjectMeta | Segment]] = []
            if (plain := self.assembly.plain) is not None:
                found.append((0, plain.size_bytes, plain))
            for one in self.assembly.segments:
                end = one.end
                if end is None:  # the last one, compressed: only its bytes tell
                    end = one.start + len(self._segment(one))
                found.append((one.start, end, one))
            self._extents = found
        return self._extents

    def read(self, start: int, end: int, *, once: bool = False) -> bytes:
        """Bytes [start, end), or as many of them as there are. `once`: nobody will ask for them again, so a range of a plain
        object does not go into the cache, where it would drive out what was made of it.
        """
        found = bytearray()
        at = max(0, start)
        wanted = [(first, last, one) for first, last, one in self.extents() if last > at and first < end]
        self._prefetch([one for _, _, one in wanted if isinstance(one, Segment)])
        for first, last, one in wanted:
            until = min(last, end)
            if isinstance(one, Segment):
                found += self._segment(one)[at - first : until - first]
            else:
                self.is_checked = False
                found += self._place.fetch(one, at, until, once=once)
            at = until
        return bytes(found)

    def _name(self, segment: Segment) -> str:
        return f"{self._place.ident} {segment.key} {segment.etag or segment.modified_s} {segment.start}"

    def _segment(self, segment: Segment) -> bytes:
        name = self._name(segment)
        data = self._place.recent.get(name)
        if data is None and self._place.cache is not None:
            data = self._place.cache.get(name)
        if data is None:
            data = next(self._fetched([segment]))
        self.is_checked = self.is_checked and self._is_vouched_for(segment, data)
        return data

    def _is_vouched_for(self, segment: Segment, data: bytes) -> bool:
        """Whether the store has a checksum of it: what was fetched was compared with that one. Costs no request that is paid.

        An etag that is an MD5 is that of the stored bytes, which only an uncompressed segment's are.
        """
        if segment.crc32c is not None:
            return True
        if self._place.is_local:
            return self._place.store.head(segment.key).crc32c is not None
        if segment.compression is not None:
            return segment.etag is not None and _MD5.fullmatch(segment.etag) is not None
        return segment.etag == hashlib.md5(data, usedforsecurity=False).hexdigest()

    def _prefetch(self, segments: Sequence[Segment]) -> None:
        """Bring those into the caches that are not there, side by side."""
        recent, cache = self._place.recent, self._place.cache
        missing = [
            one for one in segments if recent.get(name := self._name(one)) is None and (cache is None or not cache.has(name))
        ]
        for _ in self._fetched(missing) if len(missing) > 1 else ():
            pass

    def _fetched(self, segments: Sequence[Segment]) -> Iterator[bytes]:
        """The bytes of each, compared with checksums, 32 requests at a time where one follows the other."""
        for group in _neighbours(segments):
            chunks = self._place.segments.chunks(Assembly(group[0].path, None, tuple(group)), group[0].start)
            for one, chunk in zip(group, chunks, strict=True):
                with chunk.data:
                    data = b"".join(blocks(chunk.data))
                self._place.recent.put(self._name(one), data)
                if self._place.cache is not None:
                    self._place.cache.put(self._name(one), data)
                yield data


def _neighbours(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Groups in which each segment begins where the one before ends."""
    groups: list[list[Segment]] = []
    for one in segments:
        if groups and groups[-1][-1].end == one.start:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups
