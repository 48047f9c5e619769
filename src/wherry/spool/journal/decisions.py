"""What a user decides about uploads: to try failed ones again, to give them up, to take a name back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wherry.errors import JobFailure
from wherry.spool.journal.jobs import JobId, JobKind, JobState
from wherry.spool.journal.queries import JournalQuestions, newest_open


class JournalDecisions(JournalQuestions):
    """The decisions. Each is one transaction."""

    def _unneeded(self, object_ids: Iterable[str]) -> list[str]:
        """Those staged files that no unfinished or failed job refers to."""
        candidates = [object_id for object_id in dict.fromkeys(object_ids) if object_id]
        needed = self.referenced_objects(candidates) if candidates else set()
        return [object_id for object_id in candidates if object_id not in needed]

    def cancel(self, uri: str, place: str) -> list[str]:
        """Take back the queued and the failed uploads of a name that is being deleted. Returns the staged files freed."""
        with self._transaction() as db:
            which = "uri = ? AND place = ? AND kind = 'put' AND state IN ('queued', 'failed')"
            rows = db.execute(f"SELECT object_id FROM jobs WHERE {which}", (uri, place)).fetchall()
            db.execute(
                f"UPDATE jobs SET state = 'discarded', finished_s = ?, ended_s = ? WHERE {which}",
                (self._time.wall_s(), self._time.elapsed_s(db), uri, place),
            )
        return self._unneeded(row[0] for row in rows)

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

    def retry(self, ids: Sequence[JobId] | None, *, overwrite: bool = False) -> tuple[int, list[str]]:
        """Queue failed jobs again (None: all), and count their deadlines from now: (how many, staged files freed).

        `overwrite`: they may replace what has their names.

        An overwriting job whose name got a newer version in the meantime is superseded: it must not put the older bytes back.
        One whose name a queued job has, which must not overwrite, stays failed: it would be sent first, and that one lose the name.
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
                        "UPDATE jobs SET state = 'superseded', superseded_by = ?, finished_s = ?, ended_s = ? WHERE id = ?",
                        (newer[0], self._time.wall_s(), self._time.elapsed_s(db), job_id),
                    )
                    freed.append(object_id)
                elif (holder := newest_open(db, uri, place)) is None or holder.id < job_id or holder.state is JobState.LEASED:
                    db.execute(
                        "UPDATE jobs SET state = 'queued', overwrite = MAX(overwrite, ?), due_s = 0, leases_lost = 0, reported = 0, finished_s = NULL, ended_s = NULL,"
                        " error_kind = NULL, counted_from_s = ? WHERE id = ?",
                        (overwrite, self._time.run_s(db), job_id),
                    )
                    n_queued += 1
        return n_queued, self._unneeded(freed)

    def discard(self, ids: Sequence[JobId] | None) -> tuple[int, list[str]]:
        """Give failed jobs up (None: all): (how many, staged files freed)."""
        which = "1" if ids is None else f"id IN ({', '.join(str(int(job_id)) for job_id in ids)})"
        with self._transaction() as db:
            rows = db.execute(f"SELECT object_id FROM jobs WHERE state = 'failed' AND {which}").fetchall()
            db.execute(
                f"UPDATE jobs SET state = 'discarded', finished_s = ?, ended_s = ? WHERE state = 'failed' AND {which}",
                (self._time.wall_s(), self._time.elapsed_s(db)),
            )
        return len(rows), self._unneeded(row[0] for row in rows)

    def forget(self, job_id: JobId) -> None:
        """Remove a finished check."""
        with self._transaction() as db:
            db.execute("DELETE FROM jobs WHERE id = ? AND kind = 'check' AND state NOT IN ('queued', 'leased')", (job_id,))
