"""The journal: which uploads were accepted and how far each one is. SQLite in WAL mode, one file in the spool.

Its calls are grouped by role: `uploads` is for clients, `work` for the agent and its workers, `parts` for uploads in parts,
`comparisons` for those of checkpoint sets that may refer to older ones, `queries` and `overview` for anyone. Each call is one
transaction; what it returns is on disk, as far as `durability` asks for.
Safe from several threads and processes; after a fork the child opens its own connection.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from wherry.clock import Clock
from wherry.config import Durability
from wherry.errors import JournalError
from wherry.spool.journal.comparisons import Comparisons
from wherry.spool.journal.database import Database, JournalDamaged
from wherry.spool.journal.journal_time import JournalTime
from wherry.spool.journal.overview import Overview
from wherry.spool.journal.parts import Parts
from wherry.spool.journal.queries import Queries
from wherry.spool.journal.role import Role
from wherry.spool.journal.schema import SCHEMA, VERSION, from_version_3, from_version_4, from_version_5
from wherry.spool.journal.submit import Uploads
from wherry.spool.journal.work import Work

log = logging.getLogger("wherry.spool.journal.journal")
_T = TypeVar("_T")
_R = TypeVar("_R", bound=Role)

_WRITE_AGAIN_S = 1.0
#: A journal of up to this size is checked when it is opened, which takes a twentieth of a second.
_SMALL_BYTES = 8 * 2**20


class Journal:
    """The jobs of one spool. Its calls raise JournalError and JournalDamaged as `wherry.spool.journal.database` does."""

    def __init__(
        self, path: os.PathLike[str], durability: Durability = "process", *, checkpoints: bool = False, clock: Clock | None = None
    ) -> None:
        self.path = path
        self._time = time_ = JournalTime(clock or Clock())
        migrations = {3: lambda db: from_version_3(db, time_.wall_s()), 4: from_version_4, 5: from_version_5}
        self._database = Database(path, SCHEMA, VERSION, durability, checkpoints=checkpoints, migrations=migrations)
        self.uploads = self._role(Uploads)
        self.work = self._role(Work)
        self.parts = self._role(Parts)
        self.comparisons = self._role(Comparisons)
        self.queries = self._role(Queries)
        self.overview = self._role(Overview)
        self.check = self._database.check
        self.size_bytes = self._database.size_bytes
        self.shorten_log = self._database.shorten_log
        self.close = self._database.close
        with self._database.transaction(read_only=True) as db:
            is_current = self._time.is_current(db)
        if not is_current:  # this process is the first to open it since the machine was started
            self.work.count_time()

    def _role(self, role: type[_R]) -> _R:
        return role(self._database, self._time)

    @property
    def replacements(self) -> int:
        """How often the file was found to be another one: a damaged journal is put aside with all that was in it."""
        return self._database.replacements

    def quick_check(self) -> None:
        """Look for damage as far as that takes no time: JournalDamaged if some is seen. Other damage shows when it is read."""
        with self._database.transaction(read_only=True) as db:
            is_small = db.execute("PRAGMA page_count").fetchone()[0] * 4096 <= _SMALL_BYTES
            for table in ("stores", "clock"):
                db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
            db.execute("SELECT id FROM jobs ORDER BY id DESC LIMIT 1").fetchone()
        if is_small:
            self.check()


def retry_until_written(write: Callable[[], _T], pause: Callable[[float], object] = time.sleep) -> _T:
    """Write to a journal, waiting for as long as its disk is full or it is locked: for what must not be lost."""
    is_told = False
    while True:
        try:
            return write()
        except JournalError as error:  # noqa: PERF203  waits between rounds
            if isinstance(error, JournalDamaged):
                raise
            if not is_told:  # the log may be on that disk, too
                log.error("the journal cannot be written, which is tried until it can: %s", error)
                is_told = True
            pause(_WRITE_AGAIN_S)  # nobody tells when a disk has room again


def readable_jobs(path: os.PathLike[str]) -> list[tuple[str, str, int]]:
    """What can still be read of a damaged journal: (object id, uri, size in bytes) of unfinished and failed jobs."""
    found: dict[int, tuple[str, str, int]] = {}
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(uri, uri=True)) as db:
        for order in ("id", "id DESC"):  # from both ends up to the damage; an index may be damaged elsewhere
            with suppress(sqlite3.DatabaseError):
                for row in db.execute(
                    "SELECT id, object_id, uri, size_bytes FROM jobs NOT INDEXED"
                    f" WHERE state IN ('queued', 'leased', 'failed') ORDER BY {order}"
                ):
                    found[int(row[0])] = (str(row[1]), str(row[2]), int(row[3]))
    return [found[job_id] for job_id in sorted(found)]
