"""Questions that people ask of the journal: what is unfinished, what is stuck, what a name means."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from sqlite3 import Connection

from wherry.spool.journal.jobs import JobId

_OPEN = "kind = 'put' AND state IN ('queued', 'leased')"


class Outlook:
    """The questions. Each method is one transaction, and changes nothing."""

    def __init__(self, transaction: Callable[..., AbstractContextManager[Connection]]) -> None:
        self._transaction = transaction

    def oldest(self, limit: int) -> list[JobId]:
        """Unfinished uploads, the oldest first."""
        return self._ids(f"SELECT id FROM jobs WHERE {_OPEN} ORDER BY id LIMIT ?", limit)

    def tried_in_vain(self, limit: int) -> tuple[int, list[JobId]]:
        """Uploads that wait for their next try, having failed before: (how many, the oldest of them)."""
        which = "kind = 'put' AND state = 'queued' AND error IS NOT NULL"
        with self._transaction(read_only=True) as db:
            n = int(db.execute(f"SELECT COUNT(*) FROM jobs WHERE {which}").fetchone()[0])
        return n, self._ids(f"SELECT id FROM jobs WHERE {which} ORDER BY id LIMIT ?", limit) if n else []

    def retrying(self, limit: int) -> tuple[int, list[JobId]]:
        """Uploads that are under way after an error, of an earlier try or of a call that is made again: as `tried_in_vain`."""
        which = "kind = 'put' AND state = 'leased' AND error IS NOT NULL"
        with self._transaction(read_only=True) as db:
            rows = db.execute(f"SELECT id FROM jobs INDEXED BY jobs_leased WHERE {which} ORDER BY id").fetchall()
        return len(rows), [JobId(row[0]) for row in rows[:limit]]

    def by_store(self) -> dict[int, int]:
        """How many unfinished uploads there are by store, those without any left out."""
        with self._transaction(read_only=True) as db:
            rows = db.execute(
                f"SELECT store_id, SUM(n) FROM totals WHERE {_OPEN} GROUP BY store_id HAVING SUM(n) > 0 ORDER BY store_id"
            ).fetchall()
        return {int(store_id): int(n) for store_id, n in rows}

    def n_stuck(self, older_than_s: float, stores: Iterable[int]) -> int:
        """How many unfinished uploads were accepted longer ago than that, wait for an operator, or go to one of these stores."""
        which = f"created_s < ? OR waits_for IS NOT NULL OR store_id IN ({', '.join(str(int(store)) for store in stores)})"
        with self._transaction(read_only=True) as db:
            row = db.execute(f"SELECT COUNT(*) FROM jobs WHERE {_OPEN} AND ({which})", (time.time() - older_than_s,)).fetchone()
        return int(row[0])

    def named(self, name: str, uri: str, limit: int) -> list[JobId]:
        """The newest uploads of this URI, in the order of their calls; if there is none, of names that end in ``/name``."""
        where = "SELECT id FROM (SELECT id FROM jobs WHERE kind = 'put' AND {} ORDER BY id DESC LIMIT ?) ORDER BY id"
        found = self._ids(where.format("uri = ?"), uri, limit)
        tail = f"/{name}"
        return found or self._ids(where.format("substr(uri, ?) = ?"), -len(tail), tail, limit)

    def _ids(self, sql: str, *args: object) -> list[JobId]:
        with self._transaction(read_only=True) as db:
            return [JobId(row[0]) for row in db.execute(sql, args)]
