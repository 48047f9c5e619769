"""What the journal costs when very many uploads wait, and when very many are finished.

A store that is down for hours, with hundreds of thousands of uploads that wait for their next try: how long do a put's row, a
lease and the other questions take? `python benchmarks/bench_journal.py [jobs ...]`; default: 1000, 200000 and 1000000.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from measure import folder, machine, seconds, settle, spread, table

from wherry.config import RetryConfig, TransferConfig
from wherry.spool.journal.jobs import JobId, JobKind
from wherry.spool.journal.journal import Journal
from wherry.spool.journal.submit import NewJob

ROUNDS = 40
FILL = """
INSERT INTO jobs (kind, owner, store_id, uri, key, place, object_id, size_bytes, overwrite, token, state, attempts, created_s,
                  due_s, finished_s, ended_s)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)
SELECT 'put', 'me', :store, 's3://bucket/' || :state || '/' || printf('%08d', i), printf('%08d', i), '', :state || i, 1000, 1,
       hex(i), :state, 1, :now, :now + 1e6 + i % 300, :ended, :ended FROM n
"""


def new(name: str) -> NewJob:
    return NewJob(JobKind.PUT, f"s3://bucket/{name}", name, name, 1000, True, "0" * 32)


def filled(path: Path, n_jobs: int, state: str) -> tuple[Journal, int]:
    """A journal with so many jobs that wait for their next try, or are done, and its store."""
    journal = Journal(path, checkpoints=True)
    store = journal.uploads.store_id(
        "s3", "bucket", {}, (), {"retry": asdict(RetryConfig()), "transfer": asdict(TransferConfig())}
    )
    now_s = journal.work.now_s()
    with journal._database.transaction() as db:
        values = {"n": n_jobs, "store": store, "state": state, "now": now_s, "ended": now_s if state == "done" else None}
        db.execute(FILL, values)
    with journal._database.transaction(read_only=True):
        pass
    journal._database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]
    return journal, store


def times(work: Callable[[int], object]) -> str:
    return spread([seconds(lambda n=n: work(n)) for n in range(ROUNDS)], 1000.0)  # type: ignore[misc]


def waiting(path: Path, n_jobs: int) -> list[str]:
    journal, store = filled(path, n_jobs, "queued")
    put = times(lambda n: journal.uploads.submit("me", store, [new(f"put{n}")]))
    leased: list[JobId] = []

    def lease(_: int) -> None:
        job = journal.work.lease("w", 60.0)
        assert job is not None
        leased.append(job.id)

    row = [
        f"{n_jobs:,}",
        put,
        times(lease),
        times(lambda n: journal.work.requeue(leased[n], "w", wait_s=300.0, error="reset")),
        times(lambda _: journal.work.lease("w", 60.0)),
        times(lambda _: journal.work.ready()),
        times(lambda _: (journal.queries.counts(), journal.overview.waiting_stores(), journal.overview.held_up("me"))),
        times(lambda _: (journal.queries.is_shared("queued7"), journal.queries.spool_bytes())),
    ]
    journal.close()
    return row


def finished(path: Path, n_jobs: int) -> list[str]:
    journal, _ = filled(path, n_jobs, "done")
    journal.close()
    settle()

    def opened(_: int) -> None:
        again = Journal(path)
        again.quick_check()
        again.queries.counts()
        again.close()

    whole = Journal(path)
    row = [f"{n_jobs:,}", f"{path.stat().st_size / 1e6:.0f}", times(opened), f"{1000 * seconds(whole.check):.0f}"]
    whole.close()
    return row


def main() -> None:
    sizes = [int(text) for text in sys.argv[1:]] or [1000, 200_000, 1_000_000]
    print(machine())
    with folder() as there:
        table(
            "A journal of jobs that wait for their next try, ms: median [min-max]",
            ("jobs", "put", "lease", "give back", "lease, none due", "ready", "status, flush", "files needed, bytes"),
            [waiting(there / f"waiting-{n}.db", n) for n in sizes],
        )
        table(
            "A journal of finished jobs",
            ("jobs", "MB", "open and count, ms", "look for damage everywhere (an agent, once), ms"),
            [finished(there / f"done-{n}.db", n) for n in sizes],
        )


if __name__ == "__main__":
    main()
