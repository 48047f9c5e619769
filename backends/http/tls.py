"""TLS over a socket by way of memory: few system calls, as many bytes in each as there are.

Given the socket itself, OpenSSL writes each record of 16 KiB by a call of its own, and reads each by two.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress

#: What comes in one call. The buffer is used again, so that it stays in the processor's cache.
_RECEIVED_BYTES = 256 * 1024
#: The most that a record has, without what TLS adds to it ("RFC 8446", section 5.1).
_RECORD_BYTES = 16 * 1024


class Channel:
    """What is sent and received over one connected socket, which the caller closes.

    The socket decides how long to wait for a byte, `timeout_s` for a whole record. An end without TLS's own farewell is an end
    like any other, as many servers know no other: whoever reads must know how much should come.
    """

    def __init__(self, plain: socket.socket, trust: ssl.SSLContext, host: str, timeout_s: float) -> None:
        self._socket = plain
        self._timeout_s = timeout_s
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = trust.wrap_bio(self._came, self._goes, server_hostname=host)
        self._buffer = memoryview(bytearray())

    def agree(self, timeout_s: float) -> None:
        """Agree upon TLS with the server, which must be the one that `trust` and `host` demand.

        Raises ssl.SSLError; OSError, TimeoutError among them.
        """
        give_up_s = time.monotonic() + timeout_s
        while not (is_agreed := self._has_agreed()) or self._goes.pending:
            if (left_s := give_up_s - time.monotonic()) <= 0:
                raise TimeoutError("its part of the handshake does not end")
            self._socket.settimeout(left_s)
            self._socket.sendall(self._goes.read())
            if not is_agreed:
                self._fill(1)

    def _has_agreed(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            with suppress(OSError):
                self._socket.send(self._goes.read())  # why we refuse it
            raise
        return True

    def sealed(self, data: memoryview) -> memoryview:
        """What is to be sent in order to say `data`."""
        if data:
            self._tls.write(data)
        return memoryview(self._goes.read())

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        """Some of the next bytes; none at the end only. With MSG_WAITALL all of them are to come, so it waits for many."""
        pieces: list[bytes] = []
        left_bytes, begun_s = size_bytes, time.monotonic()
        while left_bytes and (piece := self._next(left_bytes)) != b"":
            if piece:
                pieces.append(piece)
                left_bytes -= len(piece)
            elif pieces:
                break
            elif time.monotonic() - begun_s > self._timeout_s:
                raise TimeoutError("a record does not end")
            else:  # OpenSSL has the beginning of a record, at most: all of the others is still to come
                self._fill(left_bytes - _RECORD_BYTES if flags else 1)
        return b"".join(pieces)

    def _next(self, size_bytes: int) -> bytes | None:
        """Some of what has come; b"": the end; None: no whole record is here."""
        try:
            return self._tls.read(min(size_bytes, _RECORD_BYTES))  # it takes memory for all that it is asked for
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLEOFError:
            return b""

    def _fill(self, least_bytes: int) -> None:
        """Receive more. At least so many bytes are known to come: sealed, nothing is smaller than it was."""
        self._buffer = self._buffer or memoryview(bytearray(_RECEIVED_BYTES))
        flags = socket.MSG_WAITALL if least_bytes > _RECORD_BYTES else 0
        n_bytes = self._socket.recv_into(self._buffer, min(least_bytes, _RECEIVED_BYTES) if flags else _RECEIVED_BYTES, flags)
        if n_bytes:
            self._came.write(self._buffer[:n_bytes])
        else:
            self._came.write_eof()
