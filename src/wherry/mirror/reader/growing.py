"""The local copy of a growing file, brought up to date in place: never by a new file, never from its beginning.

Whoever has it open (``tail -f``, TensorBoard) sees it grow. It becomes shorter only where the file at its source did.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from wherry.checksum import crc32c, crc32c_of_file
from wherry.errors import IntegrityError
from wherry.mirror.format.layout import Assembly
from wherry.mirror.format.manifest import FileEntry
from wherry.mirror.reader.pull_state import Copied
from wherry.mirror.reader.reader import Chunk, MirrorReader, blocks
from wherry.store import ObjectMeta

log = logging.getLogger("wherry.mirror")


def source_of(found: Assembly) -> str:
    """Which file of whom the segments are of; empty without segments."""
    return f"{found.generation} {found.writer}" if found.segments else ""


def version_of(plain: ObjectMeta) -> str:
    """What tells one version of an object from another."""
    return plain.etag or f"{plain.size_bytes} {plain.modified_s}"


def not_ours(path: Path) -> FileExistsError:
    """The error for a file that no pull has made."""
    words = "is there, and is not the beginning of what the store has: allow overwriting, or pull into another folder"
    return FileExistsError(errno.EEXIST, words, str(path))


class GrowingFile:
    """One growing file of a copy. `copied` says what of it is here, None: it is not known to be ours.

    `note` is told of each step, so that it may be written down; after a kill the steps since are made again, and compared.
    """

    def __init__(self, path: Path, found: Assembly, copied: Copied | None, note: Callable[[Copied], None]) -> None:
        self._path = path
        self._found = found
        self._is_ours = copied is not None
        self._copied = copied or Copied()
        self._note = note
        self._file = -1
        #: Bytes that were written.
        self.n_written = 0

    def update(self, reader: MirrorReader, entry: FileEntry | None) -> None:
        """Append what is new in the store.

        IntegrityError, after what is here was compared from its beginning on; FileExistsError if the file is not ours, and not
        the beginning of what the store has: then nothing is changed.
        """
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise not_ours(self._path)
            self._start(reader)
            try:
                is_checked = self._take(reader.chunks(self._found, self._copied.size, self._copied.crc32c, entry))
                again = "" if is_checked else "the pull before this one was interrupted"
            except IntegrityError as error:
                again = str(error)
            if again:
                log.info("%s is compared with the store from its beginning: %s", self._path, again)
                self._compare(reader)
            self._end()
        finally:
            os.close(self._file)

    def _start(self, reader: MirrorReader) -> None:
        """Find out whether the local file is still what was noted of it."""
        copied = self._copied
        if copied.size and not self._still_has():
            log.warning("%s was changed here since it was pulled: it is made equal to the store again", self._path)
            self._copied = Copied(source=copied.source)
        elif copied.size and self._is_begun_anew(reader):
            log.info("%s was begun anew at its source", self._path)
            os.ftruncate(self._file, 0)
            self._save(Copied(source=source_of(self._found)))

    def _still_has(self) -> bool:
        status = os.fstat(self._file)
        if (status.st_size, status.st_mtime_ns) == (self._copied.size, self._copied.mtime_ns):
            return True
        try:
            return crc32c_of_file(self._path, 0, self._copied.size) == self._copied.crc32c
        except EOFError:
            return False

    def _is_begun_anew(self, reader: MirrorReader) -> bool:
        """Whether what is here is of an earlier generation than what is there."""
        found, copied = self._found, self._copied
        if found.segments:
            is_continued = found.plain is not None and copied.version == version_of(found.plain)
            return copied.source != source_of(found) and not is_continued
        assert found.plain is not None
        if copied.size <= found.plain.size_bytes:
            return False
        reader.head(found.plain)  # a listing that a seal has overtaken shows the object of the seal before, and no segments
        return True

    def _take(self, chunks: Iterator[Chunk]) -> bool:
        """Write chunks where they belong; whether all that is here now agrees with some checksum."""
        source = source_of(self._found) or self._copied.source
        for chunk in chunks:
            with chunk.data:
                at, crc = chunk.start, self._copied.crc32c
                for block in blocks(chunk.data):
                    self._put(block, at)
                    at, crc = at + len(block), crc32c(block, crc)
            checked = self._copied.checked
            if chunk.checked_from is not None and chunk.checked_from <= checked:
                checked = at
            self._save(Copied(at, crc, checked, source, "", 0))
        return self._copied.checked == self._copied.size or (self._found.plain is not None and not self._found.segments)

    def _compare(self, reader: MirrorReader) -> None:
        """Make all of it equal, with nothing written that was not compared with a checksum before.

        IntegrityError when that cannot be: then what was never found to be right is gone from here.
        """
        good = self._copied.checked
        try:
            if self._found.plain is not None:  # its checksum is known to be right at its end only
                for chunk in reader.chunks(replace(self._found, segments=())):
                    chunk.data.close()
            self._copied = Copied(source=self._copied.source)
            self._take(reader.chunks(self._found))
        except IntegrityError:
            good = max(good, self._copied.checked)
            if self._is_ours and os.fstat(self._file).st_size > good:
                os.ftruncate(self._file, good)
            self._save(Copied(good, crc32c_of_file(self._path, 0, good), good, self._copied.source))
            raise

    def _put(self, block: bytes, at: int) -> None:
        """Write what is not there already. Equal bytes are left alone, so that no program sees a change."""
        here = os.pread(self._file, len(block), at)
        if here == block:
            return
        if not self._is_ours and here != block[: len(here)]:
            raise not_ours(self._path)
        view, first = memoryview(block), len(here) if here == block[: len(here)] else 0
        while first < len(block):
            n_bytes = os.pwrite(self._file, view[first:], at + first)
            first += n_bytes
            self.n_written += n_bytes

    def _end(self) -> None:
        """Cut off what is behind the end of the stored file, and note what the copy is."""
        if os.fstat(self._file).st_size > self._copied.size:
            if not self._is_ours:
                raise not_ours(self._path)
            os.ftruncate(self._file, self._copied.size)
        copied, plain = self._copied, self._found.plain
        self._is_ours = True
        version = version_of(plain) if plain is not None else ""
        mtime_ns = os.fstat(self._file).st_mtime_ns
        self._save(Copied(copied.size, copied.crc32c, copied.size, source_of(self._found), version, mtime_ns))

    def _save(self, copied: Copied) -> None:
        self._copied = copied
        if self._is_ours:
            self._note(copied)
