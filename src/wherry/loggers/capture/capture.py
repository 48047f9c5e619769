"""Capture of stdout and stderr at the level of file descriptors, which includes what C code and child processes print.

The descriptors 1 and 2 are replaced by pipes, or by a pseudo-terminal where there was a terminal, so that programs still print
their colours and progress bars. A separate process reads the other ends (`writer_process.py` says why), passes everything on to
where it was going, and writes it to a file line by line.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from wherry.loggers.capture import writer_process
from wherry.loggers.capture.standard_streams import FDS, StreamEnd, flush_standard_streams, is_open
from wherry.posix.fork import ChildLock, call_in_children

log = logging.getLogger("wherry")

#: A terminal that was stopped (Ctrl-S), or a file system that hangs, must not keep a run from ending.
_LONGEST_WAIT_S = 30.0


class Capture:
    """Starts the writer process, and replaces the descriptors of `streams` ("stdout", "stderr") until close().

    One file gets the lines of both streams, each after ``[stdout]: `` or ``[stderr]: ``, and those given to add(). Lines wait in
    memory until name() gives the file's name; if the process ends before, they go to `fallback`. When the file has `roll_bytes`
    (0: no limit), the next lines go to another one. Lines of the first of the streams stay in order with those that the same
    thread adds; between stdout and stderr the order is that of arrival.

    Captures can be nested, and closed in any order. When an outer one is closed first, nothing waits until it has passed on
    what the inner one still sends it. What a forked child prints is captured, also after close(), when it goes where the output
    went before; but add() is an error in a child.
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
        self._has_ended = False  # the writer process has ended, or has closed the file
        self._is_closed = False  # close() was called
        #: Whether the descriptors are to be put back: it was closed, or the writer process is dead.
        self.is_over = False
        self._reported: set[str] = set()
        self._ends = [StreamEnd(name) for name in streams if is_open(FDS[name])] or [StreamEnd("")]
        flush_standard_streams()  # what was printed before is not captured
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
        """Add whole lines to the file, after what the first captured stream has printed so far."""
        with self._lock:
            flush_standard_streams()
            self._send_text(text, "T")

    def name(self, path: str) -> None:
        """Write to the file `path` from now on, or to ``name.0001.txt`` and so on when it exists."""
        with self._lock:
            self._send(self._ends[0], "n", os.fsencode(path))

    def discard(self) -> None:
        """Write no file, and drop the lines that wait for its name."""
        with self._lock:
            self._send(self._ends[0], "d", b"")

    def sync(self, *, wait: bool = True) -> bool:
        """Sync what was printed and added so far to the disk. Without `wait`, only ask for it. Returns whether it is there."""
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
            self._news.wait_for(lambda: self._n_synced >= number or self._has_ended, _LONGEST_WAIT_S)
            return self._n_synced >= number

    def take_rolled(self) -> list[Path]:
        """The files that were closed since the last call, in order. They do not change any more."""
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
                self._news.wait_for(lambda: self._has_ended, _LONGEST_WAIT_S)
        finally:  # also when Ctrl-C ends the wait
            self._let_go()
        if self._has_ended:
            self._listener.join()
        else:
            self._report(
                f"its writer has not finished within {_LONGEST_WAIT_S:g} s, and goes on by itself: is the terminal stopped?"
            )

    def _sync_those_above(self) -> None:
        """Have the captures that were started on top of this one pass on what they hold."""
        with _stack_lock:
            above = _stack[_stack.index(self) + 1 :] if self in _stack else []
        for capture in above:
            capture.sync()

    def _start_writer(self, replies_to: int, roll_bytes: int, fallback: str) -> None:
        tees = {end.name: end.saved for end in self._ends}
        specs = [f"{end.name or 'log'}:{end.read_fd}:{FDS.get(end.name, -1)}" for end in self._ends]
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

    def _add_printed(self, end: StreamEnd, text: str) -> None:
        """Send what Python wrote to a stream that does not lead to the descriptor."""
        if self._pid == os.getpid() and not self._is_closed:
            with self._lock:
                for piece in self._pieces(text):
                    self._send(end, "p", piece)

    def _pieces(self, text: str) -> list[bytes]:
        data = text.encode("utf-8", "backslashreplace")
        most = select.PIPE_BUF - len(self._mark) - 5
        return [data[at : at + most] for at in range(0, len(data), most)]

    def _send(self, end: StreamEnd, kind: str, payload: bytes) -> None:
        frame = b"%b%b%04x%b" % (self._mark, kind.encode(), len(payload), payload)
        while frame and end.write_fd >= 0 and not self._has_ended:
            try:
                frame = frame[os.write(end.write_fd, frame) :]
            except BlockingIOError:  # noqa: PERF203  a child such as node made the pipe non-blocking for all processes that share it
                poll = select.poll()
                poll.register(end.write_fd, select.POLLOUT)
                poll.poll()
            except OSError:  # the writer process is dead; _listen() reports it
                return

    def _listen(self) -> None:
        rest = b""
        while data := self._read_reply():
            *messages, rest = (rest + data).split(b"\0")
            for message in messages:
                self._on_message(message[:1].decode(), os.fsdecode(message[1:]))
        self._close_reply()
        if not self._has_ended:
            self._outlive_writer()

    def _read_reply(self) -> bytes:
        try:
            return os.read(self._reply, 4096)
        except OSError:
            return b""

    def _close_reply(self) -> None:
        descriptor, self._reply = self._reply, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _on_message(self, kind: str, text: str) -> None:
        if kind == "f":
            self._report(f"cannot write {text}: lines are lost until it can; the run goes on")
        if kind == "g":
            self._report(f"{text} was removed while it was being written: its lines are lost, and a new file was begun")
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
        """Restore printing after the writer process was killed, and print what it had not read. The file gets nothing more."""
        with self._news:
            self._has_ended = True  # so that no thread sends any more
            self._news.notify_all()
        self.is_over = True
        _unwind()
        for end in self._ends:
            end.drain(self._mark)  # a thread that waits for room in the pipe goes on and releases the lock
        self._let_go()
        self._report("its writer was killed: nothing more is written to the file, and output is no longer captured")

    def _let_go(self) -> None:
        self.is_over = True
        _unwind()
        with self._lock:
            for end in self._ends:
                end.let_go()

    def put_back(self) -> None:
        """Restore the descriptors."""
        for end in self._ends:
            end.put_back()

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child."""
        if self._pid != os.getpid():
            raise RuntimeError(
                f"this FileLogger belongs to process {self._pid}: what this child prints is captured, but call its methods there"
            )

    def after_fork_in_child(self) -> None:
        """Close all that would keep the writer process alive, except the descriptors that the child prints to."""
        for end in self._ends:
            end.abandon()
        self._close_reply()


#: The captures that have replaced the descriptors, each on top of those before it.
_stack: list[Capture] = []
_stack_lock = ChildLock()


def _unwind() -> None:
    """Restore the descriptors of captures that are over, the last one first. One below a capture that goes on waits for that."""
    with _stack_lock:
        while _stack and _stack[-1].is_over:
            _stack.pop().put_back()
