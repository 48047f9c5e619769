"""One SQLite file that processes and threads share, that outlives forks and reports damage. It knows nothing of the tables."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress

from wherry.config import Durability
from wherry.errors import JournalError
from wherry.posix.locks import lock

_BUSY_TIMEOUT_S = 30.0
_REPLACEMENT_S = 1.0
#: A database in an older format is brought into ours once nobody else has it open: programs that start together take their turns.
_MIGRATION_WAIT_S = 5.0
#: SQLite itself moves the log into the database when it has 1,000 pages, at the end of a write.
_LONG_LOG_BYTES = 1_000 * 4_096


def _never_close(connection: sqlite3.Connection) -> None:
    """Leak a connection: a child must neither use nor close its parent's (https://sqlite.org/howtocorrupt.html, 2.6)."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _close_here(db: sqlite3.Connection, pid: int) -> None:
    """Close a connection that nobody uses any more, in the process that opened it only. It may be closed already."""
    if pid == os.getpid():
        db.close()
    else:
        _never_close(db)


def _use_write_ahead_log(db: sqlite3.Connection) -> None:
    """Switch to WAL mode. Of several who do so with a new file, all but one are told at once that it is locked."""
    until_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:  # noqa: PERF203  waits between rounds
            if "locked" not in str(error) or time.monotonic() > until_s:
                raise
            time.sleep(0.005)  # the winner needs less than that
        else:
            return


def _make_private(path: str) -> None:
    """Make an empty file that only its owner may read; SQLite gives its companions the same mode.

    By a link, as to open and close the file itself would end the locks of this process's other threads on it
    (https://sqlite.org/howtocorrupt.html, 2.2). What goes wrong here goes wrong in SQLite, too, which says it.
    """
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}"
    with suppress(OSError):
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            os.link(temporary, path)
        finally:
            os.unlink(temporary)


def run_script(db: sqlite3.Connection, script: str) -> None:
    """Execute a script of which each statement ends with its line, as part of the transaction that is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):  # a trigger's body is part of its statement
            db.execute(statement)
            statement = ""
    db.execute(statement)


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _size_bytes(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA page_count").fetchone()[0] * db.execute("PRAGMA page_size").fetchone()[0])


class JournalDamaged(JournalError):
    """The journal is no SQLite database any more. Its files must be put aside before a new one can be made."""


class Database:
    """A WAL-mode database with one connection a process, made with `schema` if it is new.

    `checkpoints`: whether this process moves the log into the database when it has grown. That waits for the disk (fsync),
    so a training process leaves it to the agent and its workers.

    `migrations`: for an older version what brings its tables into ours. It is called when nobody else has the file open.

    Raises JournalError when it is locked for more than half a minute, cannot be written, or has another format;
    JournalDamaged when it cannot be read.
    """

    def __init__(
        self,
        path: os.PathLike[str],
        schema: str,
        version: int,
        durability: Durability,
        *,
        checkpoints: bool,
        migrations: Mapping[int, Callable[[sqlite3.Connection], None]] | None = None,
    ) -> None:
        self.path = path
        self._migrations = migrations or {}
        self._checkpoints = checkpoints
        self._schema = schema
        self._version = version
        self._durability = durability
        self._pid = 0
        self._inode: int | None = None
        #: How often the file was found to be another one.
        self.replacements = 0
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._finalizer: weakref.finalize[[sqlite3.Connection, int], Database]
        with self.transaction(read_only=True):
            pass

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()

    @contextmanager
    def transaction(self, *, read_only: bool = False, is_single: bool = False) -> Iterator[sqlite3.Connection]:
        """All or nothing. After the block the changes are on disk, as far as `durability` asks for.

        `is_single`: the block makes one SELECT and takes all of its rows, which is a transaction by itself.
        """
        try:
            if self._pid != os.getpid():
                self._connect()
            with self._lock:
                db = self._connect()
                if self._file() != self._inode:  # a damaged one was put aside meanwhile
                    self.close()
                    db = self._connect()
                    self.replacements += 1
                if is_single:
                    yield db
                    return
                db.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
                try:
                    yield db
                    if db.in_transaction:  # the block may have committed
                        db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
        except sqlite3.OperationalError as error:
            raise JournalError(f"the journal {self.path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise JournalDamaged(f"the journal {self.path} is damaged: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            if self._connection is not None:
                self._finalizer.detach()
                _never_close(self._connection)
            # Another thread may have held the lock at the fork.
            self._connection, self._lock, self._pid = None, threading.RLock(), os.getpid()
        while self._connection is None:
            before = self._file()
            if before is None and self._inode is not None:
                before = self._wait_for_file()
            if before is None:
                _make_private(os.fspath(self.path))
            db = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            try:
                if _version(db) in self._migrations:
                    db.close()
                    self._bring_up()
                    continue
                _use_write_ahead_log(db)
                db.execute(f"PRAGMA synchronous = {'FULL' if self._durability == 'power' else 'NORMAL'}")
                # A statement with triggers keeps the pages that it changes, to undo it alone: in a temporary file, without this.
                db.execute("PRAGMA temp_store = MEMORY")
                if not self._checkpoints:
                    db.execute("PRAGMA wal_autocheckpoint = 0")
                self._migrate(db)
            except BaseException:
                db.close()
                raise
            self._inode = self._file()
            if before in (None, self._inode):
                self._connection = db
                # The garbage collector finalises what a cycle has in any order. This is called before: Python 3.13 warns of a
                # connection that is finalised before the Database that would close it.
                self._finalizer = weakref.finalize(self, _close_here, db, self._pid)
                self._finalizer.atexit = False
            else:
                db.close()  # it was put aside just now, and nobody can tell which of the two is open
        return self._connection

    def _wait_for_file(self) -> int:
        """Wait for the file that replaces a damaged one: it comes in an instant, unless somebody has deleted the old one."""
        until_s = time.monotonic() + _REPLACEMENT_S
        while (found := self._file()) is None:
            if time.monotonic() > until_s:
                raise JournalDamaged(f"the journal {self.path} is gone")
            time.sleep(0.01)  # a file system tells nobody
        return found

    def _file(self) -> int | None:
        """Which file has the name now."""
        try:
            return os.stat(self.path).st_ino
        except FileNotFoundError:
            return None

    def _migrate(self, db: sqlite3.Connection) -> None:
        """Make the tables in a new file; several may find it new at once."""
        if (version := _version(db)) == 0:
            db.execute("BEGIN IMMEDIATE")
            if (version := _version(db)) == 0:
                run_script(db, self._schema)
                version = self._version
                db.execute(f"PRAGMA user_version = {version}")
            db.execute("COMMIT")
        if version != self._version:
            raise JournalError(
                f"the journal {self.path} has format {version}, this wherry knows {self._version}: "
                "finish it with the version that wrote it (wherry drain), or use another spool"
            )

    def _bring_up(self) -> None:
        """Bring a file in an older format into ours, all or nothing, unless another process is faster.

        A program of the older version that has the file open would go on with tables that are not there any more. SQLite leaves
        WAL mode only for who has the file alone, so that is how it is found out. Those of our version take their turns, and have
        it closed while they wait.
        """
        folder = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            lock(folder)
            until_s = time.monotonic() + _MIGRATION_WAIT_S
            while not self._has_brought_up():
                if time.monotonic() > until_s:
                    raise JournalError(
                        f"the journal {self.path} has an older format, and programs of the wherry that wrote it are using it: "
                        "wait until they have ended (kill their agent with SIGTERM, which loses nothing), or use another spool"
                    )
                time.sleep(0.05)  # nobody tells when another closes the file
        finally:
            os.close(folder)

    def _has_brought_up(self) -> bool:
        """Whether the file is not in an older format any more: one attempt."""
        try:
            with closing(sqlite3.connect(self.path, timeout=0.1, isolation_level=None)) as db:  # rolls back what is not committed
                if _version(db) not in self._migrations:
                    return True
                if db.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
                    return False
                db.execute("BEGIN EXCLUSIVE")
                self._migrations[_version(db)](db)
                db.execute(f"PRAGMA user_version = {self._version}")
                db.execute("COMMIT")
                return True
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            return False

    def size_bytes(self) -> int:
        """How large the file is when the log has been moved into it."""
        with self.transaction(read_only=True) as db:
            return _size_bytes(db)

    def shorten_log(self) -> None:
        """Move the log into the database if it has grown, as far as no reader needs it: those who write it do not all do so."""
        try:
            if not self._checkpoints or os.stat(f"{os.fspath(self.path)}-wal").st_size < _LONG_LOG_BYTES:
                return
        except FileNotFoundError:
            return
        with self.transaction(read_only=True) as db:
            db.execute("COMMIT")  # a checkpoint cannot be made in a transaction
            with suppress(sqlite3.OperationalError):  # no room for it now; SQLite ignores that in its own checkpoints, too
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            db.execute("BEGIN")

    @contextmanager
    def shortening(self) -> Iterator[tuple[Callable[[], bool], int]]:
        """Nobody writes in the block: (moves the log into the database as far as readers let it, the size that this needs).

        The call says whether all was moved: then the log is written anew from its beginning as soon as nobody reads it.
        """
        # The transaction adds nothing to the log, and cannot move it itself.
        with self.transaction() as db, closing(sqlite3.connect(self.path, timeout=0.0, isolation_level=None)) as other:

            def move() -> bool:
                try:
                    _, n_frames, n_moved = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                except sqlite3.OperationalError:  # no room for it
                    return False
                return bool(n_frames == n_moved)

            yield move, _size_bytes(db)

    def check(self) -> None:
        """Look for damage everywhere; JournalDamaged if there is some. It reads the whole file."""
        with self.transaction(read_only=True) as db:
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise JournalDamaged(f"the journal {self.path} is damaged: {found}")

    def close(self) -> None:
        """Close this process's connection. It opens again when it is needed."""
        if self._pid == os.getpid():  # a child has nothing to close
            with self._lock:
                if self._connection is not None:
                    self._finalizer.detach()
                    self._connection.close()
                    self._connection = None
