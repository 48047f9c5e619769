"""What a job is, the states it passes through, and which steps between them are legal."""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType

#: Row id of a job in the journal; ids grow in the order of the calls.
JobId = NewType("JobId", int)

#: A lease outlives several renewals; when it ends all the same, the worker's main thread is stuck and the agent kills it.
LEASE_S = 60.0


class JobState(str, Enum):
    """queued: accepted, its bytes are in the spool. leased: a worker is sending it. done: verified in the store.
    failed: given up; its file is kept until retry or discard. superseded: a newer version of the name was queued
    behind it before it was started; its file is freed. discarded: taken back by the user: after it
    failed, or because its name was deleted.
    """

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    DISCARDED = "discarded"

    @property
    def is_final(self) -> bool:
        """Nothing more happens to the job by itself."""
        return self not in (JobState.QUEUED, JobState.LEASED)


#: state -> states that may follow
LEGAL_STEPS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.LEASED, JobState.SUPERSEDED, JobState.FAILED, JobState.DISCARDED}),
    JobState.LEASED: frozenset({JobState.DONE, JobState.FAILED, JobState.QUEUED}),
    JobState.FAILED: frozenset({JobState.QUEUED, JobState.SUPERSEDED, JobState.DISCARDED}),
    JobState.DONE: frozenset(),
    JobState.SUPERSEDED: frozenset(),
    JobState.DISCARDED: frozenset(),
}


class WaitsFor(str, Enum):
    """What an operator has to mend before a job can succeed. Such a job stays queued and is tried again every five minutes.

    credentials: they have expired, or cannot be made. clock: this machine's clock differs too much from the server's. destination: it has become
    read-only.
    """

    CREDENTIALS = "credentials"
    CLOCK = "clock"
    DESTINATION = "destination"


class JobKind(str, Enum):
    """put: upload a staged file. check: only find out whether the store lets us in.

    Of a checkpoint set, whose objects are uploads of their own (see `wherry.checkpoints.protocol`): receipt: write down what has
    become of a rank's objects. commit: write the manifest when all receipts are there. The staged file of these says what to do.
    """

    PUT = "put"
    CHECK = "check"
    RECEIPT = "receipt"
    COMMIT = "commit"


#: In the column `overwrite`, beside 0 and 1: the job's `replaces_earlier`; and `overwrite` with its `looks_first`.
REPLACES_EARLIER = 2
LOOKS_FIRST = 3


@dataclass(frozen=True)
class Schedule:
    """When a job is tried. `leases_lost`: how many workers have died on it. `counted_from_s`: the run time from which its
    deadline counts. `due_s`: the elapsed time of its next try (see `wherry.spool.journal.journal_time`). `is_urgent`: whether it
    goes before others (see `wherry.spool.journal.order`). `replaces_earlier`, of a job that does not overwrite: it may replace
    what an earlier attempt of its run has left under the name (see `wherry.spool.journal.tokens`). `looks_first`, of one that
    overwrites: its worker looks who has written the object, and notes if it was another run.
    """

    leases_lost: int = 0
    counted_from_s: float = 0.0
    due_s: float = 0.0
    is_urgent: bool = False
    replaces_earlier: bool = False
    looks_first: bool = False


@dataclass(frozen=True)
class End:
    """How a job ended. `finished_s`: seconds since the epoch. `superseded_by`: the newer job of its name.

    `exclusive`, of a job that is done and did not overwrite: whether the store itself saw to it that the name was free.
    """

    finished_s: float | None = None
    etag: str | None = None
    superseded_by: int | None = None
    exclusive: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row of the journal. `object_id` names the staged file in the spool; `created_s` is in seconds since the epoch.

    `error` and `error_kind`: what the last attempt that failed said, and the class of that error, by the name that
    `wherry.errors.kind_of()` gives it.
    """

    id: JobId
    kind: JobKind
    owner: str
    store_id: int
    uri: str
    key: str
    object_id: str
    size_bytes: int
    overwrite: bool
    token: str
    state: JobState
    attempts: int
    created_s: float
    crc32c: int | None = None
    upload_id: str | None = None
    part_size_bytes: int | None = None
    error: str | None = None
    error_kind: str | None = None
    schedule: Schedule = Schedule()
    end: End = End()


def job_sent_at_once(
    uri: str,
    key: str,
    size_bytes: int,
    owner: str,
    *,
    overwrite: bool,
    crc32c: int | None = None,
    token: str | None = None,
) -> Job:
    """A job that no journal knows, leased by whoever calls: for a file that goes to the store without the spool."""
    return Job(
        id=JobId(0),
        kind=JobKind.PUT,
        owner=owner,
        store_id=0,
        uri=uri,
        key=key,
        object_id="",
        size_bytes=size_bytes,
        overwrite=overwrite,
        token=token or secrets.token_hex(16),
        state=JobState.LEASED,
        attempts=1,
        created_s=time.time(),
        crc32c=crc32c,
    )


@dataclass(frozen=True)
class Counts:
    """How many uploads are in each state, the bytes still to send, and the age of the oldest of those.

    `bytes_queued` leaves out what has arrived of uploads in parts.
    """

    queued: int
    leased: int
    done: int
    failed: int
    superseded: int
    bytes_queued: int
    bytes_failed: int
    oldest_age_s: float
    retries: int


def packed(pieces: Sequence[int]) -> bytes | None:
    """The checksums of a file's pieces as the journal keeps them; None for fewer than two, as the file's own says the same."""
    return struct.pack(f">{len(pieces)}I", *pieces) if len(pieces) > 1 else None
