"""What can be asked of a journal. Nothing here changes it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Protocol

from wherry.spool.journal.jobs import Counts, Job, JobId, JobKind, JobState, place_of
from wherry.spool.journal.journal_time import JournalTime

JOB_COLUMNS = (
    "id, kind, owner, store_id, uri, key, object_id, size_bytes, overwrite, token, state, attempts, created_s, crc32c, upload_id,"
    " part_size_bytes, etag, error, error_kind, finished_s, superseded_by, leases_lost, counted_from_s, due_s, blocked_by, waits_for,"
    " exclusive"
)


class Transaction(Protocol):
    """Opens a transaction of the journal's database."""

    def __call__(self, *, read_only: bool = False) -> AbstractContextManager[Connection]:
        """The connection, within the transaction."""


@dataclass(frozen=True)
class StoreRecord:
    """How to open a store again in another process. `secret_names` are the options that must come from memory."""

    id: int
    scheme: str
    root: str
    options: Mapping[str, object]
    secret_names: tuple[str, ...]
    settings: Mapping[str, Mapping[str, float]]
    is_locked: bool = False  # the agent that runs, or ran last, does not have its secrets

    @property
    def place(self) -> str:
        """Which of the stores of its URI it is."""
        return place_of(self.options)


@dataclass(frozen=True)
class Requirement:
    """An object that must exist before a job may start: its key, and our own job for it, if any."""

    key: str
    state: JobState | None
    crc32c: int | None


class JournalQuestions:
    """The questions. Each is one transaction."""

    _transaction: Transaction
    _time: JournalTime

    def now_s(self) -> float:
        """The elapsed time now, in which waits and leases are measured; see `wherry.spool.journal.journal_time`."""
        with self._transaction(read_only=True) as db:
            return self._time.elapsed_s(db)

    def referenced_objects(self, among: Sequence[str] | None = None) -> set[str]:
        """The staged files that unfinished or failed jobs still need."""
        sql = "SELECT object_id FROM staged"
        with self._transaction(read_only=True) as db:
            if among is not None and len(among) <= 100:
                marks = ", ".join("?" * len(among))
                return {row[0] for row in db.execute(f"{sql} WHERE object_id IN ({marks})", tuple(among))}
            return {row[0] for row in db.execute(sql)}

    def known_objects(self, among: Iterable[str]) -> set[str]:
        """Those of the staged files that some job has or had, in whatever state. It reads all rows."""
        wanted = set(among)
        with self._transaction(read_only=True) as db:
            return {row[0] for row in db.execute("SELECT object_id FROM jobs") if row[0] in wanted}

    def is_shared(self, object_id: str) -> bool:
        """Whether several unfinished or failed jobs have this staged file."""
        with self._transaction(read_only=True) as db:
            row = db.execute("SELECT n_jobs FROM staged WHERE object_id = ?", (object_id,)).fetchone()
        return row is not None and row[0] > 1

    def spool_bytes(self) -> int:
        """How much the staged files of unfinished and failed jobs take."""
        with self._transaction(read_only=True) as db:
            return int(db.execute("SELECT size_bytes FROM held").fetchone()[0])

    def ready(
        self, now: float | None = None, *, with_stores: Iterable[int] | None = None, at_most: int = 100
    ) -> tuple[int, float | None]:
        """(jobs that a worker could lease, counted up to `at_most`; the elapsed time at which the next of the others can be).

        `now` and `with_stores` are as in `lease()`.
        """
        n_due, later = 0, []
        is_ready = "FROM jobs INDEXED BY jobs_ready WHERE state = 'queued' AND blocked_by IS NULL AND store_id = ?"
        with self._transaction(read_only=True) as db:
            now = self._time.elapsed_s(db) if now is None else now
            for store_id, until_s in self._stores_to_try(db, with_stores):
                if until_s > now:
                    if db.execute(f"SELECT 1 {is_ready} LIMIT 1", (store_id,)).fetchone() is not None:
                        later.append(until_s)
                    continue
                due = f"SELECT COUNT(*) FROM (SELECT 1 {is_ready} AND due_s <= ? LIMIT ?)"
                n_due += db.execute(due, (store_id, now, at_most - n_due)).fetchone()[0]
                next_s = db.execute(f"SELECT MIN(due_s) {is_ready} AND due_s > ?", (store_id, now)).fetchone()[0]
                if next_s is not None:
                    later.append(next_s)
        return n_due, min(later, default=None)

    def _stores_to_try(self, db: Connection, with_stores: Iterable[int] | None) -> list[tuple[int, float]]:
        """The stores, each with the elapsed time before which nothing is to be tried there."""
        found = db.execute("SELECT id, CASE WHEN waits_for IS NULL THEN 0 ELSE due_s END FROM stores").fetchall()
        usable = None if with_stores is None else set(with_stores)
        return [row for row in found if usable is None or row[0] in usable]

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

    def abandoned_uploads(self) -> list[Job]:
        """Jobs that will not be sent any more but have begun an upload in parts, which takes room in the store."""
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_uploads WHERE upload_id IS NOT NULL"
                " AND state IN ('superseded', 'discarded', 'failed') LIMIT 20"
            ).fetchall()
        return [as_job(row) for row in rows]

    def pieces(self, job_id: JobId) -> tuple[int, ...]:
        """The CRC32C of each piece of PIECE_BYTES of the staged file; empty where they are not known."""
        with self._transaction(read_only=True) as db:
            row = db.execute("SELECT pieces FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return struct.unpack(f">{len(row[0]) // 4}I", row[0]) if row and row[0] else ()

    def upload_ids(self) -> set[str]:
        """The ids of all uploads in parts that belong to a job."""
        with self._transaction(read_only=True) as db:
            return {row[0] for row in db.execute("SELECT upload_id FROM jobs WHERE upload_id IS NOT NULL")}

    def lease_owners(self) -> set[str]:
        """Who has jobs or parts leased."""
        with self._transaction(read_only=True) as db:
            return {
                row[0]
                for row in db.execute(
                    "SELECT lease_owner FROM jobs WHERE state = 'leased' UNION SELECT lease_owner FROM parts WHERE lease_owner IS NOT NULL"
                )
            }

    def expired(self, now: float | None = None) -> set[str]:
        """Workers whose leases ran out: their process is stuck."""
        with self._transaction(read_only=True) as db:
            now = self._time.elapsed_s(db) if now is None else now
            rows = db.execute(
                "SELECT lease_owner FROM jobs WHERE state = 'leased' AND lease_until_s < :now"
                " UNION SELECT lease_owner FROM parts WHERE lease_owner IS NOT NULL AND lease_until_s < :now",
                {"now": now},
            ).fetchall()
        return {row[0] for row in rows}

    def stores(self) -> dict[int, StoreRecord]:
        """All store records, by id."""
        with self._transaction(read_only=True) as db:
            rows = db.execute("SELECT id, scheme, root, options, secret_names, settings, is_locked FROM stores").fetchall()
        return {
            store_id: StoreRecord(
                store_id, scheme, root, json.loads(options), tuple(json.loads(names)), json.loads(settings), bool(is_locked)
            )
            for store_id, scheme, root, options, names, settings, is_locked in rows
        }

    def counts(self, owner: str | None = None) -> Counts:
        """Uploads by state, of one owner or of all."""
        whose, args, oldest = ("owner = ? AND", (owner,), "jobs_by_owner") if owner is not None else ("", (), "jobs_by_state")
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                f"SELECT state, SUM(n), SUM(size_bytes), SUM(retries) FROM totals WHERE {whose} kind = 'put' GROUP BY state"
                " HAVING SUM(n) > 0",
                args,
            ).fetchall()
            found = {state: (int(n), int(size), int(retries)) for state, n, size, retries in rows}
            still = [state for state in ("queued", "leased") if state in found]
            sent_bytes = db.execute(
                "SELECT COALESCE(SUM(p.size_bytes), 0) FROM parts p CROSS JOIN jobs j ON j.id = p.job_id"
                f" WHERE {whose} p.etag IS NOT NULL AND +j.state IN ('queued', 'leased')",
                args,
            ).fetchone()[0]
            first_s = [
                db.execute(
                    f"SELECT created_s FROM jobs INDEXED BY {oldest} WHERE {whose} state = ? AND kind = 'put' ORDER BY id LIMIT 1",
                    (*args, state),
                ).fetchone()[0]
                for state in still
            ]
        count = {state: found.get(state.value, (0, 0, 0)) for state in JobState}
        return Counts(
            queued=count[JobState.QUEUED][0],
            leased=count[JobState.LEASED][0],
            done=count[JobState.DONE][0],
            failed=count[JobState.FAILED][0],
            superseded=count[JobState.SUPERSEDED][0],
            bytes_queued=max(0, sum(found[state][1] for state in still) - int(sent_bytes)),
            bytes_failed=count[JobState.FAILED][1],
            oldest_age_s=max((max(0.0, self._time.wall_s() - created_s) for created_s in first_s), default=0.0),
            retries=sum(row[2] for row in found.values()),
        )

    def queued_at(self, stores: Iterable[int]) -> tuple[int, int]:
        """(how many uploads to these stores are queued, their bytes)."""
        listed = ", ".join(str(int(store_id)) for store_id in stores)
        with self._transaction(read_only=True) as db:
            row = db.execute(
                "SELECT COALESCE(SUM(n), 0), COALESCE(SUM(size_bytes), 0) FROM totals"
                f" WHERE kind = 'put' AND state = 'queued' AND store_id IN ({listed})"
            ).fetchone()
        return int(row[0]), int(row[1])

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
            # The "+" keeps the planner from walking all jobs of these states to find a few numbers.
            clauses.append(f"{'' if ids is None else '+'}state IN ({', '.join('?' * len(wanted))})")
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
                f"SELECT {JOB_COLUMNS} FROM jobs WHERE {' AND '.join(clauses)} ORDER BY id LIMIT {int(limit)}", args
            ).fetchall()
        return [as_job(row) for row in rows]

    def newest_open(self, uri: str, place: str) -> Job | None:
        """The newest job for this URI in that place, if it is still to be sent: what a reader of the name must see now."""
        with self._transaction(read_only=True) as db:
            return newest_open(db, uri, place)

    def newest(self, uri: str, place: str) -> Job | None:
        """The newest upload for this URI in that place, in whatever state."""
        with self._transaction(read_only=True) as db:
            row = db.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs WHERE uri = ? AND place = ? AND kind = 'put' ORDER BY id DESC LIMIT 1",
                (uri, place),
            ).fetchone()
        return as_job(row) if row else None

    def open_under(self, uri_prefix: str, place: str) -> list[Job]:
        """The newest unfinished upload of each name below a URI prefix in that place, by URI."""
        below, args = "uri >= ?", [uri_prefix]
        if end := _after(uri_prefix):
            below, args = "uri >= ? AND uri < ?", [uri_prefix, end]
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_open WHERE state IN ('queued', 'leased') AND kind = 'put'"
                f" AND place = ? AND {below} ORDER BY uri, id",
                (place, *args),
            ).fetchall()
        return list({row[4]: as_job(row) for row in rows}.values())

    def unfinished(self, *, owner: str | None = None, ids: Sequence[JobId] | None = None) -> int:
        """How many jobs are queued or leased: of one owner, of a list, or of all."""
        with self._transaction(read_only=True) as db:
            if ids is not None:
                listed = ", ".join(str(int(job_id)) for job_id in ids)
                return int(
                    db.execute(f"SELECT COUNT(*) FROM jobs WHERE id IN ({listed}) AND +state IN ('queued', 'leased')").fetchone()[
                        0
                    ]
                )
            whose, args = ("owner = ? AND", (owner,)) if owner is not None else ("", ())
            row = db.execute(
                f"SELECT COALESCE(SUM(n), 0) FROM totals WHERE {whose} state IN ('queued', 'leased')", args
            ).fetchone()
        return int(row[0])


def newest_open(db: Connection, uri: str, place: str) -> Job | None:
    """As `JournalQuestions.newest_open`, within a transaction."""
    row = db.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_open WHERE uri = ? AND place = ? AND state IN ('queued', 'leased')"
        " AND kind = 'put' ORDER BY id DESC LIMIT 1",
        (uri, place),
    ).fetchone()
    return as_job(row) if row else None


def _after(prefix: str) -> str:
    """The least text, by code points as SQLite compares them, that is greater than all that begin with `prefix`; "": there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[at]) + 1
        if following == 0xD800:  # no text has one of the surrogates
            following = 0xE000
        if following <= 0x10FFFF:
            return prefix[:at] + chr(following)
    return ""


def as_job(row: tuple[object, ...]) -> Job:
    """The job of a row of JOB_COLUMNS."""
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
