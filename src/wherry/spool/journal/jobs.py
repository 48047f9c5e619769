"""What a job is, the states it passes through, and which steps between them are legal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NewType

#: Row id of a job in the journal; ids grow in the order of the calls.
JobId = NewType("JobId", int)

#: A lease outlives several renewals; when it ends all the same, the worker's main thread is stuck and the agent kills it.
LEASE_S = 60.0

#: The storage options that say which server a URI means.
_PLACE_OPTIONS = ("account_host", "account_name", "endpoint", "endpoint_url", "host", "hostname", "port")
#: What of an address may be written in capitals or not.
_SCHEME_AND_HOST = re.compile(r"([^:/]+://)?[^/]*")


def place_of(options: Mapping[str, object]) -> str:
    """Which of the stores of one URI is meant, by its public storage options, the environment's among them: a name and its
    uploads are one thing within a place, whatever region or settings they were given with. Empty where nothing says it.
    """
    given = ((name, options.get(name)) for name in _PLACE_OPTIONS)
    texts = ((name, str(value).rstrip("/")) for name, value in given if value not in (None, ""))
    return " ".join(f"{name}={_SCHEME_AND_HOST.sub(lambda host: host[0].lower(), text, count=1)}" for name, text in texts)


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

    credentials: they have expired. clock: this machine's clock differs too much from the server's. destination: it has become
    read-only.
    """

    CREDENTIALS = "credentials"
    CLOCK = "clock"
    DESTINATION = "destination"


class JobKind(str, Enum):
    """put: upload a staged file. check: only find out whether the store lets us in."""

    PUT = "put"
    CHECK = "check"


@dataclass(frozen=True)
class Job:
    """One row of the journal. `created_s` and `finished_s` are seconds since the epoch; `object_id` names the staged file in the
    spool.

    `error` and `error_kind`: what the last attempt that failed said, and the class of that error, by the name that
    `wherry.errors.kind_of()` gives it. `counted_from_s`: the run time from which the deadline counts; `due_s`: the elapsed time
    of the next try (see `wherry.spool.journal.journal_time`). `blocked_by`: an unfinished job that must end first. `waits_for`: see WaitsFor.
    `exclusive`, of a job that is done and did not overwrite: whether the store itself saw to it that the name was free.
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
    etag: str | None = None
    error: str | None = None
    error_kind: str | None = None
    finished_s: float | None = None
    superseded_by: int | None = None
    leases_lost: int = 0
    counted_from_s: float = 0.0
    due_s: float = 0.0
    blocked_by: int | None = None
    waits_for: str | None = None
    exclusive: bool | None = None


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
