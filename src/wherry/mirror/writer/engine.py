"""One step of a mirror after another: look at the folder, decide what goes, send it, say how far we are.

All state but the senders' own belongs to the thread that calls step(). With an executor that does everything at once, as in
tests, a turn is a function of the folder, the store and the clock.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

from wherry.errors import AccessDeniedError, BucketNotFoundError, ConfigError, StoreError, TransientError, WherryError
from wherry.mirror.format.fence import Fence, MirrorFencedError
from wherry.mirror.format.manifest import State
from wherry.mirror.format.rules import Rules
from wherry.mirror.mirror_config import MirrorConfig
from wherry.mirror.report import MirrorReport, printable
from wherry.mirror.writer.backoff_state import BackoffState
from wherry.mirror.writer.budget import Budget
from wherry.mirror.writer.due import FINAL_TRIES, DueTasks, Task, is_unsealed, needs_segments
from wherry.mirror.writer.file_tracker import FileTracker, TrackedFile
from wherry.mirror.writer.manifest_writer import ManifestWriter
from wherry.mirror.writer.rebuild import rebuild
from wherry.mirror.writer.scan import scan
from wherry.mirror.writer.segment_sender import SegmentSender
from wherry.mirror.writer.segments import PrefixChanged
from wherry.mirror.writer.state_db import Record, StateDb
from wherry.store.retry import job_wait_s
from wherry.uri import check_name

log = logging.getLogger("wherry.mirror")

#: A file of which every version is sent whole waits for at most so many doublings of `max_lag_s`: eight hours at 30 s.
_MOST_DOUBLINGS = 10
#: Where the budget is short a segment takes so many times `segment_bytes`, if there is so much.
_LARGE_SEGMENTS = 8
#: That look counts for so long, and for this share of an hour's calls where they are few: else quiet files, each of which goes at
#: its own time, would cost two calls each.
_FENCE_COUNTS_S = 5.0
_FENCE_COUNTS_CALLS = 3.0
_FENCE_COUNTS_MOST_S = 60.0
#: So many files are handed to the senders at once: each turn looks at the whole folder, which ten thousand files make costly.
_BATCH = 512
#: A large file gives its place to others after so long, and goes on when it is the most urgent one again.
_LARGE_SLICE_S = 2.0
#: At the end a store that fails is tried again after this long at most: somebody waits.
_FINAL_WAIT_S = 2.0
#: What has come since the look goes along, in so many segments at most: a file may grow as fast as it is sent.
_MOST_BEYOND = 10
#: A file counts as busy for so many times `max_lag_s` after it has changed.
_BUSY_FOR = 2.0
#: Nothing at the end waits for longer than this by intention.
_FINAL_IDLE_S = 10.0
#: Where the kernel says what changes, and nothing waits, the folder is looked at this often all the same: others may write.
_SCAN_ANYWAY_S = 10.0
#: A look at the folder, and what follows, takes at most this share of the time.
_SCAN_SHARE = 0.01
#: While something is under way, or more is due than one batch takes, at most this share.
_BUSY_SCAN_SHARE = 0.1


class Engine:
    """Mirrors a folder through `sender`. `executor` runs the sends; `wake` is called, from any thread, when it has room.

    `prepare` is called once, before anything is sent.
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
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self.folder: Path = sender.folder
        self.sender = sender
        self.config = config
        self.budget = budget
        self.manifest_writer = ManifestWriter(sender, config, budget, clock, now)
        counts_s = max(_FENCE_COUNTS_S, min(_FENCE_COUNTS_CALLS * 3600.0 / budget.per_hour, _FENCE_COUNTS_MOST_S))
        self.fence = Fence(
            sender.store, sender.prefix, sender.writer, sender.new_scratch, counts_s=counts_s, clock=clock, now=now
        )
        self._rules = Rules(config.rules)
        self.tracker = FileTracker(self.folder, state_db, self._rules, sender.writer, sender.prefix, config.settle_s)
        self.due_tasks = DueTasks(self.tracker, config, self.folder, clock, now)
        self._state_db = state_db
        self._executor = executor
        self._prepare = prepare
        self._wake = wake
        self._clock = clock
        self._now = now
        self._rng = rng
        self.backoff = BackoffState(f"the mirror of {self.folder} to {sender.uri}", config.retry, clock, rng)
        self._running: dict[Future[bool], Task] = {}
        self._is_ready = self._is_missing = False
        self._idle_since_s: float | None = None
        self._warned: set[str] = set()
        self._file_trouble: dict[str, str] = {}
        self._is_loaded = False
        self._is_new_state_db = False
        self._has_scanned = self._is_fresh = self._is_cut_short = False
        self._scanned_s = 0.0
        self._scan_cost_s = self._step_cost_s = 0.0
        self.scan_trouble: Mapping[str, str] = {}
        self._n_running = self._n_done = 0
        self._running_lock = threading.Lock()
        self._check_rules_at_s = clock() + max(60.0, 10 * config.max_lag_s)
        self._stopped = threading.Event()
        self.fenced: MirrorFencedError | None = None
        #: What has ended it that never should.
        self.internal_error = ""
        #: Closed, and nothing more can be done.
        self.is_finished = False
        #: Besides, every byte is there, the manifest says so, and no segment is left of what was sealed.
        self.is_complete = False

    # -- a turn

    def step(self, *, force: bool = False, final: bool = False) -> None:
        """Do all that is due. `force`: every whole record, whatever the budget says. `final`: every byte, then seal.

        Errors of the store and of files are noted, and those files wait. MirrorFencedError is raised, again and again.
        """
        if self.fenced is not None:
            raise self.fenced
        began_s = time.perf_counter()
        if final and not self.due_tasks.is_final:
            self._start_final()
        try:
            self._collect()
            if not self._is_loaded and not self._is_resting():
                self._load()
            if self._is_loaded:
                self._scan_unless_busy()
            if final and self._is_missing and any(map(_is_open, self.tracker.all_files())):  # what cannot be read is left
                self.is_finished = not self._running
                return
            if not (self._has_scanned or (final and self._is_loaded)) or self._is_resting():
                return
            n_begun = self._dispatch(self.due_tasks.tasks(force=force), unbounded=force or final)
            self._collect()
            if final and not n_begun and not self._running:  # so the look that finds it complete comes after all was sent
                if self._is_fresh:
                    self._finish()
            elif final:
                self._idle_since_s = None
            elif self.manifest_writer.is_due():
                self.fence.check()
                self.write_manifest("open")
        except MirrorFencedError as error:
            self.fenced = error
            log.error("%s", error)
            raise
        except (StoreError, OSError) as error:
            self.backoff.note(error)
        finally:
            self._step_cost_s = time.perf_counter() - began_s

    def _start_final(self) -> None:
        """What has failed so far is tried again, and at once."""
        self.due_tasks.final_since_s = self._clock()
        for tracked in (*self.tracker.all_files(), *self.tracker.uncleaned):
            tracked.n_errors, tracked.not_before_s = 0, 0.0

    def pause_s(self, *, is_watched: bool = False) -> float:
        """How long until the next turn may have something to do, if nothing wakes us before.

        `is_watched`: somebody wakes us when something has changed in the folder.
        """
        scan_every_s = max(0.02, min(1.0, self.config.max_lag_s / 10), self._scan_cost_s / _SCAN_SHARE)
        if self._running:
            return max(0.02, 3 * self._step_cost_s)  # _ended() wakes us when a sender has nothing to do
        if self._is_resting():
            return max(0.02, min(self._rest_s(), scan_every_s))
        if self.due_tasks.is_final:  # somebody waits, and what comes next needs no change in the folder
            return max(0.02, 3 * self._step_cost_s)
        return _SCAN_ANYWAY_S if is_watched and self.is_idle() else scan_every_s

    def is_idle(self) -> bool:
        """Whether there is nothing to do until something changes in the folder."""
        tracker = self.tracker
        return self._has_scanned and not (self.due_tasks.is_final or tracker.active or tracker.rotated or tracker.uncleaned)

    def stop(self) -> None:
        """Begin nothing more. What is under way ends by itself."""
        self._stopped.set()

    def write_incomplete(self) -> None:
        """Say in the manifest that something is left, if something is and the store is there. For after the last turn."""
        if self.is_complete or self.fenced is not None or self.backoff.n_errors or not self.fence.epoch:
            return
        try:
            self.fence.check(surely=True)
            self.write_manifest("incomplete")
        except (WherryError, OSError) as error:  # readers will see that nobody is heard of any more
            log.info("the manifest could not be written: %s", error)

    def stuck_s(self) -> float:
        """How long nothing has worked; 0 while the last thing did. A large file whose sends fail now and then gets on."""
        if (n_done := self.sender.n_done) != self._n_done:
            self._n_done = n_done
            self.backoff.note_progress()
        return self.backoff.duration_s()

    def is_flushed(self) -> bool:
        """Whether every whole record, and every finished file, that the last turn saw is in the store, or cannot be sent."""
        return self._is_fresh and not self._running and all(map(self._has_nothing_to_send, self.tracker.active))

    def _has_nothing_to_send(self, tracked: TrackedFile) -> bool:
        if tracked.n_errors:
            return True
        if tracked.record.rule == "append":
            return tracked.found is not None and not tracked.may_have_more
        # A file that goes on changing is not finished; one that has only just come may be.
        waits_s = 0.0 if tracked.since_s is None else self._clock() - tracked.since_s
        if tracked.record.rule != "once" or tracked.found is None:
            return False
        return self.due_tasks.is_open(tracked.found.path, waits_s) if tracked.is_settled else waits_s > 3 * self.config.settle_s

    def _rest_s(self) -> float:
        """How long the store is left alone."""
        return self.backoff.wait_s(_FINAL_WAIT_S if self.due_tasks.is_final else None)

    def _is_resting(self) -> bool:
        return self._rest_s() > 0

    def _load(self) -> None:
        """Read the state database, or make it again: what is in the store by then decides where each file goes on.

        It is made again also when since it was last written another process has written under our name, or when what we write now
        is compressed in another way: a segment that was put and not noted, before a kill, has another name then.
        """
        if not self._is_ready:
            self._prepare()
            self._is_ready = True
        self.fence.take()
        noted, compression = self._state_db.fact("epoch"), str(self.config.compression)
        is_another = self._state_db.fact("compression") not in (None, compression)
        if noted is None or int(noted) + 1 < self.fence.epoch or is_another:
            self._is_new_state_db = True
            self._state_db.replace(rebuild(self.sender, self._rules))
        self._state_db.note("epoch", str(self.fence.epoch))
        self._state_db.note("compression", compression)
        self.tracker.load(self._state_db.load())
        self.budget.measure()
        self._is_loaded = True

    def _scan_unless_busy(self) -> None:
        """Look at the folder, unless that was just done and something is under way, or more is due than one batch took."""
        is_busy = self._is_cut_short or bool(self._running)
        self._is_fresh = not is_busy or time.perf_counter() - self._scanned_s >= self._scan_cost_s / _BUSY_SCAN_SHARE
        if self._is_fresh:
            self._scan_folder()
            self._scanned_s = time.perf_counter()
            self.budget.fit_to(self.tracker.n_changed(self._clock() - _BUSY_FOR * self.config.max_lag_s), self.config.max_lag_s)

    def _scan_folder(self) -> None:
        began_s = time.perf_counter()
        found = scan(self.folder)
        self._is_missing = found is None
        if found is None:
            what = "no folder" if os.path.lexists(self.folder) else "not there"
            self._warn_once("folder", f"the folder {self.folder} is {what}: the mirror waits for it")
            return
        if "folder" in self._warned:
            self._warned.discard("folder")
            log.info("the folder %s is there", self.folder)
        for path, reason in found.trouble.items():
            self._warn_once(
                f"scan {path}", f"{printable(str(self.folder / path))} cannot be read: {reason}; the rest is mirrored"
            )
        self.scan_trouble = found.trouble
        for path in found.symlinks:
            self._warn_once(f"link {path}", f"{printable(path)} is a symbolic link, which is not followed: it is not mirrored")
        self.tracker.update(found, self._clock())
        self._has_scanned = True
        self._scan_cost_s = time.perf_counter() - began_s
        if self._clock() > self._check_rules_at_s:
            self._check_rules_at_s = float("inf")
            for rule in self._rules.unmatched():
                self._warn_once(f"rule {rule.pattern}", f"the rule {rule.pattern!r} ({rule.kind}) has matched no file so far")

    def _warn_once(self, what: str, text: str) -> None:
        """Once, until it has changed."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", text)

    # -- what goes

    def _dispatch(self, due: list[Task], *, unbounded: bool) -> int:
        """Hand tasks to the senders, as many as may be begun now; how many that were."""
        places = _BATCH - len(self._running)
        self._is_cut_short = len(due) > places
        if not unbounded:
            places = min(places, self.budget.sends_left() - len(self._running))
        if self.backoff.n_errors:
            places = min(places, 1 - len(self._running))  # one finds out whether the store is back
        if not due or places <= 0:
            return 0
        n_begun = 0
        self.fence.check(surely=unbounded)
        for task in self.due_tasks.interleaved(due):
            if places <= n_begun or self._stopped.is_set() or self._is_resting():
                break
            if any(one.is_busy for one in task.files) or (task.is_large and not self._has_room_for_large()):
                continue
            n_begun += 1
            self._begin(task, unbounded)
        return n_begun

    def _has_room_for_large(self) -> bool:
        """Whether a sender is left for what is small, should a large task begin: a new small log waits for no gigabytes."""
        return sum(task.is_large for task in self._running.values()) < max(1, self.config.sends_in_flight - 1)

    def _begin(self, task: Task, unbounded: bool) -> None:
        for tracked in task.files:
            tracked.is_busy, tracked.restart_reason = True, ""
        with self._running_lock:
            self._n_running += 1
        keeps = [self.tracker.unsealed(one.record.path) for one in task.files]
        if task.what == "clean":
            future = self._executor.submit(self._clean, task.files, keeps)
        else:
            (tracked,), (keep,) = task.files, keeps
            future = self._executor.submit(self._send_or_seal, tracked, task, unbounded, keep, self.tracker.stale(tracked.record))
        self._running[future] = task
        future.add_done_callback(self._on_done)
        if future.done():
            self._collect()

    def _on_done(self, _: Future[bool]) -> None:
        with self._running_lock:
            self._n_running -= 1
            has_room = self._n_running < self.config.sends_in_flight
        if has_room:
            self._wake()

    def _clean(self, files: Sequence[TrackedFile], keeps: Sequence[frozenset[int]]) -> bool:
        """Delete the segments of sealed files, in a thread of the executor; False if that was not begun."""
        if self._stopped.is_set() or self._is_resting():
            return False
        # Of those that are not sealed any more, more was sent in this very turn: the next seal is going to have that.
        self.sender.clean([(one.record, keep) for one, keep in zip(files, keeps, strict=True) if one.record.state == "sealed"])
        return True

    def _send_or_seal(
        self, tracked: TrackedFile, task: Task, unbounded: bool, keep: frozenset[int], stale: frozenset[int]
    ) -> bool:
        """Send or seal one file, in a thread of the executor. False if the task was not begun.

        `keep`, `stale`: see SegmentSender.seal().
        """
        record = tracked.record
        if self._stopped.is_set() or self._is_resting():
            return False
        if task.what == "seal":
            if needs_segments(tracked):
                self._send_segments(tracked, unbounded=True, all_of_it=True)
            if not self._stopped.is_set():
                if self.sender.seal(record, self._now(), copied_from=tracked.source, keep=keep, stale=stale):
                    self._state_db.save([record])
                elif self.due_tasks.is_final:
                    raise StillGrowing("it grows while it is sealed: it stays in segments until its program has ended")
        elif record.rule == "append":
            self._send_segments(tracked, unbounded=unbounded, all_of_it=self.due_tasks.is_final, is_large=task.is_large)
        else:
            self._send_whole(tracked)
        return True

    def _send_segments(self, tracked: TrackedFile, *, unbounded: bool, all_of_it: bool, is_large: bool = False) -> None:
        record, found, config = tracked.record, tracked.found, self.config
        assert found is not None
        n_beyond = 0
        until_s = self._clock() + _LARGE_SLICE_S if is_large and not self.due_tasks.is_final else math.inf
        while not self._stopped.is_set() and n_beyond < _MOST_BEYOND:
            if self.sender.has_all_of(record):
                tracked.no_cut_at = found.size
                return
            n_beyond += record.acked >= found.size
            is_scarce = not unbounded and self.budget.left() < self.budget.per_hour / 100
            max_bytes = config.segment_bytes * (_LARGE_SEGMENTS if is_scarce else 1)
            if not self.sender.send_segment(record, max_bytes=max_bytes, all_of_it=all_of_it, save=self._save):
                tracked.no_cut_at = found.size
                return
            if self._clock() >= until_s:
                return
            if not unbounded and (found.size - record.acked < config.segment_bytes or self.budget.left() < self.budget.burst / 2):
                return

    def _save(self, record: Record) -> None:
        self._state_db.save([record])

    def _send_whole(self, tracked: TrackedFile) -> None:
        record, found = tracked.record, tracked.found
        assert found is not None
        name, source = check_name(record.path), self.folder / record.at
        if record.rule == "replace":
            status, crc = self.sender.send_copy(name, source)
        else:
            is_alike = record.state == "sealed" and (record.size, record.mtime_ns) == (found.size, found.mtime_ns)
            is_there = is_alike or self._is_new_state_db
            status, crc = self.sender.send_whole(name, source, copied_from=tracked.source, is_there=is_there)
        record.size, record.mtime_ns, record.device, record.inode = (
            status.st_size,
            status.st_mtime_ns,
            status.st_dev,
            status.st_ino,
        )
        record.acked, record.crc32c, record.state, record.sealed_s = status.st_size, crc, "sealed", self._now()
        self._state_db.save([record])

    # -- what came of it

    def _collect(self) -> None:
        done = [one for one in self._running if one.done()]
        self.budget.ended(sum(self._running[one].what != "clean" for one in done))
        for future in done:
            task = self._running.pop(future)
            for tracked in task.files:
                tracked.is_busy = False
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
            self._file_trouble.pop(tracked.record.at, None)
        if task.what == "clean":
            self.tracker.cleaned([one for one in task.files if one.record.state == "sealed"])
            return
        (tracked,) = task.files
        if self.due_tasks.is_final:
            tracked.n_ends += 1
            if task.what == "seal":
                tracked.next_end_s = self._clock() + tracked.n_ends
        if tracked.record.state == "sealed" and task.what == "seal":
            self.tracker.sealed(tracked)
        else:
            self.tracker.sent(tracked, self._clock())
            if tracked.record.rule == "once":
                self._space_versions(tracked)

    def _space_versions(self, tracked: TrackedFile) -> None:
        """Have the next version of a file that is sent whole wait, twice as long each time: one that grows costs its square."""
        if tracked.version_inode != tracked.record.inode:  # backups that are numbered anew: another file each time
            tracked.n_versions, tracked.version_inode = 0, tracked.record.inode
        tracked.n_versions += 1
        wait_s = max(self.config.settle_s, self.config.max_lag_s) * 2.0 ** min(tracked.n_versions - 1, _MOST_DOUBLINGS)
        tracked.next_version_s = self._clock() + wait_s
        if tracked.n_versions == 2:
            path = tracked.record.at
            pattern = f"*{os.path.splitext(path)[1]}" if os.path.splitext(path)[1] else path
            self._warn_once(
                f"versions {path}",
                f"{printable(path)} has changed since it was sent, and was sent whole again; its next versions come more seldom. "
                f"If it only grows, a rule sends what is new: Rule({pattern!r}, 'append'), or --rule '{pattern}=append'",
            )

    def _failed(self, tracked: TrackedFile, error: Exception) -> None:
        """A trouble of this file alone: the others go on, and it is tried again, ever more slowly."""
        record = tracked.record
        if isinstance(error, FileNotFoundError) and not isinstance(error, StoreError):
            return  # it was deleted or renamed just now: the next look will say which
        tracked.is_settled = False
        if isinstance(error, PrefixChanged) and record.rule == "append":
            tracked.restart_reason = str(error)  # the next look begins it anew
            return
        self._postpone(tracked)
        tracked.n_ends += isinstance(error, StillGrowing)
        if isinstance(error, PrefixChanged):
            return
        self._file_trouble[record.at] = str(error)
        if tracked.n_errors == 1:
            log.warning("%s is not in the store yet: %s; it is tried again, and the others go on", printable(record.at), error)

    # -- saying so

    def _postpone(self, tracked: TrackedFile) -> None:
        tracked.n_errors += 1
        tracked.source = None  # what waits for it waits no longer
        wait_s = job_wait_s(tracked.n_errors, self.config.retry, self._rng)
        tracked.not_before_s = self._clock() + (min(wait_s, _FINAL_WAIT_S) if self.due_tasks.is_final else wait_s)

    def _finish(self) -> None:
        """The end, as soon as nothing is left to send or to seal: the manifest first, then the segments go.

        Also when what is left has failed often enough, or waits for what will never be: then it is not complete.
        """
        tracker, now_s = self.tracker, self._clock()
        self._idle_since_s = now_s if self._idle_since_s is None else self._idle_since_s
        is_stuck = now_s - self._idle_since_s >= _FINAL_IDLE_S
        unsealed = filter(is_unsealed, tracker.files.values()) if self.config.seal_on_close else ()
        pending = {*tracker.active, *tracker.rotated, *unsealed}
        if not is_stuck and not all(one.n_errors >= FINAL_TRIES or self.due_tasks.keeps_growing(one) for one in pending):
            if now_s - self._idle_since_s >= _FINAL_IDLE_S / 3:
                self._break_a_tie()
            return
        if not pending and not self.due_tasks.is_announced:
            self.fence.check(surely=True)
            self.write_manifest("sealed")
            self.due_tasks.is_announced = True
        if pending or is_stuck or all(one.n_errors >= FINAL_TRIES for one in tracker.uncleaned):
            self.is_finished = True
            self.is_complete = not (pending or tracker.uncleaned or tracker.refused or self.scan_trouble)

    def _break_a_tie(self) -> None:
        """Of renamed files each of which needs what is stored under the other's new name, one is sent anew."""
        protected = self.tracker.protected()
        for one in self.tracker.rotated:
            if one.record.at in protected and not one.n_errors:
                one.restart_reason = "it has changed places with another file"
                return

    def write_manifest(self, state: State) -> None:
        """Say how far we are, now."""
        known = {(one.record.path, one.record.generation): one for one in self.tracker.all_files()}
        known.update({(one.record.path, one.record.generation): one for one in self.tracker.uncleaned})
        records = [self.sender.snapshot(known[key].record) for key in sorted(known)]
        self.manifest_writer.write(state, self.fence.epoch, self.report(), records)

    def report(self) -> MirrorReport:
        """How far we are, by the last look at the folder."""
        waiting = [one for one in self.tracker.active if one.since_s is not None]
        now_s = self._clock()
        reasons = (*self.tracker.refused.items(), *self.scan_trouble.items(), *self._file_trouble.items())
        trouble = [f"{printable(path)}: {reason}" for path, reason in reasons]
        if "folder" in self._warned:
            trouble.append(f"the folder {self.folder} is not there")
        if self.backoff.error is not None:
            trouble.append(self.backoff.error)
        if self.fenced is not None:
            trouble.append(str(self.fenced))
        if self.internal_error:
            trouble.append(self.internal_error)
        return MirrorReport(
            uri=str(self.sender.uri),
            writer=self.sender.writer,
            epoch=self.fence.epoch,
            is_complete=self.is_complete,
            n_files=len(self.tracker.files) + len(self.tracker.rotated),
            unsent_files=len(waiting),
            unsent_bytes=sum(one.unsent_bytes for one in waiting),
            sent_bytes=self.sender.sent_bytes,
            n_requests=self.budget.spent,
            lag_s=max((now_s - one.since_s for one in waiting if one.since_s is not None), default=0.0),
            trouble=tuple(trouble),
        )


class StillGrowing(Exception):
    """A file that is to be sealed has more than was sent of it, once more."""


def _is_open(tracked: TrackedFile) -> bool:
    """Whether the store has less of the file than there was of it, or may have."""
    return tracked.record.state not in ("sealed", "deleted")
