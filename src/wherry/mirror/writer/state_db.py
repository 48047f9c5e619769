"""The state database: what the store has of each file. It is beside the spool, and can be made again from a listing.

spool/mirrors/<folder's hash>/
  lock                held by the one mirror of that folder
  <target's hash>-3.db  the state database of one URI and writer, in this format: one in another format is made again
  scratch/            segments on their way; emptied at each start
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path

from wherry.errors import SpoolError
from wherry.posix.fork import call_in_children
from wherry.posix.locks import lock_and_sign
from wherry.spool.journal.database import Database, JournalDamaged

_SCHEMA = """
CREATE TABLE files (
    path TEXT NOT NULL, generation INTEGER NOT NULL, rule TEXT NOT NULL, state TEXT NOT NULL, at TEXT NOT NULL,
    device INTEGER NOT NULL, inode INTEGER NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    acked INTEGER NOT NULL, crc32c INTEGER NOT NULL, tail TEXT NOT NULL, boundary INTEGER NOT NULL,
    base INTEGER NOT NULL, has_segments INTEGER NOT NULL, in_doubt INTEGER NOT NULL, sealed_s REAL NOT NULL,
    PRIMARY KEY (path, generation)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID
"""
_VERSION = 3


@dataclass
class Record:
    """One generation of one file: a row. `path` names it in the store, `at` is where it lies in the folder by now.

    States as in `manifest.FileEntry`. `size` and `mtime_ns` are those of the file when it was last found to be in the store.
    `acked` bytes are there, `crc32c` is theirs, `tail` a hash of the last of them; `boundary` is the last end of a whole record.
    `base`: so many bytes at the beginning are in no segment, as the plain object of `path` has them.
    `in_doubt`: a segment that begins at `acked` may be in the store; it was sent, and how that went is not known.
    Files that are not of the kind append have generation 0, and are recorded once they are there.
    """

    path: str
    generation: int
    rule: str
    state: str = "live"
    at: str = ""
    device: int = 0
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    acked: int = 0
    crc32c: int = 0
    tail: str = ""
    boundary: int = 0
    base: int = 0
    has_segments: bool = False
    in_doubt: bool = False
    sealed_s: float = 0.0

    def __post_init__(self) -> None:
        self.has_segments, self.in_doubt = bool(self.has_segments), bool(self.in_doubt)  # SQLite knows 0 and 1

    @property
    def may_be_there(self) -> bool:
        """Whether something of it is in the store, for all we know."""
        return self.acked > 0 or self.in_doubt


@dataclass(frozen=True)
class Stored:
    """A plain object in the store, by its path in the folder, and the file (device, inode) whose bytes it has."""

    name: str
    file: tuple[int, int]
    size: int
    mtime_ns: int
    crc32c: int


_COLUMNS = tuple(field.name for field in fields(Record))
_row_of = attrgetter(*_COLUMNS)
_SAVE = f"INSERT OR REPLACE INTO files ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608  constants
_LOAD = f"SELECT {', '.join(_COLUMNS)} FROM files"  # noqa: S608  constants


class StateDb:
    """The rows of one URI and writer. Safe from several threads; a damaged one is begun anew."""

    def __init__(self, path: Path) -> None:
        try:
            self._database = self._open(path)
            self._database.check()
        except JournalDamaged:
            for leftover in path.parent.glob(f"{path.name}*"):
                leftover.unlink(missing_ok=True)
            self._database = self._open(path)

    @staticmethod
    def _open(path: Path) -> Database:
        return Database(path, _SCHEMA, _VERSION, "process", checkpoints=True)

    def load(self) -> list[Record]:
        """All rows."""
        with self._database.transaction(read_only=True) as db:
            rows = db.execute(_LOAD).fetchall()
        return [Record(*row) for row in rows]

    def save(self, records: Iterable[Record], *, anew: bool = False) -> None:
        """Write rows down, all or none. `anew`: and forget all others."""
        with self._database.transaction() as db:
            if anew:
                db.execute("DELETE FROM files")
            db.executemany(_SAVE, map(_row_of, records))

    def drop(self, records: Iterable[Record]) -> None:
        """Forget rows."""
        if keys := [(record.path, record.generation) for record in records]:
            with self._database.transaction() as db:
                db.executemany("DELETE FROM files WHERE path = ? AND generation = ?", keys)

    def fact(self, name: str) -> str | None:
        """What was noted under a name."""
        with self._database.transaction(read_only=True) as db:
            row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def note(self, name: str, value: str) -> None:
        """Note something."""
        with self._database.transaction() as db:
            db.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))

    def close(self) -> None:
        """Close the file."""
        self._database.close()


class MirrorLock:
    """Holds the place of one folder's mirror, until release() or the end of the process. A fork's child does not hold it.

    SpoolError that names the other process if there is one. What a killed process has left in `scratch` is removed.
    """

    def __init__(self, state_folder: Path, folder: Path) -> None:
        self.state_folder = state_folder
        #: Where segments lie on their way.
        self.scratch = state_folder / "scratch"
        state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(state_folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if (who := lock_and_sign(descriptor, f"process {os.getpid()}\n")) is not None:
                raise SpoolError(f"the folder {folder} is being mirrored by {who}: one mirror at a time, so end that one first")
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir(mode=0o700, exist_ok=True)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        call_in_children(self, MirrorLock.release)

    def state_db_path(self, target: str) -> Path:
        """The state database of that URI and writer."""
        return self.state_folder / f"{_hash(target)}-{_VERSION}.db"

    def release(self) -> None:
        """Let the next one have it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.release()


def state_folder(spool: Path, folder: Path) -> Path:
    """Where the lock and the state databases of a folder's mirror lie. All names of one folder lead to one place."""
    return spool / "mirrors" / _hash(os.path.realpath(folder))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]
