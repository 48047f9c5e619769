"""Time as a journal counts it: no step of the wall clock changes it, and all processes of a spool agree on it.

Two counts, in one row:

- *elapsed* time is what waits and leases are measured in. Within one boot of the machine it follows the monotonic clock; over a
  reboot, it goes on by what the wall clock says, and never back. It begins at what the wall clock said when the journal was made.
- *run* time is what deadlines are measured in: that part of it in which some process was working on the spool's jobs. An upload
  that nobody tries, as its machine is off or its agent was killed, does not come closer to its deadline.
"""

from __future__ import annotations

from sqlite3 import Connection

from wherry.clock import Clock

TIME_SCHEMA = """
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    boot TEXT NOT NULL, monotonic_s REAL NOT NULL, wall_s REAL NOT NULL,  -- when it was written, by the machine's clocks
    elapsed_s REAL NOT NULL, run_s REAL NOT NULL                          -- the two counts at that time
);
INSERT INTO clock VALUES (1, '', 0, 0, 0, 0);
"""
#: Of the time between two looks of one process at most so much counts: a process that was stopped for longer did not run.
_MOST_COUNTED_S = 600.0


class JournalTime:
    """The counts of one journal, as one process reads and continues them. Each method is called within a transaction."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Up to where, by the monotonic clock, this process has counted run time. None: it has not begun to work.
        self._counted_s: float | None = None

    def elapsed_s(self, db: Connection) -> float:
        """The elapsed time now."""
        return self._read(db)[0]

    def run_s(self, db: Connection) -> float:
        """The run time that has been counted so far."""
        return self._read(db)[1]

    def wall_s(self) -> float:
        """What the wall clock says: to be shown, and for nothing else."""
        return self._clock.wall_s()

    def is_current(self, db: Connection) -> bool:
        """Whether the row is of this boot of the machine."""
        return self._read(db)[3]

    def count(self, db: Connection) -> None:
        """Add the time since the last call, by this or any other process, to the run time; this process's first call adds nothing."""
        elapsed_s, run_s, written_s, is_current = self._read(db)
        now_s = self._clock.monotonic_s()
        since_s = now_s if self._counted_s is None else max(self._counted_s, written_s if is_current else 0.0)
        self._counted_s = now_s
        if is_current and since_s >= now_s:
            return
        run_s += min(_MOST_COUNTED_S, max(0.0, now_s - since_s))
        db.execute(
            "UPDATE clock SET boot = ?, monotonic_s = ?, wall_s = ?, elapsed_s = ?, run_s = ?",
            (self._clock.boot, now_s, self._clock.wall_s(), elapsed_s, run_s),
        )

    def _read(self, db: Connection) -> tuple[float, float, float, bool]:
        """(elapsed time now, run time, the monotonic clock when the row was written, whether that was in this boot)."""
        boot, monotonic_s, wall_s, elapsed_s, run_s = db.execute(
            "SELECT boot, monotonic_s, wall_s, elapsed_s, run_s FROM clock"
        ).fetchone()
        # Where nothing names the boot, a clock that is behind what was written is another boot's.
        is_current = boot == self._clock.boot and self._clock.monotonic_s() >= monotonic_s
        passed_s = self._clock.monotonic_s() - monotonic_s if is_current else self._clock.wall_s() - wall_s
        return elapsed_s + max(0.0, passed_s), run_s, monotonic_s, is_current
