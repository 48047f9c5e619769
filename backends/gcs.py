"""Objects of Google Cloud Storage: ``gs://bucket/prefix``, through google-cloud-storage's client (JSON API).

The client does the small calls. Bytes go over its authorized session directly, because its own one-request upload
(`Blob.upload_from_file`) holds the whole file in memory, twice, and its download moves 8 KiB at a time. The SDK's retries are off
in every call; what is left is one repetition inside google-auth, when a token that can be refreshed was refused.

- `etag` is the object's generation: it changes with every write, and `if_match` is sent as ifGenerationMatch.
- Parts are objects of their own, ``<key>.wherry-tmp-<id>/<number>``, joined by compose requests in a tree, since one takes at
  most 32. The composite is checked before it is composed, alone, under its final name: a wrong object is never visible there.
  All temporaries are deleted by complete() and abort(); a client that is gone for good leaves them under that prefix. A bucket
  with a retention policy does not let them go, and one with soft delete goes on billing them for a while.
- Objects come back as they are stored: decompressive transcoding is off.

Sources: "Cloud Storage JSON API" reference, "Composite objects", "Request preconditions" and "Transcoding of gzip-compressed
files" of the Cloud Storage documentation.
"""

# google-auth and google-api-core say that they are typed, but much of them is not:
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import base64
import builtins
import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import Any, TypeVar
from urllib.parse import quote

import google.auth
from google.api_core.exceptions import GoogleAPICallError, from_http_response
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Blob, Client
from google.oauth2 import credentials as user_account
from google.oauth2 import service_account
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidJSONError, RequestException, SSLError
from urllib3.exceptions import HTTPError

from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
)
from wherry.store import TEMPORARY_MARK, TOKEN_METADATA, Capabilities, MultipartStore, ObjectMeta, Part, PendingUpload, StoredPart
from wherry.uri import StoreURI

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_MAX_SOURCES = 32
_MAX_NAME_BYTES = 1024
_BLOCK_BYTES = 2**20
#: Compositions and deletions of temporaries that run at once: each waits for an answer and moves no bytes.
_SMALL_CALLS_AT_ONCE = 16
_LISTED = "items(name,size,generation,crc32c,updated,metadata),nextPageToken"
_RATE_LIMITS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_CREDENTIALS_HINT = (
    "set GOOGLE_APPLICATION_CREDENTIALS, run 'gcloud auth application-default login', "
    "or give token, credentials_file, credentials_json or anonymous=True in storage_options"
)

_T = TypeVar("_T")
_R = TypeVar("_R")


class GCSStore(MultipartStore):
    """A bucket. `options`:

    ``endpoint_url``, another server than Google's (else $STORAGE_EMULATOR_HOST, which also means anonymous);
    ``project``, the client's project (calls for objects need none); ``credentials_file``, a key file; ``credentials_json``, the
    same as a dict or as text; ``token``, an access token; ``anonymous`` (False); ``verify`` (True), or False, or the path of a
    CA file; ``timeout_s`` (60), for a connection and for each wait for bytes; ``max_connections`` (32).

    At most one of the four kinds of credentials; without one, google-auth's own chain is asked at the first call.
    """

    capabilities = Capabilities(
        conditional_put=True,
        conditional_complete=True,
        multipart=True,
        checks_crc32c=True,
        ranged_get=True,
        atomic_replace=True,
        metadata=True,
        min_part_size_bytes=1,
        max_part_size_bytes=5 * 2**40,
        max_parts=10_000,
    )

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        self._uri = uri
        self._options = _Options(options)
        self._lock = threading.Lock()
        self._made: tuple[Client, AuthorizedSession] | None = None
        #: A 404 for an object may mean that the bucket is missing. Once a call has succeeded, it does not.
        self._bucket_was_seen = False

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        if_absent: bool = False,
        crc32c: int | None = None,
        metadata: Mapping[str, str] | None = None,
        frozen: bool = False,
    ) -> ObjectMeta:
        """As the contract says: one request, streamed from the file."""
        with _opened(path, os.O_RDONLY, "put", self._uri.uri_for(key)) as fd:
            size = os.fstat(fd).st_size
            return self._send("put", key, key, fd, 0, size, crc32c, metadata or {}, if_absent)

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the contract says. A range that ends past the object's end is an IntegrityError: no retry would help."""
        if end is not None and end <= start:
            self._check_empty_range(key, start, end, if_match)
            return
        uri = self._uri.uri_for(key)
        with ExitStack() as stack:
            fd = stack.enter_context(_opened(path, os.O_WRONLY, "get", uri))
            stack.enter_context(self._translated("get", key))
            client, session = self._connected()
            params = {"alt": "media", **_generation(if_match, "get", uri)}
            headers = {"Accept-Encoding": "gzip"}  # what turns decompressive transcoding off
            if start or end is not None:
                headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
            url = f"{client.api_endpoint}/download/storage/v1/b/{quote(self._uri.root)}/o/{quote(key, safe='')}"
            answer = session.get(url, params=params, headers=headers, stream=True, timeout=self._options.timeout_s)
            stack.enter_context(answer)
            if answer.status_code == 416 and end is None and answer.headers.get("Content-Range") == f"bytes */{start}":
                return  # from the very end on: no bytes
            if answer.status_code not in (200, 206):
                raise from_http_response(answer)
            if if_match is not None and answer.headers.get("X-Goog-Generation", if_match) != if_match:
                raise IntegrityError("the object is another by now", operation="get", uri=uri)
            expected = _announced(answer.headers, answer.status_code, start, end, uri)
            received = 0
            while block := answer.raw.read(_BLOCK_BYTES, decode_content=False):
                # What comes beyond the range must not be written: the next range may be there already, and summed.
                _write(fd, block if expected is None else block[: max(0, expected - received)], start + received, path, uri)
                received += len(block)
            if expected not in (None, received):
                raise TransientError(f"{received} bytes came, {expected} were announced", operation="get", uri=uri)

    def head(self, key: str) -> ObjectMeta:
        """As the contract says; `crc32c` is always the server's own figure."""
        with self._translated("head", key):
            blob = self._blob(key)
            blob.reload(timeout=self._options.timeout_s, retry=None)
            return _described(blob)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """As the contract says, with `crc32c` and `metadata`."""
        for meta in self._listed("list", prefix, prefix):
            if TEMPORARY_MARK not in meta.key:
                yield meta

    def delete(self, key: str) -> None:
        """As the contract says; a missing bucket is an error."""
        self._remove("delete", key, key)

    def begin(
        self,
        key: str,
        *,
        size_bytes: int,
        if_absent: bool = False,
        crc32c: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """As the contract says. An empty object marks the upload as begun: GCS knows nothing of it otherwise.

        The id follows from the token in `metadata`, so that an upload whose begin was not heard of is begun again under the
        same names, and leaves nothing behind.
        """
        token = (metadata or {}).get(TOKEN_METADATA)
        upload_id = secrets.token_hex(16) if token is None else hashlib.sha256(token.encode()).hexdigest()[:32]
        marker = _temporary(key, upload_id) + "begun"
        with suppress(AlreadyExistsError):
            self._send("begin", key, marker, -1, 0, 0, 0, metadata or {}, True)
        return upload_id

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the contract says. An upload that is unknown or over is not noticed here: complete() will say so."""
        name = f"{_temporary(key, upload_id)}{part.number:05d}"
        with _opened(path, os.O_RDONLY, "put_part", self._uri.uri_for(key)) as fd:
            meta = self._send("put_part", key, name, fd, part.start, part.end, part.crc32c, {}, False)
        return StoredPart(part.number, meta.size_bytes, meta.etag or "", meta.crc32c)

    def list_parts(self, key: str, upload_id: str) -> builtins.list[StoredPart]:
        """As the contract says."""
        held = self._temporaries("list_parts", key, upload_id)
        if "begun" not in held:
            words = f"the upload {upload_id} is unknown, done or aborted"
            raise NotFoundError(words, operation="list_parts", uri=self._uri.uri_for(key))
        numbered = sorted((int(tail), meta) for tail, meta in held.items() if tail.isdecimal())
        return [StoredPart(number, meta.size_bytes, meta.etag or "", meta.crc32c) for number, meta in numbered]

    def complete(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[StoredPart],
        *,
        if_absent: bool = False,
        crc32c: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectMeta:
        """As the contract says. NotFoundError also if a part was sent again since: list_parts() tells what is there now.

        Safe to call again after an error. If the error came after the object was made, this then gives AlreadyExistsError,
        NotFoundError or the same object; head() and its token tell.
        """
        uri = self._uri.uri_for(key)
        if not parts:
            raise PermanentError("an upload without parts cannot be completed", operation="complete", uri=uri)
        prefix = _temporary(key, upload_id)
        pieces = [
            self._blob(f"{prefix}{part.number:05d}", int(_generation(part.etag, "complete", uri)["ifGenerationMatch"]))
            for part in sorted(parts, key=lambda part: part.number)
        ]
        level = 0
        while len(pieces) > 1:
            groups = [pieces[at : at + _MAX_SOURCES] for at in range(0, len(pieces), _MAX_SOURCES)]
            targets = [self._blob(f"{prefix}join-{level}-{n:05d}") for n in range(len(groups))]
            with self._translated("complete", key):
                _each(lambda pair: self._compose(*pair), list(zip(targets, groups, strict=True)))
            pieces, level = targets, level + 1
        whole = pieces[0]
        with self._translated("complete", key):
            if len(parts) == 1:
                whole.reload(timeout=self._options.timeout_s, retry=None)
        size = sum(part.size_bytes for part in parts)
        self._check("complete", key, _described(whole), size, crc32c)
        target = self._blob(key)
        target.metadata = dict(metadata or {})
        with self._translated("complete", key, if_absent=if_absent):
            self._compose(target, [whole], if_absent=if_absent)
        meta = _described(target)
        self._check("complete", key, meta, size, crc32c)
        self._clean("complete", key, upload_id)
        return meta

    def abort(self, key: str, upload_id: str) -> None:
        """As the contract says."""
        self._clean("abort", key, upload_id)

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """As the contract says, by their temporary objects, whose age is that of the newest: an upload under way is never old."""
        newest: dict[tuple[str, str], float] = {}
        for meta in self._listed("list_uploads", prefix, prefix):
            key, mark, rest = meta.key.partition(TEMPORARY_MARK)
            if mark:
                upload = (key, rest.partition("/")[0])
                newest[upload] = max(newest.get(upload, 0.0), meta.modified_s or 0.0)
        for (key, upload_id), begun_s in newest.items():
            yield PendingUpload(key, upload_id, begun_s, is_ours=True)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._made is not None:
                self._made[0].close()

    def _connected(self) -> tuple[Client, AuthorizedSession]:
        """The client, and its session; made at the first call because the chain of credentials may ask the network."""
        with self._lock:
            if self._made is None:
                self._made = self._options.connect()
            return self._made

    def _blob(self, name: str, generation: int | None = None) -> Blob:
        client, _ = self._connected()
        return client.bucket(self._uri.root).blob(name, generation=generation)

    def _send(
        self,
        operation: str,
        key: str,
        name: str,
        fd: int,
        start: int,
        end: int,
        crc32c: int | None,
        metadata: Mapping[str, str],
        if_absent: bool,
    ) -> ObjectMeta:
        """Make bytes [start, end) of an open file the object `name`, in one request ("multipart upload", RFC 2387)."""
        resource: dict[str, object] = {"name": name, "contentType": "application/octet-stream", "metadata": dict(metadata)}
        if crc32c is not None:
            resource["crc32c"] = base64.b64encode(crc32c.to_bytes(4, "big")).decode()
        boundary = secrets.token_hex(16)
        body = _RelatedBody(boundary, resource, fd, start, end, operation, self._uri.uri_for(key))
        params = {"uploadType": "multipart", **({"ifGenerationMatch": "0"} if if_absent else {})}
        with self._translated(operation, key, if_absent=if_absent, makes=True):
            client, session = self._connected()
            answer = session.post(
                f"{client.api_endpoint}/upload/storage/v1/b/{quote(self._uri.root)}/o",
                params=params,
                data=body,
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
                timeout=self._options.timeout_s,
            )
            if answer.status_code != 200:
                raise from_http_response(answer)
            blob = self._blob(name)
            blob._set_properties(answer.json())
            meta = _described(blob)
        self._check(operation, key, meta, end - start, crc32c)
        return meta

    def _compose(self, target: Blob, sources: Sequence[Blob], *, if_absent: bool = False) -> None:
        target.content_type = "application/octet-stream"
        condition = 0 if if_absent else None
        target.compose(sources, if_generation_match=condition, timeout=self._options.timeout_s, retry=None)

    def _check(self, operation: str, key: str, meta: ObjectMeta, size_bytes: int, crc32c: int | None) -> None:
        """Compare what the server holds with what was sent. Google has refused a wrong CRC32C before; not every server does."""
        if meta.size_bytes == size_bytes and (crc32c is None or meta.crc32c in (None, crc32c)):
            return
        if operation != "complete" or meta.key == key:
            with self._translated(operation, key):  # that generation only: it may have been replaced by now
                self._blob(meta.key, int(meta.etag or 0)).delete(timeout=self._options.timeout_s, retry=None)
        found = "none" if meta.crc32c is None else f"{meta.crc32c:08x}"
        wanted = "any" if crc32c is None else f"{crc32c:08x}"
        words = f"the server holds {meta.size_bytes} bytes with CRC32C {found}, not {size_bytes} with {wanted}"
        raise IntegrityError(words, operation=operation, uri=self._uri.uri_for(key))

    def _check_empty_range(self, key: str, start: int, end: int, if_match: str | None) -> None:
        with self._translated("get", key):
            blob = self._blob(key)
            blob.reload(timeout=self._options.timeout_s, retry=None)
            meta = _described(blob)
        uri = self._uri.uri_for(key)
        if if_match not in (None, meta.etag):
            raise IntegrityError("the object is another by now", operation="get", uri=uri)
        if not 0 <= start <= end <= meta.size_bytes:
            raise IntegrityError(_beyond(start, end, meta.size_bytes), operation="get", uri=uri)

    def _listed(self, operation: str, key: str, prefix: str) -> Iterator[ObjectMeta]:
        with self._translated(operation, key, makes=True):
            client, _ = self._connected()
            for blob in client.list_blobs(
                self._uri.root, prefix=prefix, fields=_LISTED, timeout=self._options.timeout_s, retry=None
            ):
                yield _described(blob)

    def _temporaries(self, operation: str, key: str, upload_id: str) -> dict[str, ObjectMeta]:
        """The upload's temporary objects, by what follows their common prefix."""
        prefix = _temporary(key, upload_id)
        return {meta.key.removeprefix(prefix): meta for meta in self._listed(operation, key, prefix)}

    def _clean(self, operation: str, key: str, upload_id: str) -> None:
        """Delete an upload's temporaries. Its mark goes last: until then the upload is known and can be aborted again."""
        held = self._temporaries(operation, key, upload_id)
        marker = held.pop("begun", None)
        _each(lambda meta: self._remove(operation, key, meta.key), list(held.values()))
        if marker is not None:
            self._remove(operation, key, marker.key)

    def _remove(self, operation: str, key: str, name: str) -> None:
        try:
            with self._translated(operation, key):
                self._blob(name).delete(timeout=self._options.timeout_s, retry=None)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            return

    @contextmanager
    def _translated(self, operation: str, key: str, *, if_absent: bool = False, makes: bool = False) -> Iterator[None]:
        """Turn the libraries' errors into ours. `makes`: the call needs no object to be there, so that a 404 means the bucket."""
        where = {"operation": operation, "uri": self._uri.uri_for(key)}
        try:
            yield
        except GoogleAPICallError as error:
            if error.code == 404:
                raise self._missing(_words(error), makes, where) from error
            raise _refused(error, if_absent, where) from error
        except (GoogleAuthError, RequestException, HTTPError) as error:
            raise _failed(error, where) from error
        else:
            self._bucket_was_seen = True

    def _missing(self, words: str, makes: bool, where: Mapping[str, str]) -> NotFoundError:
        """The bucket or the object? Google's message does not always say, so a bucket never seen before is looked for once."""
        no_bucket = BucketNotFoundError(words, **where, hint=f"make the bucket {self._uri.root!r} or correct its name")
        if makes or words.startswith("The specified bucket does not exist"):
            return no_bucket
        if not self._bucket_was_seen:
            client, _ = self._connected()
            try:
                page = client.list_blobs(
                    self._uri.root, max_results=1, fields="kind", timeout=self._options.timeout_s, retry=None
                )
                next(page.pages, None)
                self._bucket_was_seen = True
            except GoogleAPICallError as error:
                if error.code == 404:
                    return no_bucket
            except (GoogleAuthError, RequestException):
                return NotFoundError(words, **where)  # the bucket could not be looked at; the answer that came stands
        return NotFoundError(words, **where)


class _Options:
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
        "verify",
    )

    def __init__(self, given: Mapping[str, object]) -> None:
        if unknown := sorted(map(str, set(given) - set(self.KNOWN))):
            raise ConfigError(f"unknown storage option(s) {', '.join(unknown)} for gs://: known are {', '.join(self.KNOWN)}")
        given = {name: value for name, value in given.items() if value is not None}
        self.endpoint_url = _text(given, "endpoint_url")
        if self.endpoint_url is not None and not re.match(r"https?://[^/]", self.endpoint_url):
            raise ConfigError(f"storage option 'endpoint_url' is {self.endpoint_url!r}: write http://host:port or https://host")
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
        self._credentials = _credentials(given)
        if self._credentials is None and self.endpoint_url is None and os.environ.get("STORAGE_EMULATOR_HOST"):
            self._credentials = AnonymousCredentials()

    def connect(self) -> tuple[Client, AuthorizedSession]:
        """Make the client and its session."""
        credentials: Any = self._credentials
        codes: tuple[int, ...] = (401,)
        if credentials is None:
            credentials, _ = google.auth.default(scopes=_SCOPES)
        elif not isinstance(credentials, service_account.Credentials) and not getattr(credentials, "refresh_token", None):
            codes = ()  # there is nothing to refresh: the server's own words are better than google-auth's
        session = _Session(credentials, refresh_status_codes=codes)
        session.verify = self.verify
        adapter = HTTPAdapter(pool_maxsize=self.max_connections, pool_block=True, max_retries=0)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        endpoint = {} if self.endpoint_url is None else {"api_endpoint": self.endpoint_url.rstrip("/")}
        client = Client(project=self.project, credentials=credentials, _http=session, client_options=endpoint)
        # google-cloud-storage 3.17 asks for the bucket's metadata in a background thread, with retries of its own and even when
        # no tracing is on. Every use of this cache is guarded, so that without it nothing is asked.
        client._bucket_metadata_cache = None
        return client, session


class _Session(AuthorizedSession):
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


class _RelatedBody:
    """The body of an upload, made while it is sent. It can be gone through again: google-auth does so after a new token."""

    def __init__(
        self, boundary: str, resource: Mapping[str, object], fd: int, start: int, end: int, operation: str, uri: str
    ) -> None:
        media = "Content-Type: application/octet-stream"
        text = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(resource)}\r\n"
        self._head = f"{text}--{boundary}\r\n{media}\r\n\r\n".encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._fd, self._start, self._end = fd, start, end
        self._operation, self._uri = operation, uri

    def __len__(self) -> int:
        return len(self._head) + self._end - self._start + len(self._tail)

    def __iter__(self) -> Iterator[bytes]:
        yield self._head
        at = self._start
        while at < self._end:
            try:
                block = os.pread(self._fd, min(_BLOCK_BYTES, self._end - at), at)
            except OSError as error:  # requests would take it for a broken connection
                words = f"the file to send cannot be read: {error.strerror}"
                raise PermanentError(words, operation=self._operation, uri=self._uri) from error
            if not block:
                words = f"the file to send ends at byte {at}, {self._end} were to be sent"
                raise IntegrityError(words, operation=self._operation, uri=self._uri)
            yield block
            at += len(block)
        yield self._tail


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


def _temporary(key: str, upload_id: str) -> str:
    """What the names of an upload's temporary objects begin with: beside the key, cut where names would become too long."""
    ending = f"{TEMPORARY_MARK}{upload_id}/"
    room = _MAX_NAME_BYTES - len(ending.encode()) - len("join-0-00000")
    return key.encode()[:room].decode(errors="ignore") + ending


def _described(blob: Blob) -> ObjectMeta:
    if blob.size is None or blob.generation is None:
        raise TransientError("the answer does not describe the object", uri=f"gs://{blob.bucket.name}/{blob.name}")
    return ObjectMeta(
        key=blob.name,
        size_bytes=int(blob.size),
        etag=str(blob.generation),
        crc32c=None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big"),
        modified_s=None if blob.updated is None else blob.updated.timestamp(),
        metadata=dict(blob.metadata or {}),
        digest=None if blob.md5_hash is None else f"md5:{base64.b64decode(blob.md5_hash).hex()}",
    )


def _generation(etag: str | None, operation: str, uri: str) -> dict[str, str]:
    """An etag of ours as a precondition; one that cannot be ours is that of another object."""
    if etag is None:
        return {}
    if not (etag.isascii() and etag.isdigit()):
        raise IntegrityError(f"{etag!r} is no generation: the object is another", operation=operation, uri=uri)
    return {"ifGenerationMatch": etag}


def _announced(headers: Mapping[str, str], status: int, start: int, end: int | None, uri: str) -> int | None:
    """How many bytes will come, checked against those that were asked for; None: the answer does not say."""
    where = {"operation": "get", "uri": uri}
    if status == 200:
        if (start or end is not None) and "X-Goog-Generation" not in headers:
            words = "a whole answer came for a range, and not the store's own: something on the way has given it"
            raise TransientError(words, **where)
        if start or end is not None:
            raise PermanentError("the server ignores ranges", **where)
        return int(headers["Content-Length"]) if "Content-Length" in headers else None
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if match is None or int(match[1]) != start:
        raise PermanentError(f"the server answers a range from {start} with {headers.get('Content-Range')!r}", **where)
    if end is not None and int(match[3]) < end:
        raise IntegrityError(_beyond(start, end, int(match[3])), **where)
    if int(match[2]) + 1 != (end or int(match[3])):
        raise TransientError(f"the server sends only {match[0]}", **where)
    return int(match[2]) + 1 - start


def _beyond(start: int, end: int, size_bytes: int) -> str:
    return f"bytes {start} to {end} were asked for, the object has {size_bytes}"


@contextmanager
def _opened(path: Path, flags: int, operation: str, uri: str) -> Iterator[int]:
    """Open a local file. That it is missing is no NotFoundError: that word is kept for the object."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise PermanentError(f"the file {path} cannot be opened: {error.strerror}", operation=operation, uri=uri) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _write(fd: int, block: bytes, offset: int, path: Path, uri: str) -> None:
    view = memoryview(block)
    try:
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written
    except OSError as error:
        raise PermanentError(f"the file {path} cannot be written: {error.strerror}", operation="get", uri=uri) from error


def _each(call: Callable[[_T], _R], arguments: Iterable[_T]) -> list[_R]:
    """Call with each argument, several at once; the first error is raised when all have ended."""
    with ThreadPoolExecutor(_SMALL_CALLS_AT_ONCE) as pool:
        return list(pool.map(call, arguments))


def _words(error: GoogleAPICallError) -> str:
    """The server's own words, without the method and the URL that the library puts before them."""
    message = str(error.message)
    return (message.partition(": ")[2] or message).strip()[:500]


def _refused(error: GoogleAPICallError, if_absent: bool, where: Mapping[str, str]) -> StoreError:
    """The table of errors, first half: answers with a status, but for 404."""
    status, words, headers = int(error.code or 0), _words(error), getattr(error.response, "headers", {})
    reasons = {str(item.get("reason")) for item in error.errors if isinstance(item, dict)}
    wait_s = _retry_after(headers.get("Retry-After"))
    if status == 429 or (status == 403 and reasons & _RATE_LIMITS) or (status == 503 and wait_s is not None):
        return ThrottledError(f"{status} {words}", **where, retry_after_s=wait_s)
    if status in (408, 409) or status >= 500:  # 409: another change of the same object is under way
        return TransientError(f"{status} {words}", **where)
    if status in (401, 403):
        return AccessDeniedError(f"{status} {words}", **where, hint=_CREDENTIALS_HINT if status == 401 else "")
    if status == 412:
        return (AlreadyExistsError if if_absent else IntegrityError)(
            "the object is there already" if if_absent else "the object is another by now", **where
        )
    if status == 416 or (status == 400 and "doesn't match calculated" in words):
        return IntegrityError(words, **where)
    return PermanentError(f"{status} {words}", **where)


def _failed(error: Exception, where: Mapping[str, str]) -> StoreError:
    """The table of errors, second half: no answer of the store came."""
    if isinstance(error, DefaultCredentialsError):
        return AccessDeniedError("no credentials were found", **where, hint=_CREDENTIALS_HINT)
    if isinstance(error, RefreshError) and not error.retryable:
        return AccessDeniedError(f"the credentials were not renewed: {error.args[0]}", **where, hint=_CREDENTIALS_HINT)
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return PermanentError(f"the server's certificate is not trusted: {error}", **where, hint="give its CA file as verify")
    return TransientError(f"{type(error).__name__}: {error}", **where)


def _retry_after(text: str | None) -> float | None:
    """Seconds of a Retry-After header: a number or a date (RFC 9110, 10.2.3); None if there is none that can be read."""
    if text is None:
        return None
    try:
        return float(text) if text.strip().isdecimal() else max(parsedate_to_datetime(text).timestamp() - time(), 0.0)
    except ValueError:
        return None
