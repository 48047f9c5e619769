"""Threads whose writes are committed together: each gets its own result or error, and none another's."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support import new_job, store_id, wait_until
from wherry.errors import AlreadyExistsError, SpoolError
from wherry.spool.journal.group_commit import GroupCommit
from wherry.spool.journal.journal import Journal

Connection = sqlite3.Connection


@dataclass
class Slow:
    """A table whose commits wait until they may; the first `n_failing` transactions fail."""

    path: Path
    go: threading.Event = field(default_factory=threading.Event)
    n_begun: int = 0
    n_failing: int = 0
    interrupted: str = ""  # "before" or "after" the first commit

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        self.n_begun += 1
        slow = self

        class Waiting(Connection):
            def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
                return slow.commit(super().execute) if sql == "COMMIT" else super().execute(sql, *args)

        with closing(sqlite3.connect(self.path, check_same_thread=False, isolation_level=None, factory=Waiting)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield db

    def commit(self, execute: Callable[[str], sqlite3.Cursor]) -> sqlite3.Cursor:
        assert self.go.wait(60.0)
        if self.n_failing:
            self.n_failing -= 1
            raise sqlite3.OperationalError("disk I/O error")
        interrupted, self.interrupted = self.interrupted, ""
        if interrupted == "before":
            raise KeyboardInterrupt
        done = execute("COMMIT")
        if interrupted == "after":
            raise KeyboardInterrupt
        return done

    def rows(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as db:
            return [row[0] for row in db.execute("SELECT n FROM written ORDER BY n")]


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    with closing(sqlite3.connect(tmp_path / "table.db")) as db:
        db.execute("CREATE TABLE written (n INTEGER)")
    return Slow(tmp_path / "table.db")


def write(db: Connection, n: int) -> int:
    db.execute("INSERT INTO written VALUES (?)", (n,))
    if n == 13:
        raise SpoolError("unlucky")
    return n


def gather(commits: GroupCommit, pool: ThreadPoolExecutor, numbers: range) -> list[object]:
    """Have a thread write each number; return when all wait behind the first."""
    futures: list[object] = [pool.submit(commits.write, lambda db, n=n: write(db, n)) for n in numbers]
    wait_until(lambda: len(commits._gathering.waiting) == len(numbers) - 1)
    return futures


def test_what_gathers_while_one_commits_is_committed_together(slow: Slow) -> None:
    commits = GroupCommit(slow.transaction)
    with ThreadPoolExecutor(8) as pool:
        futures = gather(commits, pool, range(8))
        slow.go.set()
        assert list(range(8)) == [future.result() for future in futures]  # type: ignore[attr-defined]
    assert (2, list(range(8))) == (slow.n_begun, slow.rows())


def test_a_write_that_is_refused_is_undone_alone(slow: Slow) -> None:
    commits = GroupCommit(slow.transaction)
    with ThreadPoolExecutor(8) as pool:
        futures = gather(commits, pool, range(8, 16))
        slow.go.set()
        errors = [future.exception() for future in futures]  # type: ignore[attr-defined]
    assert ["unlucky"] == [str(error) for error in errors if error is not None]
    assert [8, 9, 10, 11, 12, 14, 15] == slow.rows()


def test_of_a_transaction_that_fails_the_others_try_again(slow: Slow) -> None:
    slow.n_failing = 2  # the first thread's own, and that of the next one with all others
    commits = GroupCommit(slow.transaction)
    with ThreadPoolExecutor(8) as pool:
        futures = gather(commits, pool, range(8))
        slow.go.set()
        failed = [future.exception() is not None for future in futures]  # type: ignore[attr-defined]
    assert 2 == sum(failed)
    assert [n for n in range(8) if not failed[n]] == slow.rows()


@pytest.mark.parametrize("interrupted", ["before", "after"])
def test_ctrl_c_around_the_commit_of_a_group_makes_nothing_twice(slow: Slow, interrupted: str) -> None:
    commits = GroupCommit(slow.transaction)
    with ThreadPoolExecutor(8) as pool:
        futures = gather(commits, pool, range(8))
        slow.interrupted = interrupted
        slow.go.set()
        errors = [future.exception() for future in futures]  # type: ignore[attr-defined]
    assert [KeyboardInterrupt] == [type(error) for error in errors if error is not None]
    kept = range(8) if interrupted == "after" else [n for n in range(8) if errors[n] is None]
    assert list(kept) == slow.rows()


def interrupt_when(is_time: Callable[[], object]) -> threading.Thread:
    """A thread that sends SIGINT to this process as soon as `is_time`."""

    def wait_and_interrupt() -> None:
        wait_until(is_time)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=wait_and_interrupt)
    thread.start()
    return thread


def test_ctrl_c_while_another_thread_commits_withdraws_what_waits(slow: Slow) -> None:
    commits = GroupCommit(slow.transaction)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(commits.write, lambda db: write(db, 1))
        wait_until(lambda: slow.n_begun)
        thread = interrupt_when(lambda: commits._gathering.waiting)
        with pytest.raises(KeyboardInterrupt):
            commits.write(lambda db: write(db, 2))
        thread.join()
        slow.go.set()
        assert 1 == first.result()
    assert [1] == slow.rows()


def test_ctrl_c_while_another_thread_commits_ours_waits_for_it(slow: Slow) -> None:
    commits = GroupCommit(slow.transaction)
    here = commits._gathering
    slow.go.set()

    def take_turn() -> None:
        with here.turn:
            wait_until(lambda: here.waiting)
            with here.lock:
                group, here.waiting = here.waiting, []
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.2)  # it could return now
            commits._make(here, group, group[0])

    thread = threading.Thread(target=take_turn)
    thread.start()
    wait_until(here.turn.locked)
    with pytest.raises(KeyboardInterrupt):
        commits.write(lambda db: write(db, 1))
    assert [1] == slow.rows()
    thread.join()


def test_a_forked_child_does_not_wait_for_its_parent_s_threads(slow: Slow) -> None:
    commits = GroupCommit(slow.transaction)
    slow.go.set()
    with commits._gathering.turn:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if commits.write(lambda db: write(db, 1)) == 1 else 1)
        assert 0 == os.waitpid(pid, 0)[1]
    assert [1] == slow.rows()


def test_of_one_name_that_must_be_free_one_of_many_threads_gets_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    store = store_id(journal)

    def submit(n: int) -> bool:
        try:
            journal.uploads.submit("me", store, [new_job("a", overwrite=False, only_if_free=True, object_id=f"file{n}")])
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert 1 == sum(pool.map(submit, range(32)))
    assert 1 == journal.queries.unfinished()
    journal.close()
