"""One upload, from a staged file to a verified object: checksum, put whole or in parts, verify.

Nothing here retries a job or decides whether it is tried again: errors go up to the worker.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from wherry.checksum import PIECE_BYTES, crc32cs_of_file, format_crc32c, join_crc32c, range_sums, regroup_crc32c
from wherry.config import MIB, RetryConfig, TransferConfig
from wherry.errors import AccessDeniedError, AlreadyExistsError, IntegrityError, NotFoundError, TransientError
from wherry.posix.thread_pool import map_at_once
from wherry.spool.journal.jobs import Job
from wherry.spool.journal.tokens import is_of_another_attempt
from wherry.store import CRC32C_METADATA, RANGES_METADATA, TOKEN_METADATA, MultipartStore, ObjectMeta, ObjectStore, PutOptions
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.retry import call_with_retry
from wherry.transfer.multipart import MultipartSender
from wherry.transfer.part_sizes import part_size_for, split, threshold_bytes
from wherry.transfer.verification import own, verified

#: The checksum of a larger file is computed by several threads, so much at a time.
_SUMMED_BYTES = 32 * MIB
#: More threads than cores only take turns. Eight sum faster than any disk reads.
_SUMMING_THREADS = min(8, os.cpu_count() or 1)
#: Threads of the pool that a process should give a Sender: the parts of all its large files share them.
POOL_THREADS = MOST_IN_FLIGHT


class Sender(MultipartSender):
    """Sends files, whole or in parts."""

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
        bytes_per_s: float | None = None,
    ) -> ObjectMeta:
        """Make the staged file `path` the object `job.key`, verified. Safe to call again after any interruption.

        `retry` and `on_retry` are for beginning an upload in parts, which a RetryStore leaves to us. `frozen=False`: the file
        is not ours, and its owner may go on writing to it later. `bytes_per_s`: how fast a part goes to this store, if known.

        Raises AlreadyExistsError if the name is taken by another's object and the job does not overwrite; what an earlier
        attempt of its run has left is replaced if the job `replaces_earlier`. Any other StoreError as it comes.
        """
        if (found := os.stat(path).st_size) != job.size_bytes:
            raise IntegrityError(
                f"the staged file has {found} bytes, {job.size_bytes} were accepted", operation="put", uri=job.uri
            )
        part_size_bytes = None
        is_large = store.capabilities.multipart and job.size_bytes >= threshold_bytes(transfer, store.capabilities)
        if is_large and (job.upload_id is not None or not (frozen and store.can_share(job.key, path))):
            part_size_bytes = job.part_size_bytes or part_size_for(job.size_bytes, transfer, store.capabilities, bytes_per_s)
        with_ranges = store.capabilities.metadata and job.size_bytes > max(transfer.range_size_bytes, PIECE_BYTES)
        crc, pieces, piece_bytes = self._sums(job, path, part_size_bytes, with_ranges=with_ranges)
        metadata = {TOKEN_METADATA: job.token, CRC32C_METADATA: format_crc32c(crc)}
        if with_ranges and (sums := range_sums(pieces, piece_bytes, job.size_bytes, transfer.range_size_bytes)) is not None:
            metadata[RANGES_METADATA] = sums
        if_absent = not job.overwrite and not (job.schedule.replaces_earlier and _is_left_by_another_attempt(job, store))
        put = PutOptions(if_absent=if_absent, crc32c=crc, metadata=metadata, frozen=frozen)
        try:
            if part_size_bytes is not None:
                assert isinstance(store, MultipartStore), "capabilities.multipart says so"
                is_joined = pieces and part_size_bytes % piece_bytes == 0
                crcs = regroup_crc32c(pieces, piece_bytes, part_size_bytes, job.size_bytes) if is_joined else []
                begin_once = functools.partial(self._begin, job, store, part_size_bytes, crcs, put)
                begin = functools.partial(call_with_retry, begin_once, config=retry or RetryConfig(), on_retry=on_retry)
                meta = self._send_in_parts(job, path, store, part_size_bytes, begin, put, in_flight=transfer.parts_in_flight)
            else:
                meta = store.put_file(job.key, path, put)
        except AlreadyExistsError as refusal:
            if job.schedule.replaces_earlier and if_absent and _is_left_by_another_attempt(job, store):
                raise TransientError("an earlier attempt has left it after all", operation="put", uri=job.uri) from refusal
            meta = own(self._pool, job, crc, store, refusal)
        return verified(self._pool, meta, job, crc, store)

    def send_many(self, jobs: Sequence[Job], paths: Sequence[Path], store: ObjectStore) -> Iterator[tuple[Job, ObjectMeta]]:
        """Send small staged files whose checksums are known from this thread, several at once; yields those that are verified.

        As `ObjectStore.put_many`, for fine weather: after an error, too, what was not yielded is to be sent by send().
        """
        puts = []
        for job, path in zip(jobs, paths, strict=True):
            assert job.crc32c is not None, "whoever asks has seen to it"
            metadata = {TOKEN_METADATA: job.token, CRC32C_METADATA: format_crc32c(job.crc32c)}
            puts.append((job.key, path, PutOptions(not job.overwrite, job.crc32c, metadata, frozen=True)))
        for place, meta in store.put_many(puts, store.capabilities.puts_at_once):
            job = jobs[place]
            assert job.crc32c is not None
            yield job, verified(self._pool, meta, job, job.crc32c, store)

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
        ranges = [(path, *each, piece_bytes) for each in split(job.size_bytes, read_bytes)]
        read = map_at_once(self._pool, crc32cs_of_file, ranges, _SUMMING_THREADS)
        pieces = [crc for crcs in read for crc in crcs]
        if job.crc32c is not None:
            return job.crc32c, pieces, piece_bytes
        crc = join_crc32c(pieces, piece_bytes, job.size_bytes)
        if self._journal is not None:
            self._journal.work.set_crc32c(job.id, crc, pieces if piece_bytes == PIECE_BYTES else ())
        return crc, pieces, piece_bytes


def _is_left_by_another_attempt(job: Job, store: ObjectStore) -> bool:
    """Whether the name has an object of the job's own run. It is asked first, so that no large file is sent to be refused."""
    try:
        return is_of_another_attempt(store.head(job.key).token, job.token)
    except (NotFoundError, AccessDeniedError):  # keys that may only write replace nothing
        return False
