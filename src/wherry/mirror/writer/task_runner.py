"""Runs tasks in the threads of an executor: sends what is new of a file, seals it, or deletes segments of sealed files."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from wherry.clock import Clock
from wherry.mirror.budget import Budget
from wherry.mirror.mirror_config import MirrorConfig
from wherry.mirror.writer.due import DueTasks, Task, needs_segments
from wherry.mirror.writer.file_tracker import FileTracker
from wherry.mirror.writer.segment_sender import SegmentSender
from wherry.mirror.writer.state_db import Record, StateDb
from wherry.mirror.writer.tracked_file import TrackedFile
from wherry.uri import check_name

#: Where the budget is short a segment takes so many times `segment_bytes`, if there is so much.
_LARGE_SEGMENTS = 8
#: A large file gives its place to others after so long, and goes on when it is the most urgent one again.
_LARGE_SLICE_S = 2.0
#: What was written since the scan is sent along, in so many segments at most: a file may grow as fast as it is sent.
_MOST_BEYOND = 10


class StillGrowing(Exception):
    """A file that is to be sealed has more than was sent of it, once more."""


@dataclass(eq=False)
class TaskRunner:
    """Runs tasks through `executor`. `wake` is called, from any thread, when a sender has nothing to do.

    `may_send` says whether the store may be asked now. submit(), done() and take() are for one thread. Files of a running task
    are busy, and no other thread touches their records.
    """

    executor: Executor
    sender: SegmentSender
    state_db: StateDb
    config: MirrorConfig
    budget: Budget
    due_tasks: DueTasks
    may_send: Callable[[], bool]
    wake: Callable[[], object]
    clock: Clock
    #: Once it is set nothing more is begun. What is running ends by itself.
    stopped: threading.Event = field(default_factory=threading.Event, init=False)
    #: The state database was made again: what is to be sent may be in the store already.
    is_new_state_db: bool = field(default=False, init=False)
    _running: dict[Future[bool], Task] = field(default_factory=dict, init=False)
    _n_running: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __len__(self) -> int:
        """How many tasks are running, or were not taken yet."""
        return len(self._running)

    def has_room_for(self, task: Task) -> bool:
        """Whether a sender is left for small tasks should this one begin: a new small log does not wait for gigabytes."""
        n_large = sum(one.is_large for one in self._running.values())
        return not task.is_large or n_large < max(1, self.config.sends_in_flight - 1)

    def submit(self, task: Task, tracker: FileTracker, *, unbounded: bool) -> bool:
        """Begin a task. `unbounded`: whatever the budget says. Whether it is done already."""
        for tracked in task.files:
            tracked.is_busy, tracked.restart_reason = True, ""
        with self._lock:
            self._n_running += 1
        keeps = [tracker.unsealed(one.record.path) for one in task.files]
        stale = tracker.stale(task.files[0].record)
        future = self.executor.submit(self._run, task, unbounded=unbounded, keeps=keeps, stale=stale)
        self._running[future] = task
        future.add_done_callback(self._on_done)
        return future.done()

    def done(self) -> list[tuple[Task, Future[bool]]]:
        """The tasks that have ended, and are to be taken. The result of a future: whether the task was begun."""
        return [(task, future) for future, task in self._running.items() if future.done()]

    def take(self, future: Future[bool]) -> None:
        """Forget a task that has ended. Its files are not busy any more."""
        for tracked in self._running.pop(future).files:
            tracked.is_busy = False

    def _on_done(self, _: Future[bool]) -> None:
        with self._lock:
            self._n_running -= 1
            has_room = self._n_running < self.config.sends_in_flight
        if has_room:
            self.wake()

    # -- in the executor's threads

    def _run(self, task: Task, *, unbounded: bool, keeps: Sequence[frozenset[int]], stale: frozenset[int]) -> bool:
        """Send or seal one file, or clean some. `keeps`, of each file, and `stale`: see SegmentSender.seal()."""
        if self.stopped.is_set() or not self.may_send():
            return False
        if task.what == "clean":
            files = zip(task.files, keeps, strict=True)
            # Of those that are not sealed any more, more was sent in this very step: the next seal is going to have that.
            self.sender.clean([(one.record, keep) for one, keep in files if one.record.state == "sealed"])
            return True
        (tracked,), (keep,) = task.files, keeps
        record = tracked.record
        if task.what == "seal":
            if needs_segments(tracked):
                self._send_segments(tracked, unbounded=True, all_of_it=True)
            if not self.stopped.is_set():
                if self.sender.seal(record, self.clock.wall_s(), copied_from=tracked.source, keep=keep, stale=stale):
                    self._save(record)
                elif self.due_tasks.is_final:
                    raise StillGrowing("it grows while it is sealed: it stays in segments until its program has ended")
        elif record.rule == "append":
            self._send_segments(tracked, unbounded=unbounded, all_of_it=self.due_tasks.is_final, is_large=task.is_large)
        else:
            self._send_whole(tracked)
        return True

    def _send_segments(self, tracked: TrackedFile, *, unbounded: bool, all_of_it: bool, is_large: bool = False) -> None:
        record, found, budget, segment_bytes = tracked.record, tracked.found, self.budget, self.config.segment_bytes
        assert found is not None
        n_beyond = 0
        until_s = self.clock.monotonic_s() + _LARGE_SLICE_S if is_large and not self.due_tasks.is_final else math.inf
        while not self.stopped.is_set() and n_beyond < _MOST_BEYOND:
            if self.sender.has_all_of(record):
                tracked.no_cut_at = found.size
                return
            n_beyond += record.acked >= found.size
            is_scarce = not unbounded and budget.left() < budget.per_hour / 100
            max_bytes = segment_bytes * (_LARGE_SEGMENTS if is_scarce else 1)
            if not self.sender.send_segment(record, max_bytes=max_bytes, all_of_it=all_of_it, save=self._save):
                tracked.no_cut_at = found.size
                return
            if self.clock.monotonic_s() >= until_s:
                return
            if not unbounded and (found.size - record.acked < segment_bytes or budget.left() < budget.burst / 2):
                return

    def _save(self, record: Record) -> None:
        self.state_db.save([record])

    def _send_whole(self, tracked: TrackedFile) -> None:
        record, found = tracked.record, tracked.found
        assert found is not None
        name, source = check_name(record.path), self.sender.folder / record.at
        if record.rule == "replace":
            status, crc = self.sender.send_copy(name, source)
        else:
            is_alike = record.state == "sealed" and (record.size, record.mtime_ns) == (found.size, found.mtime_ns)
            is_there = is_alike or self.is_new_state_db
            status, crc = self.sender.send_whole(name, source, copied_from=tracked.source, is_there=is_there)
        record.size, record.mtime_ns = status.st_size, status.st_mtime_ns
        record.device, record.inode = status.st_dev, status.st_ino
        record.acked, record.crc32c, record.state, record.sealed_s = status.st_size, crc, "sealed", self.clock.wall_s()
        self._save(record)
