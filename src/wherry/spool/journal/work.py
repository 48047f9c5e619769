"""What an agent and its workers do in a journal: they lease jobs, report how these ended, and take dead workers' leases away."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from sqlite3 import Connection

from wherry.config import RetryConfig
from wherry.spool.journal.jobs import Job, JobId, JobKind, JobState, WaitsFor, packed
from wherry.spool.journal.order import in_order, n_large_of
from wherry.spool.journal.queries import JOB_COLUMNS, as_job, listed, unneeded
from wherry.spool.journal.role import Role

#: A job whose worker died this often is what kills them.
MAX_LEASES_LOST = 5
#: From here on it is worked on alone.
SUSPECT_AFTER = 2
#: A job that waits for an operator is tried again after this long.
TRY_AGAIN_S = 300.0
_FIRST_WAIT_S = 2.0
#: The kind of error of a manifest's job that has found receipts of other ranks missing.
INCOMPLETE = "IncompleteSetError"
#: A file of at most this size takes a worker so little time that it may lease it before it has a place for it.
SMALL_BYTES = 2**20
#: More jobs than that need no more workers.
_MOST_COUNTED = 100
#: Finished jobs are remembered for a while, for handles and for `status`.
_KEEP_FINISHED_S = 7 * 86_400.0
#: A job that was leased, and whether it is plain.
_LEASED = (
    f"SELECT {JOB_COLUMNS}, NOT EXISTS (SELECT 1 FROM requirements WHERE job_id = jobs.id)"
    " AND NOT EXISTS (SELECT 1 FROM comparisons WHERE job_id = jobs.id) FROM jobs WHERE id = ?"
)


@dataclass(frozen=True)
class Requirement:
    """An object that must exist before a job may start: its key, and our own job for it, if any."""

    key: str
    state: JobState | None
    crc32c: int | None
    size_bytes: int | None = None
    error: str | None = None
    #: Where it was compared: the SHA-256 of the file in hex, and the older checkpoint set that has it ('': it was sent).
    sha256: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Leased:
    """A job, leased. `is_plain`: it requires nothing and is compared with nothing, so that nobody has to look that up."""

    job: Job
    is_plain: bool


@dataclass(frozen=True)
class Ack:
    """How a job was done. `exclusive`: whether the store itself saw to it that the name was free; None for a job that overwrites.

    `note`: what its user has to be told all the same, kept as its error. `size_bytes`: of its staged file.
    """

    job_id: JobId
    etag: str | None = None
    exclusive: bool | None = None
    note: str | None = None
    size_bytes: int = 0


class Work(Role):
    """The calls of an agent and its workers."""

    def now_s(self) -> float:
        """The elapsed time now, in which waits and leases are measured; see `wherry.spool.journal.journal_time`."""
        with self._transaction(read_only=True) as db:
            return self._time.elapsed_s(db)

    def ready(self, now: float | None = None, *, with_stores: Iterable[int] | None = None) -> tuple[int, float | None]:
        """(jobs that a worker could lease, counted up to 100; the elapsed time at which the next of the others can be).

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
                n_due += db.execute(due, (store_id, now, _MOST_COUNTED - n_due)).fetchone()[0]
                next_s = db.execute(f"SELECT MIN(due_s) {is_ready} AND due_s > ?", (store_id, now)).fetchone()[0]
                if next_s is not None:
                    later.append(next_s)
        return n_due, min(later, default=None)

    def _stores_to_try(self, db: Connection, with_stores: Iterable[int] | None) -> list[tuple[int, float]]:
        """The stores, each with the elapsed time before which nothing is to be tried there."""
        found = db.execute("SELECT id, CASE WHEN waits_for IS NULL THEN 0 ELSE due_s END FROM stores").fetchall()
        usable = None if with_stores is None else set(with_stores)
        return [row for row in found if usable is None or row[0] in usable]

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
        Of several the next is said by `wherry.spool.journal.order`.

        `with_stores` are those that this worker can open (it has their secrets); None: all. Suspects are jobs on which workers
        have died: one of them is worked on alone, so that the innocent are not counted with the guilty. `now`: elapsed time.
        """
        leased = self.lease_many(worker, lease_s, 1, with_stores=with_stores, with_suspects=with_suspects, now=now)
        return leased[0].job if leased else None

    def lease_many(
        self,
        worker: str,
        lease_s: float,
        places: int,
        n_ahead: int = 0,
        *,
        with_stores: Iterable[int] | None = None,
        with_suspects: bool = True,
        now: float | None = None,
        most_large: int | None = None,
    ) -> list[Leased]:
        """As lease(), but takes several jobs, in the order in which lease() would: one for each of `places`.

        Up to `n_ahead` more are taken while they are small and no worker has died on them: the worker begins them as places
        get free. A suspect is taken alone. The jobs of one call have different names and require nothing of one another.
        `most_large`: leave larger files than LARGE_BYTES where they are, and take what comes after them, while the worker has
        that many.
        """
        most_lost = (MAX_LEASES_LOST if with_suspects else SUSPECT_AFTER) - 1
        with self._transaction() as db:
            now = self._time.elapsed_s(db) if now is None else now
            stores = [store_id for store_id, until_s in self._stores_to_try(db, with_stores) if until_s <= now]
            waiting = dict(db.execute("SELECT id, refusals FROM stores WHERE waits_for IS NOT NULL").fetchall())
            n_large = sys.maxsize if most_large is None else max(0, most_large - n_large_of(db, worker))
            most = {store_id: 1 if store_id in waiting else places + n_ahead for store_id in stores}
            ids: list[int] = []
            for job_id, store_id, size_bytes, leases_lost, _ in in_order(db, most, most_lost, now, n_large):
                if len(ids) >= places and (len(ids) >= places + n_ahead or size_bytes > SMALL_BYTES or leases_lost):
                    break
                if leases_lost >= SUSPECT_AFTER and ids:
                    continue
                if store_id in waiting:
                    if (refusals := waiting[store_id]) is None:
                        continue
                    waiting[store_id] = None
                    values = (now + wait_after_s(refusals + 1), store_id)
                    db.execute("UPDATE stores SET refusals = refusals + 1, due_s = ? WHERE id = ?", values)
                ids.append(job_id)
                if leases_lost >= SUSPECT_AFTER:
                    break
            if not ids:
                return []
            # One statement for each job, of which SQLite keeps the compiled form: to compile it takes longer than to execute it.
            db.executemany(
                "UPDATE jobs SET state = 'leased', lease_owner = ?, lease_until_s = ?, attempts = attempts + 1, is_listed = 0,"
                " waits_for = NULL WHERE id = ?",
                [(worker, now + lease_s, job_id) for job_id in ids],
            )
            rows_taken = [db.execute(_LEASED, (job_id,)).fetchone() for job_id in ids]
        return [Leased(as_job(row[:-1]), is_plain=bool(row[-1])) for row in rows_taken]

    def requirements(self, job_id: JobId) -> list[Requirement]:
        """What must exist before the job may start; of our own jobs the checksum of the newest version that is done."""
        rows = self._rows(
            "SELECT r.key, e.state, (SELECT n.crc32c FROM jobs n WHERE n.uri = e.uri AND n.place = e.place AND n.id >= e.id"
            "   AND n.state = 'done' AND n.kind = 'put' ORDER BY n.id DESC LIMIT 1), e.size_bytes, e.error,"
            " c.sha256, c.source FROM requirements r LEFT JOIN jobs e ON e.id = r.after_job"
            " LEFT JOIN comparisons c ON c.job_id = e.id WHERE r.job_id = ?",
            (job_id,),
        )
        return [Requirement(row[0], JobState(row[1]) if row[1] else None, *row[2:]) for row in rows]

    def pieces(self, job_id: JobId) -> tuple[int, ...]:
        """The CRC32C of each piece of PIECE_BYTES of the staged file; empty where they are not known."""
        row = self._row("SELECT pieces FROM jobs WHERE id = ?", (job_id,))
        return struct.unpack(f">{len(row[0]) // 4}I", row[0]) if row and row[0] else ()

    def time_left_s(self, job: Job) -> tuple[float, float]:
        """(how much run time is left before a job's deadline, how much has passed).

        The deadline is that of the store's newest settings; a check ends with the retries of its call.
        """
        with self._transaction(read_only=True) as db:
            passed_s = self._time.run_s(db) - job.schedule.counted_from_s
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
        self._write("UPDATE jobs SET crc32c = ?, pieces = COALESCE(?, pieces) WHERE id = ?", (crc32c, packed(pieces), job_id))

    def ack(
        self, job_id: JobId, worker: str, etag: str | None, *, exclusive: bool | None = None, note: str | None = None
    ) -> list[str]:
        """The object is in the store and verified: the job is done. Returns the staged files that nobody needs any more."""
        return self.ack_many(worker, [Ack(job_id, etag, exclusive, note)])

    def ack_many(self, worker: str, acks: Sequence[Ack]) -> list[str]:
        """As ack(), for several jobs, all in one transaction. A job whose lease was taken away is left out, the others are done."""
        freed: list[str] = []
        with self._transaction() as db:
            wall_s, elapsed_s = self._time.wall_s(), self._time.elapsed_s(db)
            ours = "SELECT object_id, store_id, part_size_bytes FROM jobs WHERE id = ? AND state = 'leased' AND lease_owner = ?"
            held = {one.job_id: db.execute(ours, (one.job_id, worker)).fetchone() for one in acks}
            for one in acks:
                if held[one.job_id] is not None:
                    db.execute(
                        "UPDATE jobs SET state = 'done', etag = ?, exclusive = ?, error = ?, error_kind = NULL, finished_s = ?,"
                        " ended_s = ?, lease_owner = NULL, lease_until_s = NULL, upload_id = NULL WHERE id = ?",
                        (one.etag, one.exclusive, one.note, wall_s, elapsed_s, one.job_id),
                    )
                    freed.append(held[one.job_id][0])
                    if held[one.job_id][2] is not None:
                        db.execute("DELETE FROM parts WHERE job_id = ?", (one.job_id,))
            for store_id in {row[1] for row in held.values() if row is not None}:
                end_store_wait(db, "id = ?", (store_id,))
            return unneeded(db, freed)

    def fail(self, job_id: JobId, worker: str, error: str, kind: str | None = None) -> None:
        """The job has failed for good; its staged file is kept. `kind`: what kind_of() says of the error."""
        with self._transaction() as db:
            values = (error, kind, self._time.wall_s(), self._time.elapsed_s(db), job_id, worker)
            cursor = db.execute(
                "UPDATE jobs SET state = 'failed', error = ?, error_kind = ?, finished_s = ?, ended_s = ?, lease_owner = NULL,"
                " lease_until_s = NULL WHERE id = ? AND state = 'leased' AND lease_owner = ?",
                values,
            )
            if cursor.rowcount:  # else the lease was taken away: whoever has the job now reports on it
                end_store_wait(db, "id = (SELECT store_id FROM jobs WHERE id = ?)", (job_id,))

    def requeue(
        self,
        job_id: JobId,
        worker: str,
        *,
        wait_s: float,
        error: str,
        kind: str | None = None,
        counts: bool = True,
        waits_for: WaitsFor | None = None,
    ) -> None:
        """Give the job back, to be tried again after `wait_s`. `counts=False`: it was not an attempt, it only had to wait.

        `waits_for`: its store can take nothing until an operator has mended that.
        """
        with self._transaction() as db:
            now_s = self._time.elapsed_s(db)
            cursor = db.execute(
                "UPDATE jobs SET state = 'queued', due_s = ?, waits_for = ?, error = ?, error_kind = ?, attempts = attempts - ?,"
                " lease_owner = NULL, lease_until_s = NULL WHERE id = ? AND state = 'leased' AND lease_owner = ?",
                (now_s + wait_s, waits_for, error, kind, 0 if counts else 1, job_id, worker),
            )
            if waits_for is not None and cursor.rowcount:
                db.execute(
                    "UPDATE stores SET due_s = CASE WHEN waits_for IS NULL THEN ? ELSE due_s END, refusals = MAX(refusals, 1),"
                    " waits_for = ?, error = ?, error_kind = ? WHERE id = (SELECT store_id FROM jobs WHERE id = ?)",
                    (now_s + wait_after_s(1), waits_for, error, kind, job_id),
                )

    def note_error(self, store_id: int, key: str, error: str, kind: str | None) -> None:
        """A call for the object `key` failed and is made again: why, for people to see while its upload is under way."""
        self._write(
            "UPDATE jobs INDEXED BY jobs_leased SET error = ?, error_kind = ? WHERE state = 'leased' AND store_id = ? AND key = ?",
            (error, kind, store_id, key),
        )

    def resume(self, stores: Iterable[int] | None = None) -> bool:
        """Try at once what waits for an operator: of these stores, whose secrets are new, or of all. Whether there was any.

        Manifests that lacked receipts are looked at again, too.
        """
        with self._transaction() as db:
            return resume(db, stores)

    def note_locked(self, locked: Iterable[int]) -> None:
        """These stores, and no others, are those whose secrets the agent does not have."""
        self._write(f"UPDATE stores SET is_locked = NOT is_locked WHERE is_locked != (id IN ({listed(locked)}))")

    def workers_on(self, ids: Iterable[int]) -> dict[str, list[JobId]]:
        """Who has which of these jobs leased."""
        found: dict[str, list[JobId]] = {}
        for owner, job_id in self._rows(f"SELECT lease_owner, id FROM jobs WHERE id IN ({listed(ids)}) AND state = 'leased'"):
            found.setdefault(owner, []).append(JobId(job_id))
        return found

    def lease_owners(self) -> set[str]:
        """Who has jobs or parts leased."""
        of_parts = "SELECT lease_owner FROM parts WHERE lease_owner IS NOT NULL"
        return {row[0] for row in self._rows(f"SELECT lease_owner FROM jobs WHERE state = 'leased' UNION {of_parts}")}

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

    def release(self, worker: str | None = None, *, keep: Sequence[str] = (), blames: bool = True) -> tuple[int, list[Job]]:
        """Take the leases of a dead worker away: (jobs queued again, jobs failed because workers keep dying on them).

        `None`: of all workers but `keep`, after the agent itself died, which is held against no job. `blames=False`: neither is
        the death of this worker.
        """
        marks = ", ".join("?" * len(keep))
        who, args = ("lease_owner = ?", (worker,)) if worker is not None else (f"lease_owner NOT IN ({marks})", tuple(keep))
        with self._transaction() as db:
            cursor = db.execute(
                "UPDATE jobs SET state = 'queued', lease_owner = NULL, lease_until_s = NULL, leases_lost = leases_lost + ?"
                f" WHERE state = 'leased' AND {who}",
                (0 if worker is None or not blames else 1, *args),
            )
            db.execute(f"UPDATE parts SET lease_owner = NULL, lease_until_s = NULL WHERE lease_owner IS NOT NULL AND {who}", args)
            doomed = db.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs INDEXED BY jobs_suspect"
                f" WHERE state = 'queued' AND leases_lost > 0 AND leases_lost >= {MAX_LEASES_LOST}"
            ).fetchall()
            why = f"its worker died {MAX_LEASES_LOST} times (see agent.log in the spool)"
            for row in doomed:
                db.execute(
                    "UPDATE jobs SET state = 'failed', finished_s = ?, ended_s = ?, error = ? WHERE id = ?",
                    (self._time.wall_s(), self._time.elapsed_s(db), why, row[0]),
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


def wait_after_s(n_refusals: int) -> float:
    """How long nothing is tried at a store after so many tries in a row have found that an operator is needed."""
    return min(TRY_AGAIN_S, _FIRST_WAIT_S * 2.0 ** min(n_refusals - 1, 30))


def end_store_wait(db: Connection, which: str, args: tuple[object, ...] = ()) -> bool:
    """Stores that match have answered, or are to be tried at once. Whether one was waiting."""
    cursor = db.execute(
        "UPDATE stores SET waits_for = NULL, refusals = 0, due_s = 0, error = NULL, error_kind = NULL"
        f" WHERE waits_for IS NOT NULL AND {which}",
        args,
    )
    return cursor.rowcount > 0


def resume(db: Connection, stores: Iterable[int] | None = None) -> bool:
    """As `Work.resume`, within a transaction."""
    which = "1" if stores is None else f"store_id IN ({listed(stores)})"
    cursor = db.execute(f"UPDATE jobs SET due_s = 0, waits_for = NULL WHERE waits_for IS NOT NULL AND {which}")
    # What a manifest lacked at the last look says nothing of now.
    db.execute(
        "UPDATE jobs INDEXED BY jobs_urgent SET due_s = 0, error = NULL, error_kind = NULL"
        f" WHERE is_urgent AND state = 'queued' AND blocked_by IS NULL AND kind = 'commit' AND error_kind = ? AND {which}",
        (INCOMPLETE,),
    )
    return end_store_wait(db, which.replace("store_id", "id")) or cursor.rowcount > 0
