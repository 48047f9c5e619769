"""What a mirror sends: segments, whole files, its manifest. Each is verified, and may be sent again after any interruption."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from wherry.checksum import combine_crc32c, crc32c, crc32c_of_file
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import AlreadyExistsError, IntegrityError, NotFoundError, TransientError
from wherry.mirror.format.layout import (
    Segment,
    delete_segments,
    fetched,
    key_for,
    list_segments,
    parse_segment,
    segment_blocks,
    segment_name,
    sum_of,
)
from wherry.mirror.writer.joining import WORTH_JOINING_BYTES, Joiner
from wherry.mirror.writer.segments import Cut, PrefixChanged, check_prefix, cut_segment, is_just_modified, opened, tail_of
from wherry.mirror.writer.state_db import Record, Stored
from wherry.spool.journal.jobs import job_sent_at_once
from wherry.store import ObjectMeta, ObjectStore
from wherry.transfer.upload import Sender
from wherry.uri import StoreURI, check_name

log = logging.getLogger("wherry.mirror")

_T = TypeVar("_T")
_COPY_BYTES = 2**20
#: Of so many files the segments are found by listing those of all.
_LISTED_TOGETHER = 20
#: Opens a file without a name, which costs a tenth of one with a name and is gone with us; 0 where there is none, or no /proc.
_O_TMPFILE = getattr(os, "O_TMPFILE", 0) if os.path.isdir("/proc/self/fd") else 0


class InlineExecutor(Executor):
    """Does each piece of work at once, in the calling thread: so it works at interpreter exit, too, when pools do not."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Do it; the future is done."""
        future: Future[_T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # it is raised where the result is taken
            future.set_exception(error)
        return future


@dataclass(eq=False)
class SegmentSender:
    """Sends for one mirror. Safe from several threads, as long as each file is in one of them."""

    folder: Path
    uri: StoreURI
    writer: str
    store: ObjectStore
    #: Where temporary files lie.
    scratch: Path
    compression: str | None = None
    retry: RetryConfig = field(default_factory=RetryConfig)
    #: How many objects were put, found there already, or deleted so far: the sign of progress inside a task.
    n_done: int = field(default=0, init=False)
    #: Bytes that puts have taken to the store.
    sent_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._uploads = Sender(None, InlineExecutor())
        self._joiner = Joiner(self.store, self.uri.prefix, self.writer, self._put_range)
        self._lock = threading.Lock()

    @contextmanager
    def _temporary(self) -> Iterator[Path]:
        """A path of a temporary file, which is there or not yet: one without a name where the file system has such."""
        try:
            file = os.open(self.scratch, _O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600) if _O_TMPFILE else -1
        except OSError:  # a full disk will say so again
            file = -1
        path = Path(f"/proc/self/fd/{file}") if file >= 0 else self.scratch / secrets.token_hex(8)
        try:
            yield path
        finally:
            if file >= 0:
                os.close(file)
            else:
                path.unlink(missing_ok=True)

    def has_all_of(self, record: Record) -> bool:
        """Whether the store has as many bytes of a growing file as it holds now, and nothing is in doubt."""
        return not record.in_doubt and os.stat(self.folder / record.at, follow_symlinks=False).st_size == record.acked

    def send_segment(self, record: Record, *, max_bytes: int, all_of_it: bool, save: Callable[[Record], object]) -> bool:
        """Send the next segment of a file and bring `record` up to date; False if there is nothing to send.

        `save` writes the record down, before the put and after it: so a segment whose put was cut short by a kill, or whose
        answer was lost, is looked for, also when by then the file has nothing more to send. Raises PrefixChanged when the file,
        or what is already there under the segment's name, is not what the record says.
        """
        name = segment_name(self.writer, check_name(record.path), record.generation, record.acked, self.compression)
        with self._temporary() as scratch:
            cut = cut_segment(
                self.folder / record.at, record, scratch, max_bytes=max_bytes, compression=self.compression, all_of_it=all_of_it
            )
            if cut is None and not record.in_doubt:
                return False
            if cut is None:
                cut = self._take_existing(record, name, record.boundary)
            else:
                if not record.in_doubt:
                    with self._lock:
                        record.in_doubt = record.has_segments = True
                        record.base = record.acked if record.state == "sealed" else record.base
                    save(record)
                try:
                    self._put(name, scratch, overwrite=False, crc32c=None if self.compression else cut.crc32c)
                except AlreadyExistsError as error:
                    cut = self._take_existing(record, name, cut.boundary)
                    if cut is None:
                        raise TransientError("it was there, and is not any more", operation="put", uri=name) from error
        with self._lock:
            record.in_doubt = False
            if cut is not None:
                record.crc32c = combine_crc32c(record.crc32c, cut.crc32c, cut.end - cut.start)
                record.acked, record.tail, record.boundary = cut.end, cut.tail, cut.boundary
                record.size, record.mtime_ns = cut.end, cut.mtime_ns
                record.state = "rotated" if record.state == "rotated" else "live"
                self.n_done += 1
        save(record)
        return cut is not None

    def snapshot(self, record: Record) -> Record:
        """The record as it is between two segments, also while a thread sends them."""
        with self._lock:
            return replace(record)

    def seal(
        self, record: Record, now_s: float, *, copied_from: Stored | None, keep: Collection[int], stale: Collection[int]
    ) -> bool:
        """Make the plain object of a file that is sent to its end, or of which nothing is sent; False if it has grown meanwhile.

        What it holds now is what counts, should something in its middle have been rewritten unnoticed. Where that is what its
        segments hold, the store joins them, if it can; else the file is sent. `copied_from`: as in send_whole().
        `keep`: earlier generations that are still to be sealed, under other names. `stale`: those of another file, whose segments
        go on behind the object that this one replaces: with this one they would be a mixture.
        """
        source = self.folder / record.at
        with opened(source) as file:
            status = check_prefix(file, record)
            size = status.st_size
            if record.has_segments and size != record.acked:
                return False
            tail = tail_of(file, size)
        name = check_name(record.at)
        crc = _sum(name, source, size)
        if os.stat(source).st_size != size:
            return False
        if not size and record.generation > 1 and record.at == record.path:
            self._remove(_earlier(self._segments_of(record.path), record, keep))  # behind an empty object they would be a gap
        if stale:
            self._remove([one for one in self._segments_of(name) if one.generation in stale])
        try:
            is_copied = (
                copied_from is not None and copied_from.crc32c == crc and self._joiner.copy(copied_from, name, os.stat(source))
            )
            if not is_copied and not self._join(record, name, size, crc):
                self._put_source(name, source, size, crc)
        except IntegrityError:
            if os.stat(source).st_size > size:  # since the size was read
                return False
            raise
        with self._lock:
            record.acked = record.size = size
            record.crc32c, record.tail, record.mtime_ns = crc, tail, status.st_mtime_ns
            record.state, record.sealed_s = "sealed", now_s
            if record.at == record.path:  # else what is left of its segments goes on behind the old object until it is tidied up
                record.base = 0
        return True

    def _join(self, record: Record, name: str, size: int, crc: int) -> bool:
        """Have the store make the plain object of the file's segments. False if it cannot, or if the file has other bytes."""
        is_in_segments = record.has_segments and (record.acked, record.crc32c) == (size, crc)
        if self.compression or not is_in_segments or not self._joiner.may_join(size):
            return False
        return self._joiner.join(name, self.folder / record.at, record, self._segments_of(record.path))

    def _put_range(self, name: str, source: Path, start: int, n_bytes: int) -> None:
        """Make a range of the user's file an object. The checksum of the joined object shows whether the file has changed."""
        end = start + n_bytes
        with self._temporary() as scratch, opened(source) as file, open(scratch, "wb") as out:
            while start < end and (block := os.pread(file, min(_COPY_BYTES, end - start), start)):
                start += out.write(block)
            out.flush()
            if start < end:
                raise IntegrityError("it became shorter while it was read", operation="put", uri=name)
            self._put(name, scratch, overwrite=True)

    def clean(self, sealed: Sequence[tuple[Record, Collection[int]]]) -> None:
        """Delete the segments of sealed files. Those of earlier generations go, too, but for those that are given with a record:
        these are still to be sealed under other names.

        What was sent after the seal, with an answer that was lost, is beyond the plain object's end, and stays until it is known
        what it is.
        """
        by_path = self._segments_of_all([record.path for record, _ in sealed])
        from_end: list[Segment] = []
        from_start: list[Segment] = []
        for record, keep in sealed:
            found = by_path.get(record.path, [])
            own = [one for one in found if one.generation == record.generation]
            beyond = [one for one in own if one.start >= record.acked]
            # Those of earlier generations, and of a rotated file, are another file's than the plain object of that name.
            from_end += _earlier(found, record, keep)
            from_end += [] if record.in_doubt else beyond
            (from_start if record.at == record.path else from_end).extend(own[: len(own) - len(beyond)])
        delete_segments(self.store, from_end, from_start)
        self.n_done += len(from_end) + len(from_start)

    def _segments_of_all(self, paths: Sequence[str]) -> dict[str, list[Segment]]:
        if len(paths) < _LISTED_TOGETHER:
            return {path: self._segments_of(path) for path in paths}
        found: dict[str, list[Segment]] = {}
        for one in list_segments(self.store, self.uri.prefix, self.writer):
            found.setdefault(one.path, []).append(one)
        return {path: found.get(check_name(path), []) for path in paths}

    def _segments_of(self, path: str) -> list[Segment]:
        return list_segments(self.store, self.uri.prefix, self.writer, check_name(path))

    def _remove(self, segments: Sequence[Segment]) -> None:
        """Delete segments that no plain object of their file's name has."""
        delete_segments(self.store, segments)
        self.n_done += len(segments)

    def _take_existing(self, record: Record, name: str, boundary: int) -> Cut | None:
        """Take over a segment that is in the store and in no record, if it has the file's bytes. None if there is none.

        PrefixChanged if it has other bytes: the file was truncated or replaced since.
        """
        if (meta := self.head(name)) is None:
            return None
        segment = parse_segment(self.uri.prefix, meta)
        assert segment is not None, "its name is ours"
        length, crc = self.measure(segment, meta)
        end = record.acked + length
        source = self.folder / record.at
        with opened(source) as file:
            status = check_prefix(file, record)
            if not length or status.st_size < end or crc32c_of_file(source, record.acked, end) != crc:
                raise PrefixChanged("other bytes than the file's are in the store already")
            return Cut(record.acked, end, crc, tail_of(file, end), min(boundary, end), status.st_mtime_ns)

    def measure(self, segment: Segment, meta: ObjectMeta | None = None) -> tuple[int, int]:
        """How many bytes of the file a segment has, and their CRC32C; read back where the store does not know."""
        if segment.compression is None:
            meta = meta or self.store.head(segment.key)
            if meta.crc32c is not None:
                return meta.size_bytes, meta.crc32c
        with fetched(self.store, segment.key, self.scratch) as stored:
            return sum_of(segment_blocks(replace(segment, length_bytes=None), stored))

    def send_whole(
        self, name: str, source: Path, *, copied_from: Stored | None = None, is_there: bool = False
    ) -> tuple[os.stat_result, int]:
        """Make a whole file the plain object `name`: (its status, its CRC32C). IntegrityError if it changes meanwhile.

        `copied_from`: an object that has its bytes, if it is still the file that it was. `is_there`: it may be in the store
        already, so look first.
        """
        status = os.stat(source, follow_symlinks=False)
        if copied_from is not None and self._joiner.copy(copied_from, name, status):
            return status, copied_from.crc32c
        crc = _sum(name, source, status.st_size)
        if not (is_there and self.holds(name, status.st_size, crc)):
            self._put_source(name, source, status.st_size, crc)
        return status, crc

    def head(self, name: str) -> ObjectMeta | None:
        """What the store says of the object `name`; None if there is none."""
        try:
            return self.store.head(key_for(self.uri.prefix, name))
        except NotFoundError:
            return None

    def holds(self, name: str, size: int, crc: int | None) -> bool:
        """Whether the object `name` has that size and CRC32C."""
        meta = self.head(name)
        return meta is not None and (meta.size_bytes, meta.crc32c) == (size, crc)

    def send_copy(self, name: str, source: Path) -> tuple[os.stat_result, int]:
        """Make what a small file holds now the plain object `name`: (its status, its CRC32C). PrefixChanged if it changes."""
        with self._temporary() as scratch:
            with opened(source) as file, open(scratch, "wb") as out:
                before = os.fstat(file)
                at = 0
                while block := os.pread(file, _COPY_BYTES, at):
                    at += out.write(block)
                after = os.fstat(file)
            crc = crc32c_of_file(scratch)
            is_changed = (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or at != before.st_size
            if is_changed or (is_just_modified(after) and _sum(name, source, at) != crc):
                raise PrefixChanged("it changed while it was read")
            self._put(name, scratch, overwrite=True, crc32c=crc)
            return before, crc

    def _put_source(self, name: str, source: Path, size: int, crc: int) -> None:
        """Make the first bytes of the user's file the object `name`. IntegrityError, and nothing is put, if they change.

        Of a small file a copy is put: no program writes to that, so a local store can link it without reading it back.
        """
        if size >= WORTH_JOINING_BYTES:
            self._put(name, source, overwrite=True, crc32c=crc, frozen=False, size=size)
            return
        with opened(source) as file:
            data = os.pread(file, size, 0)
        if len(data) != size or crc32c(data) != crc:
            raise IntegrityError("it changed while it was read", operation="put", uri=name)
        with self._temporary() as scratch:
            scratch.write_bytes(data)
            self._put(name, scratch, overwrite=True, crc32c=crc)

    def send_text(self, name: str, text: str) -> None:
        """Make a text the object `name`."""
        with self._temporary() as scratch:
            scratch.write_text(text)
            self._put(name, scratch, overwrite=True)

    def _put(
        self, name: str, path: Path, *, overwrite: bool, crc32c: int | None = None, frozen: bool = True, size: int | None = None
    ) -> None:
        """IntegrityError, and nothing is put, if the file has not `size` bytes, of which `crc32c` is, any more."""
        key = key_for(self.uri.prefix, name)
        size = path.stat().st_size if size is None else size
        job = job_sent_at_once(self.uri.uri_for(key), key, size, owner=self.writer, overwrite=overwrite, crc32c=crc32c)
        self._uploads.send(job, path, self.store, TransferConfig(), retry=self.retry, frozen=frozen)
        self.sent_bytes += job.size_bytes
        self.n_done += 1


def _earlier(found: Sequence[Segment], record: Record, keep: Collection[int]) -> list[Segment]:
    """The segments of earlier generations, but for those to keep."""
    return [one for one in found if one.generation < record.generation and one.generation not in keep]


def _sum(name: str, source: Path, size: int) -> int:
    try:
        return crc32c_of_file(source, 0, size)
    except EOFError as error:
        raise IntegrityError(f"it changed while it was read: {error}", operation="put", uri=name) from error
