"""A small process that writes a FileLogger's file and passes captured output on to where it was going.

It is a process, and not a thread of the training process, for three reasons. A thread cannot read while C code writes and
holds the interpreter lock, so that a long message of C code would hang both. When the process crashes or is killed, a thread
loses what is still in the pipe. And children that outlive the process would die of SIGPIPE. The writer process reads until the
last process that can print is gone. It takes some 4 MB of memory and none of the training loop's time.

It is started by path, ``python -I -S writer_process.py TOKEN ROLL_BYTES REPLY_FD FALLBACK STREAM...``, so it imports the
standard library only and is one file. A STREAM is ``name:fd:tee``: what is read from `fd` goes to the descriptor `tee` unchanged
(-1: nowhere), and to the file line by line after ``[name]: ``. Messages of the logger stand in the stream, between what was
printed before and after them:

    TOKEN  kind (1 byte)  length (4 hexadecimal digits)  payload

A message has at most PIPE_BUF bytes in all, so that no other process's bytes get into it (pipe(7), "PIPE_BUF"). Kinds:
``t``: text for the file. ``T``: the last piece of such a text. ``L``: the last piece of a text that ends the file. ``n``: the
file's name. ``s``: sync; the payload is a number, sent on every stream. ``d``: drop the lines that wait, and write no file.
``p``: text that Python printed elsewhere. ``e``: end, sent on every stream; the file is closed, and from then on output is only
passed on. Replies are a kind, a payload and a NUL. ``s``: the number of a sync. ``r``: the path of a closed file. ``f``: why
nothing can be written. ``g``: the path of a file that was removed while it was open. ``e``: ended.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Sequence

_READ_BYTES = 65536
#: Longer lines are cut, so that memory stays bounded whatever is printed.
_LONGEST_LINE_BYTES = 65536
#: Lines wait for the file's name up to this size. Then the fallback name is taken.
_MOST_WAITING_BYTES = 16 * 2**20
#: Escape sequences of terminals (ECMA-48): colours and moves (CSI), titles and links (OSC), two-byte ones.
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>78])")
#: What a program has erased of a line: all before "erase in line" (EL), if that comes after a return or erases the whole line.
_ERASED = re.compile(rb".*(?:\x1b\[2K|\r\x1b\[0?K)", re.DOTALL)
_HEADER_BYTES = 5


def visible_text(line: bytes) -> bytes | None:
    """What a terminal shows of a line when the line is complete: no colours, and only the last state of a progress bar.

    None if the line only moved the cursor; b"" for an empty line that was printed.
    """
    plain = line if b"\x1b" not in line else _ESCAPES.sub(b"", _ERASED.sub(b"", line))
    plain = plain.rstrip(b"\r")
    plain = plain[plain.rfind(b"\r") + 1 :]
    moved = b"\x1b" in line or b"\r" in line.rstrip(b"\r")
    return None if moved and not plain.strip() else plain


class Lines:
    """Cuts a stream of bytes into lines, each after a prefix. An incomplete last line waits for its end."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return the lines that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 1 and (start := self._rest.rfind(b"\r", 0, len(self._rest) - 1)) >= 0:
            self._rest = self._rest[start:]  # with the \r, by which visible_text() knows a bar
        while len(self._rest) > _LONGEST_LINE_BYTES:
            whole.append(self._rest[:_LONGEST_LINE_BYTES])
            self._rest = self._rest[_LONGEST_LINE_BYTES:]
        return b"".join(self._prefix + text + b"\n" for line in whole if (text := visible_text(line)) is not None)

    def finish(self) -> bytes:
        """The last line, if it had no end."""
        rest, self._rest = self._rest, b""
        text = visible_text(rest) if rest else None
        return b"" if text is None else self._prefix + text + b"\n"


class RolledFile:
    """Writes ``name.txt``, then ``name.0001.txt`` and so on; each is closed at a size. Existing files are never changed.

    No method raises: lines that cannot be written are counted, reported once, and noted in the file when it can be written again.
    """

    def __init__(self, roll_bytes: int, reply_fd: int) -> None:
        self._roll_bytes = roll_bytes
        self._reply_fd = reply_fd
        #: The name that the lines wait for; numbers are added to it.
        self.path = ""
        self._number = 0
        self._open_path = ""
        self._fd = -1
        self._size = 0
        #: The lines that wait for the file's name.
        self.waiting = bytearray()
        self._lost = 0
        self._torn = False

    def reply(self, kind: str, text: str = "") -> None:
        """Send a reply to the logger, which may be gone."""
        if self._reply_fd < 0:
            return
        try:
            os.write(self._reply_fd, kind.encode() + os.fsencode(text) + b"\0")
        except OSError:  # the logger is gone; the file is written all the same
            self.hang_up()

    def hang_up(self) -> None:
        """Send no more replies."""
        if self._reply_fd >= 0:
            os.close(self._reply_fd)
            self._reply_fd = -1

    def name(self, path: str) -> None:
        """Go on in the file `path`. The lines that waited for the name are written first."""
        self.close()
        self.path, self._number = path, 0
        waiting, self.waiting = bytes(self.waiting), bytearray()
        self.write(waiting)

    def write(self, lines: bytes) -> None:
        """Add whole lines."""
        if not lines:
            return
        if not self.path:
            self.waiting += lines
            return
        try:
            self._open()
            if self._lost:
                self._write(b"[wherry]: %d lines could not be written and are lost\n" % self._lost)
                self._lost = 0
            self._write(lines)
            if not os.fstat(self._fd).st_nlink:
                self._replace_removed()
                self._write(lines)
        except OSError as error:
            if not self._lost:
                self.reply("f", f"{self._open_path or self.path}: {error.strerror}")
            self._lost += lines.count(b"\n")
            return
        if self._roll_bytes and self._size >= self._roll_bytes:
            self.close()

    def sync(self) -> None:
        """Write everything to the disk (fsync)."""
        if self._fd >= 0:
            try:
                os.fsync(self._fd)
            except OSError as error:
                self.reply("f", f"{self._open_path}: {error.strerror}")

    def close(self) -> None:
        """Close the open file and report its path. The next line opens the next file."""
        if self._fd < 0:
            return
        self.sync()
        os.close(self._fd)
        self._fd, self._size = -1, 0
        self.reply("r", self._open_path)

    def _replace_removed(self) -> None:
        os.close(self._fd)
        self._fd, self._size = -1, 0
        self._number -= 1  # its name is free
        self.reply("g", self._open_path)
        self._open()

    def _open(self) -> None:
        if self._fd >= 0:
            return
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        stem, suffix = os.path.splitext(self.path)
        while self._fd < 0:
            self._open_path = f"{stem}.{self._number:04d}{suffix}" if self._number else self.path
            try:
                self._fd = os.open(self._open_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                self._number += 1  # an earlier process of this run, or another run, wrote it: kept
        self._number += 1
        self._torn = False

    def _write(self, lines: bytes) -> None:
        rest = whole = memoryview(b"\n" + lines if self._torn else lines)
        while rest:
            try:
                n = os.write(self._fd, rest)
            except OSError:
                self._torn = self._torn or len(rest) < len(whole)
                raise
            self._size += n
            rest = rest[n:]
        self._torn = False


class Stream:
    """One captured stream, or a pipe with messages only: passes bytes on and returns the messages."""

    def __init__(self, name: str, fd: int, tee_fd: int, token: bytes) -> None:
        self.fd = fd
        self.lines = Lines(b"[%s]: " % name.encode())
        self.is_ended = False
        self._tee_fd = tee_fd
        self._token = token
        #: The bytes that are held back because they may begin a message.
        self.held_back = b""
        self._window = b""

    def read(self) -> list[tuple[str, bytes]] | None:
        """What was read: ("", printed bytes) and (kind, payload) of messages, in order. None at the end."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except OSError:  # a pseudo-terminal reports its end by an error
            data = b""
        if not data:
            return None
        self._follow_window()
        return self._take(data)

    def pass_on(self, data: bytes) -> None:
        """Write to where the output was going. Once that is gone, only the file gets it."""
        while data and self._tee_fd >= 0:
            try:
                data = data[os.write(self._tee_fd, data) :]
            except BlockingIOError:  # noqa: PERF203  another program made the terminal non-blocking for all that share it
                poll = select.poll()
                poll.register(self._tee_fd, select.POLLOUT)
                poll.poll()
            except OSError:
                self._tee_fd = -1

    def _take(self, data: bytes) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        buffer, size = self.held_back + data, len(self._token)
        at = 0
        while (start := buffer.find(self._token, at)) >= 0:
            if start > at:
                found.append(("", buffer[at:start]))
            at = start
            head = buffer[start + size : start + size + _HEADER_BYTES]
            if len(head) < _HEADER_BYTES or len(buffer) < (end := start + size + _HEADER_BYTES + int(head[1:], 16)):
                self.held_back = buffer[at:]
                return found
            found.append((head[:1].decode(), buffer[start + size + _HEADER_BYTES : end]))
            at = end
        cut = buffer.rfind(b"\0", max(at, len(buffer) - size + 1))
        if cut < 0 or not self._token.startswith(buffer[cut:]):
            cut = len(buffer)
        if cut > at:
            found.append(("", buffer[at:cut]))
        self.held_back = buffer[cut:]
        return found

    def _follow_window(self) -> None:
        """Give the pseudo-terminal the size of the terminal behind it, which may have been resized."""
        if self._tee_fd < 0 or not os.isatty(self.fd):
            return
        try:
            window = fcntl.ioctl(self._tee_fd, termios.TIOCGWINSZ, bytes(8))
            if window != self._window:
                fcntl.ioctl(self.fd, termios.TIOCSWINSZ, window)
                self._window = window
        except OSError:
            self._window = b""


class WriterProcess:
    """Reads each stream until no process can print to it any more."""

    def __init__(self, streams: Sequence[Stream], file: RolledFile, fallback: str) -> None:
        self._streams = list(streams)
        self._file = file
        self._fallback = fallback
        self._text: list[bytes] = []
        self._last_words = b""
        self._syncs: dict[bytes, int] = {}
        self._is_ended = False

    def serve(self) -> None:
        """Return when all streams have ended."""
        poll = select.poll()
        open_streams = {stream.fd: stream for stream in self._streams}
        for fd in open_streams:
            poll.register(fd, select.POLLIN)
        while open_streams:
            for fd, _ in poll.poll():
                stream = open_streams[fd]
                items = stream.read()
                if items is None:
                    poll.unregister(fd)
                    del open_streams[fd]
                    self._print(stream, stream.held_back)
                    self._end(stream)
                else:
                    self._handle(stream, items)

    def _handle(self, stream: Stream, items: Sequence[tuple[str, bytes]]) -> None:
        for kind, payload in items:
            if not kind:
                self._print(stream, payload)
            elif kind in "tTL":
                self._add(kind, payload)
            elif kind == "p":
                self._write(b"" if stream.is_ended else stream.lines.feed(payload))
            elif kind == "n":
                self._file.name(os.fsdecode(payload))
            elif kind == "s":
                self._sync(payload)
            elif kind == "d":
                self._file.waiting.clear()
                self._is_ended = True
            elif kind == "e":
                self._end(stream)

    def _add(self, kind: str, piece: bytes) -> None:
        self._text.append(piece)
        if kind == "t":
            return
        text = b"".join(self._text)
        self._text.clear()
        if kind == "T":
            self._write(text)
        else:
            self._last_words = text

    def _print(self, stream: Stream, data: bytes) -> None:
        stream.pass_on(data)
        if not stream.is_ended:
            self._write(stream.lines.feed(data))

    def _write(self, lines: bytes) -> None:
        if self._is_ended:
            return
        self._file.write(lines)
        if len(self._file.waiting) > _MOST_WAITING_BYTES:
            self._take_fallback()

    def _take_fallback(self) -> None:
        if self._fallback and not self._file.path:
            self._file.name(self._fallback)
        self._file.waiting.clear()

    def _sync(self, number: bytes) -> None:
        self._syncs[number] = self._syncs.get(number, 0) + 1
        if self._syncs[number] == len(self._streams):
            del self._syncs[number]
            self._file.sync()
            self._file.reply("s", number.decode())

    def _end(self, stream: Stream) -> None:
        """End the stream's part of the file. The file is closed with the last stream."""
        if stream.is_ended:
            return
        self._write(stream.lines.finish())
        stream.is_ended = True
        if all(each.is_ended for each in self._streams):
            if not self._is_ended:
                self._write(self._last_words)
                self._take_fallback()
                self._file.close()
            self._is_ended = True
            self._file.reply("e")
            self._file.hang_up()


def main(arguments: Sequence[str]) -> None:
    """Detach from the process that starts this, which waits for that, and serve."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the program, whose last output comes after them
    if os.fork():
        os._exit(0)
    os.chdir("/")  # keep no file system busy
    token, roll_bytes, reply_fd, fallback, *specs = arguments
    mark = b"\0" + token.encode()
    streams = [Stream(name, int(fd), int(tee_fd), mark) for name, fd, tee_fd in (spec.split(":") for spec in specs)]
    WriterProcess(streams, RolledFile(int(roll_bytes), int(reply_fd)), fallback).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
