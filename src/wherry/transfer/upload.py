"""One upload, from a staged file to a verified object: checksum, put whole or in parts, verify.

Nothing here retries a job or decides whether it is tried again: errors go up to the worker.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wherry.checksum import (
    PIECE_BYTES,
    combine_crc32c,
    crc32c,
    crc32c_of_file,
    crc32cs_of_file,
    format_crc32c,
    join_crc32c,
    range_sums,
    regroup_crc32c,
)
from wherry.config import MIB, RetryConfig, TransferConfig
from wherry.errors import (
    AlreadyExistsError,
    IntegrityError,
    NotFoundError,
    PermanentError,
    StoreError,
    ThrottledError,
    TransientError,
)
from wherry.spool.journal.jobs import LEASE_S, Job
from wherry.spool.journal.journal import Journal, retry_until_written
from wherry.spool.journal.parts import Parts
from wherry.store import (
    CRC32C_METADATA,
    RANGES_METADATA,
    TOKEN_METADATA,
    Capabilities,
    MultipartStore,
    ObjectMeta,
    ObjectStore,
    Part,
    PutOptions,
    StoredPart,
)
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.retry import call_with_retry

log = logging.getLogger("wherry.transfer.upload")
T = TypeVar("T")
#: Verifying by reading back takes so much at a time, by several threads.
_READ_BACK_BYTES = 64 * MIB
#: The checksum of a larger file is computed by several threads, so much at a time.
_SUMMED_BYTES = 32 * MIB
#: Checksums and reading back: more threads would only wait for the same cores and disk.
_PIECES_AT_ONCE = 8
#: Parts that others have leased are looked at again after this long, should nobody tell.
_LOOK_AGAIN_S = 1.0
#: A part is about the size of the file by this: what is in flight when a worker is killed, and sent again, is little of it.
_PARTS_WANTED = 512
#: Beyond this size a part gains no speed, and costs more when it fails.
_LARGE_PART_BYTES = 64 * MIB
#: Threads of the pool that a process should give a Sender: the parts of all its large files share them.
POOL_THREADS = MOST_IN_FLIGHT


def part_size_for(size_bytes: int, transfer: TransferConfig, capabilities: Capabilities) -> int:
    """The size of parts: as configured; larger, in whole MiB, for large files and where the limit of parts asks for it."""
    least = max(-(-size_bytes // capabilities.max_parts), min(size_bytes // _PARTS_WANTED, _LARGE_PART_BYTES))
    size = max(transfer.part_size_bytes, capabilities.min_part_size_bytes)
    if least > size:
        size = -(-least // PIECE_BYTES) * PIECE_BYTES
    if size > capabilities.max_part_size_bytes:
        raise PermanentError(f"{size_bytes} bytes are more than the store's {capabilities.max_parts} parts can hold")
    return size


def _threshold_bytes(transfer: TransferConfig, capabilities: Capabilities) -> int:
    most = capabilities.max_put_size_bytes
    return transfer.multipart_threshold_bytes if most is None else min(transfer.multipart_threshold_bytes, most)


def split(size_bytes: int, piece_bytes: int) -> list[tuple[int, int]]:
    """The ranges [start, end) that cover `size_bytes`, in order; none for nothing."""
    return [(start, min(start + piece_bytes, size_bytes)) for start in range(0, size_bytes, piece_bytes)]


class _Sum:
    """The CRC32C of blocks that come in order from `start` on; a call that is made again brings them again."""

    def __init__(self, start: int) -> None:
        self._start = start
        self.crc = 0

    def take(self, block: bytes | memoryview, at: int) -> None:
        self.crc = crc32c(block, 0 if at == self._start else self.crc)


@dataclass(frozen=True)
class _Upload:
    """An upload in parts that is under way: of which job's file, to which store, under which id, in parts of which size."""

    job: Job
    path: Path
    store: MultipartStore
    id: str
    part_size_bytes: int

    @property
    def n_parts(self) -> int:
        return -(-self.job.size_bytes // self.part_size_bytes)

    def part(self, number: int, crc32c: int | None) -> Part:
        """The part of that number, with its checksum, which is computed if it is not known."""
        start = (number - 1) * self.part_size_bytes
        end = min(start + self.part_size_bytes, self.job.size_bytes)
        return Part(number, start, end, crc32c_of_file(self.path, start, end) if crc32c is None else crc32c)

    def put(self, part: Part) -> StoredPart:
        """Send a part. An error names it, and the job."""
        try:
            return self.store.put_part(self.job.key, self.id, self.path, part)
        except StoreError as error:
            error.message = f"part {part.number} of {self.n_parts} of job {self.job.id}: {error.message}"
            raise


class Sender:
    """Sends files. `pool` runs pieces of work that wait for nothing but the store; several sends may share it.

    Without a `journal` nothing is written down: an interrupted send starts again from its first byte. With one, other workers
    may take parts of a large file; `n_workers` are those among which `parts_in_flight` are divided, `worker` is our own name,
    `call_help` is called when there are parts to take.
    """

    def __init__(
        self,
        journal: Journal | None,
        pool: Executor,
        *,
        worker: str = "",
        n_workers: int = 1,
        call_help: Callable[[], object] = lambda: None,
    ) -> None:
        self._journal = journal
        self._pool = pool
        self._worker = worker
        self._n_workers = n_workers
        self._call_help = call_help
        self._heard = threading.Condition()
        self._n_heard = 0

    def send(
        self,
        job: Job,
        path: Path,
        store: ObjectStore,
        transfer: TransferConfig,
        *,
        retry: RetryConfig | None = None,
        on_retry: Callable[[TransientError, int, float], None] | None = None,
        frozen: bool = True,
    ) -> ObjectMeta:
        """Make the staged file `path` the object `job.key`, verified. Safe to call again after any interruption.

        `retry` and `on_retry` are for beginning an upload in parts, which a RetryStore leaves to us. `frozen=False`: the file
        is not ours, and its owner may go on writing to it later.

        Raises AlreadyExistsError if the name is taken by another's object and the job does not overwrite; any other
        StoreError as it comes.
        """
        if (found := os.stat(path).st_size) != job.size_bytes:
            raise IntegrityError(
                f"the staged file has {found} bytes, {job.size_bytes} were accepted", operation="put", uri=job.uri
            )
        part_size_bytes = None
        is_large = store.capabilities.multipart and job.size_bytes >= _threshold_bytes(transfer, store.capabilities)
        if is_large and (job.upload_id is not None or not (frozen and store.can_share(job.key, path))):
            part_size_bytes = job.part_size_bytes or part_size_for(job.size_bytes, transfer, store.capabilities)
        with_ranges = store.capabilities.metadata and job.size_bytes > max(transfer.range_size_bytes, PIECE_BYTES)
        crc, pieces, piece_bytes = self._sums(job, path, part_size_bytes, with_ranges=with_ranges)
        metadata = {TOKEN_METADATA: job.token, CRC32C_METADATA: format_crc32c(crc)}
        if with_ranges and (sums := range_sums(pieces, piece_bytes, job.size_bytes, transfer.range_size_bytes)) is not None:
            metadata[RANGES_METADATA] = sums
        put = PutOptions(if_absent=not job.overwrite, crc32c=crc, metadata=metadata, frozen=frozen)
        try:
            if part_size_bytes is not None:
                assert isinstance(store, MultipartStore), "capabilities.multipart says so"
                is_joined = pieces and part_size_bytes % piece_bytes == 0
                crcs = regroup_crc32c(pieces, piece_bytes, part_size_bytes, job.size_bytes) if is_joined else []
                begin_once = functools.partial(self._begin, job, store, part_size_bytes, crcs, put)
                begin = functools.partial(call_with_retry, begin_once, config=retry or RetryConfig(), on_retry=on_retry)
                meta = self._send_in_parts(job, path, store, transfer, begin, put)
            else:
                meta = store.put_file(job.key, path, put)
        except AlreadyExistsError:
            meta = store.head(job.key)
            if not self._is_ours(meta, job, crc, store):
                raise
        try:
            return self._verified(meta, job, crc, store)
        except IntegrityError:
            with suppress(NotFoundError):
                _require_ours(store.head(job.key), job)
            raise

    def send_part(self, job: Job, path: Path, store: ObjectStore, number: int, crc32c: int | None) -> None:
        """Send one part, which was leased, of a job that another worker coordinates."""
        assert isinstance(store, MultipartStore)
        assert job.upload_id is not None
        assert job.part_size_bytes is not None
        self._send_part(_Upload(job, path, store, job.upload_id, job.part_size_bytes), number, crc32c)

    def hear(self) -> None:
        """Other workers may have sent, or given back, parts of what we are sending."""
        with self._heard:
            self._n_heard += 1
            self._heard.notify_all()

    def _sums(self, job: Job, path: Path, part_size_bytes: int | None, *, with_ranges: bool) -> tuple[int, Sequence[int], int]:
        """The CRC32C of the file, and of its pieces, all but the last of so many bytes; no pieces where nobody has summed them.

        Known from the copy into the spool; else the file is read, also for the pieces of a staged one `with_ranges`: an attempt
        that goes on must find what the first has found.
        """
        pieces: Sequence[int] = ()
        if job.crc32c is not None:
            if self._journal is not None and job.size_bytes > PIECE_BYTES:
                pieces = self._journal.work.pieces(job.id)
            if pieces or not with_ranges or self._journal is None:
                return job.crc32c, pieces, PIECE_BYTES
        read_bytes = part_size_bytes or _SUMMED_BYTES
        piece_bytes = read_bytes if read_bytes % PIECE_BYTES else PIECE_BYTES
        read = self._each(crc32cs_of_file, [(path, *each, piece_bytes) for each in split(job.size_bytes, read_bytes)])
        pieces = [crc for crcs in read for crc in crcs]
        if job.crc32c is not None:
            return job.crc32c, pieces, piece_bytes
        crc = join_crc32c(pieces, piece_bytes, job.size_bytes)
        if self._journal is not None:
            self._journal.work.set_crc32c(job.id, crc, pieces if piece_bytes == PIECE_BYTES else ())
        return crc, pieces, piece_bytes

    def _begin(self, job: Job, store: MultipartStore, part_size_bytes: int, known: list[int], put: PutOptions) -> str:
        """Begin an upload in parts. If the answer is lost there may be one that nobody knows: so it is noted first."""
        parts = self._journal.parts if self._journal is not None else None
        begun = parts.note_begin(job.store_id, job.key) if parts is not None else 0
        try:
            upload_id = store.begin(job.key, job.size_bytes, put)
        except (PermanentError, ThrottledError):  # it was answered: there is none
            if parts is not None:
                parts.forget_begin(begun)
            raise
        if parts is not None:
            n_parts = 0 if store.capabilities.sequential_parts else -(-job.size_bytes // part_size_bytes)
            crcs: list[int | None] = [*known] if len(known) == n_parts else [None] * n_parts
            retry_until_written(lambda: parts.plan(job.id, upload_id, part_size_bytes, crcs, begun))
        return upload_id

    def _send_in_parts(
        self,
        job: Job,
        path: Path,
        store: MultipartStore,
        transfer: TransferConfig,
        begin: Callable[[], str],
        put: PutOptions,
    ) -> ObjectMeta:
        upload_id, held = job.upload_id, list[StoredPart]()
        if upload_id is not None:
            try:
                held = store.list_parts(job.key, upload_id)
            except NotFoundError:  # completed without our hearing of it, or cleaned away by the store
                if (meta := self._landed(job, put.crc32c, store)) is not None:
                    return meta
                upload_id = None
        if upload_id is None:
            upload_id = begin()
        part_size_bytes = job.part_size_bytes or part_size_for(job.size_bytes, transfer, store.capabilities)
        upload = _Upload(job, path, store, upload_id, part_size_bytes)
        try:
            if store.capabilities.sequential_parts:
                parts = self._send_in_order(upload, held)
            elif self._journal is None:
                send = functools.partial(self._send_part, upload, crc32c=None)
                parts = self._each(send, [(number,) for number in range(1, upload.n_parts + 1)], transfer.parts_in_flight)
            else:
                parts = self._send_shared(upload, held, self._journal.parts, transfer.parts_in_flight)
            return store.complete(job.key, upload_id, parts, put)
        except NotFoundError as error:
            meta = self._landed(job, put.crc32c, store)
            self._give_up(job, store, upload_id)  # what may be left of it
            if meta is not None:
                return meta
            raise TransientError(
                f"the store does not know the upload in parts any more ({error.message}): it begins again",
                operation="complete",
                uri=job.uri,
            ) from error
        except PermanentError as error:
            if error.waits_for is None:  # else the job goes on with the parts that are there
                self._give_up(job, store, upload_id)
            raise

    def _send_shared(self, upload: _Upload, held: Sequence[StoredPart], parts: Parts, in_flight: int) -> list[StoredPart]:
        """Send the missing parts, together with whoever helps; the receipts of all."""
        job_id = upload.job.id
        retry_until_written(lambda: parts.keep(job_id, held))
        self._call_help()
        at_once = max(1, in_flight // self._n_workers)
        running: set[Future[StoredPart]] = set()
        try:
            while True:
                n_heard = self._n_heard
                while len(running) < at_once and (taken := parts.lease(job_id, self._worker, LEASE_S)) is not None:
                    running.add(self._pool.submit(self._send_part, upload, *taken))
                if running:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    continue
                missing, leased = parts.left(job_id)
                if missing == leased == 0:
                    return parts.sent(job_id)
                if not missing:
                    with self._heard:  # not for ever: the ring of a helper may be lost with its agent
                        self._heard.wait_for(lambda n_heard=n_heard: self._n_heard != n_heard, _LOOK_AGAIN_S)  # type: ignore[misc]
        finally:
            for future in running:
                future.cancel()
            wait(running)
            retry_until_written(lambda: parts.give_back(job_id, self._worker))

    def _send_in_order(self, upload: _Upload, held: Sequence[StoredPart]) -> list[StoredPart]:
        """Send what the store does not hold yet, from its end on, one part after another."""
        sent = list(held)
        at = sum(part.size_bytes for part in held)
        for start, end in split(upload.job.size_bytes, upload.part_size_bytes):
            if end > at:
                begin = max(start, at)
                crc = crc32c_of_file(upload.path, begin, end)
                sent.append(upload.put(Part(len(sent) + 1, begin, end, crc)))
                if self._journal is not None:
                    retry_until_written(functools.partial(self._journal.parts.note_stream, upload.job.id, upload.id, end))
        return sent

    def _send_part(self, upload: _Upload, number: int, crc32c: int | None) -> StoredPart:
        stored = upload.put(upload.part(number, crc32c))
        if self._journal is not None:
            parts = self._journal.parts
            if not retry_until_written(lambda: parts.receive(upload.job.id, upload.id, stored)):
                upload.store.abort(upload.job.key, upload.id)  # it was given up meanwhile: nothing of it may stay
                raise TransientError("the upload in parts was given up meanwhile", operation="put_part", uri=upload.job.uri)
        return stored

    def _give_up(self, job: Job, store: MultipartStore, upload_id: str) -> None:
        """Abort an upload that an error has ended, and that error is the one to tell: if this fails as well, the upload stays
        noted in the journal, to be aborted another time.
        """
        try:
            store.abort(job.key, upload_id)
        except StoreError as error:
            log.warning("the parts of job %d are left in the store for now: %s", job.id, error)
            return
        if self._journal is not None:
            parts = self._journal.parts
            retry_until_written(lambda: parts.drop(job.id))

    def _landed(self, job: Job, crc: int | None, store: ObjectStore) -> ObjectMeta | None:
        """The object, if an attempt whose answer was lost has made it after all."""
        try:
            meta = store.head(job.key)
        except NotFoundError:
            return None
        return meta if self._is_ours(meta, job, crc, store) else None

    def _is_ours(self, meta: ObjectMeta, job: Job, crc: int | None, store: ObjectStore) -> bool:
        """Whether the object under our name was made by an earlier attempt of this very job."""
        if meta.token is not None or store.capabilities.metadata:
            return meta.token == job.token
        # The store keeps no tokens. On a first attempt the object is another's; later the same bytes are taken for ours.
        return job.attempts > 1 and meta.size_bytes == job.size_bytes and self._read_back(meta, store) == crc

    def _verified(self, meta: ObjectMeta, job: Job, crc: int, store: ObjectStore) -> ObjectMeta:
        """Compare what the store has with what was accepted; IntegrityError if it differs.

        Taken as proof: the store's own checksum, or that it made the object of the staged file's very blocks. A store
        that offers neither is read back.
        """
        if meta.crc32c is None and not meta.is_shared:
            meta = store.head(job.key)
            _require_ours(meta, job)
        found = meta.crc32c
        if meta.size_bytes == job.size_bytes and not meta.is_shared and not store.capabilities.checks_crc32c:
            found = self._read_back(meta, store)
        if meta.size_bytes != job.size_bytes or (found is not None and found != crc):
            raise IntegrityError(
                f"the store has {meta.size_bytes} bytes with CRC32C {'unknown' if found is None else format_crc32c(found)}, "
                f"sent were {job.size_bytes} with {format_crc32c(crc)}",
                operation="verify",
                uri=job.uri,
            )
        return meta

    def _read_back(self, meta: ObjectMeta, store: ObjectStore) -> int:
        """The CRC32C of the bytes that the store gives back, summed as they come; nothing is written, as the disk may be full."""

        def fetch(start: int, end: int) -> int:
            summed = _Sum(start)
            store.read(meta.key, summed.take, start=start, end=end, if_match=meta.etag)
            return summed.crc

        whole = not store.capabilities.ranged_get
        pieces = [(0, meta.size_bytes)] if whole else split(meta.size_bytes, _READ_BACK_BYTES)
        crc = 0
        for (start, end), piece in zip(pieces, self._each(fetch, pieces), strict=True):
            crc = combine_crc32c(crc, piece, end - start)
        return crc

    def _each(self, work: Callable[..., T], arguments: Sequence[tuple[object, ...]], at_once: int = _PIECES_AT_ONCE) -> list[T]:
        """`work` on each of the arguments, in the pool, at most `at_once` side by side; the results in order.

        After an error nothing more is begun, and what runs is awaited.
        """
        futures: list[Future[T]] = []
        running: set[Future[T]] = set()
        try:
            for one in arguments:
                while len(running) >= at_once:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                futures.append(self._pool.submit(work, *one))
                running.add(futures[-1])
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            wait(futures)


def _require_ours(meta: ObjectMeta, job: Job) -> None:
    """AlreadyExistsError if the object is another writer's and the job does not overwrite.

    So it is after a race for the name that we lost, on a store that checks for the name first and takes it second.
    """
    if not job.overwrite and meta.token not in (None, job.token):
        raise AlreadyExistsError(
            "another writer took the name at the same moment",
            operation="put",
            uri=job.uri,
            hint="choose another name or allow overwriting",
        )
