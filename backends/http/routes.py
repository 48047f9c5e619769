"""The way to a server: its address, TLS, a proxy, and how long to wait. It makes the sockets."""

from __future__ import annotations

import base64
import os
import re
import socket
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from wherry.backends.http.head import MOST_HEAD_BYTES, parse_head
from wherry.backends.http.tls import Channel
from wherry.backends.http.wire_errors import (
    ConnectError,
    DisconnectedError,
    ProtocolError,
    ProxyLoginError,
    TLSError,
    UnknownWay,
)
from wherry.errors import ConfigError

#: What all readers of a proxy's address understand alike.
_PROXY = re.compile(r"(?:(\w+)://)?(?:[^/?#]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^@:/?#\[\]\s]+)(?::([0-9]{0,5}))?(?:/[^@?#]*)?", re.ASCII)
#: The kinds of proxies that every library speaks to.
HTTP_PROXIES = frozenset({"http", "https"})


@dataclass(frozen=True)
class Route:
    """Where requests go. `trust`: how to verify the server; None: plain HTTP. `proxy`: through it TLS is tunnelled.

    No byte for `timeout_s` in the direction that is waited for is a StalledError.
    """

    host: str
    port: int
    trust: ssl.SSLContext | None
    connect_timeout_s: float
    timeout_s: float
    #: May have a password.
    proxy: SplitResult | None = field(default=None, repr=False)

    def connect(self) -> socket.socket:
        """A new connection to the server, through the proxy if there is one. Raises ConnectError."""
        host, port = (self.host, self.port) if self.proxy is None else (self.proxy.hostname, self.proxy.port or 80)
        try:
            plain = socket.create_connection((host, port), self.connect_timeout_s)
        except OSError as error:  # a name that nobody knows, too
            raise ConnectError(f"no connection to {_authority(host or '', port)}: {error}") from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self.proxy is not None:
                self._tunnel(plain, self.proxy)
        except BaseException:
            plain.close()
            raise
        return plain

    def secure(self, plain: socket.socket) -> Channel | None:
        """Agree upon TLS over a connection, if there must be. Raises TLSError, ConnectError."""
        if self.trust is None:
            return None
        try:
            channel = Channel(plain, self.trust, self.host, self.timeout_s)
            channel.agree(self.connect_timeout_s)
            return channel
        except ssl.SSLError as error:
            raise TLSError(str(error)) from error
        except (OSError, ValueError) as error:  # ValueError: a host name that none can have
            raise ConnectError(f"no TLS with {_authority(self.host, self.port)}: {error}") from error

    def _tunnel(self, plain: socket.socket, proxy: SplitResult) -> None:
        """Ask the proxy for a connection to the server ("RFC 9110", section 9.3.6)."""
        where = _authority(self.host, self.port)
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        if proxy.username is not None:
            user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(user).decode()}")
        try:
            plain.sendall("\r\n".join([*lines, "", ""]).encode())
            answer, give_up_s = b"", time.monotonic() + 2 * self.connect_timeout_s
            while not answer.endswith(b"\r\n\r\n"):  # byte by byte: what follows is TLS, and not for us
                if not (byte := plain.recv(1)) or len(answer) > MOST_HEAD_BYTES:
                    raise DisconnectedError("it hung up")
                answer += byte
                if time.monotonic() > give_up_s:
                    raise TimeoutError("its answer does not end")
            status = parse_head(answer).status
        except (OSError, DisconnectedError, ProtocolError) as error:
            raise ConnectError(f"the proxy {proxy.hostname} gave no connection: {error}") from error
        if not 200 <= status < 300:
            kind = ProxyLoginError if status == 407 else ConnectError
            raise kind(f"the proxy {proxy.hostname} gave no connection: it answered {status}")


def _authority(host: str, port: int) -> str:
    """As it is written in an address ("RFC 3986", section 3.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def route_to(
    url: SplitResult, authorities: str | None, proxy_address: str | None, connect_timeout_s: float, timeout_s: float
) -> Route:
    """The way to the server of this address. `authorities`: the file or folder of those to trust; None: any certificate is good.

    Raises UnknownWay if this client cannot, or must not, go it.
    """
    trust, proxy = None, None
    if url.scheme == "https":
        if authorities is None:
            raise UnknownWay("the server's certificate is not to be verified")
        try:
            trust = trusting(authorities)
        except OSError as error:
            raise UnknownWay(f"the authorities in {authorities} cannot be read: {error}") from error
    if proxy_address:
        proxy = proxy_of(proxy_address)
        if proxy is None or trust is None:
            raise UnknownWay("the way there is a proxy that makes no tunnels of plain HTTP")
    return Route(url.hostname or "", url.port or (80 if trust is None else 443), trust, connect_timeout_s, timeout_s, proxy)


def trusting(authorities: str) -> ssl.SSLContext:
    """TLS 1.2 or later, with certificates of the authorities in this file or folder, for exactly the host that was asked for.

    Raises OSError for what cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it verifies the chain and the host's name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: it would want an answer in the middle of a body
    context.set_alpn_protocols(["http/1.1"])
    if Path(authorities).is_dir():
        context.load_verify_locations(capath=authorities)
    else:
        context.load_verify_locations(cafile=authorities)
    return context


def check_proxy(address: str | None, kinds: frozenset[str]) -> None:
    """ConfigError for a proxy's address that cannot be read, or of another kind, before a library shows it with its password."""
    if not address:
        return
    found = _PROXY.fullmatch(address)
    if found is None or int(found[2] or 0) > 65535:
        raise ConfigError(
            "the proxy's address in the environment cannot be read: write HTTPS_PROXY (HTTP_PROXY for plain HTTP) as "
            "http://user:password@host:port, and in the password %2F for '/', %3F for '?', %23 for '#'"
        )
    if (found[1] or "http").lower() not in kinds:
        raise ConfigError(f"the proxy in the environment is of the kind {found[1]}: use one of {', '.join(sorted(kinds))}")


def proxy_of(address: str) -> SplitResult | None:
    """A proxy that Route can use, from its address; None for any other kind."""
    parts = urlsplit(address if "//" in address else f"http://{address}")
    return parts if parts.scheme == "http" and parts.hostname and os.path.basename(parts.path) == "" else None
