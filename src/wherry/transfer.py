"""One upload, from a staged file to a verified object: checksum, put whole or in parts, verify.

Nothing here retries a job or decides whether it is tried again: errors go up to the worker.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path
from typing import TypeVar

from wherry.checksum import combine_crc32c, crc32c_of_file, format_crc32c
from wherry.config import MIB, TransferConfig
from wherry.errors import AlreadyExistsError, IntegrityError, NotFoundError, PermanentError, TransientError
from wherry.jobs import Job
from wherry.journal import Journal
from wherry.store import CRC32C_METADATA, TOKEN_METADATA, Capabilities, MultipartStore, ObjectMeta, ObjectStore, Part, StoredPart

T = TypeVar("T")
#: Verifying by reading back goes through a small file, never through a second copy of the object.
_READ_BACK_BYTES = 64 * MIB
#: The checksum of a larger file is computed by several threads, a piece each.
_PIECE_BYTES = 32 * MIB
#: Checksums and reading back: more threads would only wait for the same cores and disk.
_PIECES_AT_ONCE = 8
#: Threads of the pool that a process should give a Sender: the parts of all its large files share them.
POOL_THREADS = 32


def part_size_for(size_bytes: int, transfer: TransferConfig, capabilities: Capabilities) -> int:
    """The size of parts: as configured, or more, in whole MiB, where the store's limit of parts asks for it."""
    fewest = -(-size_bytes // capabilities.max_parts)
    if fewest > transfer.part_size_bytes:
        fewest = -(-fewest // MIB) * MIB
    size = max(transfer.part_size_bytes, fewest, capabilities.min_part_size_bytes)
    if size > capabilities.max_part_size_bytes:
        raise PermanentError(f"{size_bytes} bytes are more than the store's {capabilities.max_parts} parts can hold")
    return size


def _threshold_bytes(transfer: TransferConfig, capabilities: Capabilities) -> int:
    most = capabilities.max_put_size_bytes
    return transfer.multipart_threshold_bytes if most is None else min(transfer.multipart_threshold_bytes, most)


def split(size_bytes: int, piece_bytes: int) -> list[tuple[int, int]]:
    """The ranges [start, end) that cover `size_bytes`, in order; none for nothing."""
    return [(start, min(start + piece_bytes, size_bytes)) for start in range(0, size_bytes, piece_bytes)]


class Sender:
    """Sends files. `pool` runs pieces of work that wait for nothing but the store; several sends may share it.

    Without a `journal` nothing is written down: an interrupted send starts again from its first byte.
    """

    def __init__(self, journal: Journal | None, pool: Executor, scratch: Path) -> None:
        self._journal = journal
        self._pool = pool
        self._scratch = scratch

    def send(self, job: Job, path: Path, store: ObjectStore, transfer: TransferConfig, *, frozen: bool = True) -> ObjectMeta:
        """Make the staged file `path` the object `job.key`, verified. Safe to call again after any interruption.

        `frozen=False`: the file is not ours, and its owner may go on writing to it later.

        Raises AlreadyExistsError if the name is taken by another's object and the job does not overwrite; any other
        StoreError as it comes.
        """
        if (found := os.stat(path).st_size) != job.size_bytes:
            raise IntegrityError(
                f"the staged file has {found} bytes, {job.size_bytes} were accepted", operation="put", uri=job.uri
            )
        crc = job.crc32c
        if crc is None:
            crc = self._checksum(path, job.size_bytes)
            if self._journal is not None:
                self._journal.set_crc32c(job.id, crc)
        metadata = {TOKEN_METADATA: job.token, CRC32C_METADATA: format_crc32c(crc)}
        try:
            if store.capabilities.multipart and job.size_bytes >= _threshold_bytes(transfer, store.capabilities):
                assert isinstance(store, MultipartStore), "capabilities.multipart says so"
                meta = self._send_in_parts(job, path, store, transfer, crc, metadata)
            else:
                meta = store.put_file(job.key, path, if_absent=not job.overwrite, crc32c=crc, metadata=metadata, frozen=frozen)
        except AlreadyExistsError:
            meta = store.head(job.key)
            if not self._is_ours(meta, job, crc, store):
                raise
        return self._verified(meta, job, crc, store)

    def _checksum(self, path: Path, size_bytes: int) -> int:
        pieces = split(size_bytes, _PIECE_BYTES)
        if len(pieces) <= 1:
            return crc32c_of_file(path, 0, size_bytes)
        sums = self._each(crc32c_of_file, [(path, *piece) for piece in pieces])
        crc = 0
        for piece, (start, end) in zip(sums, pieces, strict=True):
            crc = combine_crc32c(crc, piece, end - start)
        return crc

    def _send_in_parts(
        self, job: Job, path: Path, store: MultipartStore, transfer: TransferConfig, crc: int, metadata: dict[str, str]
    ) -> ObjectMeta:
        upload_id, part_size_bytes = job.upload_id, job.part_size_bytes
        held: dict[int, StoredPart] = {}
        if upload_id is not None and part_size_bytes is not None:
            try:
                held = self._held_parts(job, upload_id, store)
            except NotFoundError:  # completed without our hearing of it, or cleaned away by the store
                if (meta := self._landed(job, crc, store)) is not None:
                    return meta
                upload_id = None
        if upload_id is None or part_size_bytes is None:
            part_size_bytes = part_size_for(job.size_bytes, transfer, store.capabilities)
            upload_id = store.begin(job.key, size_bytes=job.size_bytes, crc32c=crc, metadata=metadata)
            self._note_upload(job, upload_id, part_size_bytes)
        ranges = split(job.size_bytes, part_size_bytes)
        missing = [(n, r) for n, r in enumerate(ranges, 1) if n not in held or held[n].size_bytes != r[1] - r[0]]
        try:
            send = functools.partial(self._send_part, job, path, store, upload_id)
            sent = self._each(send, [(number, *piece) for number, piece in missing], transfer.parts_in_flight)
            held.update((part.number, part) for part in sent)
            parts = [held[number] for number in range(1, len(ranges) + 1)]
            return store.complete(job.key, upload_id, parts, if_absent=not job.overwrite, crc32c=crc, metadata=metadata)
        except NotFoundError as error:
            meta = self._landed(job, crc, store)
            store.abort(job.key, upload_id)  # what may be left of it
            if meta is not None:
                return meta
            self._note_upload(job, None, None)
            raise TransientError(
                f"the store does not know the upload in parts any more ({error.message}): it begins again",
                operation="complete",
                uri=job.uri,
            ) from error
        except PermanentError:
            store.abort(job.key, upload_id)
            self._note_upload(job, None, None)
            raise

    def _held_parts(self, job: Job, upload_id: str, store: MultipartStore) -> dict[int, StoredPart]:
        """The parts that both the store and the journal know, with the journal's receipts."""
        receipts = {part.number: part for part in self._journal.parts(job.id)} if self._journal is not None else {}
        return {
            part.number: receipts[part.number]
            for part in store.list_parts(job.key, upload_id)
            if part.number in receipts
            and (receipts[part.number].etag, receipts[part.number].size_bytes) == (part.etag, part.size_bytes)
        }

    def _send_part(
        self, job: Job, path: Path, store: MultipartStore, upload_id: str, number: int, start: int, end: int
    ) -> StoredPart:
        part = Part(number, start, end, crc32c_of_file(path, start, end))
        stored = store.put_part(job.key, upload_id, path, part)
        if self._journal is not None:
            self._journal.add_part(job.id, stored)
        return stored

    def _note_upload(self, job: Job, upload_id: str | None, part_size_bytes: int | None) -> None:
        if self._journal is not None:
            self._journal.set_upload(job.id, upload_id, part_size_bytes)

    def _landed(self, job: Job, crc: int, store: ObjectStore) -> ObjectMeta | None:
        """The object, if an attempt whose answer was lost has made it after all."""
        try:
            meta = store.head(job.key)
        except NotFoundError:
            return None
        return meta if self._is_ours(meta, job, crc, store) else None

    def _is_ours(self, meta: ObjectMeta, job: Job, crc: int, store: ObjectStore) -> bool:
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
        """The CRC32C of the bytes that the store gives back, fetched piece by piece through a small sparse file."""

        def fetch(start: int, end: int) -> int:
            with tempfile.NamedTemporaryFile(dir=self._scratch, prefix="verify-") as file:
                store.get_file(meta.key, Path(file.name), start=start, end=end, if_match=meta.etag)
                return crc32c_of_file(Path(file.name), start, end)

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
