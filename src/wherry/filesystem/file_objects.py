"""What ``open()`` of the fsspec file system returns: readers of one version of an object, and files on their way to the store."""

from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from fsspec.core import OpenFile
from fsspec.spec import AbstractBufferedFile

from wherry.checksum import crc32c, format_crc32c
from wherry.errors import IntegrityError, SpoolError
from wherry.posix.fork import temporary_folder
from wherry.spool.spool_file import FileAbove, SpoolWriter
from wherry.store import ObjectMeta
from wherry.uploader import Uploader

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wherry.spool.handle import UploadHandle


log = logging.getLogger("wherry")


class Version:
    """One version of an object, open for reading. A newer object of its name is never mixed in.

    A queued version is read from its file in the spool, which stays readable until close(), also after it was uploaded and
    freed. A stored version is read by its etag: after the object was replaced, every read raises IntegrityError.
    """

    def __init__(self, uploader: Uploader, name: str) -> None:
        """Raises NotFoundError, AccessDeniedError."""
        self._uploader = uploader
        self._name = name
        self._staged: int | None = None  # a descriptor
        self._crc, self._crc_end = 0, 0
        view, self._key = uploader.view(), uploader.uri.key_for(name)
        while (job := view.queued(self._key)) is not None:
            try:
                self._staged = uploader.spool.open_staged(job.object_id)
            except FileNotFoundError as error:
                if view.queued(self._key) == job:
                    raise SpoolError(f"the staged file of {job.uri}, {error.filename}, is gone: its upload will fail") from error
                continue  # it was uploaded and freed while we looked
            self.meta = ObjectMeta(self._key, job.size_bytes, crc32c=job.crc32c, modified_s=job.created_s)
            return
        self.meta = view.head(self._key)

    def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end), which must lie within the object.

        Reads that go through the object in order, or take the whole of it, are compared with its CRC32C when its end is reached:
        IntegrityError if the bytes are wrong twice.
        """
        if start >= end:
            return b""
        for is_last in (False, True):
            data = self._get(start, end)
            if len(data) != end - start:
                raise self._wrong(f"{len(data)} of {end - start} bytes came")
            if start != self._crc_end:
                return data
            crc = crc32c(data, self._crc)
            if end < self.meta.size_bytes or self.meta.crc32c in (None, crc):
                self._crc, self._crc_end = crc, end
                return data
            if is_last:
                raise self._wrong(f"CRC32C {format_crc32c(crc)} came, the store says {format_crc32c(self.meta.crc32c or 0)}")
        raise AssertionError  # the second round returns or raises

    def _get(self, start: int, end: int) -> bytes:
        if self._staged is not None:
            pieces = []
            while start < end and (piece := os.pread(self._staged, end - start, start)):
                pieces.append(piece)
                start += len(piece)
            return b"".join(pieces)
        with temporary_folder() as folder:
            path = folder / "bytes"
            size_bytes = self.meta.size_bytes
            if start == 0 and end == size_bytes > self._uploader.config.transfer.range_size_bytes:  # then ranges side by side
                if self._uploader.get(self._name, path, follow_symlinks=False).etag != self.meta.etag:
                    raise self._wrong("the object was replaced while it was open")
                return path.read_bytes()
            path.touch()
            self._uploader.view().get_file(self._key, path, start=start, end=end, if_match=self.meta.etag)
            with open(path, "rb") as file:
                file.seek(start)
                return file.read(end - start)

    def _wrong(self, words: str) -> IntegrityError:
        return IntegrityError(words, operation="get", uri=self._uploader.uri.uri_for(self._key))

    def close(self) -> None:
        """Free the staged file, if it is one."""
        staged, self._staged = self._staged, None
        if staged is not None:
            os.close(staged)

    def __del__(self) -> None:
        """Readers are often dropped without close(), and their caches put them into a reference cycle."""
        self.close()


class ObjectReader(AbstractBufferedFile):  # type: ignore[misc]  # fsspec ships no types
    """A version of an object as a file, read block by block through one of fsspec's caches. It can be pickled, as its path."""

    def __init__(
        self,
        fs: Any,
        path: str,
        version: Version,
        details: dict[str, object],
        block_size: int | None,
        cache_type: str,
        cache_options: Any,
    ) -> None:
        self._version = version
        super().__init__(
            fs, path, "rb", block_size, cache_type=cache_type, cache_options=cache_options, size=version.meta.size_bytes
        )
        self.details = details

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._version.read(start, min(end, self.size))

    def close(self) -> None:
        """Free the cache and the staged file."""
        super().close()
        self._version.close()


class ObjectWriter(FileAbove):
    """A new file in the spool. When close() returns its upload is accepted, and `handle` tells of it.

    The file is thrown away, and nothing is uploaded, when its ``with`` block (also ``with fsspec.open(...)``) ends by an
    exception, when a write has failed, or when it is garbage-collected without a close().

    In a transaction (`autocommit` off) close() only ends the writing; commit() hands the file over, discard() throws it away.

    As a SpoolWriter it belongs to the process that opened it. In a forked child it is closed, and what is written is dropped.
    """

    _file: SpoolWriter

    def __init__(self, writer: SpoolWriter, path: str, *, autocommit: bool = True, waits: bool = False) -> None:
        """`waits`: handing over ends only when the upload has; UploadFailed if it fails."""
        self._file = writer
        self._waits = waits
        self.path = path
        self._autocommit = autocommit
        self._is_closed = False
        self._is_doomed = False
        self._has_warned = False

    @property
    def handle(self) -> UploadHandle | None:
        """The upload, once it is accepted."""
        return self._file.handle

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`; returns how many bytes that is."""
        if self._file.is_disowned:
            self._warn_of_fork()
            return memoryview(data).nbytes
        return self._file.write(data)

    def _warn_of_fork(self) -> None:
        """No error: fsspec's and Python's compressors write what they still have when a child ends that has never written."""
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s was opened by the process that this one was forked from: what this one writes is dropped", self.path)

    @property
    def closed(self) -> bool:
        """Whether close() was called, or this is a forked child's copy."""
        return self._is_closed or self._file.closed

    def close(self) -> None:
        """Hand the file over, or throw it away, as the class says. Closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_doomed or _block_has_failed():
            self.discard()
        elif self._autocommit:
            self.commit()
        else:
            self._file.flush()

    def commit(self) -> None:
        """Hand the file over."""
        self._file.close()
        if self._waits and self.handle is not None:
            self.handle.result()

    def discard(self) -> None:
        """Throw the file away."""
        self._file.abort()

    def doom(self) -> None:
        """Have close() throw the file away. What is written from now on only empties the buffers of files above this one."""
        self._is_doomed = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.doom()
        self.close()

    def __del__(self) -> None:
        """Not close(), as other files do: the spool's file throws itself away, and says so."""


class CompressedWriter(io.BufferedIOBase):
    """Compresses into `writer` through `compressor`, one of fsspec's, which by itself would leave the file below it open."""

    def __init__(self, writer: ObjectWriter, compressor: BinaryIO) -> None:
        self._writer = writer
        self._compressor = compressor

    def write(self, data: Buffer, /) -> int:
        """Compress all of `data`; returns how many bytes that is."""
        return self._compressor.write(data)

    def flush(self) -> None:
        """Hand what is compressed to the file."""
        if not self.closed:
            self._compressor.flush()

    def writable(self) -> bool:
        """Whether it can be written: yes."""
        return True

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._writer.closed

    def close(self) -> None:
        """End the compressed stream and hand the file over."""
        if self.closed:
            return
        try:
            self._compressor.close()
        except BaseException:
            self.doom()
            raise
        finally:
            self._writer.close()

    def doom(self) -> None:
        """As ObjectWriter.doom()."""
        self._writer.doom()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.doom()
        self.close()

    def __del__(self) -> None:
        """As ObjectWriter.__del__()."""


class TextWriter(io.TextIOWrapper):
    """Text into an ObjectWriter. An exception in its ``with`` block throws the file away; a plain TextIOWrapper would not."""

    def __init__(self, writer: ObjectWriter | CompressedWriter, **how: Any) -> None:
        self._below = writer
        super().__init__(writer, **how)  # type: ignore[arg-type]  # every BufferedIOBase will do

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self._below.doom()
        self.close()

    def __del__(self) -> None:
        """Let go of the file below, which then throws itself away, and says so."""
        with suppress(ValueError, OSError):  # closed already, or no room for the rest of the text, which is not wanted
            self.detach()


def _block_has_failed() -> bool:
    """Whether we are closed by a ``with fsspec.open(...)`` block that an exception has ended.

    fsspec's OpenFile closes its file then as if nothing had happened, so that half a checkpoint would be uploaded under its final
    name. The only trace of the exception is in the arguments of its __exit__, further up in the stack.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is OpenFile.__exit__.__code__:
            return any(frame.f_locals.get("args", ()))
        frame = frame.f_back
    return False
