"""What the roles of a journal have in common: its database and its clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from wherry.spool.journal.database import Database
from wherry.spool.journal.journal_time import JournalTime


class Role:
    """One group of a journal's calls. Each public method is one transaction: what it returns is on disk."""

    def __init__(self, database: Database, time: JournalTime) -> None:
        self._transaction = database.transaction
        self._time = time

    def _rows(self, sql: str, args: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """What a question brings, as a transaction of its own."""
        with self._transaction(read_only=True, is_single=True) as db:
            return db.execute(sql, args).fetchall()

    def _row(self, sql: str, args: Sequence[object] = ()) -> Any:
        """The first row of what a question brings, or None."""
        with self._transaction(read_only=True, is_single=True) as db, closing(db.execute(sql, args)) as cursor:
            return cursor.fetchone()

    def _write(self, sql: str, args: Sequence[object] = ()) -> None:
        """Change rows, as a transaction of its own."""
        with self._transaction() as db:
            db.execute(sql, args)
