"""Whether the object in the store is what was sent: by the store's checksum, or by reading the object back."""

from __future__ import annotations

from concurrent.futures import Executor

from wherry.checksum import combine_crc32c, crc32c, format_crc32c
from wherry.config import MIB
from wherry.errors import AccessDeniedError, AlreadyExistsError, IntegrityError
from wherry.posix.thread_pool import map_at_once
from wherry.spool.journal.jobs import Job
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.retry import NotVerifiedError, confirmed
from wherry.transfer.part_sizes import split

#: Verifying by reading back takes so much at a time, by several threads.
_READ_BACK_BYTES = 64 * MIB


def verified(pool: Executor, meta: ObjectMeta, job: Job, crc: int, store: ObjectStore) -> ObjectMeta:
    """Compare what the store has with what was accepted; NotVerifiedError if it differs, asked twice.

    Taken as proof: the store's own checksum, or that it made the object of the staged file's very blocks. A store
    that offers neither is read back.
    """
    answers = iter([meta])  # to the put; whoever asks again asks the store
    return confirmed(lambda: _compared(pool, next(answers, None), job, crc, store))


def _compared(pool: Executor, answer: ObjectMeta | None, job: Job, crc: int, store: ObjectStore) -> ObjectMeta:
    if answer is not None and (answer.crc32c is not None or answer.is_shared):
        meta = answer
    else:
        meta = store.head(job.key)
        require_ours(meta, job)
    found = meta.crc32c
    is_proof = meta.is_shared or (store.capabilities.checks_crc32c and answer is not None)
    if meta.size_bytes == job.size_bytes and not is_proof:
        found = read_back(pool, meta, store)
    if meta.size_bytes != job.size_bytes or (found is not None and found != crc):
        raise IntegrityError(
            f"the store has {meta.size_bytes} bytes with CRC32C {'unknown' if found is None else format_crc32c(found)}, "
            f"sent were {job.size_bytes} with {format_crc32c(crc)}",
            operation="verify",
            uri=job.uri,
        )
    return meta


def own(pool: Executor, job: Job, crc: int | None, store: ObjectStore, refusal: AlreadyExistsError) -> ObjectMeta:
    """Return our own object under a name that the store says is taken: an attempt whose answer was lost has made it.

    Raises the refusal for another's object, and for one that keys which may only write cannot see; NotVerifiedError if there is
    none. The store is asked twice.
    """

    def look() -> ObjectMeta:
        meta = store.head(job.key)
        if not is_ours(pool, meta, job, crc, store):
            raise refusal
        return meta

    try:
        return confirmed(look)
    except AccessDeniedError as error:
        if error.waits_for is not None:
            raise
        raise refusal from error


def landed(pool: Executor, job: Job, crc: int | None, store: ObjectStore) -> ObjectMeta | None:
    """Return the object if an attempt whose answer was lost has made it after all."""
    try:
        return own(pool, job, crc, store, AlreadyExistsError("it is another's"))
    except (AlreadyExistsError, NotVerifiedError):
        return None


def is_ours(pool: Executor, meta: ObjectMeta, job: Job, crc: int | None, store: ObjectStore) -> bool:
    """Whether the object under our name was made by an earlier attempt of this very job."""
    if meta.token is not None or store.capabilities.metadata:
        return meta.token == job.token
    # The store keeps no tokens. On a first attempt the object is another's; later the same bytes are taken for ours.
    return job.attempts > 1 and meta.size_bytes == job.size_bytes and read_back(pool, meta, store) == crc


def read_back(pool: Executor, meta: ObjectMeta, store: ObjectStore) -> int:
    """The CRC32C of the bytes that the store gives back, summed as they come; nothing is written, as the disk may be full."""

    def fetch(start: int, end: int) -> int:
        crc = 0

        def take(block: bytes | memoryview, at: int) -> None:
            nonlocal crc
            crc = crc32c(block, 0 if at == start else crc)  # a call that is made again brings the blocks again

        store.read(meta.key, take, start=start, end=end, if_match=meta.etag)
        return crc

    whole = not store.capabilities.ranged_get
    pieces = [(0, meta.size_bytes)] if whole else split(meta.size_bytes, _READ_BACK_BYTES)
    crc = 0
    for (start, end), piece in zip(pieces, map_at_once(pool, fetch, pieces), strict=True):
        crc = combine_crc32c(crc, piece, end - start)
    return crc


def require_ours(meta: ObjectMeta, job: Job) -> None:
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
