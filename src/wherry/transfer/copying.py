"""One object from a store to another, verified: inside the server where it can copy, else through this process's memory.

Bytes that pass through are summed as they come, and compared with what the source's store says of them before the copy can be
seen, and with what the target's store says of the copy afterwards. A large object goes in parts, each of which is in memory
while it is sent, so nothing is written to a disk; only for a target that takes no parts side by side, or where the source has
nothing but a digest of the whole, a temporary file is needed.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from wherry.checksum import crc32c_of_file, format_crc32c, join_crc32c
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    TransientError,
)
from wherry.posix.file_copy import require_regular
from wherry.posix.thread_pool import map_at_once
from wherry.spool.journal.jobs import Job, job_sent_at_once
from wherry.store import (
    CRC32C_METADATA,
    TOKEN_METADATA,
    MultipartStore,
    ObjectMeta,
    ObjectStore,
    Part,
    PutOptions,
    StoredPart,
    file_in_memory,
)
from wherry.store.retry import call_with_retry
from wherry.store.wrappers import WrappedStore
from wherry.transfer.digest import Digest
from wherry.transfer.download import download
from wherry.transfer.part_sizes import part_size_for, split
from wherry.transfer.upload import Sender
from wherry.transfer.verification import landed, own, verified

log = logging.getLogger("wherry.transfer.copying")

#: Threads that a pool for copies should have. Each has a part in memory: 8 MiB, and up to 64 MiB of objects beyond 4 GiB.
PARTS_AT_ONCE = 8
#: A file that changes while it is sent is sent again, so often.
_TRIES = 3
_MEDIA_TYPE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


@dataclass(frozen=True)
class Target:
    """Where a copy goes. `uri` is for messages; `overwrite`: what is there already is replaced."""

    store: ObjectStore
    key: str
    uri: str
    overwrite: bool = False


class Copier:
    """Copies objects. `pool` sends parts: it has PARTS_AT_ONCE threads, which bound the memory of all copies under way."""

    def __init__(self, pool: Executor, transfer: TransferConfig, retry: RetryConfig) -> None:
        self._pool = pool
        self._transfer = transfer
        self._retry = retry
        self._sender = Sender(None, pool)
        #: The uploads in parts that are under way: (store, key, id).
        self._open: dict[int, tuple[MultipartStore, str, str]] = {}

    def abandon(self) -> None:
        """Abort what is under way in other threads, as far as the stores can be reached; after Ctrl-C."""
        for store, key, upload_id in list(self._open.values()):
            with suppress(StoreError):
                store.abort(key, upload_id)

    def inside(self, source: ObjectMeta, root: str, target: Target) -> ObjectMeta | None:
        """Copy an object of the store `root` on the target's own server; None if that server does not copy this one.

        Raises IntegrityError if the source was replaced, or if the copy is not what it is; AlreadyExistsError.
        """
        if not target.store.capabilities.copies:
            return None
        try:
            made = target.store.copy(target.key, source, root, if_absent=not target.overwrite)
        except (AlreadyExistsError, IntegrityError, NotFoundError, AccessDeniedError):
            raise
        except PermanentError as error:  # it lacks the call, or does not copy between these two buckets
            log.info("%s: %s: its bytes go through this machine", target.uri, error)
            return None
        wrong = made.size_bytes != source.size_bytes or _differ(source.crc32c, made.crc32c)
        if wrong or (source.crc32c is None and made.crc32c is None and _digests_differ(source, made)):
            raise IntegrityError(
                f"the server's copy has {made.size_bytes} bytes, the source {source.size_bytes}, or their checksums differ",
                operation="copy",
                uri=target.uri,
            )
        return made

    def file(self, path: Path, target: Target) -> ObjectMeta:
        """Make a file that its owner may go on writing to an object: what it holds at one moment, or an error.

        A file that changes meanwhile is sent again, up to three times, and then an IntegrityError that says so. What the name
        had before stays until a version is sent that was whole at one moment.
        """
        for _ in range(_TRIES):
            before = path.stat()
            require_regular(path, before)
            job = job_sent_at_once(target.uri, target.key, before.st_size, "copy", overwrite=target.overwrite)
            store = _Unchanged(target.store, path, before)
            try:
                made = self._sender.send(job, path, store, self._transfer, retry=self._retry, frozen=False)
                if _version(before) == _version(path.stat()):
                    return made
                if target.overwrite:  # what was sent is whole; the next try replaces it
                    continue
            except IntegrityError:
                if _version(before) == _version(path.stat()):
                    raise
            _take_back(job, target)
        raise IntegrityError(
            f"{path} changes again and again while it is sent",
            operation="put",
            uri=target.uri,
            hint="copy it when its writer has ended, or follow it with wherry mirror",
        )

    def through(self, source: ObjectStore, meta: ObjectMeta, target: Target) -> ObjectMeta:
        """Copy what head() of `source` has described, through this machine; its metadata and media type go along."""
        job = job_sent_at_once(target.uri, target.key, meta.size_bytes, "copy", overwrite=target.overwrite, crc32c=meta.crc32c)
        metadata = {**meta.metadata, TOKEN_METADATA: job.token}
        put = PutOptions(if_absent=not target.overwrite, crc32c=meta.crc32c, metadata=metadata, content_type=_media_type(meta))
        capabilities, store = target.store.capabilities, target.store
        if meta.size_bytes <= self._transfer.part_size_bytes:
            made, crc = self._at_once(source, meta, target, job, put)
            return verified(self._pool, made, job, crc, store)
        takes_parts = isinstance(store, MultipartStore) and capabilities.multipart and not capabilities.sequential_parts
        has_sum = meta.crc32c is not None or meta.digest is None
        if not (takes_parts and source.capabilities.ranged_get and has_sum):
            return self._by_disk(source, meta, target)
        assert isinstance(store, MultipartStore), "capabilities.multipart says so"
        made, crc = self._in_parts(source, meta, store, job, put)
        return verified(self._pool, made, job, crc, store)

    def _at_once(
        self, source: ObjectStore, meta: ObjectMeta, target: Target, job: Job, put: PutOptions
    ) -> tuple[ObjectMeta, int]:
        with file_in_memory() as path:
            crc = self._fetched(source, meta, path, 0, meta.size_bytes)
            digest = Digest(meta.digest, path) if meta.crc32c is None and meta.digest is not None else None
            if digest is not None:
                digest.add(0, meta.size_bytes)
            self._require(meta, crc, None if digest is None else digest.text(), job.uri)
            put = replace(put, crc32c=crc, metadata={**put.metadata, CRC32C_METADATA: format_crc32c(crc)})
            try:
                return target.store.put_file(target.key, path, put), crc
            except AlreadyExistsError as refusal:
                return own(self._pool, job, crc, target.store, refusal), crc

    def _in_parts(
        self, source: ObjectStore, meta: ObjectMeta, store: MultipartStore, job: Job, put: PutOptions
    ) -> tuple[ObjectMeta, int]:
        if meta.crc32c is not None:
            put = replace(put, metadata={**put.metadata, CRC32C_METADATA: format_crc32c(meta.crc32c)})
        size = part_size_for(meta.size_bytes, self._transfer, store.capabilities)
        upload_id = call_with_retry(lambda: store.begin(job.key, meta.size_bytes, put), config=self._retry)

        def move(number: int, start: int, end: int) -> tuple[StoredPart, int]:
            with file_in_memory() as path:
                crc = self._fetched(source, meta, path, start, end)
                return store.put_part(job.key, upload_id, path, Part(number, start, end, crc)), crc

        self._open[id(job)] = store, job.key, upload_id
        try:
            pieces = [(number, start, end) for number, (start, end) in enumerate(split(meta.size_bytes, size), 1)]
            moved = map_at_once(self._pool, move, pieces, self._transfer.parts_in_flight)
            crc = join_crc32c([crc for _, crc in moved], size, meta.size_bytes)
            self._require(meta, crc, None, job.uri)
            try:
                return store.complete(job.key, upload_id, [part for part, _ in moved], replace(put, crc32c=crc)), crc
            except (AlreadyExistsError, NotFoundError) as error:  # by an attempt of ours whose answer was lost?
                if (found := landed(self._pool, job, crc, store)) is not None:
                    return found, crc
                if isinstance(error, AlreadyExistsError):
                    raise
                words = f"the store does not know the upload in parts any more: {error.message}"
                raise TransientError(words, operation="copy", uri=job.uri) from error
        except BaseException:
            with suppress(StoreError):  # the first error counts
                store.abort(job.key, upload_id)
            raise
        finally:
            self._open.pop(id(job), None)

    def _by_disk(self, source: ObjectStore, meta: ObjectMeta, target: Target) -> ObjectMeta:
        with TemporaryDirectory(prefix="wherry-copy-") as folder:
            path = Path(folder, "object")
            found = download(source, meta.key, path, uri=target.uri, transfer=self._transfer, retry=self._retry)
            if found.etag != meta.etag:
                raise _replaced(target.uri)
            job = job_sent_at_once(target.uri, target.key, meta.size_bytes, "copy", overwrite=target.overwrite)
            carried = _Carried(target.store, meta)
            return self._sender.send(job, path, carried, self._transfer, retry=self._retry)

    def _fetched(self, source: ObjectStore, meta: ObjectMeta, path: Path, start: int, end: int) -> int:
        """The CRC32C of a range that is now in the file."""
        if start == end:
            return 0
        crc = source.get_file(meta.key, path, start=start, end=end, if_match=meta.etag)
        return crc32c_of_file(path, start, end) if crc is None else crc

    @staticmethod
    def _require(meta: ObjectMeta, crc: int, digest: str | None, uri: str) -> None:
        if _differ(meta.crc32c, crc) or _differ(meta.digest if meta.crc32c is None else None, digest):
            raise IntegrityError(
                f"bytes with CRC32C {format_crc32c(crc)} came of the source, which its store describes otherwise",
                operation="copy",
                uri=uri,
                hint="the bytes are damaged in the store or on the way: try again, or upload the object again",
            )


class _Carried(WrappedStore):
    """Stores what it is given with the metadata and the media type of `source`."""

    def __init__(self, inner: ObjectStore, source: ObjectMeta) -> None:
        super().__init__(inner)
        self._source = source

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        return super().put_file(key, path, self._with(put))

    def begin(self, key: str, size_bytes: int, put: PutOptions = PutOptions()) -> str:
        """As the inner store's."""
        return super().begin(key, size_bytes, self._with(put))

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        return super().complete(key, upload_id, parts, self._with(put))

    def _with(self, put: PutOptions) -> PutOptions:
        return replace(put, metadata={**self._source.metadata, **put.metadata}, content_type=_media_type(self._source))


class _Unchanged(WrappedStore):
    """Publishes nothing of a file that was written to since `before`: its checksum may be of no moment that it ever had.

    What is written to it later does not have this checksum, which the store compares, or verified() does.
    """

    def __init__(self, inner: ObjectStore, path: Path, before: os.stat_result) -> None:
        super().__init__(inner)
        self._path = path
        self._before = _version(before)

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        self._require()
        return super().put_file(key, path, put)

    def complete(self, key: str, upload_id: str, parts: Sequence[StoredPart], put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        self._require()
        return super().complete(key, upload_id, parts, put)

    def _require(self) -> None:
        if _version(self._path.stat()) != self._before:
            raise IntegrityError(f"{self._path} changed while it was sent", operation="put")


def _media_type(meta: ObjectMeta) -> str | None:
    """The object's media type, if no line of its own can be hidden in it: it goes into headers."""
    return meta.content_type if _MEDIA_TYPE.fullmatch(meta.content_type or "") else None


def _take_back(job: Job, target: Target) -> None:
    """Delete what a send of a changing file has made, if it is there and surely ours."""
    with suppress(NotFoundError):
        if target.store.head(target.key).token == job.token:
            target.store.delete(target.key)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _differ(one: object, other: object) -> bool:
    """Whether both are known, and not equal."""
    return one is not None and other is not None and one != other


def _digests_differ(source: ObjectMeta, made: ObjectMeta) -> bool:
    """Whether both have a digest of one kind, and not the same: a server may tell another of the copy than of the source."""
    one, other = source.digest or "", made.digest or ""
    return one.partition(":")[0] == other.partition(":")[0] and one != other


def _replaced(uri: str) -> IntegrityError:
    return IntegrityError("the source was replaced while it was copied", operation="copy", uri=uri, hint="copy it again")
