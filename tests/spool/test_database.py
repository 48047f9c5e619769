"""One file for many: transactions, forks, replacement under open connections, and damage."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import run_script
from wherry.config import Durability
from wherry.errors import JournalError
from wherry.spool.journal.database import Database, JournalDamaged

SCHEMA = "CREATE TABLE words (word TEXT NOT NULL);\nCREATE INDEX by_word ON words (word);\n"


def open_database(path: Path, *, version: int = 1, durability: Durability = "process", checkpoints: bool = True) -> Database:
    return Database(path, SCHEMA, version, durability, checkpoints=checkpoints)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    opened = open_database(path)
    yield opened
    opened.close()


def write(database: Database, word: str) -> None:
    with database.transaction() as db:
        db.execute("INSERT INTO words VALUES (?)", (word,))


def words(database: Database) -> list[str]:
    with database.transaction(read_only=True) as db:
        return [row[0] for row in db.execute("SELECT word FROM words ORDER BY rowid")]


def put_aside(path: Path) -> None:
    """As quarantine does."""
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        if path.with_name(name).exists():
            path.with_name(name).rename(path.with_name(f"aside-{name}"))


@pytest.mark.parametrize("durability", ["process", "power"])
def test_what_was_written_is_read_by_the_next(path: Path, durability: Durability) -> None:
    first = open_database(path, durability=durability)
    write(first, "a")
    first.close()
    second = open_database(path, durability=durability)
    assert ["a"] == words(second)
    second.close()


@pytest.mark.parametrize(("durability", "level"), [("process", 1), ("power", 2)])
def test_durability_decides_how_sqlite_syncs(path: Path, durability: Durability, level: int) -> None:
    database = open_database(path, durability=durability)
    with database.transaction(read_only=True) as db:
        assert level == db.execute("PRAGMA synchronous").fetchone()[0]
        assert "wal" == db.execute("PRAGMA journal_mode").fetchone()[0]
    database.close()


def test_a_transaction_is_all_or_nothing(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.transaction() as db:
        db.execute("INSERT INTO words VALUES ('a')")
        raise ZeroDivisionError
    assert [] == words(database)
    write(database, "b")
    assert ["b"] == words(database)


def test_a_closed_database_opens_again_when_it_is_needed(database: Database) -> None:
    write(database, "a")
    database.close()
    database.close()
    assert ["a"] == words(database)


def test_a_database_of_another_format_is_refused_with_a_remedy(path: Path) -> None:
    open_database(path, version=2).close()
    with pytest.raises(JournalError, match=r"format 2, this wherry knows 1.*wherry drain"):
        open_database(path)


def test_a_locked_database_is_an_error_and_no_damage(database: Database, path: Path) -> None:
    with database.transaction(read_only=True) as db:
        db.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="locked") as caught:
        write(database, "a")
    assert not isinstance(caught.value, JournalDamaged)
    other.execute("ROLLBACK")
    other.close()
    write(database, "b")
    assert ["b"] == words(database)


def test_threads_write_one_after_the_other(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: write(database, str(n)), range(100)))
    assert {str(n) for n in range(100)} == set(words(database))


def test_a_replaced_file_is_noticed_at_the_next_transaction(database: Database, path: Path) -> None:
    write(database, "old")
    put_aside(path)
    open_database(path).close()
    write(database, "new")
    assert ["new"] == words(database)
    assert ["old"] == [row[0] for row in _rows(path.with_name("aside-journal.db"))]


def _rows(path: Path) -> list[tuple[str]]:
    db = sqlite3.connect(path)
    try:
        return db.execute("SELECT word FROM words").fetchall()
    finally:
        db.close()


def test_a_file_that_was_replaced_while_it_was_closed_is_noticed(database: Database, path: Path) -> None:
    database.close()
    put_aside(path)
    open_database(path).close()
    write(database, "new")
    assert ["new"] == words(database)


def test_the_replacement_is_waited_for(database: Database, path: Path) -> None:
    put_aside(path)
    writer = threading.Thread(target=write, args=(database, "new"))
    writer.start()
    open_database(path).close()
    writer.join()
    assert ["new"] == words(database)


def test_a_file_that_was_deleted_is_never_silently_made_anew(database: Database, path: Path) -> None:
    """What was accepted would be forgotten, and its staged files taken for orphans."""
    put_aside(path)
    with pytest.raises(JournalDamaged, match="is gone"):
        write(database, "new")
    assert not path.exists()


def test_many_who_find_no_file_make_one_database(path: Path) -> None:
    n = 8
    together = threading.Barrier(n)

    def add(number: int) -> None:
        together.wait()
        database = open_database(path)
        write(database, str(number))
        database.close()

    with ThreadPoolExecutor(n) as pool:
        list(pool.map(add, range(n)))
    database = open_database(path)
    assert {str(number) for number in range(n)} == set(words(database))
    database.close()


def test_many_processes_that_start_at_once_make_one_database(tmp_path: Path) -> None:
    text = """
    import multiprocessing, os, sys
    from pathlib import Path
    from wherry.spool.journal.database import Database

    def start(path, together):
        together.wait()
        Database(path, "CREATE TABLE words (word TEXT)", 1, "process", checkpoints=True).close()

    context = multiprocessing.get_context("fork")
    for i in range(50):
        together = context.Barrier(4)
        ranks = [context.Process(target=start, args=(Path(sys.argv[1]) / str(i), together)) for _ in range(4)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        assert [rank.exitcode for rank in ranks] == [0] * 4
    """
    run_script(text, tmp_path)


def test_a_child_uses_neither_the_connection_nor_the_lock_of_its_parent(path: Path) -> None:
    text = """
    import os, sys, threading
    from pathlib import Path
    from wherry.spool.journal.database import Database

    database = Database(Path(sys.argv[1]), "CREATE TABLE words (word TEXT);\\n", 1, "process", checkpoints=True)
    inside, forked = threading.Event(), threading.Event()

    def hold():
        with database.transaction(read_only=True) as db:  # another thread is in the middle of something at the fork
            inside.set()
            forked.wait()

    def write(word):
        with database.transaction() as db:
            db.execute("INSERT INTO words VALUES (?)", (word,))

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        write("child")
        database.close()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    forked.set()
    thread.join()
    write("parent")
    database.check()
    with database.transaction(read_only=True) as db:
        print(status, *[row[0] for row in db.execute("SELECT word FROM words")])
    database.close()
    """
    assert "0 child parent\n" == run_script(text, path, env={"PYTHONWARNINGS": "ignore::DeprecationWarning"})


# -- damage


def damage_header(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"this is not a database" * 10)


def damage_all(path: Path) -> None:
    path.write_bytes(os.urandom(50_000))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096 + 100)


def damage_pages(path: Path) -> None:
    with open(path, "r+b") as file:
        for start in range(4096, path.stat().st_size, 4096):
            file.seek(start)
            file.write(b"\xff" * 2000)


@pytest.mark.parametrize("damage", [damage_header, damage_all, cut, damage_pages])
def test_damage_is_seen_when_the_database_is_opened_and_checked(path: Path, damage: object) -> None:
    database = open_database(path)
    for n in range(3000):
        with database.transaction() as db:
            db.execute("INSERT INTO words VALUES (?)", (f"word {n} " * 5,))
    database.close()
    damage(path)  # type: ignore[operator]
    with pytest.raises(JournalDamaged, match="damaged"):
        _open_and_check(path)


def _open_and_check(path: Path) -> None:
    database = open_database(path)
    try:
        database.check()
    finally:
        database.close()


def test_a_sound_database_passes_its_check(database: Database) -> None:
    write(database, "a")
    database.check()


def test_the_database_is_as_private_as_its_folder(database: Database, path: Path) -> None:
    assert stat.S_ISREG(path.stat().st_mode)


def test_only_the_owner_may_read_it_and_its_companions(path: Path) -> None:
    database = open_database(path)
    write(database, "a")
    assert {0o600} == {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert {"journal.db", "journal.db-wal", "journal.db-shm"} == {file.name for file in path.parent.iterdir()}
    database.close()
