"""What is below a mirrored prefix, read back: live and sealed files of several writers as one folder, requests side by side."""

from __future__ import annotations

import io
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar, cast

from wherry.checksum import crc32c, format_crc32c, parse_crc32c
from wherry.errors import BucketNotFoundError, IntegrityError, NotFoundError, PermanentError
from wherry.lanes import Lanes
from wherry.mirror.layout import FOLDER, Assembly, Segment, assemble, is_folder_marker, key_for, parse_segment, read_segment
from wherry.mirror.manifest import FileEntry, Manifest, find_manifests, read_manifest_at
from wherry.store import ObjectMeta, ObjectStore

#: Requests under way at once. One a round trip of 50 ms makes 20 segments a second; so many make what a connection carries.
IN_FLIGHT = 32
#: Of one file so many bytes are fetched ahead of their turn, and one piece more. Small pieces wait in memory, others in files.
_MOST_AHEAD_BYTES = 64 * 2**20
_SMALL_BYTES = 128 * 2**10
_PIECE_BYTES = 8 * 2**20
_BLOCK_BYTES = 2**20
#: A file is looked up again so often when a piece of it is gone by the time it is fetched: a seal takes segments away once.
_MOST_LOOKS = 5

_Self = TypeVar("_Self", bound="MirrorReader")


@dataclass(frozen=True)
class Look:
    """One listing of a mirrored prefix, and its manifests.

    `broken`: what cannot be read, with the reason; a seal under way may be one, so look again before you say so. `contested`:
    files that more than one writer has segments of; the last one counts.
    """

    files: Mapping[str, Assembly] = field(default_factory=dict)
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    contested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    n_segments: int = 0

    @property
    def is_sealed(self) -> bool:
        """Whether every writer has said that he is done, and there is at least one."""
        return bool(self.manifests) and all(one.state == "sealed" for one in self.manifests.values())

    def entry(self, found: Assembly) -> FileEntry | None:
        """What the manifest of its writer says of a file that has segments, if it speaks of this generation."""
        manifest = self.manifests.get(found.writer or "")
        entries = manifest.files if manifest is not None else ()
        return next((one for one in entries if (one.path, one.generation) == (found.path, found.generation)), None)


@dataclass(frozen=True)
class _Piece:
    """A segment, or the range from `start` to `end` of a plain object, of `size_bytes` stored bytes."""

    key: str
    start: int
    end: int
    size_bytes: int
    segment: Segment | None = None
    etag: str | None = None


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

    Memory, and the room taken in `scratch`, are bounded. look() is for one thread, the rest for any.
    """

    def __init__(self, store: ObjectStore, prefix: str, *, scratch: Path | None = None, in_flight: int = IN_FLIGHT) -> None:
        self.store = store
        self.prefix = prefix
        self.scratch = scratch
        self.in_flight = in_flight
        self._pool = Lanes(in_flight, "wherry-read")
        self._known: dict[str, tuple[object, Manifest]] = {}

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way. The store stays open."""
        self._pool.shutdown(cancel_futures=True)

    # -- what is there

    def look(self) -> Look:
        """List all below the prefix, and read the manifests that have changed. A damaged manifest is among the `broken`."""
        base, n_segments = key_for(self.prefix, ""), 0
        plain: dict[str, ObjectMeta] = {}
        segments: dict[str, list[Segment]] = {}
        others: list[ObjectMeta] = []
        for meta in self.store.list(base):
            if (one := parse_segment(self.prefix, meta)) is not None:
                segments.setdefault(one.path, []).append(one)
                n_segments += 1
            elif meta.key.startswith(f"{base}{FOLDER}/"):
                others.append(meta)
            elif not is_folder_marker(meta):
                plain[meta.key[len(base) :]] = meta
        broken: dict[str, str] = {}
        manifests = self._manifests(others, broken)
        newest = {
            (one.writer, entry.path): max(entry.generation, 1)
            for one in manifests.values()
            for entry in sorted(one.files, key=lambda entry: entry.generation)
            if entry.rule == "append"
        }
        files: dict[str, Assembly] = {}
        contested: dict[str, tuple[str, ...]] = {}
        for path in sorted({*plain, *segments}):
            group = [one for one in segments.get(path, ()) if one.generation >= newest.get((one.writer, path), 0)]
            if len(writers := {one.writer for one in group}) > 1:
                contested[path] = tuple(sorted(writers))
            try:
                found = assemble(path, plain.get(path), group)
            except IntegrityError as error:
                broken[path] = error.message
                continue
            if found.plain is not None or found.segments:
                files[path] = found
        return Look(files, manifests, broken, contested, n_segments)

    def _manifests(self, listed: Iterable[ObjectMeta], broken: dict[str, str]) -> dict[str, Manifest]:
        """Those that have not changed since the last look are not fetched again."""
        metas = {meta.key: meta for meta in listed}
        wanted: dict[str, Future[Manifest | None]] = {}
        versions: dict[str, object] = {}
        for key in find_manifests(metas.values(), self.prefix):
            meta = metas[key]
            versions[key] = (meta.etag, meta.modified_s, meta.size_bytes)
            if self._known.get(key, (None,))[0] != versions[key]:
                wanted[key] = self._pool.submit(read_manifest_at, self.store, key, self.scratch)
        for key, future in wanted.items():
            self._known.pop(key, None)
            try:
                if (manifest := future.result()) is not None:
                    self._known[key] = (versions[key], manifest)
            except IntegrityError as error:
                broken[key.removeprefix(key_for(self.prefix, ""))] = error.message
        self._known = {key: one for key, one in self._known.items() if key in versions}
        return {one.writer: one for _, one in self._known.values()}

    def find(self, path: str) -> tuple[Look, Assembly]:
        """What the file `path` is made of. NotFoundError when it is not there, IntegrityError when it cannot be read."""
        for _ in range(_MOST_LOOKS):
            look = self.look()
            if path in look.files:
                return look, look.files[path]
            if path not in look.broken:
                break
        if path in look.broken:
            raise IntegrityError(look.broken[path], operation="read", uri=key_for(self.prefix, path))
        raise NotFoundError("no object and no segment has this name", operation="read", uri=key_for(self.prefix, path))

    # -- its bytes

    def read(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file as far as they are in the store, compared with checksums: the last ones at the end at least.

        What is sealed meanwhile is read on from the plain object. NotFoundError; IntegrityError for a gap, for wrong bytes, and
        when the file was begun anew while it was read.
        """
        at = crc = 0
        reading: tuple[str | None, int] | None = None
        for looks in range(1, _MOST_LOOKS + 1):
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
                if looks == _MOST_LOOKS:
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
            fetched = self._fetch([_Piece(one.key, one.start, -1, one.size_bytes, one) for one in segments], by_head=not known)
            for n_taken, (piece, data) in enumerate(fetched, 1):
                with _closed_after_errors(data):
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
        pieces = [
            _Piece(plain.key, start, min(start + step, size), min(step, size - start), etag=meta.etag)
            for start in range(at if self.store.capabilities.ranged_get else 0, size, step)
        ]
        for piece, data in self._fetch(pieces, by_head=False):
            with _closed_after_errors(data):
                chunk, at, crc = _chunk(piece, data, at, crc)
                if at == size:
                    chunk.checked_from = 0
                    _compare(plain.key, (at, crc), (size, meta.crc32c))
            yield chunk, at, crc

    def _fetch(self, pieces: Sequence[_Piece], *, by_head: bool) -> Iterator[tuple[_Piece, IO[bytes]]]:
        """The bytes of the pieces in their order, fetched side by side. `by_head`: compared with what the store says of each."""
        waiting: deque[tuple[_Piece, Future[IO[bytes]]]] = deque()
        ahead_bytes = n_begun = 0
        try:
            while n_begun < len(pieces) or waiting:
                while n_begun < len(pieces) and len(waiting) < self.in_flight and ahead_bytes <= _MOST_AHEAD_BYTES:
                    piece = pieces[n_begun]
                    waiting.append((piece, self._pool.submit(self._get, piece, by_head)))
                    ahead_bytes += piece.size_bytes
                    n_begun += 1
                piece, future = waiting[0]
                data = future.result()
                waiting.popleft()
                ahead_bytes -= piece.size_bytes
                yield piece, data
        finally:
            for _, future in waiting:
                if not future.cancel():
                    future.add_done_callback(_close_result)

    def _get(self, piece: _Piece, by_head: bool) -> IO[bytes]:
        """The bytes of one piece, in memory or in a temporary file, whose position 0 is the piece's first byte."""
        segment = piece.segment
        if segment is not None and segment.compression is not None:
            return self._inflated(segment)
        expected = self.store.head(piece.key).crc32c if by_head else None
        with tempfile.NamedTemporaryFile(dir=self.scratch, prefix="read-") as file:
            first = 0
            if segment is not None:
                self.store.get_file(piece.key, Path(file.name))
            else:
                first = piece.start
                self.store.get_file(piece.key, Path(file.name), start=first, end=piece.end, if_match=piece.etag)
            data = self._room(piece.size_bytes)
            with _closed_after_errors(data):
                crc = length = 0
                file.seek(first)
                for block in blocks(file):
                    crc, length = crc32c(block, crc), length + len(block)
                    data.write(block)
                _compare(piece.key, (length, crc), (piece.size_bytes, expected))
            return data

    def _inflated(self, segment: Segment) -> IO[bytes]:
        """What a compressed segment stands for. Members and frames carry checksums of their own."""
        data = self._room(_SMALL_BYTES)
        with _closed_after_errors(data):
            for block in read_segment(self.store, segment, scratch=self.scratch):
                data.write(block)
        return data

    def _room(self, size_bytes: int) -> IO[bytes]:
        """Somewhere for so many bytes. What grows larger than is small goes to the disk by itself."""
        if size_bytes < _SMALL_BYTES:
            return io.BytesIO()
        scratch = None if self.scratch is None else str(self.scratch)
        return cast("IO[bytes]", tempfile.SpooledTemporaryFile(_SMALL_BYTES, dir=scratch))


def _chunk(piece: _Piece, data: IO[bytes], at: int, crc: int) -> tuple[Chunk, int, int]:
    """What a piece has of the file from `at` on; where that ends, and the checksum up to there."""
    start, first = at, at - piece.start
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


def _compare(what: str, found: tuple[int, int], expected: tuple[int, int | None]) -> None:
    """IntegrityError if (size, CRC32C) are not as expected; a checksum that nobody knows is not compared."""
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


def _close_result(future: Future[IO[bytes]]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
