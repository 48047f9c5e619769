"""One connection: a request goes out, an answer's head and body come in. Every wait ends with the route's time-out."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from wherry.backends.http.body import FileRange
from wherry.backends.http.head import MOST_HEAD_BYTES, MOST_LINE_BYTES
from wherry.backends.http.routes import Route
from wherry.backends.http.wire_errors import DisconnectedError, ProtocolError, ShortFile, StalledError, UnreadableFile

#: Read from a file and encrypted at once. The buffer is used again, so that it stays in the processor's cache.
_ENCRYPTED_BYTES = 256 * 1024
_HEAD_BYTES = 8 * 1024


class Connection:
    """A connection for one request after the other. After any error it must be closed."""

    def __init__(self, route: Route) -> None:
        #: Each wait may take so long.
        self.timeout_s = route.timeout_s
        self._socket = route.connect()
        try:
            self._tls = route.secure(self._socket)
        except BaseException:
            self._socket.close()
            raise
        self._source = self._tls or self._socket
        self._by_kernel = self._tls is None and hasattr(os, "sendfile")
        #: Received, and not read yet.
        self._input = b""
        self._has_ended = False
        #: To be sent next: the body's beginning or end, or what was read from the file.
        self._output = memoryview(b"")
        #: To be sent when the file was.
        self._after = b""
        self._buffer: bytearray | None = None
        # The kernel waits, where Python's time-outs take a second system call for each block.
        patience = struct.pack("@ll", int(self.timeout_s), int(self.timeout_s % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        self._socket.settimeout(None)
        self._sending = _Naming(f"the server takes no bytes for {self.timeout_s:g} s")
        self._receiving = _Naming(f"the server sends no bytes for {self.timeout_s:g} s")

    def fileno(self) -> int:
        """Of its socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it. It may be called again."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send a head, and with it a small body."""
        with self._sending:
            left = self._sealed(memoryview(data))
            while left:
                left = left[self._socket.send(left) :]

    def begin(self, data: bytes) -> bool:
        """Begin to send a head and a small body, as far as go_on() does."""
        self._output = self._sealed(memoryview(data))
        return self.go_on()

    def go_on(self) -> bool:
        """Send what the kernel takes without waiting. Whether all is sent that was begun."""
        with self._sending, suppress(BlockingIOError):
            while self._output:
                self._output = self._output[self._socket.send(self._output, socket.MSG_DONTWAIT) :]
            self._output = memoryview(b"")  # an empty part of it would keep all of it in memory
        return not self._output

    def head_if_come(self) -> bytes | None:
        """The next head, up to its empty line; None if it is not all here. Never waits. Raises DisconnectedError at the end."""
        while (end := self._input.find(b"\r\n\r\n") + 4) < 4:
            if len(self._input) > MOST_HEAD_BYTES:
                raise ProtocolError(f"the answer's head has more than {MOST_HEAD_BYTES} bytes")
            if self._has_ended or (came := self._arrived()) == b"":
                raise DisconnectedError("the server hung up before its answer's end")
            if came is None:
                return None
            self._input += came
        return self._taken(end)

    def send_file(self, body: FileRange, is_answered: Callable[[], bool]) -> None:
        """Send a range of an open file. What comes meanwhile `is_answered` reads; if it says yes, no more is sent."""
        self._output, self._after, at = self._sealed(memoryview(body.before)), body.after, body.start
        try:
            while self._is_unsent(at, body.end):
                with self._sending:
                    self._socket.setblocking(False)
                    at = self._send_until_input(body.file, at, body.end)
                if self._is_unsent(at, body.end) and is_answered():
                    return
        except DisconnectedError:  # the server may have said why before it hung up
            if not self.has_input() or not self._input or not is_answered():
                raise
        finally:
            self._socket.settimeout(None)

    def _send_until_input(self, file: int, start: int, end: int) -> int:
        """Send of the file until all is sent, or something comes; how far it was read."""
        while self._is_unsent(start, end):
            taken = self._send_some(file, start, end)
            if taken is not None:
                start += taken
            elif self._wait(select.POLLIN | select.POLLOUT) & select.POLLIN and self.has_input():
                break
        return start

    def _is_unsent(self, start: int, end: int) -> bool:
        return start < end or bool(self._output or self._after)

    def has_input(self, wait_s: float = 0.0) -> bool:
        """Whether something has come that is not read yet, be it the end. Messages of TLS to itself do not count."""
        give_up_s = time.monotonic() + wait_s
        while not self._input and not self._has_ended:
            if (came := self._arrived()) is None:
                left_s = give_up_s - time.monotonic()
                if left_s <= 0 or not self._poll(select.POLLIN, left_s):
                    return False
            else:
                self._input, self._has_ended = came, not came
        return True

    def read_head(self) -> bytes:
        """The next head, up to its empty line. It must come within the time-out, from its first byte to its last."""
        self._socket.settimeout(None)
        give_up_s = None
        while (end := self._input.find(b"\r\n\r\n") + 4) < 4:
            if len(self._input) > MOST_HEAD_BYTES:
                raise ProtocolError(f"the answer's head has more than {MOST_HEAD_BYTES} bytes")
            if self._input:
                give_up_s = give_up_s or time.monotonic() + self.timeout_s
                if time.monotonic() > give_up_s:
                    raise StalledError("the answer's head does not end")
            self._input += self._received(_HEAD_BYTES)
        return self._taken(end)

    def read_line(self) -> bytes:
        """The next line of a chunked body, with its line feed."""
        while (end := self._input.find(b"\n") + 1) == 0:
            if len(self._input) > MOST_LINE_BYTES:
                raise ProtocolError(f"a line of the answer's body has more than {MOST_LINE_BYTES} bytes")
            self._input += self._received(_HEAD_BYTES)
        return self._taken(end)

    def read(self, size_bytes: int) -> bytes:
        """Some of the next bytes, at most `size_bytes` (a megabyte, say), and none at the connection's end only.

        What has come within the time-out, if that is not as much.
        """
        if self._input:
            return self._taken(size_bytes)
        with self._receiving:
            return self._source.recv(size_bytes, socket.MSG_WAITALL)

    def _received(self, size_bytes: int) -> bytes:
        try:
            with self._receiving:
                data = b"" if self._has_ended else self._source.recv(size_bytes)
        except DisconnectedError as reset:
            reset.is_free = not self._input
            raise
        if not data:
            error = DisconnectedError("the server hung up before its answer's end")
            error.is_free = not self._input
            raise error
        return data

    def _taken(self, size_bytes: int) -> bytes:
        taken, self._input = self._input[:size_bytes], self._input[size_bytes:]
        return taken

    def _send_some(self, file: int, start: int, end: int) -> int | None:
        """Send some of the file, without waiting. How many bytes were taken from it; None: the socket takes no more just now."""
        try:
            if self._output:
                self._output = self._output[self._socket.send(self._output) :]
                return 0
            if start == end:
                self._output, self._after = self._sealed(memoryview(self._after)), b""
                return 0
            if self._by_kernel:
                sent = os.sendfile(self._socket.fileno(), file, start, end - start)
                if not sent:
                    raise ShortFile(end - start)
                return sent
            block = memoryview(self._buffered())[: end - start]
            try:
                n_read = os.preadv(file, [block], start)
            except OSError as error:
                raise UnreadableFile(error) from error
            if not n_read:
                raise ShortFile(end - start)
            self._output = self._sealed(block[:n_read])
            return n_read
        except BlockingIOError:
            return None
        except OSError as error:
            if not self._by_kernel or isinstance(error, (ConnectionError, TimeoutError)):
                raise
            self._by_kernel = False  # it cannot send such a file by itself; or nobody can read it, which is seen next
            return 0

    def _sealed(self, data: memoryview) -> memoryview:
        """What the socket is given in order to say `data`."""
        return data if self._tls is None else self._tls.sealed(data)

    def _buffered(self) -> bytearray:
        if self._buffer is None:
            self._buffer = bytearray(_ENCRYPTED_BYTES)
        return self._buffer

    def _arrived(self) -> bytes | None:
        """What is there to receive; b"": the end; None: nothing yet."""
        if self._tls is None:
            try:
                return self._socket.recv(_HEAD_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                return b""
        before_s = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            return self._source.recv(_HEAD_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        finally:
            self._socket.settimeout(before_s)

    def _wait(self, events: int) -> int:
        found = self._poll(events, self.timeout_s)
        if not found:
            raise TimeoutError
        return found

    def _poll(self, events: int, timeout_s: float) -> int:
        """Which of the events have come; an error or a hang-up is both."""
        poll = select.poll()
        poll.register(self._socket.fileno(), events)
        found = poll.poll(timeout_s * 1000)
        return 0 if not found else found[0][1] if found[0][1] & events else events


class _Naming:
    """Gives the errors of a socket their names. Made once: it is entered for each block."""

    def __init__(self, stalled: str) -> None:
        self._stalled = stalled

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, (TimeoutError, BlockingIOError)):
            raise StalledError(self._stalled) from error
        if isinstance(error, OSError):
            ended = DisconnectedError(f"the connection ended: {error}")
            ended.is_free = True  # as far as can be said here
            raise ended from error
