"""TLS by way of memory, against a server in memory."""

from __future__ import annotations

import os
import socket
import ssl
from typing import cast

import pytest

from servers import tls
from wherry.backends.http.routes import trusting
from wherry.backends.http.tls import Channel


class Server:
    """A server of TLS, as the socket that leads to it: what it has said can be received, and nothing waits."""

    def __init__(self, certificates: tls.Certificates) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.chain, certificates.key)
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._came, self._goes, server_side=True)
        self.is_agreed = False
        self.n_calls = 0
        #: What one call gives.
        self.most_bytes = 2**30

    def settimeout(self, timeout_s: float) -> None:
        """Nothing waits."""

    def sendall(self, data: bytes) -> None:
        self._came.write(data)
        if not self.is_agreed:
            try:
                self.tls.do_handshake()
                self.is_agreed = True
            except ssl.SSLWantReadError:
                pass

    def recv_into(self, buffer: memoryview, n_bytes: int, flags: int) -> int:
        assert self._goes.pending, "it would wait for ever"
        assert not flags & socket.MSG_WAITALL or n_bytes <= self._goes.pending, "it would wait for ever"
        self.n_calls += 1
        data = self._goes.read(min(n_bytes, self.most_bytes))
        buffer[: len(data)] = data
        return len(data)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tls.Certificates:
    return tls.make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("record_bytes", [1, 100, 9_000, 16_384])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_nothing_is_waited_for_that_does_not_come(
    certificates: tls.Certificates, record_bytes: int, version: ssl.TLSVersion
) -> None:
    server, trust = Server(certificates), trusting(str(certificates.authority))
    trust.maximum_version = version
    channel = Channel(cast("socket.socket", server), trust, "localhost", 30.0)
    channel.agree(30.0)
    sent = os.urandom(min(600_000, 2_000 * record_bytes))
    for at in range(0, len(sent), record_bytes):
        server.tls.write(sent[at : at + record_bytes])
    server.n_calls = 0
    for size_bytes in (1, len(sent) // 2, len(sent) - len(sent) // 2 - 1):
        took, sent = sent[:size_bytes], sent[size_bytes:]
        came = b""
        while len(came) < size_bytes:
            came += channel.recv(size_bytes - len(came), socket.MSG_WAITALL)
        assert took == came
    assert server.n_calls <= 8


def test_a_record_that_drips_is_given_up(certificates: tls.Certificates) -> None:
    server = Server(certificates)
    channel = Channel(cast("socket.socket", server), trusting(str(certificates.authority)), "localhost", 0.0)
    channel.agree(30.0)
    server.tls.write(bytes(100))
    server.most_bytes = 1
    with pytest.raises(TimeoutError, match="a record does not end"):
        channel.recv(100)
