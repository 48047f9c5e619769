"""What follows from a task that has ended: for its files, and for the whole mirror."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from wherry.clock import Clock
from wherry.errors import AccessDeniedError, BucketNotFoundError, ConfigError, StoreError, TransientError
from wherry.mirror.backoff_state import BackoffState
from wherry.mirror.mirror_config import MirrorConfig
from wherry.mirror.report import printable
from wherry.mirror.writer.due import FINAL_WAIT_S, DueTasks, Task
from wherry.mirror.writer.file_tracker import FileTracker
from wherry.mirror.writer.segments import PrefixChanged
from wherry.mirror.writer.task_runner import StillGrowing
from wherry.mirror.writer.tracked_file import TrackedFile
from wherry.store.retry import job_wait_s

log = logging.getLogger("wherry.mirror")

#: A file of which every version is sent whole waits for at most so many doublings of `max_lag_s`: eight hours at 30 s.
_MOST_DOUBLINGS = 10


@dataclass(eq=False)
class Outcomes:
    """Notes how tasks ended. Errors of the store hold up everything (`backoff`), errors of one file that file alone.

    `warn_once` logs a text once under a name.
    """

    tracker: FileTracker
    due_tasks: DueTasks
    backoff: BackoffState
    config: MirrorConfig
    warn_once: Callable[[str, str], None]
    clock: Clock
    rng: random.Random | None
    #: Path -> the last error of a file that is not in the store yet.
    trouble: dict[str, str] = field(default_factory=dict, init=False)

    def note(self, task: Task, future: Future[bool]) -> None:
        """Note how a task ended. An exception that no store and no file raises is raised again."""
        error = future.exception()
        if error is None:
            if future.result():
                self._succeeded(task)
        elif isinstance(error, (TransientError, AccessDeniedError, BucketNotFoundError)):
            self.backoff.note(error)
            if not isinstance(error, TransientError):  # it may be this object alone: another file finds out
                for tracked in task.files:
                    self._postpone(tracked)
        elif isinstance(error, (StoreError, PrefixChanged, StillGrowing, ConfigError, OSError)):
            for tracked in task.files:
                self._failed(tracked, error)
        else:
            raise error

    def _succeeded(self, task: Task) -> None:
        self.backoff.clear()
        for tracked in task.files:
            tracked.n_errors, tracked.not_before_s = 0, 0.0
            self.trouble.pop(tracked.record.at, None)
        if task.what == "clean":
            self.tracker.cleaned([one for one in task.files if one.record.state == "sealed"])
            return
        (tracked,) = task.files
        if self.due_tasks.is_final:
            tracked.n_ends += 1
            if task.what == "seal":
                tracked.next_end_s = self.clock.monotonic_s() + tracked.n_ends
        if tracked.record.state == "sealed" and task.what == "seal":
            self.tracker.sealed(tracked)
        else:
            self.tracker.sent(tracked, self.clock.monotonic_s())
            if tracked.record.rule == "once":
                self._space_versions(tracked)

    def _space_versions(self, tracked: TrackedFile) -> None:
        """Have the next version of a file that is sent whole wait, twice as long each time.

        A file that grows would else cost the square of its size.
        """
        if tracked.version_inode != tracked.record.inode:  # backups that are numbered anew: another file each time
            tracked.n_versions, tracked.version_inode = 0, tracked.record.inode
        tracked.n_versions += 1
        wait_s = max(self.config.settle_s, self.config.max_lag_s) * 2.0 ** min(tracked.n_versions - 1, _MOST_DOUBLINGS)
        tracked.next_version_s = self.clock.monotonic_s() + wait_s
        if tracked.n_versions == 2:
            path = tracked.record.at
            pattern = f"*{os.path.splitext(path)[1]}" if os.path.splitext(path)[1] else path
            self.warn_once(
                f"versions {path}",
                f"{printable(path)} has changed since it was sent, and was sent whole again; its next versions come more seldom. "
                f"If it only grows, a rule sends what is new: Rule({pattern!r}, 'append'), or --rule '{pattern}=append'",
            )

    def _failed(self, tracked: TrackedFile, error: Exception) -> None:
        """An error of this file alone: the others go on, and it is tried again, with longer waits each time."""
        record = tracked.record
        if isinstance(error, FileNotFoundError) and not isinstance(error, StoreError):
            return  # it was deleted or renamed just now: the next scan will tell which
        tracked.is_settled = False
        if isinstance(error, PrefixChanged) and record.rule == "append":
            tracked.restart_reason = str(error)  # the next scan begins its next generation
            return
        self._postpone(tracked)
        tracked.n_ends += isinstance(error, StillGrowing)
        if isinstance(error, PrefixChanged):
            return
        self.trouble[record.at] = str(error)
        if tracked.n_errors == 1:
            log.warning("%s is not in the store yet: %s; it is tried again, and the others go on", printable(record.at), error)

    def _postpone(self, tracked: TrackedFile) -> None:
        tracked.n_errors += 1
        tracked.source = None  # what waits for it waits no longer
        wait_s = job_wait_s(tracked.n_errors, self.config.retry, self.rng)
        tracked.not_before_s = self.clock.monotonic_s() + (min(wait_s, FINAL_WAIT_S) if self.due_tasks.is_final else wait_s)
