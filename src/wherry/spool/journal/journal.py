"""The journal: which uploads were accepted and how far each one is. SQLite in WAL mode, one file in the spool.

Written by the training process (submit), by workers (lease, parts, ack) and by the agent (release). Each method is one
transaction; what it returns is on disk, as far as `durability` asks for. Safe from several threads and processes; after
a fork the child opens its own connection.

Its tables are in `journal_schema`, its clock in `journal_time`, what can be asked of it in `journal_questions`, what a user decides in
`journal_decisions`, and what waits for an operator in `journal_waits`.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wherry.clock import Clock
from wherry.config import Durability, RetryConfig
from wherry.errors import AlreadyExistsError, JournalError
from wherry.spool.journal.database import Database, JournalDamaged
from wherry.spool.journal.jobs import Job, JobId, JobKind, JobState, place_of
from wherry.spool.journal.journal_time import JournalTime
from wherry.spool.journal.outlook import Outlook
from wherry.spool.journal.parts import Parts
from wherry.spool.journal.queries import JOB_COLUMNS, Requirement, StoreRecord, as_job, newest_open
from wherry.spool.journal.schema import SCHEMA, VERSION, blocker, from_version_3, register, store_row
from wherry.spool.journal.waits import JournalWaits, end_store_wait, resume, wait_after_s

__all__ = [
    "MAX_LEASES_LOST",
    "SUSPECT_AFTER",
    "Journal",
    "JournalReplaced",
    "NewJob",
    "Requirement",
    "SnapshotGone",
    "StoreRecord",
    "name_is_held",
    "readable_jobs",
    "write_patiently",
]

log = logging.getLogger("wherry.spool.journal.journal")
_T = TypeVar("_T")

#: A job whose worker died this often is what kills them.
MAX_LEASES_LOST = 5
#: From here on it is worked on alone.
SUSPECT_AFTER = 2
_WRITE_AGAIN_S = 1.0
#: Finished jobs are remembered for a while, for handles and for `status`.
_KEEP_FINISHED_S = 7 * 86_400.0
#: A journal of up to this size is looked through when it is opened, which takes a twentieth of a second.
_SMALL_BYTES = 8 * 2**20


class SnapshotGone(JournalError):
    """The staged file that a new job was to share has been uploaded and freed in the meantime: stage it again."""


class JournalReplaced(JournalError):
    """The journal is not the one that the store was registered in: that one was put aside. Register it again."""


@dataclass(frozen=True)
class NewJob:
    """What submit() needs to know of one upload."""

    kind: JobKind
    uri: str
    key: str
    object_id: str
    size_bytes: int
    overwrite: bool
    token: str
    requires: tuple[tuple[str, str], ...] = ()  # (uri, key) of objects that must be there first
    crc32c: int | None = None
    pieces: tuple[int, ...] = ()  # the CRC32C of each piece of PIECE_BYTES, where it is known
    only_if_free: bool = False  # refuse it while another upload of the name is queued or under way


class Journal(JournalWaits):
    """The job table of one spool. Raises JournalError and JournalDamaged as `wherry.spool.journal.database` does."""

    def __init__(
        self, path: os.PathLike[str], durability: Durability = "process", *, checkpoints: bool = False, clock: Clock | None = None
    ) -> None:
        self.path = path
        self._time = JournalTime(clock or Clock())
        self._database = Database(
            path,
            SCHEMA,
            VERSION,
            durability,
            checkpoints=checkpoints,
            migrations={3: lambda db: from_version_3(db, self._time.wall_s())},
        )
        self._transaction = self._database.transaction
        #: The uploads in parts.
        self.parts = Parts(self._transaction, self._time)
        #: For people: what is unfinished, and what a name means.
        self.outlook = Outlook(self._transaction)
        self.check = self._database.check
        self.size_bytes = self._database.size_bytes
        self.shorten_log = self._database.shorten_log
        self.close = self._database.close
        with self._transaction(read_only=True) as db:
            is_current = self._time.is_current(db)
        if not is_current:  # the first to look after the machine was started
            self.count_time()

    @property
    def replacements(self) -> int:
        """How often it was found to be another one: the old one was damaged and is put aside, with all that was in it."""
        return self._database.replacements

    def look(self) -> None:
        """Look for damage as far as that takes no time: JournalDamaged if some is seen. Other damage shows when it is read."""
        with self._transaction(read_only=True) as db:
            is_small = db.execute("PRAGMA page_count").fetchone()[0] * 4096 <= _SMALL_BYTES
            for table in ("stores", "clock"):
                db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
            db.execute("SELECT id FROM jobs ORDER BY id DESC LIMIT 1").fetchone()
        if is_small:
            self.check()

    # -- what the training process does

    def store_id(
        self,
        scheme: str,
        root: str,
        options: Mapping[str, object],
        secret_names: Iterable[str],
        settings: Mapping[str, Mapping[str, float]],
    ) -> int:
        """The id of the record for this store; made if it is new. The same store has the same id in every journal.

        `settings`, the configuration, is no part of what a store is: all of its jobs follow the newest.
        """
        row = store_row(scheme, root, options, secret_names)
        with self._transaction() as db:
            register(db, row, json.dumps(settings, sort_keys=True))
            resume(db, [row[0]])  # whoever uses a store anew may have mended what its uploads wait for
        return row[0]

    def submit(self, owner: str, store_id: int, new: Sequence[NewJob], *, shared: bool = False) -> tuple[list[JobId], list[str]]:
        """Accept jobs, all or none: (their ids, the staged files that nobody needs any more).

        A queued, overwriting job for the same name is superseded by an overwriting one, unless another job requires it.
        `shared`: their staged files are those of other jobs; SnapshotGone if one of these is not open any more.
        AlreadyExistsError for a job that is to be accepted `only_if_free`, if its name is held.
        """
        ids: list[JobId] = []
        freed: list[str] = []
        with self._transaction() as db:
            now, elapsed_s, run_s = self._time.wall_s(), self._time.elapsed_s(db), self._time.run_s(db)
            store = db.execute("SELECT options FROM stores WHERE id = ?", (store_id,)).fetchone()
            if store is None:
                raise JournalReplaced(f"the journal {self.path} does not know the store {store_id}: it is a new one")
            place = place_of(json.loads(store[0]))
            for one in new if shared else ():
                if db.execute("SELECT 1 FROM staged WHERE object_id = ?", (one.object_id,)).fetchone() is None:
                    raise SnapshotGone(f"the staged file {one.object_id} is gone")
            for job in new:
                if job.only_if_free and (holder := newest_open(db, job.uri, place)) is not None:
                    raise name_is_held(holder)
                cursor = db.execute(
                    "INSERT INTO jobs (kind, owner, store_id, uri, key, place, object_id, size_bytes, overwrite, token, state,"
                    " created_s, counted_from_s, crc32c, pieces) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?)",
                    (
                        *(job.kind.value, owner, store_id, job.uri, job.key, place, job.object_id, job.size_bytes),
                        *(job.overwrite, job.token, now, run_s, job.crc32c, _packed(job.pieces)),
                    ),
                )
                job_id = JobId(cursor.lastrowid or 0)
                ids.append(job_id)
                for uri, key in job.requires:
                    after = db.execute(
                        "SELECT id FROM jobs WHERE uri = ? AND place = ? AND id < ? AND kind = 'put' AND state != 'discarded'"
                        " ORDER BY id DESC LIMIT 1",
                        (uri, place, job_id),
                    ).fetchone()
                    db.execute(
                        "INSERT OR REPLACE INTO requirements VALUES (?, ?, ?)",
                        (job_id, key, after[0] if after is not None else None),
                    )
                if job.overwrite and job.kind is JobKind.PUT:
                    older = db.execute(
                        "SELECT id, object_id FROM jobs INDEXED BY jobs_open WHERE uri = ? AND place = ? AND id < ?"
                        " AND state IN ('queued', 'leased') AND state = 'queued' AND overwrite"
                        " AND kind = 'put' AND NOT EXISTS (SELECT 1 FROM requirements r JOIN jobs w ON w.id = r.job_id"
                        "   WHERE r.after_job = jobs.id AND w.state IN ('queued', 'leased'))",
                        (job.uri, place, job_id),
                    ).fetchall()
                    for old_id, object_id in older:
                        db.execute(
                            "UPDATE jobs SET state = 'superseded', superseded_by = ?, finished_s = ?, ended_s = ? WHERE id = ?",
                            (job_id, now, elapsed_s, old_id),
                        )
                        freed.append(object_id)
                db.execute(f"UPDATE jobs SET blocked_by = {blocker('jobs')} WHERE id = ?", (job_id,))
        return ids, self._unneeded(freed)

    def number_from(self, first: int) -> None:
        """Give no job that is accepted from now on a lower number than this."""
        with self._transaction() as db:
            db.execute("INSERT INTO sqlite_sequence SELECT 'jobs', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence)")
            db.execute("UPDATE sqlite_sequence SET seq = MAX(seq, ?) WHERE name = 'jobs'", (first - 1,))

    # -- what a worker does

    def lease(
        self,
        worker: str,
        lease_s: float,
        *,
        with_stores: Iterable[int] | None = None,
        with_suspects: bool = True,
        now: float | None = None,
    ) -> Job | None:
        """Take the next job that may start: its time has come, no older job of its name is open, what it requires is finished.

        `with_stores` are those that this worker can open (it has their secrets); None: all. Suspects are jobs on which
        workers have died: one of them is worked on alone, so that the innocent are not counted with the guilty. `now`: elapsed time.
        """
        most_lost = (MAX_LEASES_LOST if with_suspects else SUSPECT_AFTER) - 1
        with self._transaction() as db:
            now = self._time.elapsed_s(db) if now is None else now
            found = [
                (job_id, store_id)
                for store_id, until_s in self._stores_to_try(db, with_stores)
                if until_s <= now
                for job_id in _next_jobs(db, store_id, most_lost, now)
            ]
            if not found:
                return None
            job_id, store_id = min(found)
            db.execute(
                "UPDATE jobs SET state = 'leased', lease_owner = ?, lease_until_s = ?, attempts = attempts + 1, is_listed = 0,"
                " waits_for = NULL WHERE id = ?",
                (worker, now + lease_s, job_id),
            )
            waits = "SELECT refusals FROM stores WHERE id = ? AND waits_for IS NOT NULL"
            if (row := db.execute(waits, (store_id,)).fetchone()) is not None:  # this job finds out whether it still has to
                next_s = now + wait_after_s(row[0] + 1)
                db.execute("UPDATE stores SET refusals = refusals + 1, due_s = ? WHERE id = ?", (next_s, store_id))
            return as_job(db.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone())

    def time_left_s(self, job: Job) -> tuple[float, float]:
        """(how much run time is left before a job's deadline, how much has passed).

        The deadline is that of the store's newest settings; a check ends with the retries of its call.
        """
        with self._transaction(read_only=True) as db:
            passed_s = self._time.run_s(db) - job.counted_from_s
            row = db.execute("SELECT settings FROM stores WHERE id = ?", (job.store_id,)).fetchone()
        retry = RetryConfig(**json.loads(row[0])["retry"])
        return (retry.call_deadline_s if job.kind is JobKind.CHECK else retry.job_deadline_s) - passed_s, passed_s

    def count_time(self) -> None:
        """Some process works on this spool's jobs: the time since its last call, and since any other's, is run time."""
        with self._transaction() as db:
            self._time.count(db)

    def renew(self, worker: str, lease_s: float) -> None:
        """Prolong all leases of a worker, of jobs and of parts."""
        with self._transaction() as db:
            until_s = self._time.elapsed_s(db) + lease_s
            db.execute("UPDATE jobs SET lease_until_s = ? WHERE state = 'leased' AND lease_owner = ?", (until_s, worker))
            db.execute("UPDATE parts SET lease_until_s = ? WHERE lease_owner = ?", (until_s, worker))

    def set_crc32c(self, job_id: JobId, crc32c: int, pieces: Sequence[int] = ()) -> None:
        """Keep the checksum of the staged file, and those of its pieces of PIECE_BYTES, so that they are computed once."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET crc32c = ?, pieces = COALESCE(?, pieces) WHERE id = ?", (crc32c, _packed(pieces), job_id))

    def ack(self, job_id: JobId, worker: str, etag: str | None, *, exclusive: bool | None = None) -> list[str]:
        """The object is in the store and verified: the job is done. Returns the staged files that nobody needs any more.

        `exclusive`: whether the store itself saw to it that the name was free; None for a job that overwrites.
        """
        return self._finish(job_id, worker, JobState.DONE, etag=etag, error=None, exclusive=exclusive)

    def fail(self, job_id: JobId, worker: str, error: str, kind: str | None = None) -> None:
        """The job has failed for good; its staged file is kept. `kind`: what kind_of() says of the error."""
        self._finish(job_id, worker, JobState.FAILED, etag=None, error=error, error_kind=kind)

    def _finish(
        self,
        job_id: JobId,
        worker: str,
        state: JobState,
        *,
        etag: str | None,
        error: str | None,
        error_kind: str | None = None,
        exclusive: bool | None = None,
    ) -> list[str]:
        with self._transaction() as db:
            row = db.execute(
                "SELECT object_id, store_id FROM jobs WHERE id = ? AND state = 'leased' AND lease_owner = ?", (job_id, worker)
            ).fetchone()
            if row is None:  # the lease was taken away: whoever has the job now reports on it
                return []
            db.execute(
                "UPDATE jobs SET state = ?, etag = ?, error = ?, error_kind = ?, exclusive = ?, finished_s = ?, ended_s = ?,"
                " lease_owner = NULL, lease_until_s = NULL WHERE id = ?",
                (state.value, etag, error, error_kind, exclusive, self._time.wall_s(), self._time.elapsed_s(db), job_id),
            )
            end_store_wait(db, "id = ?", (row[1],))
            if state is JobState.DONE:
                db.execute("DELETE FROM parts WHERE job_id = ?", (job_id,))
                db.execute("UPDATE jobs SET upload_id = NULL WHERE id = ?", (job_id,))
        return self._unneeded([row[0]]) if state is not JobState.FAILED else []

    def requeue(
        self, job_id: JobId, worker: str, *, wait_s: float, error: str, kind: str | None = None, counts: bool = True
    ) -> None:
        """Give the job back, to be tried again after `wait_s`. `counts=False`: it was not an attempt, it only had to wait."""
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET state = 'queued', due_s = ?, error = ?, error_kind = ?, attempts = attempts - ?, lease_owner = NULL,"
                " lease_until_s = NULL WHERE id = ? AND state = 'leased' AND lease_owner = ?",
                (self._time.elapsed_s(db) + wait_s, error, kind, 0 if counts else 1, job_id, worker),
            )

    # -- what the agent does

    def release(self, worker: str | None = None, *, keep: Sequence[str] = ()) -> tuple[int, list[Job]]:
        """Take the leases of a dead worker away: (jobs queued again, jobs failed because workers keep dying on them).

        `None`: of all workers but `keep`, after the agent itself died, which is held against no job.
        """
        marks = ", ".join("?" * len(keep))
        who, args = ("lease_owner = ?", (worker,)) if worker is not None else (f"lease_owner NOT IN ({marks})", tuple(keep))
        with self._transaction() as db:
            cursor = db.execute(
                "UPDATE jobs SET state = 'queued', lease_owner = NULL, lease_until_s = NULL, leases_lost = leases_lost + ?"
                f" WHERE state = 'leased' AND {who}",
                (0 if worker is None else 1, *args),
            )
            db.execute(f"UPDATE parts SET lease_owner = NULL, lease_until_s = NULL WHERE lease_owner IS NOT NULL AND {who}", args)
            doomed = db.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_suspect"
                f" WHERE state = 'queued' AND leases_lost > 0 AND leases_lost >= {MAX_LEASES_LOST}"
            ).fetchall()
            for row in doomed:
                db.execute(
                    "UPDATE jobs SET state = 'failed', finished_s = ?, ended_s = ?, error = ? WHERE id = ?",
                    (
                        self._time.wall_s(),
                        self._time.elapsed_s(db),
                        f"its worker died {MAX_LEASES_LOST} times (see agent.log in the spool)",
                        row[0],
                    ),
                )
        return cursor.rowcount - len(doomed), [as_job(row) for row in doomed]

    def prune(self, keep_s: float = _KEEP_FINISHED_S, *, at_most: int = 1000) -> int:
        """Forget jobs that were finished long ago, at most so many at once; failed ones are kept. Returns how many."""
        with self._transaction() as db:
            cursor = db.execute(
                "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs INDEXED BY jobs_ended WHERE ended_s < ?"
                " AND state IN ('done', 'superseded', 'discarded') AND upload_id IS NULL ORDER BY ended_s LIMIT ?)",
                (self._time.elapsed_s(db) - keep_s, at_most),
            )
            db.execute("DELETE FROM totals WHERE n = 0")
        return cursor.rowcount


def _next_jobs(db: sqlite3.Connection, store_id: int, most_lost: int, now: float) -> list[int]:
    """The first of a store's jobs that were never given back, and that of the others whose time came first."""
    sql = (
        "SELECT id FROM jobs INDEXED BY jobs_ready WHERE state = 'queued' AND blocked_by IS NULL AND store_id = ? AND {}"
        " AND leases_lost <= ? ORDER BY due_s, id LIMIT 1"
    )
    rows = (
        db.execute(sql.format("due_s = 0"), (store_id, most_lost)).fetchone(),
        db.execute(sql.format("due_s > 0 AND due_s <= ?"), (store_id, now, most_lost)).fetchone(),
    )
    return [row[0] for row in rows if row is not None]


def name_is_held(holder: Job) -> AlreadyExistsError:
    """The error for an upload that must not overwrite, of a name that this spool is going to put another upload under."""
    return AlreadyExistsError(
        f"an upload of this name, job {holder.id}, is on its way from this spool already",
        operation="put",
        uri=holder.uri,
        hint="overwrite to replace it, or use another name",
    )


def _packed(pieces: Sequence[int]) -> bytes | None:
    return struct.pack(f">{len(pieces)}I", *pieces) if len(pieces) > 1 else None


def write_patiently(write: Callable[[], _T]) -> _T:
    """Write to a journal, waiting for as long as its disk is full or it is locked: for what must not be lost."""
    is_told = False
    while True:
        try:
            return write()
        except JournalError as error:  # noqa: PERF203  waits between rounds
            if isinstance(error, JournalDamaged):
                raise
            if not is_told:  # the log may be on that disk, too
                log.error("the journal cannot be written, which is tried until it can: %s", error)
                is_told = True
            time.sleep(_WRITE_AGAIN_S)  # nobody tells when a disk has room again


def readable_jobs(path: os.PathLike[str]) -> list[tuple[str, str, int]]:
    """What can still be read of a damaged journal: (object id, uri, size in bytes) of unfinished and failed jobs."""
    found: dict[int, tuple[str, str, int]] = {}
    with suppress(sqlite3.DatabaseError):
        db = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
        try:
            for order in ("id", "id DESC"):  # from both ends up to the damage; an index may be damaged elsewhere
                with suppress(sqlite3.DatabaseError):
                    for row in db.execute(
                        "SELECT id, object_id, uri, size_bytes FROM jobs NOT INDEXED"
                        f" WHERE state IN ('queued', 'leased', 'failed') ORDER BY {order}"
                    ):
                        found[int(row[0])] = (str(row[1]), str(row[2]), int(row[3]))
        finally:
            db.close()
    return [found[job_id] for job_id in sorted(found)]
