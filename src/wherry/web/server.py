"""The server of the page: its address, its start, its end."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wherry.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from wherry.web.serving import Serving

DEFAULT_PORT = 8765
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
#: How many ports after the default one are tried where that is in use.
_MORE_PORTS = 20


@dataclass(frozen=True)
class Address:
    """Where the page is, once it is bound. `url` holds the token, if there is one."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        """What is opened in a browser."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.host, self.host)  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/" + (f"?token={self.token}" if self.token else "")


class Server:
    """The page over the runs below `uris`. It is bound when it is made; `run()` answers until `stop()`, a signal or Ctrl-C.

    Raises ConfigError for a port that is in use (without `port`, the next free one after 8765 is taken) and for a host that is
    not of this machine; MissingExtraError without the extra `ui`. Any host but this machine's loopback needs a token, which is
    made here and is in `address.url`; `needs_token` asks for one there as well.
    """

    def __init__(
        self,
        uris: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        needs_token: bool = False,
        in_frames: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> None:
        _check_extra()
        from wherry.runs import Runs

        token = secrets.token_urlsafe(24) if needs_token or host not in _LOOPBACK else None
        self._socket = bound_socket(host, port)
        self.address = Address(host, self._socket.getsockname()[1], token)
        try:
            self._runs = Runs(*uris, options=options)
        except BaseException:
            self._socket.close()
            raise
        self._uris, self._in_frames = list(uris), in_frames
        self._options = dict(options or {})
        self._serving: Serving | None = None
        self._thread: threading.Thread | None = None

    def run(self, on_start: Callable[[], object] = lambda: None) -> None:
        """Answer until it is stopped. `on_start` is called when the page can be opened. KeyboardInterrupt after Ctrl-C."""
        asyncio.run(self._serve(on_start))

    def start(self) -> None:
        """Answer in a thread of its own until stop(); returns when the page can be opened."""
        is_up = threading.Event()

        def answer() -> None:
            try:
                self.run(is_up.set)
            finally:
                is_up.set()  # if it could not start, start() must not wait for ever

        self._thread = threading.Thread(target=answer, name="wherry-ui", daemon=True)
        self._thread.start()
        is_up.wait()

    def stop(self) -> None:
        """End what run() or start() began, and wait for the thread of start(). Other threads may call; again is fine."""
        if self._serving is not None:
            self._serving.should_exit = True
        if self._thread is not None:
            self._thread.join()

    async def _serve(self, on_start: Callable[[], object]) -> None:
        from wherry.web.known_rows import Listing

        listing = Listing(self._runs)
        listing.rows()  # the bucket is listed while the rest is imported, and the browser starts

        from wherry.store.registry import split_options
        from wherry.uri import parse_uri
        from wherry.web import uplot
        from wherry.web.app import make_app
        from wherry.web.guard import Access
        from wherry.web.serving import Serving
        from wherry.web.site import Site

        host, token = self.address.host, self.address.token
        names = () if host in _LOOPBACK else (host, socket.gethostname())
        public, _ = split_options(parse_uri(self._uris[0]).scheme, self._options)
        site = Site(self._runs, listing, self._uris, uplot.is_there(), public, asyncio.Event())
        threading.Thread(target=_import_early, name="wherry-ui-imports", daemon=True).start()
        self._serving = Serving(make_app(site, Access(token, names, self._in_frames)), site.ending, on_start)
        try:
            await self._serving.serve(sockets=[self._socket])
        finally:
            self._runs.close()
            self._socket.close()


def bound_socket(host: str, port: int | None) -> socket.socket:
    """A listening socket; without `port`, at the next free one from 8765 on. ConfigError for a port in use, a host not here."""
    try:
        found = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror}; use 127.0.0.1, or an address of this machine") from error
    family, kind, protocol, _, place = found[0]
    ports = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + _MORE_PORTS), 0]
    for number in ports:
        one = socket.socket(family, kind, protocol)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((place[0], number, *place[2:]))
            one.listen(128)
        except OSError as error:
            one.close()
            if number == ports[-1]:
                advice = "give another --port, or none" if port is not None else "use 127.0.0.1, or an address of this machine"
                raise ConfigError(f"{host} port {number}: {error.strerror}; {advice}") from error
            continue
        return one
    raise AssertionError("the last port returns or raises")


def _import_early() -> None:
    """Import what the first chart needs, which takes half a second, before somebody waits for it."""
    import tsdownsample  # noqa: F401

    with suppress(ImportError):  # without it lines are read
        import pyarrow.parquet  # noqa: F401


def _check_extra() -> None:
    try:
        import jinja2  # noqa: F401
        import numpy  # noqa: F401
        import starlette  # noqa: F401
        import tsdownsample  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"the page needs {error.name}: pip install 'wherry[ui]'") from error
