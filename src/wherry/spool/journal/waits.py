"""What uploads wait for: facts for `flush()` and `wherry status`, and the waits that only an operator can end.

When a job finds that its store cannot take anything before somebody has mended something (WaitsFor), the job waits for five
minutes, and so does its store: one job of it at a time is tried, after 2, 4, 8 ... 300 seconds, until one gets an answer of
another kind. So a hundred thousand jobs do not send a hundred thousand requests every five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from sqlite3 import Connection

from wherry.errors import JobFailure
from wherry.spool.journal.decisions import JournalDecisions
from wherry.spool.journal.jobs import JobId, JobKind, WaitsFor

#: A job that waits for an operator is tried again after this long.
TRY_AGAIN_S = 300.0
_FIRST_WAIT_S = 2.0
_MOST_LISTED = 100


class Reason(str, Enum):
    """Why an upload that is queued is not being sent.

    secrets: the agent does not have the secret options of its store. credentials, clock, destination: see WaitsFor.
    older: an older upload of its name comes first. required: an upload that it requires comes first.
    retry: it failed and waits for its next try. turn: nothing keeps it back but other uploads.
    """

    SECRETS = "secrets"
    CREDENTIALS = "credentials"
    CLOCK = "clock"
    DESTINATION = "destination"
    OLDER = "older"
    REQUIRED = "required"
    RETRY = "retry"
    TURN = "turn"


@dataclass(frozen=True)
class Wait:
    """Why one queued upload is not being sent, when it is tried next, and what its last attempt said (or its store's last)."""

    job_id: JobId
    store_id: int
    reason: Reason
    attempts: int
    next_try_in_s: float | None  # None: when what it waits for has happened
    blocked_by: int | None
    error: str | None
    error_kind: str | None


@dataclass(frozen=True)
class StoreWait:
    """A store with unfinished uploads to which nothing can be sent: for want of secrets, or for what an operator has to mend."""

    store_id: int
    reason: Reason
    n_jobs: int
    size_bytes: int
    next_try_in_s: float | None
    error: str | None
    error_kind: str | None


def wait_after_s(n_refusals: int) -> float:
    """How long nothing is tried at a store after so many tries in a row have found that an operator is needed."""
    return min(TRY_AGAIN_S, _FIRST_WAIT_S * 2.0 ** min(n_refusals - 1, 30))


class JournalWaits(JournalDecisions):
    """The waits. Each method is one transaction."""

    # -- what workers and the agent do

    def put_off(
        self, job_id: JobId, worker: str, waits_for: str, error: str, kind: str | None = None, wait_s: float = TRY_AGAIN_S
    ) -> None:
        """Give a job back whose store can take nothing until an operator has mended what `waits_for` says."""
        with self._transaction() as db:
            now_s = self._time.elapsed_s(db)
            cursor = db.execute(
                "UPDATE jobs SET state = 'queued', due_s = ?, waits_for = ?, error = ?, error_kind = ?, lease_owner = NULL,"
                " lease_until_s = NULL WHERE id = ? AND state = 'leased' AND lease_owner = ?",
                (now_s + wait_s, WaitsFor(waits_for).value, error, kind, job_id, worker),
            )
            if cursor.rowcount:
                db.execute(
                    "UPDATE stores SET due_s = CASE WHEN waits_for IS NULL THEN ? ELSE due_s END, refusals = MAX(refusals, 1),"
                    " waits_for = ?, error = ?, error_kind = ? WHERE id = (SELECT store_id FROM jobs WHERE id = ?)",
                    (now_s + wait_after_s(1), WaitsFor(waits_for).value, error, kind, job_id),
                )

    def note_error(self, store_id: int, key: str, error: str, kind: str | None) -> None:
        """A call for the object `key` failed and is made again: why, for people to see while its upload is under way."""
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs INDEXED BY jobs_leased SET error = ?, error_kind = ? WHERE state = 'leased' AND store_id = ? AND key = ?",
                (error, kind, store_id, key),
            )

    def resume(self, stores: Iterable[int] | None = None) -> bool:
        """Try at once what waits for an operator: of these stores, whose secrets are new, or of all. Whether there was any."""
        with self._transaction() as db:
            return resume(db, stores)

    def note_locked(self, locked: Iterable[int]) -> None:
        """These stores, and no others, are those whose secrets the agent does not have."""
        with self._transaction() as db:
            db.execute(f"UPDATE stores SET is_locked = NOT is_locked WHERE is_locked != (id IN ({_listed(locked)}))")

    # -- questions

    def waits(self, ids: Iterable[JobId]) -> dict[JobId, Wait]:
        """Of those of these uploads that are queued: why they are not being sent."""
        with self._transaction(read_only=True) as db:
            now_s = self._time.elapsed_s(db)
            rows = db.execute(
                "SELECT j.id, j.store_id, j.attempts, j.due_s, j.blocked_by, b.uri = j.uri AND b.place = j.place, j.waits_for, j.error,"
                " j.error_kind, s.is_locked, s.waits_for, s.due_s, s.error, s.error_kind"
                " FROM jobs j JOIN stores s ON s.id = j.store_id LEFT JOIN jobs b ON b.id = j.blocked_by"
                f" WHERE j.id IN ({_listed(ids)}) AND +j.state = 'queued'"
            ).fetchall()
        found = {}
        for (
            job_id,
            store_id,
            attempts,
            due_s,
            blocked_by,
            is_older,
            own,
            error,
            kind,
            is_locked,
            store,
            store_due_s,
            *said,
        ) in rows:
            next_s: float | None = max(0.0, due_s - now_s)
            if is_locked:
                reason, next_s = Reason.SECRETS, None
            elif blocked_by is not None:
                reason, next_s = Reason.OLDER if is_older else Reason.REQUIRED, None
            elif store is not None:
                reason, next_s = Reason(store), max(next_s or 0.0, store_due_s - now_s, 0.0)
                error, kind = (error, kind) if error else said
            elif own is not None:
                reason = Reason(own)
            else:
                reason = Reason.RETRY if due_s > now_s else Reason.TURN
            found[JobId(job_id)] = Wait(JobId(job_id), store_id, reason, attempts, next_s, blocked_by, error, kind)
        return found

    def waiting_stores(self) -> list[StoreWait]:
        """The stores with unfinished uploads to which nothing can be sent, by id."""
        with self._transaction(read_only=True) as db:
            now_s = self._time.elapsed_s(db)
            rows = db.execute(
                "SELECT s.id, s.is_locked, s.waits_for, s.due_s, s.error, s.error_kind, SUM(t.n), SUM(t.size_bytes)"
                " FROM stores s JOIN totals t ON t.store_id = s.id AND t.kind = 'put' AND t.state = 'queued'"
                " WHERE s.is_locked OR s.waits_for IS NOT NULL GROUP BY s.id HAVING SUM(t.n) > 0 ORDER BY s.id"
            ).fetchall()
            first_s = {row[0]: _first_try_s(db, row[0]) for row in rows}  # nothing is tried before a job is due
        return [
            StoreWait(
                store_id,
                Reason.SECRETS if is_locked else Reason(waits_for),
                *(n, size_bytes, None if is_locked else max(0.0, max(due_s, first_s[store_id]) - now_s), error, kind),
            )
            for store_id, is_locked, waits_for, due_s, error, kind, n, size_bytes in rows
        ]

    def held_up(self, owner: str | None = None, closed: Iterable[int] = ()) -> list[JobFailure]:
        """The unfinished uploads, of one owner or of all, if every one of them waits for an operator, or for one that does.

        Empty while anything else is under way. At most 100 of them are listed. `closed` are stores that nobody can open: their
        uploads are not under way, and are not listed if nothing else waits.
        """
        whose, args = ("owner = ? AND", (owner,)) if owner is not None else ("", ())
        with self._transaction(read_only=True) as db:
            stores = [row[0] for row in db.execute("SELECT id FROM stores WHERE waits_for IS NOT NULL")]
            n_own = db.execute(
                f"SELECT COUNT(*) FROM jobs INDEXED BY jobs_waiting WHERE {whose} waits_for IS NOT NULL AND store_id NOT IN ({_listed(stores)})",
                args,
            ).fetchone()[0]
            if not stores and not n_own:
                return []
            stores += [store_id for store_id in closed if store_id not in stores]
            of_kind = f"{whose} kind = '{JobKind.PUT.value}'"
            n_leased, n_queued, n_there = db.execute(
                "SELECT COALESCE(SUM(n * (state = 'leased')), 0), COALESCE(SUM(n * (state = 'queued')), 0),"
                f" COALESCE(SUM(n * (state = 'queued' AND store_id IN ({_listed(stores)}))), 0) FROM totals WHERE {of_kind}",
                args,
            ).fetchone()
            if n_leased or not n_there + n_own:
                return []
            if n_queued > n_there + n_own and _others_go_on(db, f"{of_kind} AND store_id NOT IN ({_listed(stores)})", args):
                return []
            rows = db.execute(
                "SELECT j.id, j.uri, j.attempts, COALESCE(j.error, s.error, 'it waits for another upload'),"
                " CASE WHEN j.error IS NULL THEN s.error_kind ELSE j.error_kind END"
                f" FROM jobs j JOIN stores s ON s.id = j.store_id WHERE {of_kind.replace('owner', 'j.owner')}"
                f" AND j.state = 'queued' ORDER BY j.id LIMIT {_MOST_LISTED}",
                args,
            ).fetchall()
        return [JobFailure(*row) for row in rows]


def _others_go_on(db: Connection, which: str, args: tuple[str, ...]) -> bool:
    """Whether some of these queued jobs wait for no operator, and not for a job that does."""
    free = f"SELECT 1 FROM jobs WHERE {which} AND state = 'queued' AND waits_for IS NULL AND blocked_by IS NULL LIMIT 1"
    if db.execute(free, args).fetchone() is not None:
        return True
    return (
        db.execute(
            f"WITH RECURSIVE before (id) AS (SELECT blocked_by FROM jobs WHERE {which} AND state = 'queued' AND blocked_by IS NOT NULL"
            " UNION SELECT j.blocked_by FROM before JOIN jobs j ON j.id = before.id WHERE j.blocked_by IS NOT NULL)"
            " SELECT 1 FROM before JOIN jobs j ON j.id = before.id JOIN stores s ON s.id = j.store_id WHERE j.blocked_by IS NULL"
            " AND (j.state = 'leased' OR (j.waits_for IS NULL AND s.waits_for IS NULL)) LIMIT 1",
            args,
        ).fetchone()
        is not None
    )


def _first_try_s(db: Connection, store_id: int) -> float:
    """The elapsed time at which the first of the store's queued jobs is due; 0 if all of them wait for other jobs."""
    first = "SELECT MIN(due_s) FROM jobs INDEXED BY jobs_ready WHERE state = 'queued' AND blocked_by IS NULL AND store_id = ?"
    return float(db.execute(first, (store_id,)).fetchone()[0] or 0.0)


def end_store_wait(db: Connection, which: str, args: tuple[object, ...] = ()) -> bool:
    """Stores that match have answered, or are to be tried at once. Whether one was waiting."""
    cursor = db.execute(
        "UPDATE stores SET waits_for = NULL, refusals = 0, due_s = 0, error = NULL, error_kind = NULL"
        f" WHERE waits_for IS NOT NULL AND {which}",
        args,
    )
    return cursor.rowcount > 0


def resume(db: Connection, stores: Iterable[int] | None = None) -> bool:
    """As `JournalWaits.resume`, within a transaction."""
    which = "1" if stores is None else f"store_id IN ({_listed(stores)})"
    cursor = db.execute(f"UPDATE jobs SET due_s = 0, waits_for = NULL WHERE waits_for IS NOT NULL AND {which}")
    return end_store_wait(db, which.replace("store_id", "id")) or cursor.rowcount > 0


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(int(one)) for one in ids)
