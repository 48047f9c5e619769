"""Capture of stdout and stderr at the level of file descriptors: what C code and child processes print comes along, too.

The descriptors 1 and 2 are replaced by pipes, or by a pseudo-terminal where there was a terminal, so that programs go on
showing their colours and bars. The other ends are in the hands of a process of its own, the writer process (see
`writer_process.py` for why), which passes everything on to where it was going, and writes it to a file, line by line.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import secrets
import select
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from wherry.loggers.capture import writer_process
from wherry.loggers.capture.tee import tee_standard_stream
from wherry.posix.fork import ChildLock, call_in_children

log = logging.getLogger("wherry")

#: A pipe of this size takes bursts of output. Larger ones would use up what Linux lets one user have in pipes (pipe(7)).
_PIPE_BYTES = 2**18
#: A terminal that was stopped (Ctrl-S), or a file system that hangs, must not keep a run from ending for ever.
_PATIENCE_S = 30.0
_FDS = {"stdout": 1, "stderr": 2}


class Capture:
    """Starts the writer process, and replaces the descriptors of `streams` ("stdout", "stderr") until close().

    One file gets the lines of both, each after ``[stdout]: `` or ``[stderr]: ``, and those given to add(). Lines are kept in
    memory until name() says where; if the process ends before, they go to `fallback`. The file goes on in another at
    `roll_bytes` (0: never). What one stream prints and what is added by the same thread stays in order, if that stream is the
    first one; between stdout and stderr the order is that of arrival.

    Captures can be nested, and closed in any order; of one that was closed before another inside it, nobody waits until it has
    passed on what it gets from that one. In a forked child a Capture is of no use: what the child prints is
    captured, until the last one that can print is gone, and add() is an error. Children that outlive close() can go on
    printing, to where the output went before.
    """

    def __init__(self, streams: Sequence[str], *, roll_bytes: int = 0, fallback: str = "") -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise RuntimeError(f"FileLogger needs a Python interpreter to start its writer with: {sys.executable!r} is none")
        self._pid = os.getpid()
        self._token = secrets.token_hex(12)
        self._mark = b"\0" + self._token.encode()
        self._lock = threading.RLock()  # a signal handler may log while its own thread does
        self._news = threading.Condition()
        self._rolled: list[Path] = []
        self._n_asked = 0
        self._n_synced = 0
        self._has_ended = False  # the writer process says so, or is dead
        self._is_closed = False  # close() was called
        self._is_over = False  # the descriptors are to be put back
        self._reported: set[str] = set()
        self._ends = [_End(name) for name in streams if _is_open(_FDS[name])] or [_End("")]
        flush_standard_streams()  # what was printed before belongs to before
        reply, replies_to = os.pipe()
        try:
            self._start_writer(replies_to, roll_bytes, fallback)
        except BaseException:
            os.close(reply)
            for end in self._ends:
                end.abandon()
            raise
        finally:
            os.close(replies_to)
        self._reply = reply
        for end in self._ends:
            end.take(functools.partial(self._add_printed, end))
        _stack.append(self)
        call_in_children(self, Capture.after_fork_in_child)
        self._listener = threading.Thread(target=self._listen, name="wherry-file-log", daemon=True)
        self._listener.start()

    def captures(self, stream: str) -> bool:
        """Whether that stream is captured."""
        return any(end.name == stream for end in self._ends)

    def add(self, text: str) -> None:
        """Add whole lines to the file, where the first captured stream is now."""
        with self._lock:
            flush_standard_streams()
            self._send_text(text, "T")

    def name(self, path: str) -> None:
        """Write to the file `path` from now on, or to ``name.0001.txt`` and so on when it exists."""
        with self._lock:
            self._send(self._ends[0], "n", os.fsencode(path))

    def discard(self) -> None:
        """Write nothing at all, and forget what waits for a name."""
        with self._lock:
            self._send(self._ends[0], "d", b"")

    def sync(self, *, wait: bool = True) -> bool:
        """Bring what was printed and added before to the disk; without `wait`, soon. Returns whether it is there."""
        if wait:
            self._sync_those_above()
        with self._lock:
            flush_standard_streams()
            self._n_asked += 1
            number = self._n_asked
            for end in self._ends:
                self._send(end, "s", b"%d" % number)
        if not wait:
            return False
        with self._news:
            self._news.wait_for(lambda: self._n_synced >= number or self._has_ended, _PATIENCE_S)
            return self._n_synced >= number

    def take_rolled(self) -> list[Path]:
        """The files that were closed since the last call, in order; they do not change any more."""
        with self._news:
            rolled, self._rolled = self._rolled, []
        return rolled

    def close(self, last_words: str = "") -> None:
        """Write what was printed, then the lines `last_words`; close the file and put the descriptors back.

        Closing again, or in a forked child, does nothing.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._sync_those_above()
        with self._lock:
            flush_standard_streams()
            self._send_text(last_words, "L")
            for end in self._ends:
                self._send(end, "e", b"")
        try:
            with self._news:
                self._news.wait_for(lambda: self._has_ended, _PATIENCE_S)
        finally:  # also when Ctrl-C ends the wait
            self._let_go()
        if self._has_ended:
            self._listener.join()
        else:
            self._report(f"its writer has not finished within {_PATIENCE_S:g} s, and goes on alone: is the terminal stopped?")

    def _sync_those_above(self) -> None:
        """What captures that were put on top of this one hold, they have passed on to it then."""
        with _stack_lock:
            above = _stack[_stack.index(self) + 1 :] if self in _stack else []
        for capture in above:
            capture.sync()

    # the writer process

    def _start_writer(self, replies_to: int, roll_bytes: int, fallback: str) -> None:
        tees = {end.name: end.saved for end in self._ends}
        specs = [f"{end.name or 'log'}:{end.read_fd}:{_FDS.get(end.name, -1)}" for end in self._ends]
        program = [sys.executable, "-I", "-S", writer_process.__file__]
        starter = subprocess.Popen(
            [*program, self._token, str(roll_bytes), str(replies_to), fallback, *specs],
            stdin=subprocess.DEVNULL,
            stdout=tees.get("stdout", subprocess.DEVNULL),
            stderr=tees.get("stderr", subprocess.DEVNULL),
            pass_fds=[replies_to, *(end.read_fd for end in self._ends)],
            start_new_session=True,  # Ctrl-C in the terminal is not for the writer process
        )
        if code := starter.wait():
            raise RuntimeError(f"FileLogger's writer could not be started: {' '.join(program)} ended with {code}")

    def _send_text(self, text: str, last_kind: str) -> None:
        pieces = self._pieces(text)
        for i, piece in enumerate(pieces):
            self._send(self._ends[0], last_kind if i == len(pieces) - 1 else "t", piece)

    def _add_printed(self, end: _End, text: str) -> None:
        """For what Python writes to a stream that does not lead to a descriptor."""
        if self._pid == os.getpid() and not self._is_closed:
            with self._lock:
                for piece in self._pieces(text):
                    self._send(end, "p", piece)

    def _pieces(self, text: str) -> list[bytes]:
        """As many bytes as are written at once, each."""
        data = text.encode("utf-8", "backslashreplace")
        most = select.PIPE_BUF - len(self._mark) - 5
        return [data[at : at + most] for at in range(0, len(data), most)]

    def _send(self, end: _End, kind: str, payload: bytes) -> None:
        frame = b"%b%b%04x%b" % (self._mark, kind.encode(), len(payload), payload)
        while frame and end.write_fd >= 0 and not self._has_ended:
            try:
                frame = frame[os.write(end.write_fd, frame) :]
            except BlockingIOError:  # noqa: PERF203  a child made the pipe non-blocking for all who share it; node does so
                select.select([], [end.write_fd], [])
            except OSError:  # the writer process is dead; _listen() says so
                return

    def _listen(self) -> None:
        rest = b""
        while data := self._read_reply():
            *messages, rest = (rest + data).split(b"\0")
            for message in messages:
                self._on_message(message[:1].decode(), os.fsdecode(message[1:]))
        os.close(self._reply)
        if not self._has_ended:
            self._outlive_writer()

    def _read_reply(self) -> bytes:
        try:
            return os.read(self._reply, 4096)
        except OSError:
            return b""

    def _on_message(self, kind: str, text: str) -> None:
        if kind == "f":
            self._report(f"cannot write {text}: lines are lost until it can; the run goes on")
        if kind == "g":
            self._report(f"{text} was removed while it was being written: its lines are lost, and it is begun anew")
        with self._news:
            if kind == "s":
                self._n_synced = max(self._n_synced, int(text))
            elif kind == "r":
                self._rolled.append(Path(text))
            elif kind == "e":
                self._has_ended = True
            self._news.notify_all()

    def _report(self, what: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            log.warning("FileLogger: %s", what)

    def _outlive_writer(self) -> None:
        """Somebody has killed the writer process: printing works again, and what was under way comes out, without the file."""
        with self._news:
            self._has_ended = True  # and so nobody sends any more
            self._news.notify_all()
        self._is_over = True
        _unwind()
        for end in self._ends:
            end.drain(self._mark)  # who waits for room in the pipe can go on, and give us the lock
        self._let_go()
        self._report("its writer was killed: nothing more is written to the file, and output is no longer captured")

    def _let_go(self) -> None:
        self._is_over = True
        _unwind()
        with self._lock:
            for end in self._ends:
                end.let_go()

    @property
    def is_over(self) -> bool:
        """Whether the descriptors are to be put back: it was closed, or the writer process is dead."""
        return self._is_over

    def put_back(self) -> None:
        """Make the descriptors what they were."""
        for end in self._ends:
            end.put_back()
            end.forget_saved()

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child."""
        if self._pid != os.getpid():
            raise RuntimeError(
                f"this FileLogger belongs to process {self._pid}: what this child prints is captured, but log there"
            )

    def after_fork_in_child(self) -> None:
        """Keep nothing open that would hold up the writer process, except what the child prints to."""
        for end in self._ends:
            end.let_go()
            end.forget_saved()
        with suppress(OSError):
            os.close(self._reply)


class _End:
    """Our end of one stream's pipe or pseudo-terminal; without a name, of a pipe for messages alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.saved = os.dup(_FDS[name]) if name else -1
        if self.saved >= 0 and os.isatty(self.saved):
            self.read_fd, self.write_fd = os.openpty()
            tty.setraw(self.write_fd)  # bytes stay as they are: the real terminal does the rest
            with suppress(OSError):  # as wide as the real one; the writer process follows it from then on
                fcntl.ioctl(self.write_fd, termios.TIOCSWINSZ, fcntl.ioctl(self.saved, termios.TIOCGWINSZ, bytes(8)))
        else:
            self.read_fd, self.write_fd = os.pipe()
            with suppress(OSError, AttributeError):  # more than this user may have, or not Linux
                fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._identity = _identity(self.write_fd)
        self._untap: Callable[[], None] = lambda: None

    def take(self, tap: Callable[[str], object]) -> None:
        if self.name:
            os.dup2(self.write_fd, _FDS[self.name])
            self._untap = tee_standard_stream(self.name, _FDS[self.name], tap)

    def put_back(self) -> None:
        """Unless somebody else has put something over it: it is theirs, and what they put back still leads to the old place."""
        self._untap()
        if self.name and self.saved >= 0:
            fd = _FDS[self.name]
            if _is_open(fd) and _identity(fd) == self._identity:
                os.dup2(self.saved, fd)

    def drain(self, mark: bytes) -> None:
        """Write what nobody has read to where it was going, without the messages."""
        os.set_blocking(self.read_fd, False)
        stream = writer_process.Stream(self.name, self.read_fd, self.saved, mark)
        with suppress(OSError):
            while items := stream.read():
                for kind, data in items:
                    if not kind:
                        stream.pass_on(data)

    def let_go(self) -> None:
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1

    def forget_saved(self) -> None:
        if self.saved >= 0:
            os.close(self.saved)
        self.saved = -1

    def abandon(self) -> None:
        self.let_go()
        self.forget_saved()


def flush_standard_streams() -> None:
    """Hand on what Python and the C library still hold back of what was printed."""
    for stream in (sys.stdout, sys.stderr):
        # One that is closed, gone (None in a daemon), busy below us (in a signal handler), or a notebook's, which does not lead
        # here and whose flush() is slow.
        with suppress(OSError, ValueError, AttributeError, RuntimeError):
            if stream.fileno() in _FDS.values():
                stream.flush()
    if flush := _c_flush():
        flush()


@functools.cache
def _c_flush() -> Callable[[], object] | None:
    """The C library's fflush() of stdout. Not of all its streams: one from which another thread is reading would block us."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(library, "__stdoutp" if sys.platform == "darwin" else "stdout")
    except (ImportError, OSError, ValueError):  # a Python without ctypes, a static one
        return None
    return lambda: library.fflush(stdout)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _identity(fd: int) -> tuple[int, int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino, about.st_rdev


#: Captures whose pipes are, or were, in place of the descriptors; each on top of those before it.
_stack: list[Capture] = []
_stack_lock = ChildLock()


def _unwind() -> None:
    """Put the descriptors back, those taken last first; a capture below one that goes on has to wait for it."""
    with _stack_lock:
        while _stack and _stack[-1].is_over:
            _stack.pop().put_back()
