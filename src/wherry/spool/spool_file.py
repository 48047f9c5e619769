"""A file that is written straight into the spool: a checkpoint is written once and copied never."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from wherry.posix.fork import call_in_children

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wherry.spool.handle import UploadHandle


class FileAbove(io.BufferedIOBase):
    """A binary file that is read, written and sought in through another one, `_file`."""

    _file: BinaryIO | SpoolWriter

    def read(self, size: int | None = -1, /) -> bytes:
        """Read back what was written."""
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As in any file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As in any file."""
        return self._file.tell()

    def truncate(self, size: int | None = None, /) -> int:
        """As in any file."""
        return self._file.truncate(size)

    def flush(self) -> None:
        """Hand buffered bytes to the operating system."""
        self._file.flush()

    def fileno(self) -> int:
        """The descriptor of the spool's file, for libraries that write to it or sync it themselves."""
        return self._file.fileno()

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def writable(self) -> bool:
        """Whether it can be written: yes."""
        return True

    def seekable(self) -> bool:
        """Whether it can be sought in: yes."""
        return True


class SpoolWriter(FileAbove):
    """A seekable binary file in the spool. close() hands it over; `handle` is then its upload.

    Leaving a ``with`` block by an exception, losing the file without closing it, or closing it after a write that failed,
    throws it away: half a checkpoint is never uploaded.

    It belongs to the process that opened it. In a forked child it is closed: neither what the child does nor its end
    hands it over, throws it away or writes to it.
    """

    _file: BinaryIO

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        accept: Callable[[BinaryIO], UploadHandle],
        discard: Callable[[], None],
        explain: Callable[[OSError], OSError] = lambda error: error,
    ) -> None:
        """`explain` makes of an error in writing one that says what to do."""
        self._explain = explain
        self._broken: OSError | None = None
        self._file = file
        self.name = name
        self._accept = accept
        self._discard = discard
        self.handle: UploadHandle | None = None
        #: Whether this is a forked child's copy.
        self.is_disowned = False
        call_in_children(self, SpoolWriter.disown)

    def disown(self) -> None:
        """In a forked child: close the descriptor only. The buffer is a copy: flushed, its bytes would be in the file twice."""
        self.is_disowned = True
        if not self._file.closed:
            assert isinstance(self._file, io.BufferedRandom)
            self._file.raw.close()  # the buffer counts as closed, too, and its finaliser does nothing then

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`; returns how many bytes that is."""
        with self._explained():
            return self._file.write(data)

    def truncate(self, size: int | None = None, /) -> int:
        """As in any file."""
        with self._explained():
            return super().truncate(size)

    def flush(self) -> None:
        """Hand buffered bytes to the operating system."""
        if not self._file.closed:
            with self._explained():
                super().flush()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        if self.is_disowned:
            raise ValueError(f"{self.name} was opened by the process that this one was forked from: only that one can write it")
        try:
            yield
        except OSError as error:
            self._broken = self._explain(error)
            raise self._broken from error

    @property
    def closed(self) -> bool:
        """Whether it was handed over or thrown away."""
        return self._file.closed

    def close(self) -> None:
        """Hand the file over. After return its upload is accepted and survives this process. Closing again does nothing."""
        if self._file.closed:
            return
        try:
            if self._broken is not None:  # somebody has caught that error, but bytes are missing all the same
                raise self._broken
            self.flush()
            self.handle = self._accept(self._file)
        except BaseException:
            self.abort()
            raise
        self._file.close()

    def abort(self) -> None:
        """Throw the file away; nothing is uploaded."""
        if not self._file.closed:
            try:
                with suppress(OSError):  # what is still in its buffer finds no room, and is not wanted
                    self._file.close()
            finally:
                self._discard()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None and not file.closed:
            warnings.warn(f"{self.name} was never closed: it is not uploaded", ResourceWarning, source=self, stacklevel=2)
            self.abort()
