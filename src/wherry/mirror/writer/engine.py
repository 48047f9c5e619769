"""Mirrors a folder step by step: scan the folder, decide what is due, begin to send it, write the manifest.

All state but the task runner's belongs to the thread that calls step(). With an executor that does everything at once, as in
tests, a step is a function of the folder, the store and the clock.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor

from wherry.clock import Clock
from wherry.errors import StoreError, WherryError
from wherry.mirror.backoff_state import BackoffState
from wherry.mirror.budget import Budget
from wherry.mirror.format.fence import Fence, MirrorFencedError
from wherry.mirror.format.manifest import State
from wherry.mirror.format.rules import Rules
from wherry.mirror.mirror_config import MirrorConfig
from wherry.mirror.report import MirrorReport, printable
from wherry.mirror.writer.due import FINAL_WAIT_S, DueTasks, Task
from wherry.mirror.writer.file_tracker import FileTracker
from wherry.mirror.writer.folder_scanner import FolderScanner
from wherry.mirror.writer.manifest_writer import ManifestWriter
from wherry.mirror.writer.outcomes import Outcomes
from wherry.mirror.writer.rebuild import rebuild
from wherry.mirror.writer.segment_sender import SegmentSender
from wherry.mirror.writer.state_db import StateDb
from wherry.mirror.writer.task_runner import TaskRunner
from wherry.mirror.writer.tracked_file import TrackedFile

log = logging.getLogger("wherry.mirror")

#: The fence's answer counts for so long, and for this share of an hour's calls where they are few: quiet files, each of which
#: is sent at a time of its own, would else cost two calls each.
_FENCE_COUNTS_S = 5.0
_FENCE_COUNTS_CALLS = 3.0
_FENCE_COUNTS_MOST_S = 60.0
#: So many files are handed to the senders at once: each step scans the whole folder, which ten thousand files make costly.
_BATCH = 512
#: A file counts as busy for so many times `max_lag_s` after it has changed.
_BUSY_FOR = 2.0
#: Where the kernel tells of changes, and nothing waits, the folder is scanned this often all the same: others may write.
_SCAN_ANYWAY_S = 10.0
#: The shortest pause between two steps.
_LEAST_PAUSE_S = 0.02


class Engine:
    """Mirrors a folder through `sender`. `executor` runs the sends; `wake` is called, from any thread, when it has room.

    `prepare` is called before anything is sent, again until it has succeeded once.
    """

    def __init__(
        self,
        sender: SegmentSender,
        state_db: StateDb,
        config: MirrorConfig,
        budget: Budget,
        executor: Executor,
        *,
        prepare: Callable[[], object] = lambda: None,
        wake: Callable[[], object] = lambda: None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        clock = clock or Clock()
        counts_s = max(_FENCE_COUNTS_S, min(_FENCE_COUNTS_CALLS * 3600.0 / budget.per_hour, _FENCE_COUNTS_MOST_S))
        self.sender = sender
        self.config = config
        self.budget = budget
        self._state_db = state_db
        self._prepare = prepare
        self._clock = clock
        self._manifest_writer = ManifestWriter(sender, config, budget, clock)
        self._fence = Fence(sender.store, sender.uri.prefix, sender.writer, sender.scratch, counts_s, clock)
        rules = Rules(config.rules)
        self.tracker = FileTracker(sender.folder, state_db, rules, sender.writer, sender.uri.prefix, config.settle_s)
        self._scanner = FolderScanner(sender.folder, self.tracker, rules, config.max_lag_s, clock)
        self._due_tasks = DueTasks(self.tracker, config, sender.folder, clock)
        self._backoff = BackoffState(f"the mirror of {sender.folder} to {sender.uri}", config.retry, clock.monotonic_s, rng)
        self.runner = TaskRunner(
            executor, sender, state_db, config, budget, self._due_tasks,
            may_send=lambda: not self._rest_s(), wake=wake, clock=clock,
        )  # fmt: skip
        self._outcomes = Outcomes(self.tracker, self._due_tasks, self._backoff, config, self._scanner.warn_once, clock, rng)
        self._n_done = 0
        self._is_cut_short = False
        self._step_cost_s = 0.0
        #: Why nothing more is sent, if another process mirrors under this writer's name.
        self.fenced: MirrorFencedError | None = None
        #: The unexpected exception that ended the mirror, if any.
        self.internal_error = ""

    @property
    def is_finished(self) -> bool:
        """Whether the mirror was closed, and nothing more can be done."""
        return self._due_tasks.is_finished

    @property
    def is_complete(self) -> bool:
        """Whether it is finished, every byte is stored, and all segments of sealed files are gone."""
        return self._due_tasks.is_complete

    def step(self, *, force: bool = False, final: bool = False) -> None:
        """Do all that is due. `force`: every whole record, whatever the budget says. `final`: every byte, then seal.

        Errors of the store and of files are noted, and those files wait. MirrorFencedError is raised by each call.
        """
        if self.fenced is not None:
            raise self.fenced
        began_s = time.perf_counter()
        if final and not self._due_tasks.is_final:
            self._due_tasks.begin_end()
        try:
            self._step(force=force, final=final)
        except MirrorFencedError as error:
            self.fenced = error
            log.error("%s", error)
            raise
        except (StoreError, OSError) as error:
            self._backoff.note(error)
        finally:
            self._step_cost_s = time.perf_counter() - began_s

    def _step(self, *, force: bool, final: bool) -> None:
        tracker, scanner = self.tracker, self._scanner
        self._collect()
        if not tracker.is_loaded and not self._rest_s():
            self._load()
        if tracker.is_loaded and scanner.scan(is_busy=self._is_cut_short or len(self.runner) > 0):
            max_lag_s = self.config.max_lag_s
            self.budget.fit_to(tracker.n_changed(self._clock.monotonic_s() - _BUSY_FOR * max_lag_s), max_lag_s)
        if final and scanner.is_missing and self._due_tasks.finish_without_folder(is_running=len(self.runner) > 0):
            return
        if not (scanner.has_scanned or (final and tracker.is_loaded)) or self._rest_s():
            return
        n_begun = self._dispatch(self._due_tasks.tasks(force=force), unbounded=force or final)
        self._collect()
        if final and (n_begun or len(self.runner)):
            self._due_tasks.idle_since_s = None
        elif final:  # a mirror is complete by a scan that was made after everything was sent
            if scanner.is_fresh:
                self._due_tasks.finish(lambda: self.write_manifest("sealed"), is_all_read=not scanner.trouble)
        elif self._manifest_writer.is_due():
            self.write_manifest("open")

    def pause_s(self, *, is_watched: bool = False) -> float:
        """How long until the next step may have something to do, if nothing wakes us before.

        `is_watched`: a watcher wakes us when something has changed in the folder.
        """
        if len(self.runner):
            return max(_LEAST_PAUSE_S, 3 * self._step_cost_s)  # the runner wakes us when a sender has nothing to do
        if rest_s := self._rest_s():
            return max(_LEAST_PAUSE_S, min(rest_s, self._scanner.interval_s))
        if self._due_tasks.is_final:  # close() waits, and what comes next needs no change in the folder
            return max(_LEAST_PAUSE_S, 3 * self._step_cost_s)
        return _SCAN_ANYWAY_S if is_watched and self.is_idle() else self._scanner.interval_s

    def is_idle(self) -> bool:
        """Whether there is nothing to do until something changes in the folder."""
        tracker = self.tracker
        is_busy = self._due_tasks.is_final or tracker.active or tracker.rotated or tracker.uncleaned
        return self._scanner.has_scanned and not is_busy

    def write_incomplete(self) -> None:
        """Write into the manifest that something is left, if so and if the store can be reached. For after the last step."""
        if self.is_complete or self.fenced is not None or self._backoff.n_errors or not self._fence.epoch:
            return
        try:
            self.write_manifest("incomplete")
        except (WherryError, OSError) as error:  # readers will see that the writer is silent
            log.info("the manifest could not be written: %s", error)

    def stuck_s(self) -> float:
        """How long nothing has worked; 0 while the last thing did. Also a part of a large file is something that worked."""
        if (n_done := self.sender.n_done) != self._n_done:
            self._n_done = n_done
            self._backoff.note_progress()
        return self._backoff.duration_s()

    def is_flushed(self) -> bool:
        """Whether every whole record, and every finished file, that the last step saw is in the store, or cannot be sent."""
        return self._scanner.is_fresh and not len(self.runner) and all(map(self._has_nothing_to_send, self.tracker.active))

    def _has_nothing_to_send(self, tracked: TrackedFile) -> bool:
        if tracked.n_errors:
            return True
        if tracked.record.rule == "append":
            return tracked.found is not None and not tracked.may_have_more
        # A file that goes on changing is not finished; one that has only just come may be.
        waits_s = 0.0 if tracked.since_s is None else self._clock.monotonic_s() - tracked.since_s
        if tracked.record.rule != "once" or tracked.found is None:
            return False
        return self._due_tasks.is_open(tracked.found.path, waits_s) if tracked.is_settled else waits_s > 3 * self.config.settle_s

    def _rest_s(self) -> float:
        """How long the store is still left alone."""
        return self._backoff.wait_s(FINAL_WAIT_S if self._due_tasks.is_final else None)

    def _load(self) -> None:
        """Read the state database, or make it again: what is in the store by then decides where each file goes on.

        It is made again also when since it was last written another process has written under our name, or when what we write now
        is compressed in another way: a segment that was put and not noted, before a kill, has another name then.
        """
        self._prepare()
        self._prepare = lambda: None
        self._fence.take()
        noted, compression = self._state_db.fact("epoch"), str(self.config.compression)
        is_another = self._state_db.fact("compression") not in (None, compression)
        if noted is None or int(noted) + 1 < self._fence.epoch or is_another:
            self.runner.is_new_state_db = True
            self._state_db.save(rebuild(self.sender, self._scanner.rules), anew=True)
        self._state_db.note("epoch", str(self._fence.epoch))
        self._state_db.note("compression", compression)
        self.tracker.load(self._state_db.load())
        self.budget.measure()

    def _dispatch(self, tasks: list[Task], *, unbounded: bool) -> int:
        """Hand tasks to the senders, as many as may be begun now; how many that were."""
        places = _BATCH - len(self.runner)
        self._is_cut_short = len(tasks) > places
        if not unbounded:
            places = min(places, self.budget.sends_left() - len(self.runner))
        if self._backoff.n_errors:
            places = min(places, 1 - len(self.runner))  # one finds out whether the store is back
        if not tasks or places <= 0:
            return 0
        n_begun = 0
        self._fence.check(surely=unbounded)
        for task in self._due_tasks.interleaved(tasks):
            if places <= n_begun or self.runner.stopped.is_set() or self._rest_s():
                break
            if any(one.is_busy for one in task.files) or not self.runner.has_room_for(task):
                continue
            n_begun += 1
            if self.runner.submit(task, self.tracker, unbounded=unbounded):
                self._collect()
        return n_begun

    def _collect(self) -> None:
        """Note the tasks that have ended. After an error, such as a full disk, the next step notes the others."""
        done = self.runner.done()
        self.budget.ended(sum(task.what != "clean" for task, _ in done))
        for task, future in done:
            self.runner.take(future)
            self._outcomes.note(task, future)

    def write_manifest(self, state: State) -> None:
        """Write the manifest now, unless another process has begun to write under our name. The last one asks the store."""
        self._fence.check(surely=state != "open")
        files = (*self.tracker.all_files(), *self.tracker.uncleaned)
        known = {(one.record.path, one.record.generation): one for one in files}
        records = [self.sender.snapshot(known[key].record) for key in sorted(known)]
        self._manifest_writer.write(state, self._fence.epoch, self.report(), records)

    def report(self) -> MirrorReport:
        """How far the mirror is, by the last scan of the folder."""
        tracker, now_s = self.tracker, self._clock.monotonic_s()
        waiting_since_s = [(one, one.since_s) for one in tracker.active if one.since_s is not None]
        reasons = (*tracker.kinds.refused.items(), *self._scanner.trouble.items(), *self._outcomes.trouble.items())
        others = (
            f"the folder {self.sender.folder} is not there" if self._scanner.is_missing else None,
            self._backoff.error,
            None if self.fenced is None else str(self.fenced),
            self.internal_error,
        )
        return MirrorReport(
            uri=str(self.sender.uri),
            writer=self.sender.writer,
            epoch=self._fence.epoch,
            is_complete=self.is_complete,
            n_files=len(tracker.files) + len(tracker.rotated),
            unsent_files=len(waiting_since_s),
            unsent_bytes=sum(one.unsent_bytes for one, _ in waiting_since_s),
            sent_bytes=self.sender.sent_bytes,
            n_requests=self.budget.spent,
            lag_s=max((now_s - since_s for _, since_s in waiting_since_s), default=0.0),
            trouble=(*(f"{printable(path)}: {reason}" for path, reason in reasons), *filter(None, others)),
        )
