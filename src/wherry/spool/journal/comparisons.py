"""The journal's account of uploads that are compared with what the store has already (``dedupe=True`` of checkpoint sets)."""

from __future__ import annotations

from dataclasses import dataclass

from wherry.spool.journal.jobs import Job, JobId, JobKind, JobState
from wherry.spool.journal.role import Role

COMPARISONS_SCHEMA = """
CREATE TABLE comparisons (
    job_id INTEGER PRIMARY KEY,
    plan TEXT NOT NULL,          -- of which part of which set the file is
    sha256 TEXT,                 -- of the staged file, in hex, when it is known
    source TEXT                  -- when it is decided: the older set that has the bytes, or '' if they are to be sent
);
CREATE INDEX comparisons_by_sum ON comparisons (sha256, source);
CREATE TRIGGER comparisons_forgotten AFTER DELETE ON jobs BEGIN
    DELETE FROM comparisons WHERE job_id = OLD.id;
END;
"""


@dataclass(frozen=True)
class Comparison:
    """An upload that is compared: the plan of its part, its key and state, and how long ago it ended; None: it has not.

    `is_summed`: its bytes are known to be the same, and it may yet turn out that they need not be sent.
    """

    plan: str
    key: str
    state: JobState
    ended_ago_s: float | None
    is_summed: bool = False


_FOUND = (
    "SELECT c.plan, j.key, j.state, j.ended_s, c.sha256 IS NOT NULL AND c.source IS NULL"
    " FROM comparisons c JOIN jobs j ON j.id = c.job_id WHERE"
)
#: Uploads of the same bytes that are looked at, the newest first.
_MOST = 20


class Comparisons(Role):
    """Reads and writes the table above."""

    def asked(self, job_id: JobId) -> tuple[str, str | None, str | None] | None:
        """(the plan, the SHA-256 and the source, as far as they are known); None for an upload that is not compared."""
        row = self._row("SELECT plan, sha256, source FROM comparisons WHERE job_id = ?", (job_id,))
        return None if row is None else (row[0], row[1], row[2])

    def note_sum(self, job_id: JobId, sha256: str) -> None:
        """Keep the SHA-256 of the staged file, so that it is computed once."""
        self._write("UPDATE comparisons SET sha256 = ? WHERE job_id = ?", (sha256, job_id))

    def decide(self, job_id: JobId, source: str) -> str:
        """Keep what was decided, and return it: the first decision holds, also for a worker that has lost its lease."""
        with self._transaction() as db:
            db.execute("UPDATE comparisons SET source = ? WHERE job_id = ? AND source IS NULL", (source, job_id))
            row = db.execute("SELECT source FROM comparisons WHERE job_id = ?", (job_id,)).fetchone()
        return source if row is None else str(row[0])

    def sent_before(self, job: Job, sha256: str) -> list[Comparison]:
        """Older uploads to the same store whose bytes are the same and are sent, or may turn out to be: it is not decided yet."""
        with self._transaction(read_only=True) as db:
            now_s = self._time.elapsed_s(db)
            rows = db.execute(
                f"{_FOUND} c.sha256 = ? AND c.source = '' AND j.id < ? AND j.store_id = ? ORDER BY j.id DESC LIMIT {_MOST}",
                (sha256, job.id, job.store_id),
            ).fetchall()
            rows += db.execute(
                f"{_FOUND} (c.sha256 IS NULL OR (c.sha256 = ? AND c.source IS NULL)) AND j.id < ? AND j.store_id = ?"
                f" AND j.size_bytes = ? AND j.state IN ('queued', 'leased') ORDER BY j.id DESC LIMIT {_MOST}",
                (sha256, job.id, job.store_id, job.size_bytes),
            ).fetchall()
        return [
            Comparison(plan, key, JobState(state), None if ended_s is None else now_s - ended_s, bool(is_summed))
            for plan, key, state, ended_s, is_summed in rows
        ]

    def receipt_ended_ago_s(self, uri: str, *, unknown_s: float | None) -> float | None:
        """How long ago the job of this receipt ended; None: it has not. `unknown_s`: what to say if there is none yet."""
        with self._transaction(read_only=True) as db:
            which = "uri = ? AND kind = ? ORDER BY id DESC LIMIT 1"
            row = db.execute(f"SELECT ended_s FROM jobs WHERE {which}", (uri, JobKind.RECEIPT.value)).fetchone()
            if row is None:
                return unknown_s
            return None if row[0] is None else float(self._time.elapsed_s(db) - row[0])
