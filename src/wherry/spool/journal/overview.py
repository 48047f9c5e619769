"""What people ask of a journal: what is unfinished, why it is not being sent, what a name means.

When a job finds that its store cannot take anything before somebody has mended something (WaitsFor), the job waits for five
minutes, and so does its store: one job of it at a time is tried, after 2, 4, 8 ... 300 seconds, until one gets an answer of
another kind. So a hundred thousand jobs do not send a hundred thousand requests every five minutes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from sqlite3 import Connection

from wherry.errors import JobFailure
from wherry.spool.journal.jobs import JobId
from wherry.spool.journal.queries import listed
from wherry.spool.journal.role import Role
from wherry.spool.journal.work import INCOMPLETE

_MOST_LISTED = 100
_OPEN = "kind != 'check' AND state IN ('queued', 'leased')"


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
    """A store with unfinished uploads to which nothing can be sent: its secrets are missing, or an operator has to mend something."""

    store_id: int
    reason: Reason
    n_jobs: int
    size_bytes: int
    next_try_in_s: float | None
    error: str | None
    error_kind: str | None


class Overview(Role):
    """The questions. None of them changes anything."""

    def waits(self, ids: Iterable[JobId]) -> dict[JobId, Wait]:
        """Why these uploads are not being sent, for those of them that are queued."""
        with self._transaction(read_only=True) as db:
            now_s = self._time.elapsed_s(db)
            rows = db.execute(
                "SELECT j.id, j.store_id, j.attempts, j.due_s, j.blocked_by, b.uri = j.uri AND b.place = j.place, j.waits_for,"
                " j.error, j.error_kind, s.is_locked, s.waits_for, s.due_s, s.error, s.error_kind"
                " FROM jobs j JOIN stores s ON s.id = j.store_id LEFT JOIN jobs b ON b.id = j.blocked_by"
                f" WHERE j.id IN ({listed(ids)}) AND +j.state = 'queued'"
            ).fetchall()
        found = {}
        for row in rows:
            job_id, store_id, attempts, due_s, blocked_by, is_older, own, *said = row[:9]
            is_locked, store, store_due_s, *store_said = row[9:]
            next_s: float | None = max(0.0, due_s - now_s)
            if is_locked:
                reason, next_s = Reason.SECRETS, None
            elif blocked_by is not None:
                reason, next_s = Reason.OLDER if is_older else Reason.REQUIRED, None
            elif store is not None:
                reason, next_s = Reason(store), max(next_s or 0.0, store_due_s - now_s, 0.0)
                said = said if said[0] else store_said
            elif own is not None:
                reason = Reason(own)
            else:
                reason = Reason.RETRY if due_s > now_s else Reason.TURN
            found[JobId(job_id)] = Wait(JobId(job_id), store_id, reason, attempts, next_s, blocked_by, *said)
        return found

    def waiting_stores(self) -> list[StoreWait]:
        """The stores with unfinished uploads to which nothing can be sent, by id."""
        with self._transaction(read_only=True) as db:
            now_s = self._time.elapsed_s(db)
            rows = db.execute(
                "SELECT s.id, s.is_locked, s.waits_for, s.due_s, s.error, s.error_kind, SUM(t.n), SUM(t.size_bytes)"
                " FROM stores s JOIN totals t ON t.store_id = s.id AND t.kind != 'check' AND t.state = 'queued'"
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

    def needs_others(self, owner: str) -> bool:
        """Whether all that an owner has not finished are manifests of checkpoint sets, which need the receipts of all ranks."""
        with self._transaction(read_only=True) as db:
            query = (
                "SELECT DISTINCT kind FROM totals WHERE owner = ? AND kind != 'check' AND state IN ('queued', 'leased') AND n > 0"
            )
            return db.execute(query, (owner,)).fetchall() == [("commit",)]

    def left_to_others(self, living: Collection[str]) -> list[JobFailure]:
        """The unfinished uploads, if all are manifests of sets that lack receipts, handed over by sessions that are not `living`.

        Their ranks may be gone for good: nothing goes on here. Empty if anything else is unfinished, or was not looked at.
        """
        is_open = "state IN ('queued', 'leased')"
        with self._transaction(read_only=True) as db:
            others = f"SELECT 1 FROM totals WHERE kind NOT IN ('check', 'commit') AND {is_open} AND n > 0 LIMIT 1"
            if db.execute(others).fetchone() is not None:
                return []
            which = f"jobs INDEXED BY jobs_by_state WHERE kind = 'commit' AND {is_open}"
            rows = db.execute(f"SELECT owner, id, uri, attempts, error, error_kind FROM {which} ORDER BY id").fetchall()
        are_left = all(owner not in living and kind == INCOMPLETE for owner, *_, kind in rows)
        return [JobFailure(*row[1:]) for row in rows] if are_left else []

    def held_up(self, owner: str | None = None, closed: Iterable[int] = ()) -> list[JobFailure]:
        """The unfinished uploads, of one owner or of all, if every one of them waits for an operator, or for one that does.

        Empty while anything else is under way. At most 100 of them are listed. `closed` are stores that nobody can open: their
        uploads are not under way, and are not listed if nothing else waits.
        """
        whose, args = ("owner = ? AND", (owner,)) if owner is not None else ("", ())
        with self._transaction(read_only=True) as db:
            stores = [row[0] for row in db.execute("SELECT id FROM stores WHERE waits_for IS NOT NULL")]
            n_own = db.execute(
                f"SELECT COUNT(*) FROM jobs INDEXED BY jobs_waiting WHERE {whose} waits_for IS NOT NULL AND store_id NOT IN ({listed(stores)})",
                args,
            ).fetchone()[0]
            if not stores and not n_own:
                return []
            stores += [store_id for store_id in closed if store_id not in stores]
            of_kind = f"{whose} kind != 'check'"
            n_leased, n_queued, n_there = db.execute(
                "SELECT COALESCE(SUM(n * (state = 'leased')), 0), COALESCE(SUM(n * (state = 'queued')), 0),"
                f" COALESCE(SUM(n * (state = 'queued' AND store_id IN ({listed(stores)}))), 0) FROM totals WHERE {of_kind}",
                args,
            ).fetchone()
            if n_leased or not n_there + n_own:
                return []
            if n_queued > n_there + n_own and _others_go_on(db, f"{of_kind} AND store_id NOT IN ({listed(stores)})", args):
                return []
            rows = db.execute(
                "SELECT j.id, j.uri, j.attempts, COALESCE(j.error, s.error, 'it waits for another upload'),"
                " CASE WHEN j.error IS NULL THEN s.error_kind ELSE j.error_kind END"
                f" FROM jobs j JOIN stores s ON s.id = j.store_id WHERE {of_kind.replace('owner', 'j.owner')}"
                f" AND j.state = 'queued' ORDER BY j.id LIMIT {_MOST_LISTED}",
                args,
            ).fetchall()
        return [JobFailure(*row) for row in rows]

    def oldest(self, limit: int) -> list[JobId]:
        """Unfinished uploads, the oldest first."""
        return self._ids(f"SELECT id FROM jobs WHERE {_OPEN} ORDER BY id LIMIT ?", limit)

    def tried_in_vain(self, limit: int) -> tuple[int, list[JobId]]:
        """Uploads that wait for their next try, having failed before: (how many, the oldest of them)."""
        which = "kind != 'check' AND state = 'queued' AND error IS NOT NULL"
        n = int(self._row(f"SELECT COUNT(*) FROM jobs WHERE {which}")[0])
        return n, self._ids(f"SELECT id FROM jobs WHERE {which} ORDER BY id LIMIT ?", limit) if n else []

    def retrying(self, limit: int) -> tuple[int, list[JobId]]:
        """Uploads that are under way after an error, of an earlier try or of a call that is made again: as `tried_in_vain`."""
        which = "kind != 'check' AND state = 'leased' AND error IS NOT NULL"
        ids = self._ids(f"SELECT id FROM jobs INDEXED BY jobs_leased WHERE {which} ORDER BY id")
        return len(ids), ids[:limit]

    def by_store(self) -> dict[int, int]:
        """How many unfinished uploads there are by store, those without any left out."""
        sql = f"SELECT store_id, SUM(n) FROM totals WHERE {_OPEN} GROUP BY store_id HAVING SUM(n) > 0 ORDER BY store_id"
        return {int(store_id): int(n) for store_id, n in self._rows(sql)}

    def n_stuck(self, older_than_s: float, stores: Iterable[int]) -> int:
        """How many unfinished uploads were accepted longer ago than that, wait for an operator, or go to one of these stores."""
        which = f"created_s < ? OR waits_for IS NOT NULL OR store_id IN ({listed(stores)})"
        return int(self._row(f"SELECT COUNT(*) FROM jobs WHERE {_OPEN} AND ({which})", (time.time() - older_than_s,))[0])

    def named(self, name: str, uri: str, limit: int) -> list[JobId]:
        """The newest uploads of this URI, in the order of their calls; if there is none, of names that end in ``/name``."""
        where = "SELECT id FROM (SELECT id FROM jobs WHERE kind != 'check' AND {} ORDER BY id DESC LIMIT ?) ORDER BY id"
        found = self._ids(where.format("uri = ?"), uri, limit)
        tail = f"/{name}"
        return found or self._ids(where.format("substr(uri, ?) = ?"), -len(tail), tail, limit)

    def _ids(self, sql: str, *args: object) -> list[JobId]:
        return [JobId(row[0]) for row in self._rows(sql, args)]


def _others_go_on(db: Connection, which: str, args: tuple[str, ...]) -> bool:
    """Whether some of these queued jobs wait for no operator, and not for a job that does."""
    free = f"SELECT 1 FROM jobs WHERE {which} AND state = 'queued' AND waits_for IS NULL AND blocked_by IS NULL LIMIT 1"
    moving = (
        f"WITH RECURSIVE before (id) AS (SELECT blocked_by FROM jobs WHERE {which} AND state = 'queued' AND blocked_by IS NOT NULL"
        " UNION SELECT j.blocked_by FROM before JOIN jobs j ON j.id = before.id WHERE j.blocked_by IS NOT NULL)"
        " SELECT 1 FROM before JOIN jobs j ON j.id = before.id JOIN stores s ON s.id = j.store_id WHERE j.blocked_by IS NULL"
        " AND (j.state = 'leased' OR (j.waits_for IS NULL AND s.waits_for IS NULL)) LIMIT 1"
    )
    return any(db.execute(sql, args).fetchone() is not None for sql in (free, moving))


def _first_try_s(db: Connection, store_id: int) -> float:
    """The elapsed time at which the first of the store's queued jobs is due; 0 if all of them wait for other jobs."""
    first = "SELECT MIN(due_s) FROM jobs INDEXED BY jobs_ready WHERE state = 'queued' AND blocked_by IS NULL AND store_id = ?"
    return float(db.execute(first, (store_id,)).fetchone()[0] or 0.0)
