"""What bare Python sockets take: no signature, no retry. The floor, not a client."""

from __future__ import annotations

import mmap
import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import google_crc32c

from clients.contract import MIB, THREADS, Client, Endpoint, new_file, ranges

BLOCK_BYTES = MIB


class Bare(Client):
    """8 threads: sendfile after CRC32C; recv_into and pwrite. Over TLS sendall of a memory map, without CRC32C."""

    packages = ("google-crc32c",)

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        at = urlsplit(endpoint.url)
        self.host, self.port = at.hostname or "", at.port or 0
        self.tls = ssl.create_default_context(cafile=endpoint.ca_file) if at.scheme == "https" else None
        self.kept: list[socket.socket] = []
        self.pool = ThreadPoolExecutor(THREADS)

    def connection(self) -> socket.socket:
        if self.kept:
            return self.kept.pop()
        plain = socket.create_connection((self.host, self.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.tls.wrap_socket(plain, server_hostname=self.host) if self.tls else plain

    def answer(self, connection: socket.socket) -> bytes:
        """The head of an answer; what came of the body after it stays in the socket, or follows the blank line."""
        found = b""
        while b"\r\n\r\n" not in found:
            more = connection.recv(16384 if self.tls else 1) if self.tls else connection.recv(4096, socket.MSG_PEEK)
            if not more:
                raise ConnectionError("the server hung up")
            if not self.tls:
                end = more.find(b"\r\n\r\n")
                more = connection.recv(end + 4 if end >= 0 else len(more))
            found += more
        if found[9:10] != b"2":
            raise ConnectionError(found.decode(errors="replace"))
        return found

    def send(self, file: int, view: mmap.mmap | None, key: str, start: int, end: int) -> None:
        if view is None:
            crc, buffer = 0, bytearray(BLOCK_BYTES)
            for at in range(start, end, BLOCK_BYTES):
                n = os.preadv(file, [memoryview(buffer)[: end - at]], at)
                crc = google_crc32c.extend(crc, bytes(buffer[:n]) if n < BLOCK_BYTES else bytes(buffer))
        connection = self.connection()
        connection.sendall(b"PUT /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (key.encode(), end - start))
        if view is None:
            while start < end:
                start += os.sendfile(connection.fileno(), file, start, end - start)
        else:
            with memoryview(view) as whole:
                connection.sendall(whole[start:end])
        self.answer(connection)
        self.kept.append(connection)

    def up(self, path: Path, key: str) -> None:
        size_bytes = path.stat().st_size
        with open(path, "rb", buffering=0) as file:
            view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if self.tls else None
            name = f"{self.endpoint.bucket}/{key}"
            sent = [
                self.pool.submit(self.send, file.fileno(), view, f"{name}-{number}", start, end)
                for number, (start, end) in enumerate(ranges(size_bytes))
            ]
            for each in sent:
                each.result()
            if view is not None:
                view.close()

    def fetch(self, file: int, key: str, start: int, end: int) -> None:
        connection = self.connection()
        head = f"GET /{self.endpoint.bucket}/{key} HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{end - 1}\r\n\r\n"
        connection.sendall(head.encode())
        begun = self.answer(connection).partition(b"\r\n\r\n")[2]
        start += os.pwrite(file, begun, start) if begun else 0
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while start < end:
            n = connection.recv_into(buffer, min(BLOCK_BYTES, end - start))
            if not n:
                raise ConnectionError("the server hung up")
            start += os.pwrite(file, buffer[:n], start)
        self.kept.append(connection)

    def down(self, key: str, path: Path, size_bytes: int) -> None:
        with new_file(path, size_bytes) as file:
            list(self.pool.map(lambda one: self.fetch(file, key, *one), ranges(size_bytes)))

    def many(self, folder: Path, prefix: str) -> None:
        def put(path: Path) -> None:
            with open(path, "rb", buffering=0) as file:
                self.send(file.fileno(), None, f"{self.endpoint.bucket}/{prefix}/{path.name}", 0, os.fstat(file.fileno()).st_size)

        list(self.pool.map(put, folder.iterdir()))


CLIENTS = {"sockets": Bare}
