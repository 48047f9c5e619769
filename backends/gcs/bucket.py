"""One bucket of Google Cloud Storage: the calls that whole objects, parts and sessions are made of, and their errors as ours.

Requests of the JSON API: those for single objects by our own client where that is safe (`Direct`), all others over a session of
google-auth's. Google's own client is not used: its one-request upload holds the whole
file in memory, twice, its download moves 8 KiB at a time, and it asks for the bucket in a thread of its own. The only request
made again is one whose token was refused and could be refreshed.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from google.api_core.datetime_helpers import from_rfc3339
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError
from requests import Response
from requests.exceptions import InvalidJSONError, RequestException
from urllib3.exceptions import HTTPError

from wherry.backends.gcs.body import FileBody
from wherry.backends.gcs.client import Connection, connect
from wherry.backends.gcs.error_table import error_in, failed, refused, words_of
from wherry.backends.gcs.options import GCSOptions
from wherry.backends.http.wire_errors import ShortFile, UnreadableFile, WireError
from wherry.backends.pages import Pages
from wherry.backends.tally import Tally
from wherry.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
    absence_is_fine,
    cause_of,
)
from wherry.store import ObjectMeta, Page, PutOptions
from wherry.uri import StoreURI

MAX_NAME_BYTES = 1024
#: The name of an object, and the generation that is meant; None: the newest.
Version = tuple[str, "int | None"]
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
#: What bytes are of which nobody says more.
_MEDIA = "application/octet-stream"
_CRC32C_OF_NOTHING = "AAAAAA=="
_LISTED = "prefixes,items(name,size,generation,crc32c,updated,metadata),nextPageToken"


class Bucket:
    """The calls. `name` is the object that is meant, maybe a temporary one; what an error is about, the caller says (`about`)."""

    def __init__(self, uri: StoreURI, options: GCSOptions) -> None:
        self.uri = uri
        self.timeout_s = options.timeout_s
        self._options = options
        #: Parameters of every request, and headers of those that read or write an object's bytes, or describe them.
        self.billed = {} if options.user_project is None else {"userProject": options.user_project}
        self.encryption = options.encryption_headers
        #: requests takes the token off for another host, but would hand on the key.
        self._may_follow = not self.encryption
        self._lock = threading.Lock()
        self._made: Connection | None = None
        #: How many requests were sent.
        self.requests = Tally()
        #: A 404 for an object may mean that the bucket is missing. Once a call has succeeded, it does not.
        self._was_seen = False

    def connected(self) -> Connection:
        """The connection; made at the first call because the chain of credentials may ask the network."""
        with self._lock:
            if self._made is None:
                self._made = connect(self._options, self.requests)
            return self._made

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._made is not None:
                self._made.close()

    def url(self, kind: str, name: str | None = None) -> str:
        """The URL of the bucket's objects, or of one, below ``/upload`` or ``/download``."""
        objects = f"{self.endpoint}/{f'{kind}/' if kind else ''}storage/v1/b/{quote(self.uri.root)}/o"
        return objects if name is None else f"{objects}/{quote(name, safe='')}"

    @property
    def endpoint(self) -> str:
        """Where requests go, without a slash at its end."""
        return self.connected().endpoint

    @property
    def _told_endpoint(self) -> str:
        """The same for messages: while there are no credentials there is no client."""
        return "Google" if self._made is None else self._made.endpoint

    def ask(self, method: str, name: str | None, *, below: str = "", body: object = None, **params: object) -> dict[str, Any]:
        """Make a small request about an object, or with None about all of them; the caller translates errors."""
        url = f"{self.url('', name)}{below}"
        given = {parameter: str(value) for parameter, value in params.items() if value is not None}
        headers = self.encryption if name is not None and method != "DELETE" else _NO_HEADERS
        if name is not None and body is None:
            answer = self.request(method, url, given, headers)
        else:
            answer = self.connected().authorized.request(
                method,
                url,
                params={**given, **self.billed},
                json=body,
                headers=headers,
                timeout=self.timeout_s,
                allow_redirects=self._may_follow,
            )
        if not 200 <= answer.status_code < 300:
            raise error_in(answer)
        says_nothing = method == "DELETE" and answer.content.strip() in (b"", b"null")  # null: fake-gcs-server
        return {} if says_nothing else json_object(answer)

    def request(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        headers: Mapping[str, str] = _NO_HEADERS,
        body: FileBody | None = None,
        *,
        is_stream: bool = False,
    ) -> Response:
        """Make a request that carries bytes or may come by the thousand; the caller translates errors.

        `is_stream`: the caller reads the bytes of a good answer, as they are stored.
        """
        connection, params = self.connected(), {**params, **self.billed}
        if connection.direct is not None:
            answer = connection.direct.ask(
                method,
                f"{url}?{urlencode(params, quote_via=quote)}" if params else url,
                headers,
                b"" if body is None else body,
                is_repeatable=method != "POST" or "ifGenerationMatch" not in params,
                is_stream=is_stream,
            )
            if answer is not None:
                return answer
        answered: Response = connection.authorized.request(
            method,
            url,
            params=params,
            data=body,
            headers=headers,
            stream=is_stream,
            timeout=self.timeout_s,
            allow_redirects=self._may_follow,
        )
        return answered

    def request_of_session(self, method: str, url: str, headers: Mapping[str, str], body: FileBody | bytes = b"") -> Response:
        """Make a request to a session's URL, without credentials; the caller translates errors."""
        connection = self.connected()
        if connection.direct is not None:
            answer = connection.direct.ask(method, url, headers, body, is_bare=True, is_repeatable=False)
            assert answer is not None, "a redirect, too, is an answer"
            return answer
        return connection.bare.request(
            method, url, data=body, headers=headers, timeout=self.timeout_s, allow_redirects=False
        )  # 308 means something else here

    def send(self, name: str, fd: int, put: PutOptions, *, start: int, end: int) -> ObjectMeta:
        """Make bytes [start, end) of an open file the object `name`, in one request ("multipart upload", RFC 2387)."""
        boundary, media = secrets.token_hex(16), f"Content-Type: {put.content_type or _MEDIA}"
        resource = json.dumps(resource_of(name, put))
        text = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{resource}\r\n"
        head, tail = f"{text}--{boundary}\r\n{media}\r\n\r\n".encode(), f"\r\n--{boundary}--\r\n".encode()
        params = {"uploadType": "multipart", **({"ifGenerationMatch": "0"} if put.if_absent else {})}
        with self.translated(if_absent=put.if_absent, makes=True):
            answer = self.request(
                "POST",
                self.url("upload"),
                params,
                {"Content-Type": f"multipart/related; boundary={boundary}", **self.encryption},
                FileBody(fd, start, end, head=head, tail=tail),
            )
            if answer.status_code != 200:
                raise error_in(answer)
            meta = self.described(name, json_object(answer))
        self.check(meta, end - start, put.crc32c)
        return meta

    def described(self, name: str, resource: Mapping[str, Any]) -> ObjectMeta:
        """What an answer says of the object ("Objects" resource of the JSON API)."""
        try:
            return _read(name, resource)
        except (AttributeError, TypeError, ValueError) as error:  # a date, a number or a checksum that cannot be
            raise PermanentError(f"the server's answer cannot be read: {error}") from error

    def look(self, name: str, generation: int | None = None) -> ObjectMeta:
        """Ask for an object; of several versions, for that one."""
        with self.translated():
            return self.described(name, self.ask("GET", name, generation=generation))

    def compose(self, name: str, sources: Sequence[Version], put: PutOptions) -> ObjectMeta:
        """Join 1 to 32 objects into another, whose checksum Google computes; the caller translates errors."""
        pieces = [
            {"name": each} if generation is None else {"name": each, "generation": generation} for each, generation in sources
        ]
        body = {"sourceObjects": pieces, "destination": resource_of(name, replace(put, crc32c=None))}
        condition = {"ifGenerationMatch": "0"} if put.if_absent else {}
        return self.described(name, self.ask("POST", name, below="/compose", body=body, **condition))

    def rewrite(self, name: str, source: ObjectMeta, root: str | None, *, if_absent: bool) -> ObjectMeta:
        """Copy an object of the bucket `root` ("Objects: rewrite"): `name` is made when the last of the requests is answered."""
        url = f"{self.endpoint}/storage/v1/b/{quote(root or self.uri.root)}/o/{quote(source.key, safe='')}"
        url += f"/rewriteTo/b/{quote(self.uri.root)}/o/{quote(name, safe='')}"
        params = {"ifGenerationMatch": "0"} if if_absent else {}
        if source.etag is not None:
            params["ifSourceGenerationMatch"] = generation_match(source.etag)["ifGenerationMatch"]
        with self.translated(if_match=True):
            while True:
                answer = self.request("POST", url, params)
                if answer.status_code == 412 and if_absent and self._is_there(name):
                    raise AlreadyExistsError("the object is there already", hint="choose another name or allow overwriting")
                if answer.status_code != 200:
                    raise error_in(answer)
                if (said := json_object(answer)).get("done"):
                    return self.described(name, said.get("resource") or {})
                if not (token := said.get("rewriteToken")):
                    raise TransientError("the answer says neither that the copy is done nor how it goes on")
                params["rewriteToken"] = str(token)

    def _is_there(self, name: str) -> bool:
        """Whether an object has that name, asked without preconditions."""
        try:
            self.ask("GET", name, fields="name")
        except GoogleAPICallError as error:
            if error.code == 404:
                return False
            raise
        return True

    def check(self, meta: ObjectMeta, size_bytes: int, crc32c: int | None, *, keep: bool = False) -> None:
        """Compare what the server holds with what was sent. If it differs, delete the object, unless `keep`: IntegrityError.

        Google refuses a wrong CRC32C itself; not every server does.
        """
        if meta.size_bytes == size_bytes and (crc32c is None or meta.crc32c in (None, crc32c)):
            return
        if not keep:
            with self.translated():  # that generation only: it may have been replaced by now
                self.ask("DELETE", meta.key, generation=int(meta.etag or 0))
        found = "none" if meta.crc32c is None else f"{meta.crc32c:08x}"
        wanted = "any" if crc32c is None else f"{crc32c:08x}"
        raise IntegrityError(f"the server holds {meta.size_bytes} bytes with CRC32C {found}, not {size_bytes} with {wanted}")

    def listed(self, prefix: str, start: str = "") -> Iterator[ObjectMeta]:
        """All objects whose name starts with `prefix`, from the name `start` on; temporary ones too."""
        for page in self.pages(prefix, **({"startOffset": start} if start else {})):
            yield from page.objects

    def pages(self, prefix: str, mark: str | None = None, **query: str) -> Iterator[Page]:
        """The same by the pages of the server, after the page with that `mark`."""
        with self.translated(makes=True):
            pages, token = Pages(), mark
            while True:
                marked = {"pageToken": token} if token else {}
                answer = self.ask("GET", None, prefix=prefix, fields=_LISTED, **query, **marked)
                items, folders = answer.get("items", []), answer.get("prefixes", [])
                if not isinstance(items, list) or not isinstance(folders, list):
                    raise PermanentError("the server's answer cannot be read: the items of the listing are no list")
                token = answer.get("nextPageToken") or None
                objects = [self._listed(item) for item in items]
                yield Page(objects, [folder for folder in folders if isinstance(folder, str) and folder != prefix], token)
                if token is None:
                    return
                if pages.is_endless(token, len(items) + len(folders)):
                    raise PermanentError("the server gives the same page of the listing again: it has no end")

    def _listed(self, resource: Mapping[str, Any]) -> ObjectMeta:
        """An entry of a listing: one that cannot be read must not hide the others; PermanentError for one without a name."""
        name = resource.get("name") if isinstance(resource, dict) else None
        if not isinstance(name, str):
            raise PermanentError("the server's answer cannot be read: an entry of the listing has no name")
        try:
            return self.described(name, resource)
        except (PermanentError, TransientError):
            return ObjectMeta(name, -1)

    def remove(self, name: str) -> None:
        """Delete an object; that it is absent is fine."""
        with absence_is_fine(), self.translated():
            self.ask("DELETE", name)

    @contextmanager
    def translated(
        self, *, if_absent: bool = False, if_match: bool = False, makes: bool = False, secret: bool = False
    ) -> Iterator[None]:
        """Turn the libraries' errors into ours. `makes`: the call needs no object to be there, so that a 404 means the bucket.

        `if_absent`, `if_match`: what a condition that does not hold means. `secret`: the request's URL must not be told, so that
        the library's error, which shows it, is not kept as the cause.
        """
        try:
            yield
        except GoogleAPICallError as error:
            if error.code == 404:
                made: StoreError = self._missing(words_of(error), makes)
            else:
                made = refused(error, self._told_endpoint, if_absent=if_absent, if_match=if_match)
            raise made from (None if secret else cause_of(error))
        except ShortFile as error:
            raise IntegrityError(str(error)) from error
        except UnreadableFile as error:
            raise PermanentError(str(error)) from error
        except (GoogleAuthError, RequestException, HTTPError, WireError) as error:
            made = failed(error, self._told_endpoint, self.timeout_s)
            raise made from (None if secret else cause_of(error))
        else:
            self._was_seen = True

    def _missing(self, words: str, makes: bool) -> NotFoundError:
        """The error for what is missing, the bucket or the object. Google does not always say, so a new bucket is looked up."""
        hint = f"make the bucket {self.uri.root!r}, or correct its name or the endpoint"
        no_bucket = BucketNotFoundError(f"{words}, says {self._told_endpoint}", hint=hint)
        if makes or words.startswith("The specified bucket does not exist"):
            return no_bucket
        if not self._was_seen:
            try:
                self.ask("GET", None, maxResults=1, fields="kind")
                self._was_seen = True
            except GoogleAPICallError as error:
                if error.code == 404:
                    return no_bucket
            except (GoogleAuthError, RequestException, WireError):
                return NotFoundError(words)  # the bucket could not be looked at; the answer that came stands
        return NotFoundError(words)


def json_object(answer: Response) -> dict[str, Any]:
    """The JSON object of an answer. What something on the way has given in its place is an error like a broken connection."""
    if not isinstance(described := answer.json(), dict):
        raise InvalidJSONError("the answer is no JSON object", response=answer)
    return described


def _read(name: str, resource: Mapping[str, Any]) -> ObjectMeta:
    size, generation, crc32c = (resource.get(field) for field in ("size", "generation", "crc32c"))
    is_empty = size is None and crc32c in (None, _CRC32C_OF_NOTHING)  # Google's own testbench leaves a size of 0 out
    if generation is None or (size is None and not is_empty):
        raise TransientError("the answer does not describe the object")
    updated, md5 = resource.get("updated"), resource.get("md5Hash")
    return ObjectMeta(
        key=name,
        size_bytes=0 if size is None else int(size),
        etag=str(int(generation)),
        crc32c=None if crc32c is None else int.from_bytes(base64.b64decode(crc32c), "big"),
        modified_s=None if updated is None else from_rfc3339(updated).timestamp(),
        metadata=dict(resource.get("metadata") or {}),
        digest=None if md5 is None else f"md5:{base64.b64decode(md5).hex()}",
        content_type=resource.get("contentType"),
    )


def resource_of(name: str, put: PutOptions) -> dict[str, object]:
    """The description of an object that is about to be made ("Objects" resource of the JSON API)."""
    resource: dict[str, object] = {"name": name, "contentType": put.content_type or _MEDIA, "metadata": dict(put.metadata)}
    if put.crc32c is not None:
        resource["crc32c"] = base64.b64encode(put.crc32c.to_bytes(4, "big")).decode()
    return resource


def generation_match(etag: str | None) -> dict[str, str]:
    """An etag of ours as a precondition; one that cannot be ours is that of another object."""
    if etag is None:
        return {}
    if not (etag.isascii() and etag.isdigit()):
        raise IntegrityError(f"{etag!r} is no generation: the object is another")
    return {"ifGenerationMatch": etag}
