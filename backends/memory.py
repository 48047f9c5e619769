"""Objects in this process's memory: the reference to read before writing a backend, and the fast store of the tests.

All stores with one root share one set of objects. ``memory://`` URIs open fsspec's memory file system, not this one:
use ``MemoryStore(StoreURI("memory", "some-root"), {})``.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import google_crc32c

from wherry.errors import AlreadyExistsError, ConfigError, IntegrityError, NotFoundError, PermanentError, about
from wherry.store import (
    TEMPORARY_MARK,
    Capabilities,
    MultipartStore,
    ObjectMeta,
    Part,
    PendingUpload,
    PutOptions,
    StoredPart,
    TakeBlock,
    order_of,
)
from wherry.uri import StoreURI


@dataclass(frozen=True)
class _Upload:
    key: str
    put: PutOptions
    begun_s: float
    parts: dict[int, tuple[StoredPart, bytes]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Root:
    """What the stores of one root share."""

    objects: dict[str, tuple[ObjectMeta, bytes]] = field(default_factory=dict)
    uploads: dict[str, _Upload] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    lock: threading.Lock = field(default_factory=threading.Lock)


_ROOTS: dict[str, _Root] = {}


class MemoryStore(MultipartStore):
    """A dict as a store; it has every capability. Takes no options."""

    capabilities = Capabilities(
        conditional_put=True,
        conditional_complete=True,
        multipart=True,
        checks_crc32c=True,
        ranged_get=True,
        atomic_replace=True,
        metadata=True,
        process_local=True,
        copies=True,
        min_part_size_bytes=1,
    )

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        if options:
            raise ConfigError(f"storage option {min(options)!r} is unknown: a store in memory takes none")
        self._uri = uri
        self._root = _ROOTS.setdefault(uri.root, _Root())

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says."""
        return self._store("put", key, path.read_bytes(), put)

    def get_file(self, key: str, path: Path, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the contract says."""
        with open(path, "r+b") as file:
            data = self._range(key, start, end, if_match)
            file.seek(start)
            file.write(data)

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """As the contract says: in one block."""
        if data := self._range(key, start, end, if_match):
            take(data, start)

    def _range(self, key: str, start: int, end: int | None, if_match: str | None) -> bytes:
        meta, data = self._object("get", key)
        end = len(data) if end is None else end
        with about("get", self._uri.uri_for(key)):
            if if_match not in (None, meta.etag):
                raise IntegrityError(f"the object was replaced: its etag is {meta.etag}, not {if_match}")
            if not 0 <= start <= end <= len(data):
                raise IntegrityError(f"bytes {start} to {end} were asked for, the object has {len(data)}")
        return data[start:end]

    def head(self, key: str) -> ObjectMeta:
        """As the contract says."""
        return self._object("head", key)[0]

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the contract says: a snapshot, taken when the first object is requested."""
        after = order_of(start_after)
        with self._root.lock:
            found = [meta for key, (meta, _) in self._root.objects.items() if key.startswith(prefix) and order_of(key) > after]
        yield from sorted((meta for meta in found if TEMPORARY_MARK not in meta.key), key=lambda meta: order_of(meta.key))

    def delete(self, key: str) -> None:
        """As the contract says."""
        with self._root.lock:
            self._root.objects.pop(key, None)

    def copy(self, key: str, source: ObjectMeta, root: str | None = None, *, if_absent: bool = False) -> ObjectMeta:
        """As the contract says."""
        found = self._root if root is None else _ROOTS.setdefault(root, _Root())
        with found.lock:
            held = found.objects.get(source.key)
        with about("copy", self._uri.uri_for(key)):
            if held is None:
                raise NotFoundError(f"there is no object {source.key!r}")
            if source.etag not in (None, held[0].etag):
                raise IntegrityError(f"the source was replaced: its etag is {held[0].etag}, not {source.etag}")
        put = PutOptions(if_absent=if_absent, metadata=held[0].metadata, content_type=held[0].content_type)
        return self._store("copy", key, held[1], put)

    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        """As the contract says, but the process's end is the upload's end too."""
        upload_id = f"upload-{next(self._root.numbers)}"
        with self._root.lock:
            self._root.uploads[upload_id] = _Upload(key, put, time.time())
        return upload_id

    def put_part(self, key: str, upload_id: str, path: Path, part: Part) -> StoredPart:
        """As the contract says."""
        with open(path, "rb") as file:
            file.seek(part.start)
            data = file.read(part.size_bytes)
        self._check("put_part", key, part.size_bytes, len(data), "bytes")
        self._check("put_part", key, part.crc32c, google_crc32c.value(data), "as CRC32C")
        stored = StoredPart(part.number, len(data), f"part-{next(self._root.numbers)}", part.crc32c)
        with self._root.lock:
            self._upload("put_part", key, upload_id).parts[part.number] = (stored, data)
        return stored

    def list_parts(self, key: str, upload_id: str) -> list[StoredPart]:  # type: ignore[valid-type]  # the builtin list
        """As the contract says."""
        with self._root.lock:
            parts = self._upload("list_parts", key, upload_id).parts
            return [parts[number][0] for number in sorted(parts)]

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the contract says. A refused upload stays open."""
        with self._root.lock:
            upload = self._upload("complete", key, upload_id)
            held = dict(upload.parts)
        for part in parts:
            if part.number not in held or held[part.number][0].etag != part.etag:
                raise PermanentError(f"part {part.number} is not held", operation="complete", uri=self._uri.uri_for(key))
        data = b"".join(held[number][1] for number in sorted(part.number for part in parts))
        crc = upload.put.crc32c if put.crc32c is None else put.crc32c
        meta = self._store("complete", key, data, replace(upload.put, if_absent=put.if_absent, crc32c=crc))
        self.abort(key, upload_id)
        return meta

    def abort(self, key: str, upload_id: str) -> None:
        """As the contract says."""
        with self._root.lock:
            self._root.uploads.pop(upload_id, None)

    def list_uploads(self, prefix: str = "") -> Iterator[PendingUpload]:
        """As the contract says: a snapshot, taken when the first upload is requested."""
        with self._root.lock:
            found = [(upload_id, upload) for upload_id, upload in self._root.uploads.items() if upload.key.startswith(prefix)]
        yield from (PendingUpload(upload.key, upload_id, upload.begun_s, is_ours=True) for upload_id, upload in found)

    def _store(self, operation: str, key: str, data: bytes, put: PutOptions) -> ObjectMeta:
        crc = int(google_crc32c.value(data))
        self._check(operation, key, crc if put.crc32c is None else put.crc32c, crc, "as CRC32C")
        metadata, now_s = dict(put.metadata), time.time()
        meta = ObjectMeta(key, len(data), crc32c=crc, modified_s=now_s, metadata=metadata, content_type=put.content_type)
        with self._root.lock:
            if put.if_absent and key in self._root.objects:
                raise AlreadyExistsError("the object is there already", operation=operation, uri=self._uri.uri_for(key))
            meta = replace(meta, etag=f"object-{next(self._root.numbers)}")
            self._root.objects[key] = (meta, data)
        return meta

    def _object(self, operation: str, key: str) -> tuple[ObjectMeta, bytes]:
        with self._root.lock:
            if (found := self._root.objects.get(key)) is None:
                raise NotFoundError("there is no such object", operation=operation, uri=self._uri.uri_for(key))
            return found

    def _upload(self, operation: str, key: str, upload_id: str) -> _Upload:
        """The open upload; the caller holds the lock."""
        upload = self._root.uploads.get(upload_id)
        if upload is None or upload.key != key:
            raise NotFoundError(f"there is no upload {upload_id}", operation=operation, uri=self._uri.uri_for(key))
        return upload

    def _check(self, operation: str, key: str, expected: int, actual: int, what: str) -> None:
        if expected != actual:
            raise IntegrityError(f"{expected} {what} expected, {actual} came", operation=operation, uri=self._uri.uri_for(key))
