"""What is below a mirrored prefix, read back: live and sealed files of several writers as one folder, requests side by side."""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from wherry.checksum import crc32c, format_crc32c, parse_crc32c
from wherry.errors import BucketNotFoundError, IntegrityError, NotFoundError, PermanentError
from wherry.mirror.format.layout import FOLDER, Assembly, Segment, fetched, key_for, segment_blocks
from wherry.mirror.format.manifest import FileEntry
from wherry.mirror.reader.snapshot import Snapshot, SnapshotReader
from wherry.posix.thread_pool import DaemonThreadPool, result_of
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


@dataclass(frozen=True)
class _Piece:
    """A segment of a file, or a range of a plain object, from byte `start` of the file on, of `size_bytes` stored bytes."""

    key: str
    start: int
    size_bytes: int
    segment: Segment | None = None
    #: Of the version of the plain object that the range is of.
    etag: str | None = None

    @property
    def end(self) -> int | None:
        """Where it ends in the file; None for the last segment of a compressed one."""
        return self.start + self.size_bytes if self.segment is None else self.segment.end

    @property
    def room_bytes(self) -> int:
        """What it may take on its way: of a compressed segment, what it stands for."""
        segment = self.segment
        return self.size_bytes if segment is None else max(self.size_bytes, segment.length_bytes or 0)


@dataclass(frozen=True)
class _Total:
    """The size and the checksum, if it is known, of what pieces make together."""

    what: str
    size_bytes: int
    crc32c: int | None


@dataclass
class Chunk:
    """Bytes from `start` on of a file: `data` from its position on. Whoever takes the chunk closes that, which frees the room."""

    start: int
    data: IO[bytes]
    #: The file from this byte up to the chunk's end agrees with a checksum; None: a later chunk has that.
    checked_from: int | None = None


class MirrorReader(AbstractContextManager["MirrorReader"]):
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way. The store stays open."""
        self._pool.shutdown(cancel_futures=True)

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
                for block in self.bytes_of(found, at, crc):
                    at, crc = at + len(block), crc32c(block, crc)
                    yield block
            except BucketNotFoundError:
                raise
            except NotFoundError:
                if attempts == _MAX_ATTEMPTS:
                    raise
            else:
                return

    def bytes_of(self, found: Assembly, at: int = 0, crc: int = 0) -> Iterator[bytes]:
        """Yield what is in chunks(), in blocks of at most 1 MiB."""
        for chunk in self.chunks(found, at, crc):
            with chunk.data:
                yield from blocks(chunk.data)

    def chunks(self, found: Assembly, at: int = 0, crc: int = 0, entry: FileEntry | None = None) -> Iterator[Chunk]:
        """Yield the file from byte `at` on, in order; `crc` is the CRC32C of what comes before.

        A plain object is compared with its own checksum, before its last chunk is given out. Segments are compared with the
        writer's running checksum where `entry` gives it, at the byte up to which that goes; each one beyond that, or each without
        it, with its own, before it is given out. IntegrityError when one differs; NotFoundError when a piece is gone by now.
        """
        for pieces, total in self._runs(found, at, crc, entry):
            for piece, data in self._fetch(pieces, by_itself=total is None):
                with _closed_after_errors(data):
                    if piece.start > at:
                        raise IntegrityError(f"bytes {at} to {piece.start} are missing", operation="read", uri=piece.key)
                    chunk, at, crc = _chunk(piece, data, at, crc)
                    if total is None:
                        chunk.checked_from = chunk.start
                    elif piece.end == total.size_bytes:
                        _compare(total, at, crc)
                        chunk.checked_from = 0
                yield chunk

    def _runs(
        self, found: Assembly, at: int, crc: int, entry: FileEntry | None
    ) -> Iterator[tuple[Iterator[_Piece], _Total | None]]:
        """The pieces of a file from byte `at` on, in runs, and what each run comes to; None: each piece has its own sum."""
        plain = found.plain
        if plain is not None and at <= plain.size_bytes:
            meta, size = self.head(plain), plain.size_bytes
            total = _Total(plain.key, size, meta.crc32c)
            if at == size:
                _compare(total, at, crc)
            else:
                start, step = (at, _PIECE_BYTES) if self.store.capabilities.ranged_get else (0, size)
                starts = range(start, size, step)  # one piece after another: the store may say any size
                yield (_Piece(meta.key, one, min(step, size - one), etag=meta.etag) for one in starts), total
            at = size
        ahead = [one for one in found.segments if one.end is None or one.end > at]
        n_known = _n_covered(ahead, at, entry)
        pieces = [_Piece(one.key, one.start, one.size_bytes, one) for one in ahead]
        if entry is not None and n_known:
            yield iter(pieces[:n_known]), _Total(found.path, entry.acked_bytes, parse_crc32c(entry.crc32c))
        yield iter(pieces[n_known:]), None

    def head(self, plain: ObjectMeta) -> ObjectMeta:
        """Ask anew for an object of a listing. NotFoundError if it has another size by now."""
        meta = self.store.head(plain.key)
        if meta.size_bytes != plain.size_bytes:
            raise NotFoundError("the object was replaced meanwhile", operation="read", uri=plain.key)
        return meta

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

    def _fetch(self, pieces: Iterator[_Piece], *, by_itself: bool) -> Iterator[tuple[_Piece, IO[bytes]]]:
        """The bytes of the pieces in their order, side by side. `by_itself`: each is compared with a checksum of its own."""
        waiting: deque[tuple[_Piece, Future[IO[bytes]]]] = deque()
        ahead_bytes = 0
        following = next(pieces, None)
        try:
            while following is not None or waiting:
                while following is not None and len(waiting) < self.in_flight and ahead_bytes <= _MOST_AHEAD_BYTES:
                    waiting.append((following, self._pool.submit(self._get, following, by_itself)))
                    ahead_bytes += following.room_bytes
                    following = next(pieces, None)
                piece, future = waiting[0]
                data = result_of(future)
                waiting.popleft()
                ahead_bytes -= piece.room_bytes
                yield piece, data
        finally:
            for _, future in waiting:
                if not future.cancel():
                    future.add_done_callback(_close_result)

    def _get(self, piece: _Piece, by_itself: bool) -> IO[bytes]:
        """One piece, from the file's position on: small ones in memory, else in the temporary file that they came into."""
        segment = piece.segment
        first, end = (piece.start, piece.end) if segment is None else (0, None)
        file = fetched(self.store, piece.key, self.scratch, start=first, end=end, if_match=piece.etag)
        with _closed_after_errors(file):
            file.seek(first)
            self._check(piece, file, by_itself)
            file.seek(first)
            if segment is not None and segment.compression is not None:
                with file:
                    return self._inflated(segment, file)
            if piece.size_bytes < _SMALL_BYTES:
                with file:
                    return io.BytesIO(file.read())
            return file

    def _check(self, piece: _Piece, data: IO[bytes], by_itself: bool) -> None:
        """IntegrityError if a piece has not the size, or, `by_itself`, not the checksum that the store says.

        A checksum in the listing costs no request, nor does an etag there that is the MD5 of what came; another says nothing.
        """
        segment = piece.segment
        crc32c_listed, etag = (segment.crc32c, segment.etag) if segment is not None else (None, None)
        digest = hashlib.md5(usedforsecurity=False)
        length = crc = 0
        for block in blocks(data):
            length += len(block)
            if by_itself:
                crc = crc32c(block, crc)
                digest.update(block)
        expected = crc32c_listed if by_itself else None
        if by_itself and expected is None and etag != digest.hexdigest():
            expected = self.store.head(piece.key).crc32c
        _compare(_Total(piece.key, piece.size_bytes, expected), length, crc)

    def _inflated(self, segment: Segment, stored: IO[bytes]) -> IO[bytes]:
        """What a compressed segment stands for."""
        scratch = None if self.scratch is None else str(self.scratch)
        data = cast("IO[bytes]", tempfile.SpooledTemporaryFile(_SMALL_BYTES, dir=scratch))  # noqa: SIM115
        with _closed_after_errors(data):
            for block in segment_blocks(segment, stored):
                data.write(block)
            data.seek(0)
        return data


def _chunk(piece: _Piece, data: IO[bytes], at: int, crc: int) -> tuple[Chunk, int, int]:
    """What a piece has of the file from `at` on; where that ends, and the checksum up to there."""
    start, first = at, data.tell() + at - piece.start
    data.seek(first)
    for block in blocks(data):
        at, crc = at + len(block), crc32c(block, crc)
    data.seek(first)
    return Chunk(start, data), at, crc


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


def _compare(expected: _Total, size_bytes: int, crc: int) -> None:
    """Raise IntegrityError if size and checksum are not as expected; an unknown checksum (None) is not compared."""
    if size_bytes != expected.size_bytes or expected.crc32c not in (None, crc):
        known = "unknown" if expected.crc32c is None else format_crc32c(expected.crc32c)
        words = f"{size_bytes} bytes with CRC32C {format_crc32c(crc)} came, {expected.size_bytes} with {known} were expected"
        raise IntegrityError(words, operation="read", uri=expected.what)


@contextmanager
def _closed_after_errors(data: IO[bytes]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        data.close()
        raise


def _close_result(future: Future[IO[bytes]]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
