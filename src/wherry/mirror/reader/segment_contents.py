"""Which plain object has the bytes of segments already.

An interrupted clean-up leaves segments whose neighbours are gone, so that no file can be put together from them. Their bytes are
in the object that was made of them, which may have another name by now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from wherry.errors import BucketNotFoundError, PermanentError
from wherry.mirror.format.layout import Assembly, Segment, fetched, sum_of
from wherry.mirror.reader.reader import MirrorReader, blocks
from wherry.store import ObjectMeta

#: So many objects are compared with one file's segments at most: a request each, for the range of the first segment.
_MOST_COMPARED = 32


class SegmentContents:
    """Segments of one generation of the file `path`, and what they hold. They are read once, as far as it is needed."""

    def __init__(self, reader: MirrorReader, path: str, segments: Sequence[Segment]) -> None:
        self._reader = reader
        self._path = path
        self._segments = segments
        #: (start, end, CRC32C) of those that were read.
        self._known: list[tuple[int, int, int]] = []

    def agree_with(self, plain: ObjectMeta) -> bool:
        """Whether an object has their bytes at their places, as far as it reaches."""
        return all(
            crc == self._crc_of_range(plain, start, end) for start, end, crc in self._sums(plain.size_bytes) if start < end
        )

    def find_object(self, plain: Mapping[str, ObjectMeta], first: str) -> str | None:
        """The name of an object that has all of their bytes at their places; None if none is found.

        Of `plain`, the objects by name, the one called `first` is compared first, then those whose names begin with the path, as
        rotated logs' do, then all others that are large enough.
        """
        end = max(one.start + 1 if one.end is None else one.end for one in self._segments)
        large = sorted(
            (name for name, meta in plain.items() if meta.size_bytes >= end),
            key=lambda name: (name != first, not name.startswith(self._path), name),
        )
        return next((name for name in large[:_MOST_COMPARED] if self._has_all(plain[name])), None)

    def _has_all(self, plain: ObjectMeta) -> bool:
        try:
            return self.agree_with(plain) and all(end <= plain.size_bytes for _, end, _ in self._known)
        except BucketNotFoundError:
            raise
        except PermanentError:  # it is gone, or we may not read it
            return False

    def _sums(self, size_bytes: int) -> Iterator[tuple[int, int, int]]:
        """(start, end, CRC32C) of each that ends within the first `size_bytes` of the file."""
        for number, one in enumerate(self._segments):
            if number == len(self._known):
                length, crc = sum_of(self._reader.bytes_of(Assembly(self._path, None, (one,)), one.start))
                self._known.append((one.start, one.start + length, crc))
            if self._known[number][1] <= size_bytes:
                yield self._known[number]

    def _crc_of_range(self, plain: ObjectMeta, start: int, end: int) -> int:
        with fetched(self._reader.store, plain.key, self._reader.scratch, start=start, end=end) as file:
            file.seek(start)
            return sum_of(blocks(file))[1]
