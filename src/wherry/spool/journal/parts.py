"""The journal's account of large uploads: their parts, leased one by one, so that several workers send one file together.

A part is missing, leased (a worker sends it) or sent (the store's receipt is here). A job's own worker coordinates: it begins
the upload, takes parts itself, and completes it when all are sent; workers that have nothing else to do take parts, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from sqlite3 import Connection

from wherry.spool.journal.jobs import JobId
from wherry.spool.journal.queries import listed
from wherry.spool.journal.role import Role
from wherry.store import StoredPart

PARTS_SCHEMA = """
CREATE TABLE parts (
    job_id INTEGER NOT NULL, number INTEGER NOT NULL,
    crc32c INTEGER,              -- of its bytes, where it is known
    etag TEXT, size_bytes INTEGER,  -- the receipt; NULL: not sent yet
    lease_owner TEXT, lease_until_s REAL,  -- elapsed time
    tries INTEGER NOT NULL DEFAULT 0,  -- how often a helper gave it back: those are left to the job's own worker
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
CREATE INDEX parts_missing ON parts (job_id, number) WHERE etag IS NULL AND lease_owner IS NULL;
CREATE INDEX parts_leased ON parts (lease_owner) WHERE lease_owner IS NOT NULL;
CREATE TABLE begins (            -- uploads whose begin was sent and not answered: there may be one in the store
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    store_id INTEGER NOT NULL, key TEXT NOT NULL, begun_s REAL NOT NULL  -- by the wall clock, to be compared with the store's
);
"""
_IS_MISSING = "etag IS NULL AND lease_owner IS NULL"


@dataclass(frozen=True)
class Begin:
    """A request to begin an upload whose answer never came: the `id` of its row, the store and the key, and when it was sent."""

    id: int
    store_id: int
    key: str
    begun_s: float


class Parts(Role):
    """Reads and writes the tables above."""

    # -- the upload

    def note_begin(self, store_id: int, key: str) -> int:
        """Note that an upload is about to be begun. Returns the number that plan() is to be given."""
        with self._transaction() as db:
            row = db.execute("INSERT INTO begins (store_id, key, begun_s) VALUES (?, ?, ?)", (store_id, key, self._time.wall_s()))
            return row.lastrowid or 0

    def unanswered(self, before_s: float) -> list[Begin]:
        """The begins before that time whose answer never came."""
        rows = self._rows("SELECT id, store_id, key, begun_s FROM begins WHERE begun_s < ? ORDER BY id", (before_s,))
        return [Begin(*row) for row in rows]

    def forget_begin(self, begin_id: int) -> None:
        """Forget a begin of which nothing is left in the store."""
        self._write("DELETE FROM begins WHERE id = ?", (begin_id,))

    def plan(self, job_id: JobId, upload_id: str, part_size_bytes: int, crcs: Iterable[int | None], begun: int) -> None:
        """Note that the upload was begun. `crcs`: the checksum of each part that may be leased; None if not known yet."""
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET upload_id = ?, part_size_bytes = ?, is_listed = 1 WHERE id = ?",
                (upload_id, part_size_bytes, job_id),
            )
            db.execute("DELETE FROM begins WHERE id = ?", (begun,))
            db.execute("DELETE FROM parts WHERE job_id = ?", (job_id,))
            rows = ((job_id, number, crc) for number, crc in enumerate(crcs, 1))
            db.executemany("INSERT INTO parts (job_id, number, crc32c) VALUES (?, ?, ?)", rows)

    def keep(self, job_id: JobId, held: Iterable[StoredPart]) -> None:
        """Adopt the store's list of parts: delete the receipts of parts that it lacks, and add receipts that never came.

        A missing part gets a receipt if its size is the planned one and its checksum agrees, where both sides know it. A leased
        part stays leased: its worker gets the receipt in a moment, and may be replacing it. From now on others may help.
        """
        found = {part.number: part for part in held}
        with self._transaction() as db:
            job = db.execute("SELECT size_bytes, part_size_bytes FROM jobs WHERE id = ?", (job_id,)).fetchone()
            rows = db.execute("SELECT number, etag, size_bytes, crc32c, lease_owner FROM parts WHERE job_id = ?", (job_id,))
            news: list[tuple[str | None, int | None, JobId, int]] = []
            for number, etag, size_bytes, crc32c, lease_owner in rows.fetchall():
                part = found.get(number)
                if etag is not None:
                    if part is None or (part.etag, part.size_bytes) != (etag, size_bytes):
                        news.append((None, None, job_id, number))
                elif part is not None and lease_owner is None:
                    planned = min(job[1], job[0] - (number - 1) * job[1])
                    if part.size_bytes == planned and (crc32c is None or part.crc32c in (None, crc32c)):
                        news.append((part.etag, part.size_bytes, job_id, number))
            db.executemany("UPDATE parts SET etag = ?, size_bytes = ? WHERE job_id = ? AND number = ?", news)
            db.execute("UPDATE jobs SET is_listed = 1 WHERE id = ?", (job_id,))

    def drop(self, job_id: JobId) -> None:
        """Forget the upload and its parts."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET upload_id = NULL, part_size_bytes = NULL WHERE id = ?", (job_id,))
            db.execute("DELETE FROM parts WHERE job_id = ?", (job_id,))

    # -- its parts

    def lease(self, job_id: JobId, worker: str, lease_s: float) -> tuple[int, int | None] | None:
        """Take the next missing part of one's own job: (its number, its checksum if known), or None."""
        with self._transaction() as db:
            row: tuple[int, int | None] | None = db.execute(
                f"SELECT number, crc32c FROM parts WHERE job_id = ? AND {_IS_MISSING} ORDER BY number LIMIT 1", (job_id,)
            ).fetchone()
            if row is not None:
                self._take(db, job_id, row[0], worker, lease_s)
            return row

    def lease_any(
        self, worker: str, lease_s: float, *, with_stores: Iterable[int], most_lost: int
    ) -> tuple[JobId, int, int | None] | None:
        """Take a missing part of another worker's job: (the job, the part's number, its checksum if known), or None.

        Not of a job on which more than `most_lost` workers have died, nor before its own worker has called keep() or plan().
        """
        with self._transaction() as db:
            row: tuple[JobId, int, int | None] | None = db.execute(
                f"SELECT p.job_id, p.number, p.crc32c FROM jobs j CROSS JOIN parts p ON p.job_id = j.id AND p.{_IS_MISSING.replace(' AND ', ' AND p.')}"
                f" WHERE j.state = 'leased' AND j.is_listed AND j.lease_owner != ? AND j.store_id IN ({listed(with_stores)}) AND j.leases_lost <= ?"
                " AND p.tries = 0 ORDER BY p.job_id, p.number LIMIT 1",
                (worker, most_lost),
            ).fetchone()
            if row is not None:
                self._take(db, row[0], row[1], worker, lease_s)
            return row

    def _take(self, db: Connection, job_id: JobId, number: int, worker: str, lease_s: float) -> None:
        db.execute(
            "UPDATE parts SET lease_owner = ?, lease_until_s = ? WHERE job_id = ? AND number = ?",
            (worker, self._time.elapsed_s(db) + lease_s, job_id, number),
        )

    def receive(self, job_id: JobId, upload_id: str, part: StoredPart) -> bool:
        """Keep the receipt of a part. False: the upload is not the job's any more, and the part is of no use."""
        with self._transaction() as db:
            cursor = db.execute(
                "UPDATE parts SET etag = ?, size_bytes = ?, crc32c = COALESCE(?, crc32c), lease_owner = NULL, lease_until_s = NULL"
                " WHERE job_id = ? AND number = ? AND EXISTS (SELECT 1 FROM jobs WHERE id = ? AND upload_id = ?)",
                (part.etag, part.size_bytes, part.crc32c, job_id, part.number, job_id, upload_id),
            )
            _forget_error(db, job_id)
            return cursor.rowcount > 0

    def note_stream(self, job_id: JobId, upload_id: str, size_bytes: int) -> None:
        """Note how much of an upload in one stream was sent. `wherry status` shows it; only the store knows where to go on."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO parts (job_id, number, size_bytes, etag)"
                " SELECT id, 1, ?, '' FROM jobs WHERE id = ? AND upload_id = ?",
                (size_bytes, job_id, upload_id),
            )
            _forget_error(db, job_id)

    def give_back(self, job_id: JobId, worker: str, number: int | None = None) -> None:
        """Return parts that the worker has leased and not sent: all of them, or one, which then counts as tried."""
        which, args = ("", ()) if number is None else (" AND number = ?", (number,))
        self._write(
            f"UPDATE parts SET lease_owner = NULL, lease_until_s = NULL, tries = tries + ? WHERE job_id = ? AND lease_owner = ?{which}",
            (0 if number is None else 1, job_id, worker, *args),
        )

    def sent(self, job_id: JobId) -> list[StoredPart]:
        """The receipts, by number."""
        sql = "SELECT number, size_bytes, etag, crc32c FROM parts WHERE job_id = ? AND etag IS NOT NULL ORDER BY number"
        return [StoredPart(*row) for row in self._rows(sql, (job_id,))]

    def left(self, job_id: JobId) -> tuple[int, int]:
        """(missing parts, leased parts) of a job."""
        n_missing, n_leased = self._row(
            "SELECT COALESCE(SUM(lease_owner IS NULL), 0), COALESCE(SUM(lease_owner IS NOT NULL), 0) FROM parts"
            " WHERE job_id = ? AND etag IS NULL",
            (job_id,),
        )
        return int(n_missing), int(n_leased)

    def sent_bytes(self, owner: str) -> int:
        """How many bytes the store has of the owner's unfinished uploads in parts."""
        row = self._row(
            "SELECT COALESCE(SUM(parts.size_bytes), 0) FROM jobs JOIN parts ON parts.job_id = jobs.id"
            " WHERE jobs.owner = ? AND jobs.state IN ('queued', 'leased') AND parts.etag IS NOT NULL",
            (owner,),
        )
        return int(row[0])

    def missing(self, with_stores: Iterable[int] | None = None) -> int:
        """How many parts a worker without a job of its own could take, of these stores or of all."""
        where = "" if with_stores is None else f" AND store_id IN ({listed(with_stores)})"
        helped = f"SELECT id FROM jobs WHERE state = 'leased' AND is_listed{where}"
        return int(self._row(f"SELECT COUNT(*) FROM parts WHERE {_IS_MISSING} AND tries = 0 AND job_id IN ({helped})")[0])


def _forget_error(db: Connection, job_id: JobId) -> None:
    """Delete the error of an earlier call, as the upload makes progress again."""
    db.execute(
        "UPDATE jobs SET error = NULL, error_kind = NULL WHERE id = ? AND error IS NOT NULL AND state = 'leased'", (job_id,)
    )
