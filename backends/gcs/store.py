"""Objects of Google Cloud Storage: ``gs://bucket/prefix``, by requests of the JSON API with google-auth's credentials.

- `etag` is the object's generation: it changes with every write, and `if_match` is sent as ifGenerationMatch.
- Large objects go in parts that are composed (compose.py), or in a resumable session (resumable.py).
- Objects come back as they are stored: decompressive transcoding is off.

Sources: "Cloud Storage JSON API" reference, "Request preconditions" and "Transcoding of gzip-compressed files" of the Cloud
Storage documentation.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

from wherry.backends.gcs.body import announced, beyond
from wherry.backends.gcs.bucket import Bucket, generation_match
from wherry.backends.gcs.compose import ComposedUploads
from wherry.backends.gcs.error_table import error_in
from wherry.backends.gcs.options import GCSOptions
from wherry.backends.gcs.resumable import CHUNK_BYTES, SessionUploads
from wherry.backends.local_file import Summed, opened_source, opened_target
from wherry.errors import IntegrityError, NotFoundError, TransientError, about
from wherry.posix.thread_pool import each_at_once
from wherry.store import (
    TEMPORARY_MARK,
    Capabilities,
    MultipartStore,
    ObjectMeta,
    Page,
    Part,
    PendingUpload,
    PutOptions,
    StoredPart,
    TakeBlock,
    order_of,
    start_within,
)
from wherry.uri import StoreURI

_BLOCK_BYTES = 2**20


class GCSStore(MultipartStore):
    """A bucket. Options: the fields of `GCSOptions`."""

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
        min_joined_bytes=1,
        copies=True,
    )

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        checked = GCSOptions.read(options)
        self._bucket = Bucket(uri, checked)
        self._composed, self._sessions = ComposedUploads(self._bucket), SessionUploads(self._bucket)
        self._uploads: ComposedUploads | SessionUploads = self._composed
        if checked.encryption_headers:  # of the customer's key: copies would need it twice, under other names
            self.capabilities = replace(self.capabilities, copies=False)
        if checked.upload == "session":
            self._uploads = self._sessions
            self.capabilities = replace(
                self.capabilities, sequential_parts=True, min_part_size_bytes=CHUNK_BYTES, min_joined_bytes=None
            )

    @property
    def n_requests(self) -> int:
        """As the contract says; google-auth's requests for tokens are not counted."""
        return self._bucket.requests.value

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says: one request, streamed from the file."""
        with self._about("put", key), opened_source(path) as fd:
            return self._bucket.send(key, fd, put, start=0, end=os.fstat(fd).st_size)

    def get_file(
        self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None
    ) -> int | None:
        """As the contract says. A range that ends past the object's end is an IntegrityError: no retry would help."""
        with self._about("get", key), opened_target(path) as fd:
            target = Summed(fd, path)
            self.read(key, target.take, start=start, end=end, if_match=if_match)
            return target.crc32c

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the contract says. For an empty range it checks that the range is inside the object."""
        with self._about("get", key):
            if end is not None and end <= start:
                meta = self._bucket.look(key)
                _check_version(meta.etag, if_match)
                if not 0 <= start <= end <= meta.size_bytes:
                    raise beyond(start, end, meta.size_bytes)
            else:
                self._read(key, take, start, end, if_match)

    def _read(self, key: str, take: TakeBlock, start: int, end: int | None, if_match: str | None) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._bucket.translated(if_match=True))
            params = {"alt": "media", **generation_match(if_match)}
            headers = {"Accept-Encoding": "gzip", **self._bucket.encryption}  # gzip is what turns decompressive transcoding off
            if start or end is not None:
                headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
            answer = self._bucket.request("GET", self._bucket.url("download", key), params, headers, is_stream=True)
            stack.enter_context(answer)
            if answer.status_code == 416 and end is None and answer.headers.get("Content-Range") == f"bytes */{start}":
                return  # from the very end on: no bytes
            if answer.status_code not in (200, 206):
                raise error_in(answer)
            generation = answer.headers.get("X-Goog-Generation")
            if generation is not None:
                _check_version(generation, if_match)
            expected = announced(answer.headers, answer.status_code, start, end)
            received = 0
            while block := answer.raw.read(_BLOCK_BYTES, decode_content=False):
                # What comes beyond the range must not be written: the next range may be there already, and summed.
                if wanted := block if expected is None else block[: max(0, expected - received)]:
                    take(wanted, start + received)
                received += len(block)
            if expected not in (None, received):
                raise TransientError(f"{received} bytes came, {expected} were announced")
        if if_match is not None and generation is None:  # a server that leaves it out may well ignore the condition
            _check_version(self._bucket.look(key).etag, if_match)

    def head(self, key: str) -> ObjectMeta:
        """As the contract says; `crc32c` is always the server's own figure."""
        with self._about("head", key):
            return self._bucket.look(key)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the contract says, with `crc32c` and `metadata`."""
        if (start := start_within(prefix, start_after)) is None:
            return
        after = order_of(start)
        with self._about("list", prefix):
            for meta in self._bucket.listed(prefix, start):
                if TEMPORARY_MARK not in meta.key and order_of(meta.key) > after:
                    yield meta

    def pages(self, prefix: str = "", *, one_level: bool = False, mark: str | None = None) -> Iterator[Page]:
        """As the contract says, in the order of the names."""
        with self._about("list", prefix):
            yield from map(Page.without_temporary, self._bucket.pages(prefix, mark, **({"delimiter": "/"} if one_level else {})))

    def delete(self, key: str) -> None:
        """As the contract says; a missing bucket is an error."""
        with self._about("delete", key):
            self._bucket.remove(key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """As the contract says: a request for each, several at once."""
        each_at_once(self.delete, keys)

    def join(self, key: str, sources: Sequence[str], size_bytes: int, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says. It makes temporary objects, so it is not offered with ``upload="session"``."""
        if self.capabilities.min_joined_bytes is None:
            return super().join(key, sources, size_bytes, put)
        with self._about("join", key):
            return self._composed.join(key, sources, size_bytes, put)

    def copy(self, key: str, source: ObjectMeta, root: str | None = None, *, if_absent: bool = False) -> ObjectMeta:
        """As the contract says; a large object between places or classes takes several requests, each of which goes on."""
        if not self.capabilities.copies:
            return super().copy(key, source, root, if_absent=if_absent)
        with self._about("copy", key):
            return self._bucket.rewrite(key, source, root, if_absent=if_absent)

    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        """As the contract says. A session's id is a secret: whoever has it may write the object."""
        with self._about("begin", key):
            return self._uploads.begin(key, put)

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the contract says."""
        with self._about("put_part", key):
            return self._upload(upload_id).put_part(key, upload_id, path, part)

    def list_parts(self, key: str, upload_id: str) -> builtins.list[StoredPart]:
        """As the contract says. An upload that was begun with another value of the option ``upload`` is not found."""
        with self._about("list_parts", key):
            return self._upload(upload_id).list_parts(key, upload_id)

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says, and safe to call again."""
        with self._about("complete", key):
            return self._upload(upload_id).complete(key, upload_id, parts, put)

    def abort(self, key: str, upload_id: str) -> None:
        """As the contract says."""
        with self._about("abort", key):
            (self._sessions if self._sessions.knows(upload_id) else self._composed).abort(key, upload_id)

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """As the contract says, by their temporary objects; sessions are not shown."""
        with self._about("list_uploads", prefix):
            yield from self._composed.list_uploads(prefix)

    def close(self) -> None:
        """Close the connections."""
        self._bucket.close()

    def _about(self, operation: str, key: str) -> AbstractContextManager[None]:
        return about(operation, self._bucket.uri.uri_for(key))

    def _upload(self, upload_id: str) -> ComposedUploads | SessionUploads:
        if not self._uploads.knows(upload_id):
            raise NotFoundError("the upload is of another kind")
        return self._uploads


def _check_version(etag: str | None, if_match: str | None) -> None:
    if if_match not in (None, etag):
        raise IntegrityError(f"the object was replaced: its generation is {etag}, not {if_match}")
