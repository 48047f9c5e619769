"""Requests for single objects past requests and urllib3, which take 0.7 ms of processor time each, and send 256 KiB at a time.

google-auth gives the token, requests the proxies and the authorities. What comes back is a `requests.Response`, so that one table
of errors holds for both ways.
"""

from __future__ import annotations

import logging
import re
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests import PreparedRequest, Response, Session
from requests.structures import CaseInsensitiveDict
from requests.utils import DEFAULT_CA_BUNDLE_PATH, select_proxy

from wherry.backends.gcs.body import FileBody
from wherry.backends.http.client import Answer, Client, Request, head_of
from wherry.backends.http.routes import route_to
from wherry.backends.http.wire_errors import ProtocolError, UnknownWay
from wherry.errors import PermanentError

if TYPE_CHECKING:
    from wherry.backends.gcs.options import GCSOptions

log = logging.getLogger("wherry.gcs")
#: Of an answer that is no object's bytes. Google's have some thousand.
_MOST_BYTES = 2**22
#: 308 means that only of a request which is none of a session.
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass(frozen=True)
class Authority:
    """Where tokens come from: google-auth's credentials, and what asks for new ones, if a refused one can be replaced."""

    credentials: Any
    tokens: Callable[..., Any]
    is_renewable: bool


@dataclass
class Direct:
    """Requests to one server."""

    client: Client
    host: str
    user_agent: str
    authority: Authority
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | FileBody = b"",
        *,
        is_bare: bool = False,
        is_repeatable: bool = True,
        is_stream: bool = False,
    ) -> Response | None:
        """Make a request, and return what requests would; None: it is one for requests, as the server names another address.

        `is_bare`: no token goes along, and a redirect is an answer as any other. `is_stream`: the caller reads the body of a
        good answer, and closes it. Raises WireError, ShortFile, UnreadableFile and what google-auth does.
        """
        path = urlsplit(url)
        target = f"{path.path}?{path.query}" if path.query else path.path
        given = {**headers, **({} if is_bare else self._authorization(method, url))}
        answer = self._send(method, target, given, body, is_repeatable)
        if answer.status == 401 and self.authority.is_renewable and not is_bare:
            answer.close()
            given = {**headers, **self._authorization(method, url, refused=given)}
            answer = self._send(method, target, given, body, is_repeatable)
        if answer.status in _REDIRECTS and not is_bare:
            answer.close()
            return None
        return _Answered(answer, method, url, is_stream=is_stream and answer.status in (200, 206))

    def _authorization(self, method: str, url: str, refused: Mapping[str, str] | None = None) -> dict[str, str]:
        """The headers that google-auth adds, with a token that is good. `refused`: one that went with these headers is not."""
        credentials, tokens = self.authority.credentials, self.authority.tokens
        headers: dict[str, str] = {}
        if refused is None and credentials.valid:
            credentials.before_request(tokens, method, url, headers)
            return headers
        with self._lock:  # one thread asks for a new token, the others wait for it
            credentials.before_request(tokens, method, url, headers)
            if refused is not None and headers.get("authorization") == refused.get("authorization"):
                credentials.refresh(tokens)
                headers = {}
                credentials.before_request(tokens, method, url, headers)
        return headers

    def _send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | FileBody, is_repeatable: bool) -> Answer:
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {self.host}",
            f"User-Agent: {self.user_agent}",
            *[f"{name}: {text}" for name, text in headers.items()],
        ]
        if body or method in ("PUT", "POST"):
            lines.append(f"Content-Length: {len(body)}")
        try:
            if not all(map(_TOKEN.fullmatch, headers)):
                raise ValueError("a header's name has other characters")
            head = head_of(lines)
        except ValueError as error:  # in a token that was given, say
            raise PermanentError(f"the request cannot be sent: {error}") from None
        return self.client.ask(Request(method, head, body if isinstance(body, bytes) else body.content(), is_repeatable))


class _Answered(Response):
    """An answer as requests gives it. What is no stream is read to its end, and decoded."""

    def __init__(self, answer: Answer, method: str, url: str, *, is_stream: bool) -> None:
        self._next = None  # all that the base class sets, but for its jar of cookies
        self.status_code = answer.status
        self.headers = CaseInsensitiveDict(answer.headers)
        self.url = url
        self.encoding = "utf-8"
        self.reason = ""
        self.history = []
        self.request = PreparedRequest()
        self.request.method, self.request.url = method, url
        self.raw = _Raw(answer)
        self._content: Any = False
        self._content_consumed = False
        if not is_stream:
            self._content, self._content_consumed = _content(answer), True

    def close(self) -> None:
        self.raw.close()


class _Raw:
    """What is used of urllib3's answers."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def read(self, size_bytes: int, decode_content: bool = False) -> bytes:
        return self._answer.read(size_bytes)

    def close(self) -> None:
        self._answer.close()


def _content(answer: Answer) -> bytes:
    data = answer.read_all(_MOST_BYTES + 1)
    if answer.headers.get("content-encoding", "").lower() == "gzip":
        try:
            data = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, _MOST_BYTES + 1)
        except zlib.error as error:
            raise ProtocolError(f"the answer is not what it says, gzip: {error}") from error
    if len(data) > _MOST_BYTES:
        raise ProtocolError(f"the answer has more than {_MOST_BYTES} bytes")
    return data


def direct_of(
    session: Session, endpoint: str, authority: Authority, options: GCSOptions, note: Callable[[], None]
) -> Direct | None:
    """Requests to this endpoint, as the session would make them; None if only requests can, or is to."""
    if options.sdk_only:
        return None
    url = urlsplit(endpoint)
    settings = session.merge_environment_settings(endpoint, {}, None, None, None)
    given = settings["verify"] if options.verify is True else options.verify
    authorities = str(DEFAULT_CA_BUNDLE_PATH if given is True else given) if given else None
    try:
        route = route_to(url, authorities, select_proxy(endpoint, settings["proxies"]), options.timeout_s, options.timeout_s)
    except UnknownWay as reason:
        log.info("requests makes all requests to %s: %s", endpoint, reason)
        return None
    host = url.netloc.lower().removesuffix(":443" if url.scheme == "https" else ":80")
    return Direct(Client(route, options.max_connections, note), host, str(session.headers["User-Agent"]), authority)
