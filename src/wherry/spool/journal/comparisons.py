"""The journal's account of uploads that are compared with what the store has already (``dedupe=True`` of checkpoint sets)."""

from __future__ import annotations

from wherry.spool.journal.jobs import JobId
from wherry.spool.journal.role import Role

COMPARISONS_SCHEMA = """
CREATE TABLE comparisons (
    job_id INTEGER PRIMARY KEY,
    plan TEXT NOT NULL,          -- of which part of which set the file is
    sha256 TEXT,                 -- of the staged file, in hex, when it is known
    source TEXT                  -- when it is decided: the older set that has the bytes, or '' if they are to be sent
);
CREATE TRIGGER comparisons_forgotten AFTER DELETE ON jobs BEGIN
    DELETE FROM comparisons WHERE job_id = OLD.id;
END;
"""


class Comparisons(Role):
    """Reads and writes the table above."""

    def asked(self, job_id: JobId) -> tuple[str, str | None, str | None] | None:
        """(the plan, the SHA-256 and the source, as far as they are known); None for an upload that is not compared."""
        row = self._row("SELECT plan, sha256, source FROM comparisons WHERE job_id = ?", (job_id,))
        return None if row is None else (row[0], row[1], row[2])

    def decide(self, job_id: JobId, sha256: str, source: str) -> str:
        """Keep what was decided, and return it: the first decision holds, also for a worker that has lost its lease."""
        with self._transaction() as db:
            db.execute(
                "UPDATE comparisons SET sha256 = ?, source = ? WHERE job_id = ? AND source IS NULL", (sha256, source, job_id)
            )
            row = db.execute("SELECT source FROM comparisons WHERE job_id = ?", (job_id,)).fetchone()
        return source if row is None else str(row[0])
