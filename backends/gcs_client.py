"""How a bucket of Google Cloud Storage is reached: the storage options, credentials, and the sessions that requests go over.

google-auth's own chain of credentials is asked at the first call, unless the options give some. No message shows any of them.
"""

# google-auth and google-api-core say that they are typed, but much of them is not:
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google.auth
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Client
from google.oauth2 import credentials as user_account
from google.oauth2 import service_account
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidJSONError

from wherry.errors import ConfigError

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
CREDENTIALS_HINT = (
    "set GOOGLE_APPLICATION_CREDENTIALS, run 'gcloud auth application-default login', "
    "or give token, credentials_file, credentials_json or anonymous=True in storage_options"
)


@dataclass(frozen=True)
class Connection:
    """A client, its authorized session, and one that sends no credentials: the URL of an upload session is permission enough."""

    client: Client
    authorized: AuthorizedSession
    bare: Session

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        self.bare.close()


class Options:
    """The storage options, checked: wrong ones are a ConfigError before anything is sent."""

    KNOWN = (
        "anonymous",
        "credentials_file",
        "credentials_json",
        "endpoint_url",
        "max_connections",
        "project",
        "timeout_s",
        "token",
        "upload",
        "verify",
    )

    def __init__(self, given: Mapping[str, object]) -> None:
        if unknown := sorted(map(str, set(given) - set(self.KNOWN))):
            raise ConfigError(f"unknown storage option(s) {', '.join(unknown)} for gs://: known are {', '.join(self.KNOWN)}")
        given = {name: value for name, value in given.items() if value is not None}
        self.endpoint_url = _text(given, "endpoint_url")
        if self.endpoint_url is not None and not re.match(r"https?://[^/?#@]+(/[^?#]*)?$", self.endpoint_url):
            raise ConfigError("storage option 'endpoint_url' must be http://host:port or https://host, and may have a path")
        self.project = _text(given, "project")
        verify = given.get("verify", True)
        if not isinstance(verify, (bool, str)) or (isinstance(verify, str) and not os.path.exists(verify)):
            raise ConfigError(f"storage option 'verify' is {verify!r}: use True, False or the path of a CA file")
        self.verify = verify
        timeout_s, max_connections = given.get("timeout_s", 60), given.get("max_connections", 32)
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise ConfigError(f"storage option 'timeout_s' is {timeout_s!r}: it must be a number above 0")
        if isinstance(max_connections, bool) or not isinstance(max_connections, int) or max_connections < 1:
            raise ConfigError(f"storage option 'max_connections' is {max_connections!r}: it must be a whole number, at least 1")
        self.timeout_s, self.max_connections = float(timeout_s), max_connections
        upload = given.get("upload", "compose")
        if upload not in ("compose", "session"):
            raise ConfigError(f"storage option 'upload' is {upload!r}: use 'compose' or 'session'")
        self.upload = upload
        self._credentials = _credentials(given)
        if self._credentials is None and self.endpoint_url is None and os.environ.get("STORAGE_EMULATOR_HOST"):
            self._credentials = AnonymousCredentials()

    def connect(self) -> Connection:
        """Make the client and its sessions."""
        credentials: Any = self._credentials
        codes: tuple[int, ...] = (401,)
        if credentials is None:
            credentials, _ = google.auth.default(scopes=_SCOPES)
        elif not isinstance(credentials, service_account.Credentials) and not getattr(credentials, "refresh_token", None):
            codes = ()  # there is nothing to refresh: the server's own words are better than google-auth's
        authorized, bare = _AuthorizedSession(credentials, refresh_status_codes=codes), _BareSession()
        adapter = HTTPAdapter(pool_maxsize=self.max_connections, pool_block=True, max_retries=0)
        for session in (authorized, bare):
            session.verify = self.verify
            session.mount("http://", adapter)
            session.mount("https://", adapter)
        endpoint = {} if self.endpoint_url is None else {"api_endpoint": self.endpoint_url.rstrip("/")}
        client = Client(project=self.project, credentials=credentials, _http=authorized, client_options=endpoint)
        # google-cloud-storage 3.17 asks for the bucket's metadata in a background thread, with retries of its own and even when
        # no tracing is on. Every use of this cache is guarded, so that without it nothing is asked.
        client._bucket_metadata_cache = None
        logging.getLogger("urllib3.connectionpool").addFilter(_leave_out_session_urls)
        return Connection(client, authorized, bare)


class _AuthorizedSession(AuthorizedSession):
    """A session whose own `verify` wins over $REQUESTS_CA_BUNDLE (https://github.com/psf/requests/issues/3829).

    An answer of 200 without a JSON object, as something between us and the store may give, is an error like a broken connection:
    the client would take it for an object without properties.
    """

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        if self.verify is not True:
            options["verify"] = self.verify
        answer = super().send(request, **options)
        describes = answer.status_code == 200 and request.method != "DELETE" and not options.get("stream")
        if describes and not isinstance(answer.json(), dict):
            raise InvalidJSONError("the answer is no JSON object", response=answer)
        return answer


class _BareSession(Session):
    """The same without credentials; ``~/.netrc`` is not asked for any either."""

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        request.headers.pop("Authorization", None)
        if self.verify is not True:
            options["verify"] = self.verify
        return super().send(request, **options)


def scrub(text: str) -> str:
    """The text without the URLs of upload sessions: whoever has one may write the object."""
    return re.sub(r"/upload/[^\s'\"]*", "/upload/...", text)


def _leave_out_session_urls(record: logging.LogRecord) -> bool:
    """Scrub a line of urllib3's log, which at level DEBUG tells the URL of each request."""
    if isinstance(record.args, tuple):
        record.args = tuple(scrub(each) if isinstance(each, str) else each for each in record.args)
    return True


def _text(given: Mapping[str, object], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(f"storage option {name!r} must be text that is not empty")
    return value


def _credentials(given: Mapping[str, object]) -> Any:  # google-auth has several kinds without a common type in its hints
    """What the options give; None: nothing. No message shows any of it."""
    anonymous = given.get("anonymous", False)
    if not isinstance(anonymous, bool):
        raise ConfigError(f"storage option 'anonymous' is {anonymous!r}: use True or False")
    kinds = [name for name in ("token", "credentials_file", "credentials_json") if name in given]
    kinds += ["anonymous"] if anonymous else []
    if len(kinds) > 1:
        raise ConfigError(f"the storage options {' and '.join(kinds)} exclude each other: give one of them")
    if anonymous:
        return AnonymousCredentials()
    if (token := _text(given, "token")) is not None:
        return user_account.Credentials(token)
    if "credentials_file" in given:
        path = Path(_text(given, "credentials_file") or "").expanduser()
        try:
            return _account(path.read_text(encoding="utf-8"), "credentials_file")
        except OSError as error:
            raise ConfigError(f"the credentials_file {path} cannot be read: {error.strerror}") from error
    return _account(given["credentials_json"], "credentials_json") if "credentials_json" in given else None


def _account(given: object, name: str) -> Any:
    """The credentials of a key file's content, text or dict."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise ConfigError(f"storage option {name!r} is no JSON: give a key file's content") from None  # its text is secret
    kind = given.get("type") if isinstance(given, dict) else None
    try:
        if kind == "service_account":
            return service_account.Credentials.from_service_account_info(given, scopes=_SCOPES)
        if kind == "authorized_user":
            return user_account.Credentials.from_authorized_user_info(given, scopes=_SCOPES)
    except (ValueError, GoogleAuthError):
        raise ConfigError(f"storage option {name!r} is incomplete or damaged: take a new key file of type {kind}") from None
    raise ConfigError(
        f"storage option {name!r} must be of type service_account or authorized_user, not {kind!r}: "
        "for other kinds set GOOGLE_APPLICATION_CREDENTIALS"
    )
