"""One bucket of Google Cloud Storage: the calls that whole objects, parts and sessions are made of, and their errors as ours.

The client does the small calls. Bytes go over its session directly, because its own one-request upload
(`Blob.upload_from_file`) holds the whole file in memory, twice, and its download moves 8 KiB at a time. The SDK's retries are off
in every call; what is left is one repetition inside google-auth, when a token that can be refreshed was refused.
"""

# google-auth and google-api-core say that they are typed, but much of them is not:
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import quote

from google.api_core.exceptions import GoogleAPICallError, from_http_response
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage import Blob
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from wherry.backends.gcs.body import FileBody
from wherry.backends.gcs.client import Connection, connect
from wherry.backends.gcs.error_table import failed, refused, words_of
from wherry.backends.gcs.options import GCSOptions
from wherry.backends.pages import Pages
from wherry.errors import (
    BucketNotFoundError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
    WherryError,
)
from wherry.store import ObjectMeta, PutOptions
from wherry.uri import StoreURI

MAX_NAME_BYTES = 1024
_CRC32C_OF_NOTHING = "AAAAAA=="
_LISTED = "items(name,size,generation,crc32c,updated,metadata),nextPageToken"


class Bucket:
    """The calls. `operation` and `key` are what an error names; `name` is the object that is meant, maybe a temporary one."""

    def __init__(self, uri: StoreURI, options: GCSOptions) -> None:
        self.uri = uri
        self.timeout_s = options.timeout_s
        self._options = options
        self._lock = threading.Lock()
        self._made: Connection | None = None
        #: A 404 for an object may mean that the bucket is missing. Once a call has succeeded, it does not.
        self._was_seen = False

    @property
    def n_requests(self) -> int:
        """All requests so far."""
        return 0 if self._made is None else self._made.requests.value

    def connected(self) -> Connection:
        """The connection; made at the first call because the chain of credentials may ask the network."""
        with self._lock:
            if self._made is None:
                self._made = connect(self._options)
            return self._made

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._made is not None:
                self._made.close()

    def url(self, kind: str, name: str | None = None) -> str:
        """The URL of the bucket's objects, or of one, below ``/upload`` or ``/download``."""
        objects = f"{self.endpoint}/{kind}/storage/v1/b/{quote(self.uri.root)}/o"
        return objects if name is None else f"{objects}/{quote(name, safe='')}"

    @property
    def endpoint(self) -> str:
        """Where requests go, without a slash at its end."""
        return str(self.connected().client.api_endpoint)

    @property
    def _told_endpoint(self) -> str:
        """The same for messages: while there are no credentials there is no client."""
        return "Google" if self._made is None else str(self._made.client.api_endpoint)

    def blob(self, name: str, generation: int | None = None) -> Blob:
        """The client's handle of an object; nothing is asked."""
        return self.connected().client.bucket(self.uri.root).blob(name, generation=generation)

    def send(self, operation: str, key: str, name: str, fd: int, put: PutOptions, *, start: int, end: int) -> ObjectMeta:
        """Make bytes [start, end) of an open file the object `name`, in one request ("multipart upload", RFC 2387)."""
        boundary, media = secrets.token_hex(16), "Content-Type: application/octet-stream"
        resource = json.dumps(resource_of(name, put))
        text = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{resource}\r\n"
        head, tail = f"{text}--{boundary}\r\n{media}\r\n\r\n".encode(), f"\r\n--{boundary}--\r\n".encode()
        params = {"uploadType": "multipart", **({"ifGenerationMatch": "0"} if put.if_absent else {})}
        with self.translated(operation, key, if_absent=put.if_absent, makes=True):
            answer = self.connected().authorized.post(
                self.url("upload"),
                params=params,
                data=FileBody(fd, start, end, operation, self.uri.uri_for(key), head=head, tail=tail),
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
                timeout=self.timeout_s,
            )
            if answer.status_code != 200:
                raise from_http_response(answer)
            meta = self.described(name, answer.json())
        self.check(operation, key, meta, end - start, put.crc32c)
        return meta

    def described(self, name: str, resource: Mapping[str, object]) -> ObjectMeta:
        """What an answer says of the object."""
        blob = self.blob(name)
        blob._set_properties(resource)
        return describe(blob)

    def look(self, operation: str, key: str) -> ObjectMeta:
        """Ask for an object."""
        with self.translated(operation, key):
            blob = self.blob(key)
            blob.reload(timeout=self.timeout_s, retry=None)
            return describe(blob)

    def compose(self, target: Blob, sources: Sequence[Blob], *, if_absent: bool = False) -> None:
        """Join 1 to 32 objects into another; the caller translates errors."""
        target.content_type = "application/octet-stream"
        condition = 0 if if_absent else None
        target.compose(sources, if_generation_match=condition, timeout=self.timeout_s, retry=None)

    def check(
        self, operation: str, key: str, meta: ObjectMeta, size_bytes: int, crc32c: int | None, *, keep: bool = False
    ) -> None:
        """Compare what the server holds with what was sent. If it differs: IntegrityError, and the object goes, unless `keep`.

        Google has refused a wrong CRC32C before; not every server does.
        """
        if meta.size_bytes == size_bytes and (crc32c is None or meta.crc32c in (None, crc32c)):
            return
        if not keep:
            with self.translated(operation, key):  # that generation only: it may have been replaced by now
                self.blob(meta.key, int(meta.etag or 0)).delete(timeout=self.timeout_s, retry=None)
        found = "none" if meta.crc32c is None else f"{meta.crc32c:08x}"
        wanted = "any" if crc32c is None else f"{crc32c:08x}"
        words = f"the server holds {meta.size_bytes} bytes with CRC32C {found}, not {size_bytes} with {wanted}"
        raise IntegrityError(words, operation=operation, uri=self.uri.uri_for(key))

    def listed(self, operation: str, key: str, prefix: str) -> Iterator[ObjectMeta]:
        """All objects whose name starts with `prefix`, temporary ones too."""
        with self.translated(operation, key, makes=True):
            client, pages = self.connected().client, Pages()
            found = client.list_blobs(self.uri.root, prefix=prefix, fields=_LISTED, timeout=self.timeout_s, retry=None)
            for page in found.pages:
                yield from map(_listed, page)
                if found.next_page_token and pages.is_endless(found.next_page_token, page.num_items):
                    words = "the server gives the same page of the listing again: it has no end"
                    raise PermanentError(words, operation=operation, uri=self.uri.uri_for(key))

    def remove(self, operation: str, key: str, name: str) -> None:
        """Delete an object; that it is absent is fine."""
        try:
            with self.translated(operation, key):
                self.blob(name).delete(timeout=self.timeout_s, retry=None)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            return

    @contextmanager
    def translated(
        self, operation: str, key: str, *, if_absent: bool = False, makes: bool = False, secret: bool = False
    ) -> Iterator[None]:
        """Turn the libraries' errors into ours. `makes`: the call needs no object to be there, so that a 404 means the bucket.

        `secret`: the request's URL must not be told, so that the library's error, which shows it, is not kept as the cause.
        """
        where = {"operation": operation, "uri": self.uri.uri_for(key)}
        try:
            yield
        except GoogleAPICallError as error:
            if error.code == 404:
                made: StoreError = self._missing(words_of(error), makes, where)
            else:
                made = refused(error, if_absent, self._told_endpoint, where)
            raise made from (None if secret else error)
        except (GoogleAuthError, RequestException, HTTPError) as error:
            made = failed(error, self._told_endpoint, self.timeout_s, where)
            raise made from (None if secret else error)
        except ValueError as error:  # a date, a number or a checksum that cannot be
            if isinstance(error, WherryError):
                raise
            words = f"the server's answer cannot be read: {error}"
            raise PermanentError(words, **where) from (None if secret else error)
        else:
            self._was_seen = True

    def _missing(self, words: str, makes: bool, where: Mapping[str, str]) -> NotFoundError:
        """The bucket or the object? Google's message does not always say, so a bucket never seen before is looked for once."""
        no_bucket = BucketNotFoundError(
            f"{words}, says {self._told_endpoint}",
            **where,
            hint=f"make the bucket {self.uri.root!r}, or correct its name or the endpoint",
        )
        if makes or words.startswith("The specified bucket does not exist"):
            return no_bucket
        if not self._was_seen:
            client = self.connected().client
            try:
                page = client.list_blobs(self.uri.root, max_results=1, fields="kind", timeout=self.timeout_s, retry=None)
                next(page.pages, None)
                self._was_seen = True
            except GoogleAPICallError as error:
                if error.code == 404:
                    return no_bucket
            except (GoogleAuthError, RequestException):
                return NotFoundError(words, **where)  # the bucket could not be looked at; the answer that came stands
        return NotFoundError(words, **where)


def resource_of(name: str, put: PutOptions) -> dict[str, object]:
    """The description of an object that is about to be made ("Objects" resource of the JSON API)."""
    resource: dict[str, object] = {"name": name, "contentType": "application/octet-stream", "metadata": dict(put.metadata)}
    if put.crc32c is not None:
        resource["crc32c"] = base64.b64encode(put.crc32c.to_bytes(4, "big")).decode()
    return resource


def describe(blob: Blob) -> ObjectMeta:
    """What the client's handle of an object knows of it."""
    is_empty = blob.size is None and blob.crc32c in (None, _CRC32C_OF_NOTHING)  # Google's own testbench leaves a size of 0 out
    if blob.generation is None or (blob.size is None and not is_empty):
        raise TransientError("the answer does not describe the object", uri=f"gs://{blob.bucket.name}/{blob.name}")
    return ObjectMeta(
        key=blob.name,
        size_bytes=int(blob.size or 0),
        etag=str(blob.generation),
        crc32c=None if blob.crc32c is None else int.from_bytes(base64.b64decode(blob.crc32c), "big"),
        modified_s=None if blob.updated is None else blob.updated.timestamp(),
        metadata=dict(blob.metadata or {}),
        digest=None if blob.md5_hash is None else f"md5:{base64.b64decode(blob.md5_hash).hex()}",
    )


def _listed(blob: Blob) -> ObjectMeta:
    """The same of an entry in a listing: one that cannot be read must not hide the others."""
    try:
        return describe(blob)
    except (ValueError, TypeError, TransientError):
        return ObjectMeta(blob.name, -1)


def generation_match(etag: str | None, operation: str, uri: str) -> dict[str, str]:
    """An etag of ours as a precondition; one that cannot be ours is that of another object."""
    if etag is None:
        return {}
    if not (etag.isascii() and etag.isdigit()):
        raise IntegrityError(f"{etag!r} is no generation: the object is another", operation=operation, uri=uri)
    return {"ifGenerationMatch": etag}
