"""What is below a mirrored prefix, read back: live and sealed files of several writers as one folder, requests side by side."""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

from wherry.checksum import crc32c, format_crc32c, parse_crc32c
from wherry.errors import BucketNotFoundError, IntegrityError, NotFoundError, PermanentError
from wherry.mirror.format.layout import FOLDER, Assembly, Segment, fetched, key_for, segment_blocks
from wherry.mirror.format.manifest import FileEntry
from wherry.mirror.reader.snapshot import Snapshot, SnapshotReader
from wherry.posix.thread_pool import DaemonThreadPool
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.options import MOST_IN_FLIGHT

#: So many bytes of one file, and one piece more, are fetched before they are asked for. Small pieces wait in memory, others in
#: files.
_MOST_AHEAD_BYTES = 64 * 2**20
_SMALL_BYTES = 128 * 2**10
_PIECE_BYTES = 8 * 2**20
_BLOCK_BYTES = 2**20
#: A file is looked up again so often when a piece of it is gone by the time it is fetched: a seal takes segments away once.
_MAX_ATTEMPTS = 5

_Self = TypeVar("_Self", bound="MirrorReader")


@dataclass(frozen=True)
class _Piece:
    """A segment, or the range from `start` to `end` of a plain object, of `size_bytes` stored bytes."""

    key: str
    start: int
    end: int
    size_bytes: int
    segment: Segment | None = None
    #: Of the version of the plain object that the range is of.
    etag: str | None = None

    @property
    def room_bytes(self) -> int:
        """What it may take on its way: of a compressed segment, what it stands for."""
        segment = self.segment
        return self.size_bytes if segment is None else max(self.size_bytes, segment.length_bytes or 0)


@dataclass
class _Data:
    """Bytes that were fetched: `file` from its position `first` on."""

    file: IO[bytes]
    first: int = 0


@dataclass
class Chunk:
    """Bytes from `start` on of a file: `data` from its position on. Whoever takes the chunk closes it."""

    start: int
    data: IO[bytes]
    #: The file from this byte up to the chunk's end agrees with a checksum; None: a later chunk has that.
    checked_from: int | None = None

    def close(self) -> None:
        """Free the memory, or the temporary file."""
        self.data.close()


class MirrorReader:
    """Reads what is below one mirror's prefix. `store` is asked as it is: give one that retries.

    Memory, and the space taken in `scratch`, are bounded. snapshot() and find() are for one thread, the rest for any.
    """

    def __init__(self, store: ObjectStore, prefix: str, *, scratch: Path | None = None, in_flight: int = MOST_IN_FLIGHT) -> None:
        self.store = store
        self.prefix = prefix
        self.scratch = scratch
        self.in_flight = in_flight
        self._pool = DaemonThreadPool(in_flight, "wherry-read")
        self._snapshots = SnapshotReader(store, prefix, self._pool)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way. The store stays open."""
        self._pool.shutdown(cancel_futures=True)

    # -- what is there

    def snapshot(self) -> Snapshot:
        """List all below the prefix, and read the manifests that have changed."""
        return self._snapshots.snapshot(self.scratch)

    def find(self, path: str) -> tuple[Snapshot, Assembly]:
        """What the file `path` is made of. NotFoundError when it is not there, IntegrityError when it cannot be read."""
        for _ in range(_MAX_ATTEMPTS):
            snapshot = self.snapshot()
            if path in snapshot.files:
                return snapshot, snapshot.files[path]
            if path not in snapshot.broken:
                break
        if reason := snapshot.trouble.get(path) or min(snapshot.refused.values(), default=""):
            raise IntegrityError(reason, operation="read", uri=key_for(self.prefix, path))
        raise NotFoundError("no object and no segment has this name", operation="read", uri=key_for(self.prefix, path))

    # -- its bytes

    def read(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file as far as they are in the store, compared with checksums: the last ones at the end at least.

        What is sealed meanwhile is read on from the plain object. NotFoundError; IntegrityError for a gap, for wrong bytes, and
        when the file was begun anew while it was read.
        """
        at = crc = 0
        reading: tuple[str | None, int] | None = None
        for attempts in range(1, _MAX_ATTEMPTS + 1):
            _, found = self.find(path)
            if found.segments:
                if reading not in (None, (found.writer, found.generation)):
                    raise IntegrityError("the file was begun anew while it was read: read it again", operation="read", uri=path)
                reading = found.writer, found.generation
            try:
                for chunk in self.chunks(found, at, crc):
                    with closing(chunk):
                        for block in blocks(chunk.data):
                            at, crc = at + len(block), crc32c(block, crc)
                            yield block
            except BucketNotFoundError:
                raise
            except NotFoundError:
                if attempts == _MAX_ATTEMPTS:
                    raise
            else:
                return

    def chunks(self, found: Assembly, at: int = 0, crc: int = 0, entry: FileEntry | None = None) -> Iterator[Chunk]:
        """Yield the file from byte `at` on, in order; `crc` is the CRC32C of what comes before.

        A plain object is compared with its own checksum, before its last chunk is given out. Segments are compared with the
        writer's running checksum where `entry` gives it, at the byte up to which that goes; each one beyond that, or each without
        it, with its own, before it is given out. IntegrityError when one differs; NotFoundError when a piece is gone by now.
        """
        if found.plain is not None and at <= found.plain.size_bytes:
            for chunk, end, total in self._plain(found.plain, at, crc):
                yield chunk
                at, crc = end, total
        ahead = [one for one in found.segments if one.end is None or one.end > at]
        n_known = _n_covered(ahead, at, entry)
        for known, segments in ((True, ahead[:n_known]), (False, ahead[n_known:])):
            pieces = (_Piece(one.key, one.start, -1, one.size_bytes, one) for one in segments)
            for n_taken, (piece, data) in enumerate(self._fetch(pieces, by_itself=not known), 1):
                with _closed_after_errors(data.file):
                    if piece.start > at:
                        raise IntegrityError(f"bytes {at} to {piece.start} are missing", operation="read", uri=piece.key)
                    chunk, at, crc = _chunk(piece, data, at, crc)
                    if known and n_taken == n_known and entry is not None:
                        _compare(found.path, (at, crc), (entry.acked_bytes, parse_crc32c(entry.crc32c)))
                        chunk.checked_from = 0
                    elif not known:
                        chunk.checked_from = chunk.start
                yield chunk

    def checksums(self, found: Assembly) -> list[tuple[int, int, int]] | None:
        """(start, end, CRC32C) of each piece of a file, as the store tells; None where it does not, or for compressed ones."""
        if any(one.compression is not None for one in found.segments):
            return None
        pieces = [(one.key, one.start, one.size_bytes) for one in found.segments]
        if found.plain is not None:
            pieces.insert(0, (found.plain.key, 0, found.plain.size_bytes))
        sums = []
        for (key, start, size), meta in zip(pieces, self._pool.map(self.store.head, [key for key, _, _ in pieces]), strict=True):
            if meta.crc32c is None:
                return None
            if meta.size_bytes != size:
                raise IntegrityError(f"it has {meta.size_bytes} bytes, the listing said {size}", operation="read", uri=key)
            sums.append((start, start + size, meta.crc32c))
        return sums

    def _plain(self, plain: ObjectMeta, at: int, crc: int) -> Iterator[tuple[Chunk, int, int]]:
        """(chunk, its end, the checksum up to there) of a plain object from `at` on."""
        meta = self.store.head(plain.key)
        if meta.size_bytes != plain.size_bytes:
            raise NotFoundError("the object was replaced meanwhile", operation="read", uri=plain.key)
        size = plain.size_bytes
        if at == size:
            _compare(plain.key, (at, crc), (size, meta.crc32c))
            return
        step = _PIECE_BYTES if self.store.capabilities.ranged_get else size
        pieces = (  # one after another: the store may say any size
            _Piece(plain.key, start, min(start + step, size), min(step, size - start), etag=meta.etag)
            for start in range(at if self.store.capabilities.ranged_get else 0, size, step)
        )
        for piece, data in self._fetch(pieces, by_itself=False):
            with _closed_after_errors(data.file):
                chunk, at, crc = _chunk(piece, data, at, crc)
                if at == size:
                    chunk.checked_from = 0
                    _compare(plain.key, (at, crc), (size, meta.crc32c))
            yield chunk, at, crc

    def _fetch(self, pieces: Iterator[_Piece], *, by_itself: bool) -> Iterator[tuple[_Piece, _Data]]:
        """The bytes of the pieces in their order, side by side. `by_itself`: each is compared with a checksum of its own."""
        waiting: deque[tuple[_Piece, Future[_Data]]] = deque()
        ahead_bytes = 0
        following = next(pieces, None)
        try:
            while following is not None or waiting:
                while following is not None and len(waiting) < self.in_flight and ahead_bytes <= _MOST_AHEAD_BYTES:
                    waiting.append((following, self._pool.submit(self._get, following, by_itself)))
                    ahead_bytes += following.room_bytes
                    following = next(pieces, None)
                piece, future = waiting[0]
                data = future.result()
                waiting.popleft()
                ahead_bytes -= piece.room_bytes
                yield piece, data
        finally:
            for _, future in waiting:
                if not future.cancel():
                    future.add_done_callback(_close_result)

    def _get(self, piece: _Piece, by_itself: bool) -> _Data:
        """The bytes of one piece: small ones in memory, else in the temporary file that they came into."""
        segment = piece.segment
        if segment is not None:
            file = fetched(self.store, piece.key, self.scratch)
        else:
            file = fetched(self.store, piece.key, self.scratch, start=piece.start, end=piece.end, if_match=piece.etag)
        with _closed_after_errors(file):
            data = _Data(file, 0 if segment is not None else piece.start)
            self._check(piece, data, by_itself)
            file.seek(data.first)
            if segment is not None and segment.compression is not None:
                with file:
                    return self._inflated(segment, file)
            if piece.size_bytes < _SMALL_BYTES:
                with file:
                    return _Data(io.BytesIO(file.read()))
            return data

    def _check(self, piece: _Piece, data: _Data, by_itself: bool) -> None:
        """IntegrityError if a piece has not the size, or, `by_itself`, not the checksum that the store says.

        A checksum in the listing costs no request, nor does an etag there that is the MD5 of what came; another says nothing.
        """
        segment = piece.segment
        crc32c_listed, etag = (segment.crc32c, segment.etag) if segment is not None else (None, None)
        digest = hashlib.md5(usedforsecurity=False)
        length = crc = 0
        data.file.seek(data.first)
        for block in blocks(data.file):
            length += len(block)
            if by_itself:
                crc = crc32c(block, crc)
                digest.update(block)
        expected = crc32c_listed if by_itself else None
        if by_itself and expected is None and etag != digest.hexdigest():
            expected = self.store.head(piece.key).crc32c
        _compare(piece.key, (length, crc), (piece.size_bytes, expected))

    def _inflated(self, segment: Segment, stored: IO[bytes]) -> _Data:
        """What a compressed segment stands for."""
        scratch = None if self.scratch is None else str(self.scratch)
        data = cast("IO[bytes]", tempfile.SpooledTemporaryFile(_SMALL_BYTES, dir=scratch))  # noqa: SIM115
        with _closed_after_errors(data):
            for block in segment_blocks(segment, stored):
                data.write(block)
        return _Data(data)


def _chunk(piece: _Piece, data: _Data, at: int, crc: int) -> tuple[Chunk, int, int]:
    """What a piece has of the file from `at` on; where that ends, and the checksum up to there."""
    start, first = at, data.first + at - piece.start
    data.file.seek(first)
    for block in blocks(data.file):
        at, crc = at + len(block), crc32c(block, crc)
    data.file.seek(first)
    return Chunk(start, data.file), at, crc


def blocks(data: IO[bytes]) -> Iterator[bytes]:
    """What is left of a file, in blocks of at most 1 MiB."""
    while block := data.read(_BLOCK_BYTES):
        yield block


def find_mirror(store: ObjectStore, key: str) -> str | None:
    """The prefix of the innermost mirror that an object belongs to; None if there is none that we may see."""
    parts = key.split("/")[:-1]
    for n in range(len(parts), -1, -1):
        prefix = "/".join(parts[:n])
        try:
            if next(iter(store.list(key_for(prefix, f"{FOLDER}/"))), None) is not None:
                return prefix
        except PermanentError:  # who may read this object and list nothing reads it as it is; others find out there
            return None
    return None


def _n_covered(segments: Sequence[Segment], at: int, entry: FileEntry | None) -> int:
    """How many of the segments, from the first on, the writer's running checksum covers: it must end where one of them does."""
    if entry is None or entry.state not in ("live", "rotated", "deleted") or parse_crc32c(entry.crc32c) is None:
        return 0
    ends = (one.end for one in segments)
    return next((n for n, end in enumerate(ends, 1) if end == entry.acked_bytes and end > at), 0)


def _compare(what: str, found: tuple[int, int], expected: tuple[int, int | None]) -> None:
    """Raise IntegrityError if (size, CRC32C) are not as expected; an unknown checksum (None) is not compared."""
    if found[0] != expected[0] or expected[1] not in (None, found[1]):
        known = "unknown" if expected[1] is None else format_crc32c(expected[1])
        raise IntegrityError(
            f"{found[0]} bytes with CRC32C {format_crc32c(found[1])} came, {expected[0]} with {known} were expected",
            operation="read",
            uri=what,
        )


@contextmanager
def _closed_after_errors(data: IO[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        data.close()
        raise


def _close_result(future: Future[_Data]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().file.close()
