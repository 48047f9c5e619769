"""The journal: which uploads were accepted and how far each one is. SQLite in WAL mode, one file in the spool.

Written by the training process (submit), by workers (lease, parts, ack) and by the agent (release). Each method is one
transaction; what it returns is on disk, as far as `durability` asks for. Safe from several threads and processes; after
a fork the child opens its own connection.
"""

from __future__ import annotations

import hashlib
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

from wherry.config import Durability
from wherry.database import Database, JournalDamaged
from wherry.errors import AlreadyExistsError, JobFailure, JournalError
from wherry.jobs import Counts, Job, JobId, JobKind, JobState, place_of
from wherry.parts import PARTS_SCHEMA, Parts

log = logging.getLogger("wherry.journal")
_T = TypeVar("_T")

_SCHEMA_VERSION = 3
_SCHEMA = """
CREATE TABLE stores (
    id INTEGER PRIMARY KEY,      -- made of the rest
    scheme TEXT NOT NULL, root TEXT NOT NULL,
    options TEXT NOT NULL,       -- JSON, public ones only
    secret_names TEXT NOT NULL,  -- JSON list: the options that live in memory
    settings TEXT NOT NULL       -- JSON: retry and transfer configuration
);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL, owner TEXT NOT NULL,
    store_id INTEGER NOT NULL REFERENCES stores (id),
    uri TEXT NOT NULL, key TEXT NOT NULL,
    place TEXT NOT NULL,         -- with the URI: which object; see place_of()
    object_id TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    overwrite INTEGER NOT NULL, token TEXT NOT NULL,
    state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    created_s REAL NOT NULL, deadline_s REAL NOT NULL, not_before_s REAL NOT NULL DEFAULT 0, finished_s REAL,
    lease_owner TEXT, lease_until_s REAL, leases_lost INTEGER NOT NULL DEFAULT 0,
    crc32c INTEGER, pieces BLOB,  -- 4 bytes, big endian, for each piece of a large file
    upload_id TEXT, part_size_bytes INTEGER, etag TEXT,
    is_listed INTEGER NOT NULL DEFAULT 0,  -- its worker knows which parts the store holds: others may send the missing ones
    exclusive INTEGER,           -- without overwrite, when done: whether the store itself saw to it that the name was free
    error TEXT, error_kind TEXT, -- of a failed job: the words, and see kind_of()
    superseded_by INTEGER, reported INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_open ON jobs (uri, id) WHERE state IN ('queued', 'leased');
CREATE INDEX jobs_ready ON jobs (not_before_s, id) WHERE state = 'queued';
CREATE INDEX jobs_by_owner ON jobs (owner, state);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_by_uri ON jobs (uri, id);
CREATE TABLE requirements (
    job_id INTEGER NOT NULL, key TEXT NOT NULL, after_job INTEGER,
    PRIMARY KEY (job_id, key)
) WITHOUT ROWID;
"""
_JOB_COLUMNS = (
    "id, kind, owner, store_id, uri, key, object_id, size_bytes, overwrite, token, state, attempts, created_s, deadline_s, "
    "crc32c, upload_id, part_size_bytes, etag, error, error_kind, finished_s, superseded_by, leases_lost, exclusive"
)
#: A job whose worker died this often is what kills them.
MAX_LEASES_LOST = 5
#: From here on it is worked on alone.
SUSPECT_AFTER = 2
_WRITE_AGAIN_S = 1.0
#: Finished jobs are remembered for a while, for handles and for `status`.
_KEEP_FINISHED_S = 7 * 86_400.0


class SnapshotGone(JournalError):
    """The staged file that a new job was to share has been uploaded and freed in the meantime: stage it again."""


class JournalReplaced(JournalError):
    """The journal is not the one that the store was registered in: that one was put aside. Register it again."""


@dataclass(frozen=True)
class StoreRecord:
    """How to open a store again in another process. `secret_names` are the options that must come from memory."""

    id: int
    scheme: str
    root: str
    options: Mapping[str, object]
    secret_names: tuple[str, ...]
    settings: Mapping[str, Mapping[str, float]]

    @property
    def place(self) -> str:
        """Which of the stores of its URI it is."""
        return place_of(self.options)


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
    deadline_s: float
    requires: tuple[tuple[str, str], ...] = ()  # (uri, key) of objects that must be there first
    crc32c: int | None = None
    pieces: tuple[int, ...] = ()  # the CRC32C of each piece of PIECE_BYTES, where it is known
    only_if_free: bool = False  # refuse it while another upload of the name is queued or under way


@dataclass(frozen=True)
class Requirement:
    """An object that must exist before a job may start: its key, and our own job for it, if any."""

    key: str
    state: JobState | None
    crc32c: int | None


class Journal:
    """The job table of one spool. Raises JournalError and JournalDamaged as `wherry.database` does."""

    def __init__(self, path: os.PathLike[str], durability: Durability = "process", *, checkpoints: bool = False) -> None:
        self.path = path
        self._database = Database(path, _SCHEMA.rstrip() + PARTS_SCHEMA, _SCHEMA_VERSION, durability, checkpoints=checkpoints)
        self._transaction = self._database.transaction
        #: The uploads in parts.
        self.parts = Parts(self._transaction)
        self.check = self._database.check
        self.close = self._database.close

    @property
    def replacements(self) -> int:
        """How often it was found to be another one: the old one was damaged and is put aside, with all that was in it."""
        return self._database.replacements

    # -- what the training process does

    def store_id(
        self,
        scheme: str,
        root: str,
        options: Mapping[str, object],
        secret_names: Iterable[str],
        settings: Mapping[str, Mapping[str, float]],
    ) -> int:
        """The id of the record for this store; made if it is new. The same store has the same id in every journal."""
        row = (
            scheme,
            root,
            json.dumps(options, sort_keys=True),
            json.dumps(sorted(secret_names)),
            json.dumps(settings, sort_keys=True),
        )
        # Secrets are handed over and stores kept open by this id, also when a damaged journal is replaced by a new one:
        # a number that means another store there would send a file to the wrong place.
        found = int.from_bytes(hashlib.sha256(json.dumps(row).encode()).digest()[:6], "big")
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO stores VALUES (?, ?, ?, ?, ?, ?)", (found, *row))
        return found

    def submit(self, owner: str, store_id: int, new: Sequence[NewJob], *, shared: bool = False) -> tuple[list[JobId], list[str]]:
        """Accept jobs, all or none: (their ids, the staged files that nobody needs any more).

        A queued, overwriting job for the same name is superseded by an overwriting one, unless another job requires it.
        `shared`: their staged files are those of other jobs; SnapshotGone if one of these is not open any more.
        AlreadyExistsError for a job that is to be accepted `only_if_free`, if its name is held.
        """
        now = time.time()
        ids: list[JobId] = []
        freed: list[str] = []
        with self._transaction() as db:
            store = db.execute("SELECT options FROM stores WHERE id = ?", (store_id,)).fetchone()
            if store is None:
                raise JournalReplaced(f"the journal {self.path} does not know the store {store_id}: it is a new one")
            place = place_of(json.loads(store[0]))
            for one in new if shared else ():
                is_open = "SELECT 1 FROM jobs WHERE object_id = ? AND state IN ('queued', 'leased', 'failed') LIMIT 1"
                if db.execute(is_open, (one.object_id,)).fetchone() is None:
                    raise SnapshotGone(f"the staged file {one.object_id} is gone")
            for job in new:
                if job.only_if_free and (holder := _newest_open(db, job.uri, place)) is not None:
                    raise name_is_held(holder)
                cursor = db.execute(
                    "INSERT INTO jobs (kind, owner, store_id, uri, key, place, object_id, size_bytes, overwrite, token, state,"
                    " created_s, deadline_s, crc32c, pieces) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?)",
                    (
                        *(job.kind.value, owner, store_id, job.uri, job.key, place, job.object_id, job.size_bytes),
                        *(job.overwrite, job.token, now, job.deadline_s, job.crc32c, _packed(job.pieces)),
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
                        "SELECT id, object_id FROM jobs WHERE uri = ? AND place = ? AND id < ? AND state = 'queued' AND overwrite"
                        " AND kind = 'put' AND NOT EXISTS (SELECT 1 FROM requirements r JOIN jobs w ON w.id = r.job_id"
                        "   WHERE r.after_job = jobs.id AND w.state IN ('queued', 'leased'))",
                        (job.uri, place, job_id),
                    ).fetchall()
                    for old_id, object_id in older:
                        db.execute(
                            "UPDATE jobs SET state = 'superseded', superseded_by = ?, finished_s = ? WHERE id = ?",
                            (job_id, now, old_id),
                        )
                        freed.append(object_id)
        return ids, self._unneeded(freed)

    def number_from(self, first: int) -> None:
        """Give no job that is accepted from now on a lower number than this."""
        with self._transaction() as db:
            db.execute("INSERT INTO sqlite_sequence SELECT 'jobs', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence)")
            db.execute("UPDATE sqlite_sequence SET seq = MAX(seq, ?) WHERE name = 'jobs'", (first - 1,))

    def _unneeded(self, object_ids: Iterable[str]) -> list[str]:
        """Those staged files that no unfinished or failed job refers to."""
        candidates = [object_id for object_id in dict.fromkeys(object_ids) if object_id]
        if not candidates:
            return []
        needed = self.referenced_objects(candidates)
        return [object_id for object_id in candidates if object_id not in needed]

    def referenced_objects(self, among: Sequence[str] | None = None) -> set[str]:
        """The staged files that unfinished or failed jobs still need."""
        sql = "SELECT object_id FROM jobs WHERE state IN ('queued', 'leased', 'failed')"
        with self._transaction(read_only=True) as db:
            if among is not None and len(among) <= 100:
                marks = ", ".join("?" * len(among))
                return {row[0] for row in db.execute(f"{sql} AND object_id IN ({marks})", tuple(among))}
            return {row[0] for row in db.execute(sql)}

    def is_shared(self, object_id: str) -> bool:
        """Whether several unfinished or failed jobs have this staged file."""
        with self._transaction(read_only=True) as db:
            sql = "SELECT COUNT(*) FROM jobs WHERE object_id = ? AND state IN ('queued', 'leased', 'failed')"
            return bool(db.execute(sql, (object_id,)).fetchone()[0] > 1)

    def spool_bytes(self) -> int:
        """How much the staged files of unfinished and failed jobs take."""
        with self._transaction(read_only=True) as db:
            row = db.execute(
                "SELECT COALESCE(SUM(size_bytes), 0) FROM (SELECT object_id, MAX(size_bytes) AS size_bytes FROM jobs"
                " WHERE state IN ('queued', 'leased', 'failed') GROUP BY object_id)"
            ).fetchone()
        return int(row[0])

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
        workers have died: one of them is worked on alone, so that the innocent are not counted with the guilty.
        """
        now = time.time() if now is None else now
        open_to_us = "1" if with_stores is None else f"store_id IN ({', '.join(str(int(store)) for store in with_stores)})"
        with self._transaction() as db:
            row = db.execute(
                f"SELECT {_JOB_COLUMNS} FROM jobs AS j WHERE state = 'queued' AND not_before_s <= ?"
                f" AND {open_to_us} AND leases_lost < {MAX_LEASES_LOST if with_suspects else SUSPECT_AFTER}"
                " AND NOT EXISTS (SELECT 1 FROM jobs e WHERE e.uri = j.uri AND e.place = j.place AND e.id != j.id"
                "   AND e.state IN ('queued', 'leased') AND (e.id < j.id OR e.state = 'leased'))"
                " AND NOT EXISTS (SELECT 1 FROM requirements r JOIN jobs e ON e.id = r.after_job"
                "   WHERE r.job_id = j.id AND e.state IN ('queued', 'leased'))"
                " ORDER BY id LIMIT 1",
                (now,),
            ).fetchone()
            if row is None:
                return None
            db.execute(
                "UPDATE jobs SET state = 'leased', lease_owner = ?, lease_until_s = ?, attempts = attempts + 1, is_listed = 0"
                " WHERE id = ?",
                (worker, now + lease_s, row[0]),
            )
            return _job(db.execute(f"SELECT {_JOB_COLUMNS} FROM jobs WHERE id = ?", (row[0],)).fetchone())

    def ready(self, now: float | None = None) -> tuple[int, float | None]:
        """(queued jobs whose time has come, the time at which the next of the others comes)."""
        now = time.time() if now is None else now
        with self._transaction(read_only=True) as db:
            due = db.execute("SELECT COUNT(*) FROM jobs WHERE state = 'queued' AND not_before_s <= ?", (now,)).fetchone()[0]
            later = db.execute(
                "SELECT MIN(not_before_s) FROM jobs WHERE state = 'queued' AND not_before_s > ?", (now,)
            ).fetchone()[0]
        return int(due), later

    def renew(self, worker: str, lease_s: float) -> None:
        """Prolong all leases of a worker, of jobs and of parts."""
        with self._transaction() as db:
            until_s = time.time() + lease_s
            db.execute("UPDATE jobs SET lease_until_s = ? WHERE state = 'leased' AND lease_owner = ?", (until_s, worker))
            db.execute("UPDATE parts SET lease_until_s = ? WHERE lease_owner = ?", (until_s, worker))

    def requirements(self, job_id: JobId) -> list[Requirement]:
        """What must exist before the job may start; of our own jobs the checksum of the newest version that is done."""
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                "SELECT r.key, e.state, (SELECT n.crc32c FROM jobs n WHERE n.uri = e.uri AND n.place = e.place AND n.id >= e.id"
                "   AND n.state = 'done' AND n.kind = 'put' ORDER BY n.id DESC LIMIT 1)"
                " FROM requirements r LEFT JOIN jobs e ON e.id = r.after_job WHERE r.job_id = ?",
                (job_id,),
            ).fetchall()
        return [Requirement(key, JobState(state) if state else None, crc) for key, state, crc in rows]

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
                "SELECT object_id FROM jobs WHERE id = ? AND state = 'leased' AND lease_owner = ?", (job_id, worker)
            ).fetchone()
            if row is None:  # the lease was taken away: whoever has the job now reports on it
                return []
            db.execute(
                "UPDATE jobs SET state = ?, etag = ?, error = ?, error_kind = ?, exclusive = ?, finished_s = ?, lease_owner = NULL,"
                " lease_until_s = NULL WHERE id = ?",
                (state.value, etag, error, error_kind, exclusive, time.time(), job_id),
            )
            if state is JobState.DONE:
                db.execute("DELETE FROM parts WHERE job_id = ?", (job_id,))
                db.execute("UPDATE jobs SET upload_id = NULL WHERE id = ?", (job_id,))
        return self._unneeded([row[0]]) if state is not JobState.FAILED else []

    def requeue(self, job_id: JobId, worker: str, *, wait_s: float, error: str, counts: bool = True) -> None:
        """Give the job back, to be tried again after `wait_s`. `counts=False`: it was not an attempt, it only had to wait."""
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET state = 'queued', not_before_s = ?, error = ?, attempts = attempts - ?, lease_owner = NULL,"
                " lease_until_s = NULL WHERE id = ? AND state = 'leased' AND lease_owner = ?",
                (time.time() + wait_s, error, 0 if counts else 1, job_id, worker),
            )

    def abandoned_uploads(self) -> list[Job]:
        """Jobs that will not be sent any more but have begun an upload in parts, which takes room in the store."""
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                f"SELECT {_JOB_COLUMNS} FROM jobs WHERE upload_id IS NOT NULL AND state IN ('superseded', 'discarded', 'failed') LIMIT 20"
            ).fetchall()
        return [_job(row) for row in rows]

    def pieces(self, job_id: JobId) -> tuple[int, ...]:
        """The CRC32C of each piece of PIECE_BYTES of the staged file; empty where they are not known."""
        with self._transaction(read_only=True) as db:
            row = db.execute("SELECT pieces FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return struct.unpack(f">{len(row[0]) // 4}I", row[0]) if row and row[0] else ()

    def upload_ids(self) -> set[str]:
        """The ids of all uploads in parts that belong to a job."""
        with self._transaction(read_only=True) as db:
            return {row[0] for row in db.execute("SELECT upload_id FROM jobs WHERE upload_id IS NOT NULL")}

    # -- what the agent does

    def lease_owners(self) -> set[str]:
        """Who has jobs or parts leased."""
        with self._transaction(read_only=True) as db:
            return {
                row[0]
                for row in db.execute(
                    "SELECT lease_owner FROM jobs WHERE state = 'leased' UNION SELECT lease_owner FROM parts WHERE lease_owner IS NOT NULL"
                )
            }

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
                f"SELECT {_JOB_COLUMNS} FROM jobs WHERE state = 'queued' AND leases_lost >= {MAX_LEASES_LOST}"
            ).fetchall()
            for row in doomed:
                db.execute(
                    "UPDATE jobs SET state = 'failed', finished_s = ?, error = ? WHERE id = ?",
                    (time.time(), f"its worker died {MAX_LEASES_LOST} times (see agent.log in the spool)", row[0]),
                )
        return cursor.rowcount - len(doomed), [_job(row) for row in doomed]

    def expired(self, now: float | None = None) -> set[str]:
        """Workers whose leases ran out: their process is stuck."""
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                "SELECT lease_owner FROM jobs WHERE state = 'leased' AND lease_until_s < :now_s"
                " UNION SELECT lease_owner FROM parts WHERE lease_owner IS NOT NULL AND lease_until_s < :now_s",
                {"now_s": time.time() if now is None else now},
            ).fetchall()
        return {row[0] for row in rows}

    def stores(self) -> dict[int, StoreRecord]:
        """All store records, by id."""
        with self._transaction(read_only=True) as db:
            rows = db.execute("SELECT id, scheme, root, options, secret_names, settings FROM stores").fetchall()
        return {
            row[0]: StoreRecord(row[0], row[1], row[2], json.loads(row[3]), tuple(json.loads(row[4])), json.loads(row[5]))
            for row in rows
        }

    def prune(self, keep_s: float = _KEEP_FINISHED_S) -> None:
        """Forget jobs that were finished long ago; failed ones are kept."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM jobs WHERE state IN ('done', 'superseded', 'discarded') AND upload_id IS NULL AND finished_s < ?",
                (time.time() - keep_s,),
            )
            db.execute("DELETE FROM requirements WHERE job_id NOT IN (SELECT id FROM jobs)")
            db.execute("DELETE FROM parts WHERE job_id NOT IN (SELECT id FROM jobs)")

    # -- questions and the user's decisions

    def counts(self, owner: str | None = None) -> Counts:
        """Uploads by state, of one owner or of all."""
        where, args = ("AND owner = ?", (owner,)) if owner is not None else ("", ())
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                "SELECT state, COUNT(*), SUM(size_bytes), MIN(created_s), SUM(MAX(attempts - 1, 0)) FROM jobs"
                f" WHERE kind = 'put' {where} GROUP BY state",
                args,
            ).fetchall()
        found = {row[0]: row[1:] for row in rows}
        count = {state: int(found.get(state.value, (0, 0, 0, 0))[0]) for state in JobState}
        still = [found[state] for state in ("queued", "leased") if state in found]
        return Counts(
            queued=count[JobState.QUEUED],
            leased=count[JobState.LEASED],
            done=count[JobState.DONE],
            failed=count[JobState.FAILED],
            superseded=count[JobState.SUPERSEDED],
            bytes_queued=sum(int(row[1]) for row in still),
            bytes_failed=int(found["failed"][1]) if "failed" in found else 0,
            oldest_age_s=max((time.time() - row[2] for row in still), default=0.0),
            retries=sum(int(row[3]) for row in found.values()),
        )

    def job(self, job_id: JobId) -> Job | None:
        """One job, or None if it is unknown (or was finished long ago)."""
        found = self.jobs(ids=[job_id])
        return found[0] if found else None

    def jobs(
        self,
        *,
        states: Iterable[JobState] = (),
        owner: str | None = None,
        ids: Sequence[JobId] | None = None,
        kind: JobKind | None = None,
        limit: int = -1,
    ) -> list[Job]:
        """Jobs in the order of their calls, those that match everything given."""
        clauses, args = ["1"], []
        if wanted := [state.value for state in states]:
            clauses.append(f"state IN ({', '.join('?' * len(wanted))})")
            args += wanted
        if owner is not None:
            clauses.append("owner = ?")
            args.append(owner)
        if kind is not None:
            clauses.append("kind = ?")
            args.append(kind.value)
        if ids is not None:
            clauses.append(f"id IN ({', '.join(str(int(job_id)) for job_id in ids)})")
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                f"SELECT {_JOB_COLUMNS} FROM jobs WHERE {' AND '.join(clauses)} ORDER BY id LIMIT {int(limit)}", args
            ).fetchall()
        return [_job(row) for row in rows]

    def cancel(self, uri: str, place: str) -> list[str]:
        """Take back the queued and the failed uploads of a name that is being deleted. Returns the staged files freed."""
        with self._transaction() as db:
            which = "uri = ? AND place = ? AND kind = 'put' AND state IN ('queued', 'failed')"
            rows = db.execute(f"SELECT object_id FROM jobs WHERE {which}", (uri, place)).fetchall()
            db.execute(f"UPDATE jobs SET state = 'discarded', finished_s = ? WHERE {which}", (time.time(), uri, place))
        return self._unneeded(row[0] for row in rows)

    def newest_open(self, uri: str, place: str) -> Job | None:
        """The newest job for this URI in that place, if it is still to be sent: what a reader of the name must see now."""
        with self._transaction(read_only=True) as db:
            return _newest_open(db, uri, place)

    def newest(self, uri: str, place: str) -> Job | None:
        """The newest upload for this URI in that place, in whatever state."""
        with self._transaction(read_only=True) as db:
            row = db.execute(
                f"SELECT {_JOB_COLUMNS} FROM jobs WHERE uri = ? AND place = ? AND kind = 'put' ORDER BY id DESC LIMIT 1",
                (uri, place),
            ).fetchone()
        return _job(row) if row else None

    def open_under(self, uri_prefix: str, place: str) -> list[Job]:
        """The newest unfinished upload of each name below a URI prefix in that place, by URI."""
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                f"SELECT {_JOB_COLUMNS} FROM jobs WHERE state IN ('queued', 'leased') AND kind = 'put'"
                " AND place = ? AND substr(uri, 1, ?) = ? ORDER BY uri, id",
                (place, len(uri_prefix), uri_prefix),
            ).fetchall()
        return list({row[4]: _job(row) for row in rows}.values())

    def unfinished(self, *, owner: str | None = None, ids: Sequence[JobId] | None = None) -> int:
        """How many jobs are queued or leased: of one owner, of a list, or of all."""
        clause, args = "1", ()
        if owner is not None:
            clause, args = "owner = ?", (owner,)  # type: ignore[assignment]
        if ids is not None:
            clause = f"id IN ({', '.join(str(int(job_id)) for job_id in ids)})"
        with self._transaction(read_only=True) as db:
            row = db.execute(f"SELECT COUNT(*) FROM jobs WHERE state IN ('queued', 'leased') AND {clause}", args).fetchone()
        return int(row[0])

    def failures(self, owner: str, *, kind: JobKind = JobKind.PUT, mark: bool = True) -> list[JobFailure]:
        """The owner's failures that were not reported yet; with `mark` they are from now on."""
        which = f"owner = ? AND state = 'failed' AND kind = '{kind.value}' AND NOT reported"
        select = f"SELECT id, uri, attempts, error, error_kind FROM jobs WHERE {which} ORDER BY id"
        with self._transaction(read_only=True) as db:
            rows = db.execute(select, (owner,)).fetchall()
        if rows and mark:
            with self._transaction() as db:
                rows = db.execute(select, (owner,)).fetchall()  # another thread may have reported some in between
                db.execute(f"UPDATE jobs SET reported = 1 WHERE {which}", (owner,))
        return [JobFailure(*row) for row in rows]

    def mark_reported(self, ids: Sequence[JobId]) -> None:
        """These failures have been raised to the user."""
        with self._transaction() as db:
            db.execute(f"UPDATE jobs SET reported = 1 WHERE id IN ({', '.join(str(int(job_id)) for job_id in ids)})")

    def retry(self, ids: Sequence[JobId] | None, deadline_s: float) -> tuple[int, list[str]]:
        """Queue failed jobs again (None: all): (how many, staged files freed).

        An overwriting job whose name got a newer version in the meantime is superseded: it must not put the older bytes back.
        """
        which = "1" if ids is None else f"id IN ({', '.join(str(int(job_id)) for job_id in ids)})"
        freed: list[str] = []
        n_queued = 0
        with self._transaction() as db:
            db.execute(f"DELETE FROM jobs WHERE state = 'failed' AND kind = 'check' AND {which}")
            for job_id, uri, place, object_id in db.execute(
                f"SELECT id, uri, place, object_id FROM jobs WHERE state = 'failed' AND {which}"
            ).fetchall():
                newer = db.execute(
                    "SELECT id FROM jobs WHERE uri = ? AND place = ? AND id > ? AND overwrite"
                    " AND state IN ('queued', 'leased', 'done') LIMIT 1",
                    (uri, place, job_id),
                ).fetchone()
                if newer is not None:
                    db.execute(
                        "UPDATE jobs SET state = 'superseded', superseded_by = ?, finished_s = ? WHERE id = ?",
                        (newer[0], time.time(), job_id),
                    )
                    freed.append(object_id)
                else:
                    db.execute(
                        "UPDATE jobs SET state = 'queued', not_before_s = 0, leases_lost = 0, reported = 0, finished_s = NULL, error_kind = NULL,"
                        " deadline_s = ? WHERE id = ?",
                        (deadline_s, job_id),
                    )
                    n_queued += 1
        return n_queued, self._unneeded(freed)

    def discard(self, ids: Sequence[JobId] | None) -> tuple[int, list[str]]:
        """Give failed jobs up (None: all): (how many, staged files freed)."""
        which = "1" if ids is None else f"id IN ({', '.join(str(int(job_id)) for job_id in ids)})"
        with self._transaction() as db:
            rows = db.execute(f"SELECT object_id FROM jobs WHERE state = 'failed' AND {which}").fetchall()
            db.execute(f"UPDATE jobs SET state = 'discarded', finished_s = ? WHERE state = 'failed' AND {which}", (time.time(),))
        return len(rows), self._unneeded(row[0] for row in rows)

    def forget(self, job_id: JobId) -> None:
        """Remove a finished check."""
        with self._transaction() as db:
            db.execute("DELETE FROM jobs WHERE id = ? AND kind = 'check' AND state NOT IN ('queued', 'leased')", (job_id,))


def _newest_open(db: sqlite3.Connection, uri: str, place: str) -> Job | None:
    row = db.execute(
        f"SELECT {_JOB_COLUMNS} FROM jobs WHERE uri = ? AND place = ? AND state IN ('queued', 'leased') AND kind = 'put'"
        " ORDER BY id DESC LIMIT 1",
        (uri, place),
    ).fetchone()
    return _job(row) if row else None


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
    while True:
        try:
            return write()
        except JournalError as error:  # noqa: PERF203  waits between rounds
            if isinstance(error, JournalDamaged):
                raise
            log.error("the journal cannot be written, trying again: %s", error)
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


def _job(row: tuple[object, ...]) -> Job:
    (job_id, kind, owner, store_id, uri, key, object_id, size_bytes, overwrite, token, state, *rest, exclusive) = row
    return Job(  # type: ignore[misc]  # `rest` has no length for it
        JobId(job_id),  # type: ignore[arg-type]  # the columns' types are those of the schema
        JobKind(kind),
        owner,  # type: ignore[arg-type]
        store_id,  # type: ignore[arg-type]
        uri,  # type: ignore[arg-type]
        key,  # type: ignore[arg-type]
        object_id,  # type: ignore[arg-type]
        size_bytes,  # type: ignore[arg-type]
        bool(overwrite),
        token,  # type: ignore[arg-type]
        JobState(state),
        *rest,  # type: ignore[arg-type]
        exclusive=None if exclusive is None else bool(exclusive),
    )
