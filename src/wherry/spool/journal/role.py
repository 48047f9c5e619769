"""What the roles of a journal have in common: its database and its clock."""

from __future__ import annotations

from wherry.spool.journal.database import Database
from wherry.spool.journal.journal_time import JournalTime


class Role:
    """One group of a journal's calls. Each public method is one transaction: what it returns is on disk."""

    def __init__(self, database: Database, time: JournalTime) -> None:
        self._transaction = database.transaction
        self._time = time
