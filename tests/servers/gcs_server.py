"""A small, strict Google Cloud Storage: the JSON API over plain HTTP, for what other emulators accept and Google refuses.

It demands a token that it knows (401 without, 403 for one that may do nothing), holds every request to its preconditions,
compares declared checksums with the bytes, and keeps the rules of resumable uploads. gcs_model.py has the objects, this module
the protocol.
Not there: XML API, batches, ACLs, object versions, rewrite, `fields` (answers are always whole), decompressive transcoding.

Sources: the pages "Cloud Storage JSON API", "Perform resumable uploads", "Request preconditions" and "HTTP status and error codes
for JSON" of the Cloud Storage documentation. Where these say nothing, the stricter behaviour was chosen.

``python -m servers.gcs_server --folder DIR [--port N] [--bucket NAME]`` prints its address. The tokens come in the
environment, so that no process list shows them.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, quote, unquote, urlencode

from servers.gcs_model import CHUNK_BYTES, Conditions, Draft, GCSError, Model, Session, Source, Stored
from servers.real import Server, ServerError, _ask, _Command, _running

_TOKEN, _FORBIDDEN_TOKEN, _CREATOR_TOKEN = "WHERRY_GCS_TOKEN", "WHERRY_GCS_FORBIDDEN_TOKEN", "WHERRY_GCS_CREATOR_TOKEN"
_BLOCK_BYTES = 2**20
_MAX_JSON_BYTES = 2**20
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
#: Buckets with such names bill who asks.
_PAID_BY_ALL = re.compile("/b/requester-pays[^/]*/o")


@dataclass(frozen=True)
class GCSServer(Server):
    """A running strict server. `forbidden_token` is known and may do nothing; `creator_token` may make new objects only."""

    token: str = field(repr=False)
    forbidden_token: str = field(repr=False)
    creator_token: str = field(repr=False)

    @property
    def options(self) -> dict[str, object]:
        """Storage options that open its bucket as ``gs://{bucket}``."""
        return {"endpoint_url": self.url, "token": self.token}

    def make_bucket(self, name: str) -> None:
        """Create one more bucket; one that is there already is fine."""
        status, answer = self.request("POST", "/storage/v1/b?project=test", json.dumps({"name": name}).encode())
        if status not in (200, 409):
            raise ServerError(f"the bucket {name} was not made: {status} {answer[:500]!r}")

    def names(self, prefix: str = "", bucket: str | None = None) -> set[str]:
        """The names of all objects below a prefix, temporary ones too."""
        found: set[str] = set()
        query = {"prefix": prefix}
        while True:
            status, answer = self.request("GET", f"/storage/v1/b/{bucket or self.bucket}/o?{urlencode(query)}")
            if status != 200:
                raise ServerError(f"the bucket was not listed: {status} {answer[:500]!r}")
            page = json.loads(answer)
            found.update(item["name"] for item in page.get("items", ()))
            if "nextPageToken" not in page:
                return found
            query["pageToken"] = page["nextPageToken"]

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Make one request with the good token."""
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        return _ask(self.port, method, path, headers, body)


@contextmanager
def strict_gcs(folder: Path, bucket: str = "wherry", *, page_size: int = 1000) -> Iterator[GCSServer]:
    """Run the strict server until the block is left. Objects already in `folder` are there again. Starts at once.

    `page_size`: the largest number of objects in a page of a listing.
    """
    token, forbidden, creator = (secrets.token_urlsafe(24) for _ in range(3))
    log = folder / "strict-gcs.log"

    def command(ports: Sequence[int]) -> _Command:
        module = [sys.executable, "-m", "servers.gcs_server"]
        where = ["--folder", str(folder / "strict-gcs"), "--port", str(ports[0]), "--bucket", bucket]
        where += ["--page-size", str(page_size)]
        # The package may be importable through PYTHONPATH only, which servers are not given.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        tokens = {_TOKEN: token, _FORBIDDEN_TOKEN: forbidden, _CREATOR_TOKEN: creator}
        return _Command([*module, *where], {**tokens, "PYTHONPATH": path}, grace_s=0.5)

    def server(ports: Sequence[int]) -> GCSServer:
        return GCSServer(f"http://127.0.0.1:{ports[0]}", bucket, log, token, forbidden, creator)

    with _running(
        command, 1, folder, log, lambda ports: server(ports).request("GET", f"/storage/v1/b/{bucket}")[0] == 200
    ) as ports:
        yield server(ports)


@dataclass(frozen=True)
class _Answer:
    """What is sent back: `body`, or else bytes [start, end) of the open file `fd`."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    fd: int | None = None
    start: int = 0
    end: int = 0


class _CutError(Exception):
    """The client went away in the middle of its request."""


class _Handler(BaseHTTPRequestHandler):
    """One connection. Each request's body is read to its end, so that the next request finds its beginning."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024
    server: _HTTPServer

    def do_GET(self) -> None:
        """Any request."""
        raw_path, _, query = self.path.partition("?")
        self._query = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        self._left = int(self.headers.get("Content-Length") or 0)
        try:
            try:
                answer = self._route(raw_path)
            except GCSError as error:
                answer = self._refusal(error)
            while self._left:
                self._read()
            self._send(answer)
        except (_CutError, ConnectionError):
            self.close_connection = True

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _route(self, raw_path: str) -> _Answer:  # noqa: PLR0911  one return for each route
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the body's end is not known
            raise GCSError(411, "required", "This server needs a Content-Length.")
        parts = [unquote(part) for part in raw_path.strip("/").split("/")]
        if _PAID_BY_ALL.search(raw_path) and not {"userProject", "upload_id"} & self._query.keys():
            raise GCSError(400, "required", "Bucket is a requester pays bucket but no user project provided.")
        if self.command in ("PUT", "DELETE") and "upload_id" in self._query and parts[0] == "upload":
            return self._resume(self._query["upload_id"])  # the URL itself is the permission
        match (self.command, *parts):
            case ("POST", "storage", "v1", "b"):
                self._allow("storage.buckets.create")
                name = str(self._json().get("name", ""))
                self.server.model.make_bucket(name)
                return _json_answer({"kind": "storage#bucket", "name": name, "id": name, "metageneration": "1"})
            case ("GET", "storage", "v1", "b", bucket):
                self._allow("storage.buckets.get")
                self.server.model.bucket(bucket)
                return _json_answer({"kind": "storage#bucket", "name": bucket, "id": bucket, "metageneration": "1"})
            case ("GET", "storage", "v1", "b", bucket, "o"):
                self._allow("storage.objects.list")
                return self._list(bucket)
            case ("GET", "storage" | "download" as kind, *rest) if self._object_path(kind, rest):
                self._allow("storage.objects.get")
                return self._get(rest[-3], rest[-1])
            case ("DELETE", "storage", "v1", "b", bucket, "o", name):
                self._allow("storage.objects.delete")
                self.server.model.delete(bucket, name, self._conditions(), self._number("generation"))
                return _Answer(204)
            case ("PATCH", "storage", "v1", "b", bucket, "o", name):
                self._allow("storage.objects.update")
                stored = self.server.model.patch(bucket, name, self._json(), self._conditions())
                return _json_answer(self._resource(stored))
            case ("POST", "storage", "v1", "b", bucket, "o", name, "compose"):
                self._allow("storage.objects.create")
                return self._compose(bucket, name)
            case ("POST", "storage", "v1", "b", bucket, "o", name, "rewriteTo", "b", into, "o", new_name):
                self._allow("storage.objects.create")
                return self._rewrite(bucket, name, into, new_name)
            case ("POST", "upload", "storage", "v1", "b", bucket, "o"):
                self._allow("storage.objects.create")
                return self._upload(bucket)
        raise GCSError(404, "notFound", "Not Found")

    @staticmethod
    def _object_path(kind: str, rest: Sequence[str]) -> bool:
        fixed = ["v1", "b"] if kind == "storage" else ["storage", "v1", "b"]
        return list(rest[: len(fixed)]) == fixed and len(rest) == len(fixed) + 3 and rest[-2] == "o"

    def _allow(self, permission: str) -> None:
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if not given:
            words = f"Anonymous caller does not have {permission} access to the Google Cloud Storage resource."
            raise GCSError(401, "required", words, {"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/"'})
        if self._is(given, self.server.forbidden_token) or (
            self._is(given, self.server.creator_token) and permission != "storage.objects.create"
        ):
            words = f"nobody@example.com does not have {permission} access to the Google Cloud Storage resource."
            raise GCSError(403, "forbidden", f"{words} Permission '{permission}' denied on resource (or it may not exist).")
        if kind != "Bearer" or not (self._is(given, self.server.token) or self._is(given, self.server.creator_token)):
            raise GCSError(401, "authError", "Invalid Credentials", {"WWW-Authenticate": 'Bearer error="invalid_token"'})

    @staticmethod
    def _is(given: str, token: str) -> bool:
        return secrets.compare_digest(given.encode(), token.encode())

    def _allow_making(self, bucket: str, name: str) -> None:
        """Replacing an object takes the permission to delete it (roles/storage.objectCreator has it not)."""
        if self._query.get("ifGenerationMatch") != "0" and self.server.model.has(bucket, name):
            self._allow("storage.objects.delete")

    def _list(self, bucket: str) -> _Answer:
        most = self.server.page_size
        limit = min(max(self._number("maxResults") or most, 1), most)
        try:
            after = base64.b64decode(self._query.get("pageToken", ""), validate=True).decode()
        except ValueError as error:
            raise GCSError(400, "invalid", "Invalid pageToken.") from error
        prefix, delimiter, start = (self._query.get(name, "") for name in ("prefix", "delimiter", "startOffset"))
        items, prefixes, last = self.server.model.list(bucket, prefix, delimiter, start, after, limit)
        page: dict[str, object] = {"kind": "storage#objects"}
        if items:
            page["items"] = [self._resource(stored) for stored in items]
        if prefixes:
            page["prefixes"] = prefixes
        if last is not None:
            page["nextPageToken"] = base64.b64encode(last.encode()).decode()
        return _json_answer(page)

    def _get(self, bucket: str, name: str) -> _Answer:
        generation = self._number("generation")
        if self._query.get("alt") != "media":
            return _json_answer(self._resource(self.server.model.get(bucket, name, self._conditions(), generation)))
        self.server.model.get(bucket, name, self._conditions(), generation).check_key(self._key_sha256())
        stored, fd = self.server.model.open(bucket, name, self._conditions(), generation)
        hashes = [f"crc32c={stored.crc32c}", *([f"md5={stored.md5}"] if stored.md5 else [])]
        headers = {
            "Content-Type": stored.content_type,
            "ETag": stored.etag,
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Hash": ",".join(hashes),
            "X-Goog-Stored-Content-Length": str(stored.size_bytes),
        }
        size = stored.size_bytes
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked is None or not (asked[1] or asked[2]):
            return _Answer(200, headers=headers, fd=fd, end=size)
        start = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
        end = min(int(asked[2]) + 1, size) if asked[1] and asked[2] else size
        if start >= end:
            os.close(fd)
            words = "The requested range cannot be satisfied."
            raise GCSError(416, "requestedRangeNotSatisfiable", words, {"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return _Answer(206, headers=headers, fd=fd, start=start, end=end)

    def _compose(self, bucket: str, name: str) -> _Answer:
        request = self._json()
        try:
            sources = [_source(item) for item in cast("list[dict[str, Any]]", request.get("sourceObjects") or [])]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise GCSError(400, "invalid", "sourceObjects must be a list of objects with a name.") from error
        destination = cast("dict[str, object]", request.get("destination") or {})
        self._allow("storage.objects.get")  # of the sources
        self._allow_making(bucket, name)
        destination["keySha256"] = self._key_sha256()
        return _json_answer(self._resource(self.server.model.compose(bucket, name, sources, destination, self._conditions())))

    def _rewrite(self, bucket: str, name: str, into: str, new_name: str) -> _Answer:
        """A copy. A name with "slowly" in it takes two requests, as large objects between two places do."""
        self._allow("storage.objects.get")
        self._allow_making(into, new_name)
        source = self.server.model.get(bucket, name, Conditions(self._number("ifSourceGenerationMatch")))
        answer: dict[str, object] = {"kind": "storage#rewriteResponse", "objectSize": str(source.size_bytes)}
        if "slowly" in new_name and self._query.get("rewriteToken") != "half":
            return _json_answer({**answer, "done": False, "totalBytesRewritten": "1", "rewriteToken": "half"})
        stored = self.server.model.copy(source, into, new_name, self._conditions())
        return _json_answer({**answer, "done": True, "resource": self._resource(stored)})

    def _upload(self, bucket: str) -> _Answer:
        match self._query.get("uploadType"):
            case "media":
                resource: dict[str, object] = {"contentType": self.headers.get("Content-Type")}
                return self._store(bucket, resource, lambda draft: self._copy(draft, self._left))
            case "multipart":
                close, resource = self._multipart_head()
                return self._store(bucket, resource, lambda draft: self._copy_until(draft, close))
            case "resumable":
                resource = self._json() if self._left else {}
                if "X-Upload-Content-Type" in self.headers:
                    resource.setdefault("contentType", self.headers["X-Upload-Content-Type"])
                name = self._name(resource)
                self._allow_making(bucket, name)
                session_id = self.server.model.begin(bucket, name, self._with_hashes(resource), self._conditions())
                query = urlencode({"uploadType": "resumable", "name": name, "upload_id": session_id})
                where = f"http://{self.headers['Host']}/upload/storage/v1/b/{quote(bucket)}/o?{query}"
                return _Answer(200, headers={"Location": where, "X-GUploader-UploadID": session_id})
        raise GCSError(400, "invalid", "uploadType must be media, multipart or resumable.")

    def _store(self, bucket: str, resource: Mapping[str, object], fill: Callable[[Draft], None]) -> _Answer:
        name = self._name(resource)
        self._allow_making(bucket, name)
        draft = self.server.model.draft(bucket, name)
        try:
            fill(draft)
            stored = self.server.model.commit(bucket, name, draft, self._with_hashes(resource), self._conditions())
        except BaseException:
            draft.discard()
            raise
        return _json_answer(self._resource(stored))

    def _multipart_head(self) -> tuple[bytes, dict[str, object]]:
        """Read up to the media: the delimiter that ends it, and the object's resource (RFC 2387, two parts)."""
        kind = self.headers.get("Content-Type", "")
        boundary = self.headers.get_boundary()
        if self.headers.get_content_type() != "multipart/related" or not boundary:
            raise GCSError(400, "badContent", f"Content-Type {kind!r} has no boundary.")
        delimiter = b"--" + boundary.encode()
        if self._line() != delimiter:
            raise GCSError(400, "badContent", "The body does not begin with its boundary.")
        while self._line():
            pass
        text = b""
        while (line := self._line()) != delimiter:
            text += line + b"\n"
        resource = _parse(text)
        while header := self._line():
            name, _, value = header.decode("latin-1").partition(":")
            if name.lower() == "content-type":
                resource.setdefault("contentType", value.strip())
        return b"\r\n" + delimiter + b"--", resource

    def _copy_until(self, draft: Draft, close: bytes) -> None:
        self._copy(draft, max(self._left - len(close) - 2, 0))
        tail = b""
        while self._left:
            tail += self._read()
        payload = tail.removesuffix(b"\r\n") if tail.endswith(close + b"\r\n") else tail
        if not payload.endswith(close):
            raise GCSError(400, "badContent", "The body does not end with its boundary.")
        draft.write(payload.removesuffix(close))

    def _copy(self, draft: Draft, n_bytes: int) -> None:
        while n_bytes:
            block = self._read(n_bytes)
            draft.write(block)
            n_bytes -= len(block)

    def _resume(self, session_id: str) -> _Answer:
        session = self.server.model.session(session_id)
        with session.lock:
            if session.cancelled:
                raise GCSError(410, "gone", "The upload session is over.")
            if self.command == "DELETE" and session.done is not None:
                raise GCSError(404, "notFound", "No such upload session.")  # the object stays
            if self.command == "DELETE":
                session.cancelled = True
                session.draft.discard()
                return _Answer(499)
            if session.done is not None:
                return _json_answer(self._resource(session.done))
            return self._take_chunk(session)

    def _take_chunk(self, session: Session) -> _Answer:
        if session.resource.get("keySha256") != self._key_sha256():
            raise GCSError(400, "invalid", "The encryption key is another than at the session's beginning.")
        draft, held = session.draft, session.draft.size_bytes
        asked = self.headers.get("Content-Range")
        if asked is None:  # all of the object in one request
            asked = f"bytes 0-{self._left - 1}/{self._left}" if self._left else "bytes */0"
        match = _CONTENT_RANGE.fullmatch(asked)
        if match is None:
            raise GCSError(400, "invalid", f"Invalid Content-Range {asked!r}.")
        total = None if match[3] == "*" else int(match[3])
        if total is not None and (session.total not in (None, total) or total < held):
            raise GCSError(400, "invalid", f"The object's size was {session.total or held}, and is {total} now.")
        session.total = session.total if total is None else total
        if match[1] is not None:
            first, end = int(match[1]), int(match[2]) + 1
            if end - first != self._left or (total is not None and end > total):
                raise GCSError(400, "invalid", f"The body has {self._left} bytes, Content-Range says {asked}.")
            if first > held:
                raise GCSError(400, "invalid", f"{held} bytes are persisted: a chunk that begins at {first} leaves a gap.")
            if end != total and end % CHUNK_BYTES:
                raise GCSError(400, "invalid", "A chunk that is not the last must end at a multiple of 256 KiB.")
            self._skip(min(held - first, self._left))  # persisted before; sent again after a lost answer
            self._persist(draft)
        if total is None or draft.size_bytes < total:
            persisted = {"Range": f"bytes=0-{draft.size_bytes - 1}"} if draft.size_bytes else {}
            return _Answer(308, headers=persisted)
        try:
            resource = self._with_hashes(session.resource)
            session.done = self.server.model.commit(session.bucket, session.name, draft, resource, session.conditions)
        except GCSError:
            session.cancelled = True
            draft.discard()
            raise
        return _json_answer(self._resource(session.done))

    def _persist(self, draft: Draft) -> None:
        """Keep what comes; of a chunk that is cut off, whole multiples of 256 KiB only, as Google promises no more."""
        while self._left:
            block = b""
            while self._left and len(block) < CHUNK_BYTES:
                block += self._read(CHUNK_BYTES - len(block))
            draft.write(block)

    def _skip(self, n_bytes: int) -> None:
        while n_bytes:
            n_bytes -= len(self._read(n_bytes))

    def _read(self, n_bytes: int = _BLOCK_BYTES) -> bytes:
        block = self.rfile.read1(min(n_bytes, self._left, _BLOCK_BYTES))
        if not block:
            raise _CutError
        self._left -= len(block)
        return bytes(block)

    def _line(self) -> bytes:
        line = self.rfile.readline(min(self._left, _MAX_JSON_BYTES))
        self._left -= len(line)
        if not line.endswith(b"\n"):
            raise GCSError(400, "badContent", "The body ends before its boundary.")
        return line.rstrip(b"\r\n")

    def _json(self) -> dict[str, object]:
        if self._left > _MAX_JSON_BYTES:
            raise GCSError(413, "uploadTooLarge", "The metadata is too large.")
        text = b""
        while self._left:
            text += self._read()
        return _parse(text)

    def _name(self, resource: Mapping[str, object]) -> str:
        return self._query.get("name") or str(resource.get("name") or "")

    def _number(self, name: str) -> int | None:
        text = self._query.get(name)
        if text is None or (text.isascii() and text.isdigit()):
            return None if text is None else int(text)
        raise GCSError(400, "invalid", f"Invalid value for {name}: {text!r}")

    def _conditions(self) -> Conditions:
        names = ("ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch")
        return Conditions(*map(self._number, names))

    def _with_hashes(self, resource: Mapping[str, object]) -> dict[str, object]:
        """The resource with what the X-Goog-Hash header declares (``crc32c=...,md5=...``)."""
        names = {"crc32c": "crc32c", "md5": "md5Hash"}
        pairs = [text.strip().partition("=") for text in self.headers.get("X-Goog-Hash", "").split(",")]
        hashes = {names[kind]: value for kind, _, value in pairs if kind in names}
        return {**resource, **hashes, "keySha256": self._key_sha256()}

    def _key_sha256(self) -> str | None:
        """Of the customer's key of this request; 400 unless it is of 32 bytes with the SHA-256 that is given."""
        algorithm, key, given = (self.headers.get(f"X-Goog-Encryption-{name}") for name in ("Algorithm", "Key", "Key-Sha256"))
        if (algorithm, key, given) == (None, None, None):
            return None
        raw = base64.b64decode(key or "")
        if algorithm != "AES256" or len(raw) != 32 or base64.b64encode(sha256(raw).digest()).decode() != given:
            raise GCSError(400, "customerEncryptionKeyFormatIsInvalid", "Missing or incorrect encryption headers.")
        return given

    def _resource(self, stored: Stored) -> dict[str, object]:
        base = f"http://{self.headers['Host']}"
        path = f"storage/v1/b/{quote(stored.bucket)}/o/{quote(stored.name, safe='')}"
        resource: dict[str, object] = {
            "kind": "storage#object",
            "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
            "selfLink": f"{base}/{path}",
            "mediaLink": f"{base}/download/{path}?generation={stored.generation}&alt=media",
            "name": stored.name,
            "bucket": stored.bucket,
            "generation": str(stored.generation),
            "metageneration": str(stored.metageneration),
            "contentType": stored.content_type,
            "storageClass": "STANDARD",
            "size": str(stored.size_bytes),
            "crc32c": stored.crc32c,
            "etag": stored.etag,
            "timeCreated": _time(stored.created_s),
            "updated": _time(stored.updated_s),
        }
        if stored.md5 is not None:
            resource["md5Hash"] = stored.md5
        if stored.key_sha256 is not None:
            resource["customerEncryption"] = {"encryptionAlgorithm": "AES256", "keySha256": stored.key_sha256}
            if self._key_sha256() != stored.key_sha256:
                resource = {name: value for name, value in resource.items() if name not in ("crc32c", "md5Hash")}
        if stored.components is not None:
            resource["componentCount"] = stored.components
        if stored.metadata:
            resource["metadata"] = dict(stored.metadata)
        return resource

    def _refusal(self, error: GCSError) -> _Answer:
        if self._query.get("alt") == "media":
            return _Answer(error.status, error.message.encode(), {"Content-Type": "text/plain", **error.headers})
        item = {"message": error.message, "domain": "global", "reason": error.reason}
        answer = _json_answer({"error": {"code": error.status, "message": error.message, "errors": [item]}})
        return replace(answer, status=error.status, headers={**answer.headers, **error.headers})

    def _send(self, answer: _Answer) -> None:
        try:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            bodiless = answer.status in (204, 304)
            length = answer.end - answer.start if answer.fd is not None else len(answer.body)
            if not bodiless:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            if answer.fd is None:
                self.wfile.write(b"" if bodiless else answer.body)
                return
            at = answer.start
            while at < answer.end:
                block = os.pread(answer.fd, min(_BLOCK_BYTES, answer.end - at), at)
                self.wfile.write(block)
                at += len(block)
        finally:
            if answer.fd is not None:
                os.close(answer.fd)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Write one line a request; a session's id is as good as a token, so it is left out."""
        sys.stderr.write(re.sub(r"upload_id=[^& ]*", "upload_id=...", format % args) + "\n")


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, model: Model, page_size: int, token: str, forbidden_token: str, creator_token: str) -> None:
        self.page_size = page_size
        self.model, self.token, self.forbidden_token, self.creator_token = model, token, forbidden_token, creator_token
        super().__init__(("127.0.0.1", port), _Handler)


def _json_answer(value: Mapping[str, object]) -> _Answer:
    return _Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _source(item: dict[str, Any]) -> Source:
    generation, condition = item.get("generation"), (item.get("objectPreconditions") or {}).get("ifGenerationMatch")
    return Source(item["name"], None if generation is None else int(generation), None if condition is None else int(condition))


def _parse(text: bytes) -> dict[str, object]:
    try:
        value = json.loads(text or b"{}")
    except ValueError as error:
        raise GCSError(400, "parseError", "Parse Error") from error
    if not isinstance(value, dict):
        raise GCSError(400, "parseError", "A JSON object is needed.")
    return value


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m servers.gcs_server", description="A strict Google Cloud Storage.")
    parser.add_argument("--folder", type=Path, required=True, help="where objects are kept")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket, unless it is there")
    parser.add_argument("--page-size", type=int, default=1000, help="the largest number of objects in a page of a listing")
    given = parser.parse_args(arguments)
    try:
        tokens = os.environ[_TOKEN], os.environ[_FORBIDDEN_TOKEN], os.environ[_CREATOR_TOKEN]
    except KeyError as error:
        parser.error(f"set {error.args[0]} in the environment")
    model = Model(given.folder)
    for bucket in given.bucket:
        model.make_bucket(bucket, again=True)
    with _HTTPServer(given.port, model, given.page_size, *tokens) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
