"""Which of the jobs that may start is the next: urgent ones first, then in the order of the calls.

Urgent is what somebody waits for: a file of 8 MiB or more, as most checkpoints are, and few logs; a job that requires others, as a
`latest` marker does, and what it requires; checks; a set's receipts and commits. So a checkpoint does not wait for the logs that were
handed over before it.
No job starves. An urgent job counts as if it had been handed over HEAD_START_S earlier, so another one waits only for those that
came at most so long after it. And of large files a worker has only some at a time.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from sqlite3 import Connection

#: Of files of this size a worker has only some at a time, each in many parts, so that others need not wait for their end.
LARGE_BYTES = 64 * 2**20
#: Logs and most media are smaller.
URGENT_BYTES = 8 * 2**20
#: In run time: a small part of the time after which a job is given up (RetryConfig.job_deadline_s).
HEAD_START_S = 3600.0
#: (id, store, size in bytes, how many workers have died on it, run time of its call)
Row = tuple[int, int, int, int, float]


def in_order(db: Connection, most: Mapping[int, int], most_lost: int, now: float, n_large: int) -> Iterator[Row]:
    """The next jobs of all stores: of each at most about so many as `most` says, at most `n_large` large ones of all.

    Jobs on which more than `most_lost` workers have died are left out. `now`: elapsed time.
    """

    def merged(*, urgent: bool) -> Iterator[Row]:
        found = (
            each for store_id, n in most.items() for each in _next_jobs(db, store_id, most_lost, now, n, n_large, urgent=urgent)
        )
        return heapq.merge(*found, key=itemgetter(0))

    return _with_few_large(_urgent_first(merged(urgent=True), merged(urgent=False)), n_large)


def _urgent_first(urgent: Iterator[Row], all_jobs: Iterator[Row]) -> Iterator[Row]:
    """Each job once, the urgent ones before those that are not much older."""
    seen: set[int] = set()
    next_urgent = next(urgent, None)
    for row in all_jobs:
        while next_urgent is not None and next_urgent[4] - HEAD_START_S < row[4]:
            if next_urgent[0] not in seen:
                seen.add(next_urgent[0])
                yield next_urgent
            next_urgent = next(urgent, None)
        if row[0] not in seen:
            seen.add(row[0])
            yield row
    rest = (next_urgent, *urgent) if next_urgent is not None else ()
    yield from (row for row in rest if row[0] not in seen)


def _next_jobs(
    db: Connection, store_id: int, most_lost: int, now: float, most: int, n_large: int, *, urgent: bool
) -> Iterator[list[Row]]:
    """The first of a store's jobs that were never given back, and those of the others whose time came first: up to `most` of each.

    If more than `n_large` of them are large, the small ones after them are found by walking past the large ones.
    """
    index, which = ("jobs_urgent", "is_urgent AND") if urgent else ("jobs_ready", "")
    sql = (
        f"SELECT id, store_id, size_bytes, leases_lost, counted_from_s FROM jobs INDEXED BY {index} WHERE {which} state = 'queued'"
        " AND blocked_by IS NULL AND store_id = ? AND {} AND leases_lost <= ? AND size_bytes < ? ORDER BY due_s, id LIMIT ?"
    )
    for due, until_s in (("due_s = 0", ()), ("due_s > 0 AND due_s <= ?", (now,))):
        found = db.execute(sql.format(due), (store_id, *until_s, most_lost, sys.maxsize, most)).fetchall()
        large = [row for row in found if row[2] >= LARGE_BYTES]
        if len(large) > n_large:
            small = db.execute(sql.format(due), (store_id, *until_s, most_lost, LARGE_BYTES, most)).fetchall()
            found = sorted([*large[:n_large], *small])
        yield found


def _with_few_large(rows: Iterable[Row], n_large: int) -> Iterator[Row]:
    """Rows without the large ones after so many."""
    for row in rows:
        n_large -= row[2] >= LARGE_BYTES
        if n_large >= 0 or row[2] < LARGE_BYTES:
            yield row


def n_large_of(db: Connection, worker: str) -> int:
    """How many large files a worker is sending."""
    sql = "SELECT COUNT(*) FROM jobs INDEXED BY jobs_leased WHERE state = 'leased' AND lease_owner = ? AND size_bytes >= ?"
    return int(db.execute(sql, (worker, LARGE_BYTES)).fetchone()[0])
