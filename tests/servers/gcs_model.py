"""Buckets and objects as Google Cloud Storage keeps them: generations, preconditions, checksums, composition, resumable sessions.

Each object is a JSON file ``buckets/<bucket>/<SHA-256 of the name>.json`` that names a file of ``data/``. That file is written
first and the JSON is renamed into place after it, so that a killed server shows whole objects only; what no JSON names is removed
at the next start. Sessions live in memory and end with the server.

Sources: the resource and method pages of "Cloud Storage JSON API", and the pages "Request preconditions", "Composite objects" and
"Resumable uploads" of the Cloud Storage documentation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

from wherry.checksum import crc32c

MAX_COMPONENTS = 32
#: Every piece of a resumable upload but the last is a multiple of this.
CHUNK_BYTES = 256 * 1024
_BLOCK_BYTES = 2**20
#: Up to 63 characters, or 222 with dots, between which there are again at most 63 ("Bucket names").
_BUCKET_NAME = re.compile(r"(?=.{3,222}$)[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?)*")
NO_BUCKET = "The specified bucket does not exist."


class GCSError(Exception):
    """An answer that is an error: HTTP status, Google's word for the reason, and the message."""

    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.headers = status, reason, message, dict(headers or {})


@dataclass(frozen=True)
class Stored:
    """One live object. `crc32c` and `md5` are base64, as in the API; a composite object has no `md5`."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    size_bytes: int
    crc32c: str
    md5: str | None
    content_type: str
    metadata: Mapping[str, str]
    created_s: float
    updated_s: float
    components: int | None
    data: str
    #: SHA-256 of the customer's key that it is encrypted with, as far as anybody can tell.
    key_sha256: str | None = None

    def check_key(self, given_sha256: str | None) -> None:
        """400 unless the key is the one that it is encrypted with, if it is."""
        if self.key_sha256 not in (None, given_sha256):
            words = "The target object is encrypted by a customer-supplied encryption key."
            raise GCSError(400, "resourceIsEncryptedWithCustomerEncryptionKey", words)

    @property
    def etag(self) -> str:
        """Any string that changes with the object and with its metadata."""
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()


@dataclass(frozen=True)
class Conditions:
    """The preconditions of a request; None: not asked for."""

    generation: int | None = None
    generation_not: int | None = None
    metageneration: int | None = None
    metageneration_not: int | None = None

    def check(self, found: Stored | None) -> None:
        """Raise 412 where a match fails and 304 where a not-match fails. An absent object has generation 0."""
        generation = found.generation if found else 0
        if self.generation not in (None, generation) or (self.metageneration is not None and not found):
            raise _unmet()
        if found and self.metageneration not in (None, found.metageneration):
            raise _unmet()
        if self.generation_not == generation or (found and self.metageneration_not == found.metageneration):
            raise GCSError(304, "notModified", "Not Modified")
        if not found and (self.generation_not is not None or self.metageneration_not is not None):
            raise _unmet()


@dataclass(frozen=True)
class Source:
    """One source of a composition."""

    name: str
    generation: int | None
    if_generation: int | None


class Draft:
    """The bytes of an object to come, in a file that nobody sees, with their checksums."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self._crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  closed by finish() or discard()

    def write(self, block: bytes) -> None:
        """Append."""
        self._file.write(block)
        self._crc32c = crc32c(block, self._crc32c)
        self._md5.update(block)
        self.size_bytes += len(block)

    def finish(self) -> tuple[str, str]:
        """No more is to come; the CRC32C and the MD5 in base64."""
        self._file.close()
        return base64.b64encode(self._crc32c.to_bytes(4, "big")).decode(), base64.b64encode(self._md5.digest()).decode()

    def discard(self) -> None:
        """Remove the file. Not after a commit: then it is the object's."""
        self._file.close()
        self.path.unlink(missing_ok=True)


@dataclass
class Session:
    """A resumable upload. `done`: the object it became; `cancelled`: ended by DELETE or by a refusal at its end.

    `total`: its size, once a request has said it.
    """

    bucket: str
    name: str
    resource: Mapping[str, object]
    conditions: Conditions
    draft: Draft
    done: Stored | None = None
    cancelled: bool = False
    total: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Model:
    """All buckets below one folder. Safe to call from several threads."""

    def __init__(self, folder: Path) -> None:
        self._data, self._buckets_folder = folder / "data", folder / "buckets"
        self._lock = threading.RLock()
        self._sessions: dict[str, Session] = {}
        self._buckets: dict[str, dict[str, Stored]] = {}
        self._last_generation = 0
        for needed in (self._data, self._buckets_folder):
            needed.mkdir(parents=True, exist_ok=True)
        for bucket in self._buckets_folder.iterdir():
            records = [Stored(**json.loads(path.read_bytes())) for path in bucket.glob("*.json")]
            self._buckets[bucket.name] = {stored.name: stored for stored in records}
            self._last_generation = max([self._last_generation, *(stored.generation for stored in records)])
        kept = {stored.data for objects in self._buckets.values() for stored in objects.values()}
        for path in self._data.iterdir():
            if path.name not in kept:
                path.unlink()

    def make_bucket(self, name: str, *, again: bool = False) -> None:
        """Create a bucket; 409 if it is there, unless that may be (`again`)."""
        if not _BUCKET_NAME.fullmatch(name):
            raise GCSError(400, "invalid", f"Invalid bucket name: '{name}'")
        with self._lock:
            if name in self._buckets:
                if again:
                    return
                raise GCSError(
                    409, "conflict", "Your previous request to create the named bucket succeeded and you already own it."
                )
            (self._buckets_folder / name).mkdir()
            self._buckets[name] = {}

    def bucket(self, name: str) -> dict[str, Stored]:
        """The bucket's objects by name; 404 if there is no such bucket."""
        with self._lock:
            if name not in self._buckets:
                raise GCSError(404, "notFound", NO_BUCKET)
            return self._buckets[name]

    def has(self, bucket: str, name: str) -> bool:
        """Whether there is such an object; 404 if there is no such bucket."""
        with self._lock:
            return name in self.bucket(bucket)

    def get(self, bucket: str, name: str, conditions: Conditions, generation: int | None = None) -> Stored:
        """The live object; 404 if there is none, or not of that generation."""
        with self._lock:
            found = self.bucket(bucket).get(name)
            if found is None or generation not in (None, found.generation):
                raise _no_object(bucket, name)
            conditions.check(found)
            return found

    def open(self, bucket: str, name: str, conditions: Conditions, generation: int | None = None) -> tuple[Stored, int]:
        """As get(), with a descriptor of its bytes, which replacing the object does not touch."""
        with self._lock:
            stored = self.get(bucket, name, conditions, generation)
            return stored, os.open(self._data / stored.data, os.O_RDONLY | os.O_CLOEXEC)

    def list(
        self, bucket: str, prefix: str, delimiter: str, start: str, after: str, limit: int
    ) -> tuple[list[Stored], list[str], str | None]:
        """One page in the order of UTF-8 bytes, from the name `start` on: objects, prefixes up to `delimiter`, and the name to go
        on after.
        """
        with self._lock:
            names = sorted((name for name in self.bucket(bucket) if name.startswith(prefix)), key=str.encode)
            items: list[Stored] = []
            prefixes: list[str] = []
            for name in names:
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                shown = name if cut < 0 else name[: cut + len(delimiter)]
                if name.encode() < start.encode() or shown.encode() <= after.encode() or shown in prefixes[-1:]:
                    continue
                if len(items) + len(prefixes) == limit:
                    return items, prefixes, max([*prefixes[-1:], *(item.name for item in items[-1:])], key=str.encode)
                if cut < 0:
                    items.append(self.bucket(bucket)[name])
                else:
                    prefixes.append(shown)
            return items, prefixes, None

    def draft(self, bucket: str, name: str) -> Draft:
        """Begin to write an object; 404 for the bucket, 400 for the name."""
        self.bucket(bucket)
        forbidden = name in (".", "..") or name.startswith(".well-known/acme-challenge/") or "\r" in name or "\n" in name
        if forbidden or not 1 <= len(name.encode()) <= 1024:
            raise GCSError(
                400, "invalid", f"Disallowed unicode characters present in object name '{name[:100]}'" if name else "Required"
            )
        return Draft(self._data / secrets.token_hex(16))

    def commit(
        self,
        bucket: str,
        name: str,
        draft: Draft,
        resource: Mapping[str, object],
        conditions: Conditions,
        components: int | None = None,
    ) -> Stored:
        """Make the draft the live object, in one step with the preconditions; 400 if its checksums are others than declared."""
        crc, md5 = draft.finish()
        for what, declared, calculated in (("CRC32C", resource.get("crc32c"), crc), ("MD5 hash", resource.get("md5Hash"), md5)):
            if components is None and declared not in (None, calculated):
                words = f'Provided {what} "{declared}" doesn\'t match calculated {what} "{calculated}".'
                raise GCSError(400, "invalid", words)
        with self._lock:
            found = self.bucket(bucket).get(name)
            conditions.check(found)
            self._last_generation = max(self._last_generation + 1, time.time_ns() // 1000)
            stored = Stored(
                bucket=bucket,
                name=name,
                generation=self._last_generation,
                metageneration=1,
                size_bytes=draft.size_bytes,
                crc32c=crc,
                md5=md5 if components is None else None,
                content_type=str(resource.get("contentType") or "application/octet-stream"),
                metadata=_metadata(resource),
                created_s=time.time(),
                updated_s=time.time(),
                components=components,
                data=draft.path.name,
                key_sha256=cast("str | None", resource.get("keySha256")),
            )
            self._keep(stored)
            if found:
                (self._data / found.data).unlink()
            return stored

    def patch(self, bucket: str, name: str, resource: Mapping[str, object], conditions: Conditions) -> Stored:
        """Replace the custom metadata, if given, and the content type, if given."""
        with self._lock:
            found = self.get(bucket, name, conditions)
            metadata = _metadata(resource) if "metadata" in resource else found.metadata
            content_type = str(resource.get("contentType", found.content_type))
            changed = replace(found, metadata=metadata, content_type=content_type, updated_s=time.time())
            changed = replace(changed, metageneration=found.metageneration + 1)
            self._keep(changed)
            return changed

    def delete(self, bucket: str, name: str, conditions: Conditions, generation: int | None = None) -> None:
        """Remove the live object; 404 if there is none."""
        with self._lock:
            found = self.get(bucket, name, conditions, generation)
            self._record(found).unlink()
            del self._buckets[bucket][name]
            (self._data / found.data).unlink()

    def compose(
        self, bucket: str, name: str, sources: Sequence[Source], resource: Mapping[str, object], conditions: Conditions
    ) -> Stored:
        """Concatenate 1 to 32 objects of the bucket into one."""
        if not 1 <= len(sources) <= MAX_COMPONENTS:
            words = f"The number of source components provided ({len(sources)}) exceeds the maximum ({MAX_COMPONENTS})"
            raise GCSError(400, "invalid", words if sources else "You must provide at least one source component.")
        opened: list[tuple[Stored, int]] = []
        draft = self.draft(bucket, name)
        try:
            with self._lock:
                conditions.check(self.bucket(bucket).get(name))
                for source in sources:
                    found = self.open(bucket, source.name, Conditions(source.if_generation), source.generation)
                    opened.append(found)
                    found[0].check_key(cast("str | None", resource.get("keySha256")))
            for _, fd in opened:
                while block := os.read(fd, _BLOCK_BYTES):
                    draft.write(block)
            components = sum(stored.components or 1 for stored, _ in opened)
            return self.commit(bucket, name, draft, resource, conditions, components)
        except GCSError:
            draft.discard()
            raise
        finally:
            for _, fd in opened:
                os.close(fd)

    def copy(self, source: Stored, bucket: str, name: str, conditions: Conditions) -> Stored:
        """Another object with the bytes, the metadata and the content type of `source`."""
        draft = self.draft(bucket, name)
        try:
            _, fd = self.open(source.bucket, source.name, Conditions(), source.generation)
            try:
                while block := os.read(fd, _BLOCK_BYTES):
                    draft.write(block)
            finally:
                os.close(fd)
            resource = {"contentType": source.content_type, "metadata": source.metadata}
            return self.commit(bucket, name, draft, resource, conditions, source.components)
        except GCSError:
            draft.discard()
            raise

    def begin(self, bucket: str, name: str, resource: Mapping[str, object], conditions: Conditions) -> str:
        """Open a resumable session; the preconditions are checked now and again at its end."""
        draft = self.draft(bucket, name)
        try:
            with self._lock:
                conditions.check(self.bucket(bucket).get(name))
                session_id = secrets.token_urlsafe(32)
                self._sessions[session_id] = Session(bucket, name, resource, conditions, draft)
                return session_id
        except GCSError:
            draft.discard()
            raise

    def session(self, session_id: str) -> Session:
        """The session; 404 if it never was."""
        with self._lock:
            if session_id not in self._sessions:
                raise GCSError(404, "notFound", "No such upload session.")
            return self._sessions[session_id]

    def _keep(self, stored: Stored) -> None:
        record = self._record(stored)
        temporary = record.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(stored)))
        os.replace(temporary, record)
        self._buckets[stored.bucket][stored.name] = stored

    def _record(self, stored: Stored) -> Path:
        return self._buckets_folder / stored.bucket / f"{hashlib.sha256(stored.name.encode()).hexdigest()}.json"


def _metadata(resource: Mapping[str, object]) -> dict[str, str]:
    given = resource.get("metadata") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise GCSError(400, "invalid", "Invalid value for metadata: an object of strings is needed.")
    return {str(key): str(text) for key, text in given.items()}


def _unmet() -> GCSError:
    return GCSError(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def _no_object(bucket: str, name: str) -> GCSError:
    return GCSError(404, "notFound", f"No such object: {bucket}/{name}")
