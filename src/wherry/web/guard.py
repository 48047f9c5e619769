"""Guard: who may ask the page, and with what. It stands before everything that the page answers."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors {ancestors}"
)
#: The pages in which a notebook shows the page: Jupyter on this machine, and VS Code.
_NOTEBOOKS = "http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"


@dataclass(frozen=True)
class Access:
    """Who may see the page.

    `token`: what a request must know, in its query once and in a cookie then; None: everybody who reaches the port.
    `names`: host names under which the page may be asked, besides localhost and addresses. `in_frames`: notebooks may show it.
    """

    token: str | None = None
    names: Collection[str] = ()
    in_frames: bool = False


class Guard:
    """Refuses what is not a GET or HEAD, for another host, or without the token; gives each answer its security headers.

    A page of another site that makes its name lead to this machine ("DNS rebinding") sends its own name as Host: it is refused.
    The token is taken out of the address at once, so that a copied link does not hold it.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        ancestors = _NOTEBOOKS if access.in_frames else "'none'"
        self._headers = {
            "content-security-policy": _POLICY.format(ancestors=ancestors),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-resource-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
            "cache-control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on, as ASGI has it."""
        if scope["type"] != "http":  # the start and the end of the server
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page only reads: GET and HEAD.\n", 405, {"allow": "GET, HEAD"})
        if not is_own_host(headers.get("host", ""), self._access.names):
            return PlainTextResponse("This address is not one of this page's. Use the one that `wherry ui` has printed.\n", 421)
        if self._access.token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        if given is not None and self._is_right(given):
            # Always a path of this page: `//host` would lead elsewhere.
            path = "/" + scope["path"].lstrip("/")
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(_cookie_name(scope), given, httponly=True, samesite="strict")
            return answer
        if self._is_right(_cookie(headers.get("cookie", ""), _cookie_name(scope))):
            return None
        return PlainTextResponse("Open the address with the token that `wherry ui` has printed.\n", 403)

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), (self._access.token or "").encode())


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this page: localhost, an address of any port (of an ssh tunnel, too), or one of `names`."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if name == "localhost" or name in {one.lower() for one in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie_name(scope: Scope) -> str:
    """One for each port: browsers send a cookie to all ports of a host."""
    server = scope.get("server")
    return f"wherry-token-{server[1] if server else 0}"


def _cookie(text: str, name: str) -> str:
    try:
        found = SimpleCookie(text).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
