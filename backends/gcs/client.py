"""How a bucket of Google Cloud Storage is reached: credentials, and the sessions that requests go over.

google-auth's own chain of credentials is asked at the first call, unless the options give some. No message shows any of them.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import warnings
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import google.auth
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession, Request
from google.oauth2 import credentials as user_account, service_account
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.utils import default_user_agent, select_proxy
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import InsecureRequestWarning

from wherry.backends.gcs.direct_requests import Authority, Direct, direct_of
from wherry.backends.gcs.options import GCSOptions
from wherry.backends.http.routes import HTTP_PROXIES, check_proxy
from wherry.backends.tally import Tally
from wherry.errors import ConfigError
from wherry.store.options import check_endpoint

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
CREDENTIALS_HINT = (
    "set GOOGLE_APPLICATION_CREDENTIALS, run 'gcloud auth application-default login', "
    "or give token, credentials_file, credentials_json or anonymous=True in storage_options"
)


#: Google redirects nothing; a balancer before another server may, to https say.
_MOST_REDIRECTS = 3
#: With PySocks requests speaks these, too.
_PROXIES = HTTP_PROXIES | {"socks4", "socks4a", "socks5", "socks5h"}


@dataclass(frozen=True)
class Connection:
    """An authorized session, and one that sends no credentials: the URL of an upload session is permission enough."""

    #: Where requests go, without a slash at its end.
    endpoint: str
    authorized: AuthorizedSession
    bare: Session
    #: Requests past the sessions; None: there are none.
    direct: Direct | None

    def close(self) -> None:
        """Close the connections."""
        if self.direct is not None:
            self.direct.client.close()
        self.authorized.close()
        self.bare.close()


def connect(options: GCSOptions, tally: Tally) -> Connection:
    """Make the sessions. ConfigError for a key file that google-auth cannot read, and for an emulator's address that is none."""
    credentials = _credentials(options)
    codes: tuple[int, ...] = (401,)
    if credentials is None:
        credentials, _ = google.auth.default(scopes=_SCOPES)
    elif not isinstance(credentials, service_account.Credentials) and not getattr(credentials, "refresh_token", None):
        codes = ()  # there is nothing to refresh: the server's own words are better than google-auth's
    tokens = _tokens()
    authorized, bare = AuthorizedSession(credentials, refresh_status_codes=codes, auth_request=tokens), Session()
    bare.auth = _with_no_credentials
    adapter = _Adapter(tally, options.verify, pool_maxsize=options.max_connections, pool_block=True, max_retries=0)
    adapter.poolmanager.pool_classes_by_scheme = {"http": _LastingHTTPPool, "https": _LastingHTTPSPool}
    if options.verify is False:  # said once by wherry itself
        warnings.filterwarnings("ignore", category=InsecureRequestWarning)
    for session in (authorized, bare):
        session.max_redirects = _MOST_REDIRECTS
        session.headers["User-Agent"] = f"{default_user_agent()} wherry"
        session.mount("http://", adapter)
        session.mount("https://", adapter)
    endpoint = options.endpoint_url
    if endpoint is None and (emulator := os.environ.get("STORAGE_EMULATOR_HOST")):
        endpoint = check_endpoint(emulator, "the variable STORAGE_EMULATOR_HOST")
    if endpoint is None:
        endpoint = f"https://storage.{credentials.universe_domain}"
    logging.getLogger("urllib3.connectionpool").addFilter(_leave_out_session_urls)
    endpoint = endpoint.rstrip("/")
    proxies = authorized.merge_environment_settings(endpoint, {}, None, None, None)["proxies"]
    check_proxy(select_proxy(endpoint, proxies), _PROXIES)
    authority = Authority(credentials, partial(tokens, timeout=options.timeout_s), is_renewable=bool(codes))
    direct = direct_of(authorized, endpoint, authority, options, tally.add)
    return Connection(endpoint, authorized, bare, direct)


def _tokens() -> Request:
    """What asks for tokens: again if the connection breaks, as google-auth's own does."""
    session = Session()
    session.mount("https://", HTTPAdapter(max_retries=3))
    return Request(session)


def _with_no_credentials(request: PreparedRequest) -> PreparedRequest:
    """Have requests not ask ``~/.netrc`` for any."""
    return request


class _Adapter(HTTPAdapter):
    """Counts what it sends. Its `verify` wins over $REQUESTS_CA_BUNDLE (https://github.com/psf/requests/issues/3829)."""

    def __init__(self, tally: Tally, verify: bool | str, **options: Any) -> None:
        super().__init__(**options)
        self._tally = tally
        self._verify = verify

    def send(self, *arguments: Any, **options: Any) -> Response:
        self._tally.add()
        if self._verify is not True:
            options["verify"] = self._verify
        return super().send(*arguments, **options)


class _Lasting:
    """A pool of connections that works until it is closed, also while the interpreter ends and a mirror sends its last lines.

    urllib3 (2.x) empties the queue of every pool by then, for good: whoever asks for a connection afterwards would wait for ever.
    """

    QueueCls: type[queue.LifoQueue[Any]]
    pool: queue.LifoQueue[Any] | None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        assert self.pool is not None, "it was just made"
        size = self.pool.maxsize
        self.pool = places = self.QueueCls(size)
        for _ in range(size):
            places.put(None)
        weakref.finalize(self, _close_connections, places).atexit = False


class _LastingHTTPPool(_Lasting, HTTPConnectionPool):
    pass


class _LastingHTTPSPool(_Lasting, HTTPSConnectionPool):
    pass


def _close_connections(places: queue.LifoQueue[Any]) -> None:
    while True:
        try:
            connection = places.get(block=False)
        except queue.Empty:
            return
        if connection is not None:
            connection.close()


def scrub(text: str) -> str:
    """The text without the URLs of upload sessions: whoever has one may write the object."""
    return re.sub(r"/upload/[^\s'\"]*", "/upload/...", text)


def _leave_out_session_urls(record: logging.LogRecord) -> bool:
    """Scrub a line of urllib3's log, which at level DEBUG tells the URL of each request."""
    if isinstance(record.args, tuple):
        record.args = tuple(scrub(each) if isinstance(each, str) else each for each in record.args)
    return True


def _credentials(options: GCSOptions) -> Any:  # google-auth has several kinds without a common type in its hints
    """What the options give; None: nothing. No message shows any of it."""
    if options.is_anonymous:
        return AnonymousCredentials()
    if options.token is not None:
        return user_account.Credentials(options.token)
    if (key := options.key) is None:
        return None
    try:
        if key["type"] == "service_account":
            return service_account.Credentials.from_service_account_info(key, scopes=_SCOPES)
        return user_account.Credentials.from_authorized_user_info(key, scopes=_SCOPES)
    except (ValueError, GoogleAuthError):
        raise ConfigError(f"storage option {options.key_name!r} is damaged: take a new key file of type {key['type']}") from None
