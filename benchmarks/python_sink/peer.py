"""The sink's end of a connection: requests as they come, bodies that are kept or dropped, answers."""

from __future__ import annotations

import mmap
import os
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl

from python_sink.objects import PATTERN_BYTES, SMALL_BYTES, Objects, encode
from wherry.checksum import crc32c

_HEAD_BYTES = 64 * 1024
_DROP_BYTES = 16 * 2**20
#: Nobody reads it. Without TLS nobody writes it either (MSG_TRUNC: the kernel drops the bytes), so it takes no memory.
_DROPPED = mmap.mmap(-1, _DROP_BYTES)


class HungUp(Exception):
    """The client has closed the connection, or speaks no HTTP."""


@dataclass(frozen=True)
class Request:
    """The head of a request."""

    method: str
    path: str
    query: str
    headers: dict[str, str]  # by their names in lower case
    lines: list[str]

    @property
    def parameters(self) -> dict[str, str]:
        return dict(parse_qsl(self.query, keep_blank_values=True))

    @property
    def size_bytes(self) -> int:
        return int(self.headers.get("content-length", 0))

    @property
    def is_in_chunks(self) -> bool:
        return "transfer-encoding" in self.headers


class Peer:
    """Nobody pipelines: what comes with a head belongs to its body."""

    def __init__(self, connection: socket.socket, objects: Objects) -> None:
        self._socket = connection
        self._objects = objects
        self._is_secure = isinstance(connection, ssl.SSLSocket)
        self._begun = b""

    def request(self) -> Request:
        """The next one. Who asks for leave to send its body gets it."""
        while (end := self._begun.find(b"\r\n\r\n")) < 0:
            if len(self._begun) > _HEAD_BYTES:
                raise HungUp
            self._begun += self._some(_HEAD_BYTES)
        head, self._begun = self._begun[:end].decode("latin-1"), self._begun[end + 4 :]
        first, *lines = head.split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), value.strip())
        method, _, target = first.partition(" ")
        path, _, query = target.rpartition(" ")[0].partition("?")
        if "expect" in headers and not self._begun:
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(method, path, query, headers, lines)

    def _some(self, most: int) -> bytes:
        if not (got := self._socket.recv(most)):
            raise HungUp
        return got

    def _from_begun(self, most: int) -> bytes:
        got, self._begun = self._begun[:most], self._begun[most:]
        return got

    def read(self, size_bytes: int) -> bytes:
        """So many bytes of a body."""
        data = bytearray(self._from_begun(size_bytes))
        while len(data) < size_bytes:
            data += self._some(size_bytes - len(data))
        self._objects.count(n_received=len(data))
        return bytes(data)

    def drop(self, size_bytes: int) -> None:
        """Have so many bytes of a body come, and look at none."""
        self._objects.count(n_received=size_bytes)
        left = size_bytes - len(self._from_begun(size_bytes))
        flags = () if self._is_secure else (socket.MSG_TRUNC,)
        while left:
            if not (got := self._socket.recv_into(_DROPPED, min(left, _DROP_BYTES), *flags)):
                raise HungUp
            left -= got

    def take(self, size_bytes: int) -> bytes | None:
        """A body; None of a large one."""
        if size_bytes <= SMALL_BYTES:
            return self.read(size_bytes)
        self.drop(size_bytes)
        return None

    def take_chunks(self) -> tuple[int, bytes | None]:
        """The size of a body in HTTP's chunks, and the body if it is small."""
        kept, size_bytes = b"", 0
        while n := int(self._line().partition(b";")[0], 16):
            n_kept = min(n, max(0, SMALL_BYTES - size_bytes))
            kept += self.read(n_kept)
            self.drop(n - n_kept)
            size_bytes += n
            self._line()
        while self._line():
            pass
        return size_bytes, kept if size_bytes <= SMALL_BYTES else None

    def _line(self) -> bytes:
        while (end := self._begun.find(b"\r\n")) < 0:
            self._begun += self._some(4096)
        return self._from_begun(end + 2)[:-2]

    def answer(self, status: str, headers: list[str] | None = None, body: bytes = b"") -> None:
        """Send an answer."""
        self.say(status, [*(headers or []), f"Content-Length: {len(body)}"], body)

    def say(self, status: str, headers: list[str], body: bytes = b"") -> None:
        """Send a head as it is, and a body."""
        self._socket.sendall("\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1") + body)

    def send_pattern(self, start: int, end: int) -> None:
        """Send this range of an object of pattern/N, which repeats itself."""
        self._objects.count(n_sent=end - start)
        while start < end:
            at = start % PATTERN_BYTES
            n = min(end - start, PATTERN_BYTES - at)
            if self._is_secure:
                n = min(n, 2**20)
                self._socket.sendall(memoryview(self._objects.pattern)[at : at + n])
            else:
                n = os.sendfile(self._socket.fileno(), self._objects.pattern_file, at, n)
            start += n


@dataclass(frozen=True)
class Exchange:
    """A request that is being answered."""

    peer: Peer
    request: Request
    objects: Objects


@dataclass(frozen=True)
class Body:
    """What came with a request: its size, its bytes if they were kept, and the checksum that was sent with it."""

    size_bytes: int
    data: bytes | None
    crc: str | None = None

    @property
    def is_damaged(self) -> bool:
        return self.crc is not None and self.data is not None and self.crc != encode(crc32c(self.data))
