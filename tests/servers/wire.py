"""A server that says exactly what a test has it say, byte by byte, and a way to it."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from servers.tls import Certificates
from wherry.backends.http.routes import Route


@dataclass
class Peer:
    """The server's end of one connection."""

    socket: socket.socket
    #: All that has come, with what was read of it.
    seen: bytearray = field(default_factory=bytearray)

    def head(self) -> bytes:
        """Read the next request's head; b"" if the client hangs up."""
        head = b""
        while not head.endswith(b"\r\n\r\n") and (byte := self.socket.recv(1)):
            head += byte
        self.seen += head
        return head

    def body(self, size_bytes: int) -> bytes:
        """Read so many bytes, or up to the end."""
        data = bytearray()
        while len(data) < size_bytes and (block := self.socket.recv(size_bytes - len(data))):
            data += block
        self.seen += data
        return bytes(data)

    def say(self, data: bytes) -> None:
        """Send this."""
        self.socket.sendall(data)

    def answer(self, body: bytes = b"", status: str = "200 OK", *headers: str) -> None:
        """Send a plain answer."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        self.say("\r\n".join(lines).encode() + body)

    def wait_for_end(self) -> None:
        """Read until the client hangs up."""
        with suppress(OSError):
            while block := self.socket.recv(65536):
                self.seen += block


Talk = Callable[[Peer], object]


def say(data: bytes) -> Talk:
    """Reads a request, and says this."""

    def talk(peer: Peer) -> None:
        peer.head()
        peer.say(data)

    return talk


def answering(body: bytes, status: str = "200 OK") -> Talk:
    """Reads a request, and answers it."""
    return say(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def secured(certificates: Certificates, talk: Talk) -> Talk:
    """The same over TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.chain, certificates.key)

    def secure(peer: Peer) -> None:
        try:
            peer.socket = context.wrap_socket(peer.socket, server_side=True)
        except OSError:
            return  # the client does not like the certificate
        with peer.socket:
            talk(peer)

    return secure


@dataclass
class Wire:
    """A server that is running. Each connection is the next of its talks; what is left of them is an error."""

    port: int
    peers: list[Peer] = field(default_factory=list)

    def route(self, timeout_s: float = 30.0, trust: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Route:
        """The way to it."""
        return Route(host, self.port, trust, 30.0, timeout_s)


@contextmanager
def wire(*talks: Talk, host: str = "127.0.0.1", receives_bytes: int | None = None) -> Iterator[Wire]:
    """A server on a free port. `receives_bytes`: so many are taken from a client before anybody reads them."""
    failed: list[BaseException] = []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        if receives_bytes is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
        listening.bind((host, 0))
        listening.listen()
        found = Wire(listening.getsockname()[1])

        def one(talk: Talk, peer: Peer) -> None:
            with peer.socket:
                try:
                    talk(peer)
                except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                    pass  # the client has had enough
                except BaseException as error:
                    failed.append(error)

        def serve() -> None:
            with suppress(OSError):  # closed below
                for talk in talks:
                    found.peers.append(Peer(listening.accept()[0]))
                    threads.append(threading.Thread(target=one, args=(talk, found.peers[-1]), daemon=True))
                    threads[-1].start()

        threads: list[threading.Thread] = []
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield found
        while len(found.peers) < len(talks) and select.select([listening], [], [], 0)[0]:
            time.sleep(0.001)  # a client that was fast: its connection is there, and the thread has not taken it yet
        listening.shutdown(socket.SHUT_RDWR)
        server.join(30)
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    if failed:
        raise failed[0]
    assert len(talks) == len(found.peers)
