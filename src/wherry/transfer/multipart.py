"""A large file in parts: begun, sent by all workers together, completed; or gone on with after an interruption."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path

from wherry.checksum import crc32c_of_file
from wherry.errors import NotFoundError, PermanentError, StoreError, ThrottledError, TransientError
from wherry.posix.thread_pool import first_done, map_at_once
from wherry.spool.journal.jobs import LEASE_S, Job
from wherry.spool.journal.journal import Journal, retry_until_written
from wherry.spool.journal.parts import Parts
from wherry.store import MultipartStore, ObjectMeta, ObjectStore, Part, PutOptions, StoredPart
from wherry.transfer.part_sizes import split
from wherry.transfer.verification import landed

log = logging.getLogger("wherry.transfer.upload")
#: Parts that others have leased are looked at again after this long, should nobody tell.
_LOOK_AGAIN_S = 1.0


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


class MultipartSender:
    """Sends files in parts. `pool` runs pieces of work that wait for nothing but the store; several sends may share it.

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
        self._parts = None if journal is None else journal.parts
        self._pool = pool
        self._worker = worker
        self._n_workers = n_workers
        self._call_help = call_help
        self._woken = threading.Condition()
        self._n_woken = 0

    def _send_in_parts(
        self,
        job: Job,
        path: Path,
        store: MultipartStore,
        part_size_bytes: int,
        begin: Callable[[], str],
        put: PutOptions,
        *,
        in_flight: int,
    ) -> ObjectMeta:
        """Go on with the job's upload, or begin one with `begin`, send what is missing, and complete it."""
        upload_id, held = job.upload_id, list[StoredPart]()
        if upload_id is not None:
            try:
                held = store.list_parts(job.key, upload_id)
            except NotFoundError:  # completed without our hearing of it, or cleaned away by the store
                if (meta := landed(self._pool, job, put.crc32c, store)) is not None:
                    return meta
                upload_id = None
        if upload_id is None:
            upload_id = begin()
        upload = _Upload(job, path, store, upload_id, part_size_bytes)
        try:
            if store.capabilities.sequential_parts:
                parts = self._send_in_order(upload, held)
            elif self._parts is None:
                numbers = [(upload, number, None) for number in range(1, upload.n_parts + 1)]
                parts = map_at_once(self._pool, self._send_part, numbers, in_flight)
            else:
                parts = self._send_shared(upload, held, self._parts, in_flight)
            return store.complete(job.key, upload_id, parts, put)
        except NotFoundError as error:
            meta = landed(self._pool, job, put.crc32c, store)
            self._give_up(job, store, upload_id)  # what may be left of it
            if meta is not None:
                return meta
            words = f"the store does not know the upload in parts any more ({error.message}): it begins again"
            raise TransientError(words, operation="complete", uri=job.uri) from error
        except PermanentError as error:
            if error.waits_for is None:  # else the job goes on with the parts that are there
                self._give_up(job, store, upload_id)
            raise

    def send_part(self, job: Job, path: Path, store: ObjectStore, number: int, crc32c: int | None) -> None:
        """Send one part, which was leased, of a job that another worker coordinates."""
        assert isinstance(store, MultipartStore)
        assert job.upload_id is not None
        assert job.part_size_bytes is not None
        self._send_part(_Upload(job, path, store, job.upload_id, job.part_size_bytes), number, crc32c)

    def wake(self) -> None:
        """Other workers may have sent, or given back, parts of what we are sending."""
        with self._woken:
            self._n_woken += 1
            self._woken.notify_all()

    def _begin(self, job: Job, store: MultipartStore, part_size_bytes: int, known: list[int], put: PutOptions) -> str:
        """Begin an upload in parts. If the answer is lost there may be one that nobody knows: so it is noted first."""
        if self._parts is None:
            return store.begin(job.key, job.size_bytes, put)
        begun = self._parts.note_begin(job.store_id, job.key)
        try:
            upload_id = store.begin(job.key, job.size_bytes, put)
        except (PermanentError, ThrottledError):  # it was answered: there is none
            self._parts.forget_begin(begun)
            raise
        n_parts = 0 if store.capabilities.sequential_parts else -(-job.size_bytes // part_size_bytes)
        crcs: list[int | None] = [*known] if len(known) == n_parts else [None] * n_parts
        retry_until_written(functools.partial(self._parts.plan, job.id, upload_id, part_size_bytes, crcs, begun))
        return upload_id

    def _send_shared(self, upload: _Upload, held: Sequence[StoredPart], parts: Parts, in_flight: int) -> list[StoredPart]:
        """Send the missing parts, together with whoever helps; the receipts of all."""
        job_id = upload.job.id
        retry_until_written(lambda: parts.keep(job_id, held))
        self._call_help()
        at_once = max(1, in_flight // self._n_workers)
        running: set[Future[StoredPart]] = set()
        try:
            while True:
                n_woken = self._n_woken
                while len(running) < at_once and (taken := parts.lease(job_id, self._worker, LEASE_S)) is not None:
                    running.add(self._pool.submit(self._send_part, upload, *taken))
                if running:
                    for future in first_done(running):
                        running.discard(future)
                        future.result()
                    continue
                missing, leased = parts.left(job_id)
                if missing == leased == 0:
                    return parts.sent(job_id)
                if not missing:
                    with self._woken:  # not for ever: the message of a helper may be lost with its agent
                        self._woken.wait_for(lambda n_woken=n_woken: self._n_woken != n_woken, _LOOK_AGAIN_S)  # type: ignore[misc]
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
                if self._parts is not None:
                    retry_until_written(functools.partial(self._parts.note_stream, upload.job.id, upload.id, end))
        return sent

    def _send_part(self, upload: _Upload, number: int, crc32c: int | None) -> StoredPart:
        stored = upload.put(upload.part(number, crc32c))
        if self._parts is not None:
            receive = functools.partial(self._parts.receive, upload.job.id, upload.id, stored)
            if not retry_until_written(receive):
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
        if self._parts is not None:
            retry_until_written(functools.partial(self._parts.drop, job.id))
