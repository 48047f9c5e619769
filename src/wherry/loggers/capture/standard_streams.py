"""stdout and stderr: replacing their descriptors, flushing their buffers, and a copy of what Python writes elsewhere."""

from __future__ import annotations

import fcntl
import functools
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TextIO, cast

from wherry.loggers.capture import writer_process

FDS = {"stdout": 1, "stderr": 2}
#: A pipe of this size takes bursts of output. Larger ones would use up what Linux lets one user have in pipes (pipe(7)).
_PIPE_BYTES = 2**18


class StreamEnd:
    """Replaces one stream by a pipe or pseudo-terminal, of which it has both ends; with the name "", a pipe for messages only.

    `saved`: a duplicate of the descriptor that was replaced. Descriptors that are closed are -1.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.saved = os.dup(FDS[name]) if name else -1
        if self.saved >= 0 and os.isatty(self.saved):
            self.read_fd, self.write_fd = os.openpty()
            tty.setraw(self.write_fd)  # bytes stay as they are; the real terminal interprets them
            with suppress(OSError):  # as wide as the real one; the writer process follows it from then on
                fcntl.ioctl(self.write_fd, termios.TIOCSWINSZ, fcntl.ioctl(self.saved, termios.TIOCGWINSZ, bytes(8)))
        else:
            self.read_fd, self.write_fd = os.pipe()
            with suppress(OSError, AttributeError):  # more than this user may have, or not Linux
                fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._identity = _identity(self.write_fd)
        self._stop_tee: Callable[[], None] = lambda: None

    def take(self, on_text: Callable[[str], object]) -> None:
        """Replace the stream's descriptor. `on_text` gets what Python writes to a stream that does not lead to it."""
        if self.name:
            os.dup2(self.write_fd, FDS[self.name])
            self._stop_tee = tee_standard_stream(self.name, FDS[self.name], on_text)

    def put_back(self) -> None:
        """Put the old descriptor back, unless another library has replaced ours: it will restore ours later."""
        self._stop_tee()
        if self.name and self.saved >= 0:
            fd = FDS[self.name]
            if is_open(fd) and _identity(fd) == self._identity:
                os.dup2(self.saved, fd)
        self._forget_saved()

    def drain(self, mark: bytes) -> None:
        """Pass on what nobody has read, without the messages."""
        os.set_blocking(self.read_fd, False)
        stream = writer_process.Stream(self.name, self.read_fd, self.saved, mark)
        with suppress(OSError):
            while items := stream.read():
                for kind, data in items:
                    if not kind:
                        stream.pass_on(data)

    def let_go(self) -> None:
        """Close the pipe or pseudo-terminal."""
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1

    def _forget_saved(self) -> None:
        if self.saved >= 0:
            os.close(self.saved)
        self.saved = -1

    def abandon(self) -> None:
        """Close all descriptors."""
        self.let_go()
        self._forget_saved()


def flush_standard_streams() -> None:
    """Write out what Python and the C library have buffered of what was printed."""
    for stream in (sys.stdout, sys.stderr):
        # The stream may be closed, None (in a daemon) or busy (this is a signal handler). A notebook's does not lead to the
        # descriptor, and its flush() is slow.
        with suppress(OSError, ValueError, AttributeError, RuntimeError):
            if stream.fileno() in FDS.values():
                stream.flush()
    if flush := _c_flush():
        flush()


@functools.cache
def _c_flush() -> Callable[[], object] | None:
    """The C library's fflush() of stdout. Flushing all its streams would wait for one from which another thread is reading."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(library, "__stdoutp" if sys.platform == "darwin" else "stdout")
    except (ImportError, OSError, ValueError):  # a Python without ctypes, a static one
        return None
    return lambda: library.fflush(stdout)


def is_open(fd: int) -> bool:
    """Whether the descriptor is open."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _identity(fd: int) -> tuple[int, int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino, about.st_rdev


class TeeStream:
    """Writes to `stream` and calls `on_text` with the same text. All other attributes are those of `stream`."""

    def __init__(self, stream: TextIO, on_text: Callable[[str], object]) -> None:
        self._stream = stream
        self._on_text = on_text

    def write(self, text: str) -> int:
        """Write to both."""
        n = self._stream.write(text)
        self._on_text(text)
        return n

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all to both."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def tee_standard_stream(name: str, fd: int, on_text: Callable[[str], object]) -> Callable[[], None]:
    """Call `on_text` with what Python writes to ``sys.stdout`` or ``sys.stderr``, if that does not lead to the descriptor `fd`.

    A notebook's streams do not lead there, nor do those that a test replaces. Returns a function that undoes this, unless the
    stream was replaced again meanwhile.
    """
    stream: TextIO | None = getattr(sys, name)
    if stream is None or _leads_to(stream, fd):
        return lambda: None
    tee = cast("TextIO", TeeStream(stream, on_text))
    setattr(sys, name, tee)

    def undo() -> None:
        if getattr(sys, name) is tee:
            setattr(sys, name, stream)

    return undo


def _leads_to(stream: TextIO, fd: int) -> bool:
    try:
        # A notebook's stream has the descriptor of the stream that it replaced, or none.
        return stream.fileno() == fd
    except (OSError, ValueError, AttributeError):
        return False
