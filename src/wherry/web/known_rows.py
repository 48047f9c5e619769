"""Listing: the rows of all runs, read in the background, so that a page shows at once what is known, now or from before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from wherry.errors import WherryError
from wherry.redact import redact
from wherry.runs import RunRow, Runs

#: A list request costs 12 gets, so a table that is looked at is read again this often only.
FRESH_S = 30.0


@dataclass(frozen=True)
class Rows:
    """The rows that are known, with their ages as of now.

    `is_whole`: all were read once. `of_before_s`: until then some are as they were so long ago. `trouble`:
    why reading them ended early. `version` grows with each change.
    """

    rows: tuple[RunRow, ...] = ()
    is_whole: bool = False
    of_before_s: float | None = None
    trouble: str | None = None
    age_s: float = 0.0
    version: int = 0


class Listing:
    """The rows of `runs`. A thread reads them when somebody asks and they are old; those of before are shown meanwhile."""

    def __init__(self, runs: Runs, *, fresh_s: float = FRESH_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs = runs
        self._fresh_s = fresh_s
        self._clock = clock
        self._news = threading.Condition()
        before, self._of_before_s = runs.rows_of_before()
        self._rows = {row.id: row for row in before}
        self._clock_of = dict.fromkeys(self._rows, clock())  # when each was read: its age is that of then
        self._read_at: float | None = None  # when the last reading began that came to its end
        self._thread: threading.Thread | None = None
        self._trouble: str | None = None
        self._version = 0

    def rows(self, wait_s: float = 0.0, first_s: float = 0.0) -> Rows:
        """Return what is known, after at most `wait_s` if not all was read yet, and `first_s` if nothing was. Rows that are old
        are read again, behind it.
        """
        with self._news:
            is_old = self._read_at is None or self._clock() - self._read_at > self._fresh_s
            if is_old and self._thread is None:
                self._thread = threading.Thread(target=self._read, name="wherry-ui-listing", daemon=True)
                self._thread.start()
            if self._of_before_s is None:
                self._news.wait_for(self._has_ended, wait_s)
                self._news.wait_for(lambda: self._rows or self._has_ended(), max(0.0, first_s - wait_s))
            age_s = 0.0 if self._read_at is None else self._clock() - self._read_at
            rows = self._aged()
            of_before_s = self._of_before_s if self._read_at is None else None
            return Rows(rows, self._read_at is not None, of_before_s, self._trouble, age_s, self._version)

    def known(self) -> tuple[RunRow, ...]:
        """Return the rows that are known, and read none."""
        with self._news:
            return self._aged()

    def _aged(self) -> tuple[RunRow, ...]:
        now = self._clock()
        return tuple(row.aged(now - self._clock_of[row.id]) for row in self._rows.values())

    def _has_ended(self) -> bool:
        return self._read_at is not None or self._thread is None

    def row(self, run_id: str) -> RunRow | None:
        """Return the row of a run, if it is known."""
        with self._news:
            return self._rows.get(run_id)

    def take(self, row: RunRow) -> None:
        """Take what is known of a run by now, as somebody has looked at it alone: the table is not to say otherwise."""
        with self._news:
            known = self._rows.get(row.id)
            if known is None:
                return
            self._clock_of[row.id] = self._clock()
            self._rows[row.id] = row
            # Ages alone are no news.
            self._version += (known.state, known.metrics, known.attempt) != (row.state, row.metrics, row.attempt)

    def _read(self) -> None:
        began = self._clock()
        seen: dict[str, RunRow] = {}
        trouble = None
        try:
            for row in self._runs.rows(as_told=True):
                seen[row.id] = row
                with self._news:
                    self._clock_of[row.id] = self._clock()
                    if self._rows.get(row.id) != row:
                        self._rows[row.id] = row
                        self._version += 1
                        if len(self._rows) == 1:
                            self._news.notify_all()
        except (WherryError, OSError) as error:  # the page says it; the rows of before stay
            trouble = redact(str(error)) or type(error).__name__
        finally:
            with self._news:
                self._thread = None
                self._trouble = trouble
                self._read_at = began
                if trouble is None and seen.keys() != self._rows.keys():
                    self._rows = seen
                self._version += 1
                self._news.notify_all()
