"""What is to be done with which file of a mirror, and in which order; and when, after close(), nothing is left to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wherry.clock import Clock
from wherry.mirror.mirror_config import MirrorConfig
from wherry.mirror.writer.file_tracker import FileTracker
from wherry.mirror.writer.joining import WORTH_JOINING_BYTES
from wherry.mirror.writer.scan import is_being_written
from wherry.mirror.writer.tracked_file import TrackedFile

What = Literal["send", "seal", "clean"]

#: A file that is kept open for writing is waited for so many times `max_lag_s`; there are programs that never close theirs.
_OPEN_FILE_LAGS = 10
#: Files with fewer unsent bytes than this are sent last when the request budget is short.
_QUIET_BYTES = 4096
#: Segments are sent a little early, because the next scan comes a little late.
_EARLY = 0.9
#: A larger send keeps a sender busy for long: such sends must not take all senders, nor all of the budget.
_LARGE_BYTES = 2**20
#: Where both kinds wait for the budget, so many small tasks are begun for each large one.
_SMALL_FOR_A_LARGE = 4
#: At the end, a file that fails by itself is tried so often.
FINAL_TRIES = 3
#: At the end a store or a file that fails is tried again after this long at most: close() waits.
FINAL_WAIT_S = 2.0
#: At the end, a file that still grows is sent again as often, and for this long: its program may be about to stop.
_FINAL_GROWTH_S = 5.0
#: Nothing at the end waits for longer than this by intention.
_FINAL_IDLE_S = 10.0
#: So many files are cleaned in one task: the segments of all are listed once, and deleted together where the store can do that.
_CLEANED_TOGETHER = 10_000


@dataclass(frozen=True, eq=False)
class Task:
    """One thing to do: send what is new of a file, seal it, or delete the segments of sealed files.

    `files` is one file, or several that are cleaned together. `n_bytes` are those to be read and sent, at most.
    """

    what: What
    files: tuple[TrackedFile, ...]
    urgency: float
    n_bytes: int = 0

    @property
    def is_large(self) -> bool:
        """Whether it may take long."""
        return self.n_bytes >= _LARGE_BYTES


@dataclass(eq=False)
class DueTasks:
    """Decides by what the file tracker knows what is due, and at the end whether anything is. For one thread."""

    tracker: FileTracker
    config: MirrorConfig
    folder: Path
    clock: Clock
    #: Since when the end is under way, by the mirror's clock; None: it is not.
    final_since_s: float | None = field(default=None, init=False)
    #: The last manifest is written: segments of sealed files need not stay for readers any more.
    is_announced: bool = field(default=False, init=False)
    #: Closed, and nothing more can be done.
    is_finished: bool = field(default=False, init=False)
    #: Finished, every byte is stored, the manifest says so, and all segments of sealed files are gone.
    is_complete: bool = field(default=False, init=False)
    _n_small: int = field(default=0, init=False)
    #: Since when, at the end, nothing was begun or running.
    idle_since_s: float | None = field(default=None, init=False)

    @property
    def is_final(self) -> bool:
        """Whether the end is under way: every byte is sent, then all is sealed."""
        return self.final_since_s is not None

    def tasks(self, *, force: bool) -> list[Task]:
        """All tasks that may be begun now, the most urgent first. `force`: send every whole record, however new."""
        protected = self.tracker.protected()
        tasks = [*self._sends(protected, force), *self._rotated(protected), *self._last_seals(protected), *self._cleanings()]
        # What has failed by itself must not be what all depends on.
        return sorted(tasks, key=lambda task: (any(one.n_errors for one in task.files), -task.urgency))

    def interleaved(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks so that large ones get a share, and small ones never wait for all large ones."""
        small, large = ([one for one in tasks if one.is_large is is_large][::-1] for is_large in (False, True))
        while small or large:
            is_large_next = large and (not small or self._n_small >= _SMALL_FOR_A_LARGE)
            self._n_small = 0 if is_large_next else self._n_small + 1
            yield (large if is_large_next else small).pop()

    def keeps_growing(self, tracked: TrackedFile) -> bool:
        """Whether, at the end, the file is still growing after it was waited for long enough."""
        since_s = self.clock.monotonic_s() if self.final_since_s is None else self.final_since_s
        return tracked.n_ends >= FINAL_TRIES and self.clock.monotonic_s() - since_s >= _FINAL_GROWTH_S

    def is_open(self, path: str, age_s: float) -> bool:
        """Whether a file that is sent whole is still being written, by a writer who pauses."""
        return age_s < self.config.max_lag_s * _OPEN_FILE_LAGS and is_being_written(self.folder / path)

    def _may_be_begun(self, tracked: TrackedFile) -> bool:
        is_given_up = self.is_final and tracked.n_errors >= FINAL_TRIES
        return not tracked.is_busy and tracked.not_before_s <= self.clock.monotonic_s() and not is_given_up

    def _sends(self, protected: set[str], force: bool) -> Iterator[Task]:
        for tracked in filter(self._may_be_begun, self.tracker.active):
            if tracked.found is None or tracked.since_s is None:
                continue
            age_s, n_bytes = self.clock.monotonic_s() - tracked.since_s, tracked.unsent_bytes
            if tracked.record.rule == "append":
                is_due, urgency = self._is_growing_due(tracked, age_s, force), _urgency(age_s, n_bytes)
            else:
                is_due = tracked.record.at not in protected and self._is_whole_due(tracked, age_s, force)
                urgency = _urgency(age_s)
            if is_due:
                yield Task("send", (tracked,), urgency, n_bytes)

    def _is_growing_due(self, tracked: TrackedFile, age_s: float, force: bool) -> bool:
        """Whether the next segment is to be cut."""
        if self.is_final:
            if self.keeps_growing(tracked):
                return False
            if not self.config.seal_on_close:
                return True
        is_much = tracked.unsent_bytes >= self.config.segment_bytes
        return tracked.may_have_more and (force or self._is_late(age_s) or is_much)

    def _is_whole_due(self, tracked: TrackedFile, age_s: float, force: bool) -> bool:
        """Whether a file that is sent whole may be sent now. One that never stands still is copied between two changes."""
        if tracked.record.rule == "replace":
            is_first = tracked.is_settled and tracked.record.state == "new"
            return self.is_final or force or self._is_late(age_s) or is_first
        if self.is_final or tracked.source is not None:
            return True
        is_finished = tracked.is_settled and self.clock.monotonic_s() >= tracked.next_version_s
        return is_finished and not self.is_open(tracked.record.at, age_s)

    def _is_late(self, age_s: float) -> bool:
        return age_s >= self.config.max_lag_s * _EARLY

    def _rotated(self, protected: set[str]) -> Iterator[Task]:
        for tracked in filter(self._may_be_begun, self.tracker.rotated):
            quiet_s = self.clock.monotonic_s() - tracked.changed_s - self.config.max_lag_s
            is_due = self.is_final or (tracked.is_settled and quiet_s >= 0)
            if tracked.found is not None and is_due and tracked.record.at not in protected:
                yield Task("seal", (tracked,), _urgency(quiet_s), tracked.found.size)

    def _last_seals(self, protected: set[str]) -> Iterator[Task]:
        if not self.is_final or not self.config.seal_on_close:
            return
        for tracked in filter(self._may_be_begun, self.tracker.files.values()):
            is_due = is_unsealed(tracked) and not self.keeps_growing(tracked) and self.clock.monotonic_s() >= tracked.next_end_s
            if is_due and tracked.record.at not in protected:
                yield Task("seal", (tracked,), _urgency(0.0), 0 if tracked.found is None else tracked.found.size)

    def _cleanings(self) -> Iterator[Task]:
        """Files whose clean-up has failed are cleaned alone, so that they hold up no other file."""
        together: list[TrackedFile] = []
        for tracked in filter(self._may_be_begun, self.tracker.uncleaned):
            is_over = self.clock.wall_s() - tracked.record.sealed_s >= self.config.grace_s
            if tracked.record.state != "sealed" or not (is_over or self.is_announced):
                continue
            if tracked.n_errors:
                yield Task("clean", (tracked,), _urgency(0.0))
            else:
                together.append(tracked)
        for start in range(0, len(together), _CLEANED_TOGETHER):
            yield Task("clean", tuple(together[start : start + _CLEANED_TOGETHER]), _urgency(0.0))

    def begin_end(self) -> None:
        """Begin the end: close() was called. What has failed so far is tried again at once."""
        self.final_since_s = self.clock.monotonic_s()
        for tracked in (*self.tracker.all_files(), *self.tracker.uncleaned):
            tracked.n_errors, tracked.not_before_s = 0, 0.0

    def finish_without_folder(self, *, is_running: bool) -> bool:
        """Whether files were not sealed before the folder went. Finished once nothing is running."""
        if all(one.record.state in ("sealed", "deleted") for one in self.tracker.all_files()):
            return False
        self.is_finished = not is_running
        return True

    def finish(self, announce: Callable[[], object], *, is_all_read: bool) -> None:
        """End, as soon as nothing is left to send or to seal: `announce` writes the last manifest, then the segments go.

        It ends also when what is left has failed often enough, or waits for something that will not happen. It is not complete
        then, nor where a part of the folder could not be read (`is_all_read`).
        """
        tracker, now_s = self.tracker, self.clock.monotonic_s()
        self.idle_since_s = now_s if self.idle_since_s is None else self.idle_since_s
        is_stuck = now_s - self.idle_since_s >= _FINAL_IDLE_S
        unsealed = filter(is_unsealed, tracker.files.values()) if self.config.seal_on_close else ()
        pending = {*tracker.active, *tracker.rotated, *unsealed}
        if not is_stuck and not all(one.n_errors >= FINAL_TRIES or self.keeps_growing(one) for one in pending):
            if now_s - self.idle_since_s >= _FINAL_IDLE_S / 3:
                self._break_a_tie()
            return
        if not pending and not self.is_announced:
            announce()
            self.is_announced = True
        if pending or is_stuck or all(one.n_errors >= FINAL_TRIES for one in tracker.uncleaned):
            self.is_finished = True
            self.is_complete = not (pending or tracker.uncleaned or tracker.kinds.refused or not is_all_read)

    def _break_a_tie(self) -> None:
        """Of renamed files each of which needs what is stored under the other's new name, one is sent anew."""
        protected = self.tracker.protected()
        for one in self.tracker.rotated:
            if one.record.at in protected and not one.n_errors:
                one.restart_reason = "it has changed places with another file"
                return


def _urgency(age_s: float, n_bytes: int = 0) -> float:
    """When the budget is short, quiet files wait longest: ten times as long as a file with 4 MiB unsent, but not for ever."""
    return max(1.0, age_s) * (1.0 + math.log2(1.0 + n_bytes / _QUIET_BYTES))


def needs_segments(tracked: TrackedFile) -> bool:
    """Whether a file that is to be sealed goes in segments first. A file without segments is one put, if it does not change."""
    record, n_bytes = tracked.record, 0 if tracked.found is None else tracked.found.size
    if record.has_segments or tracked.n_ends:
        return True
    if record.state == "sealed" or record.base:  # it was sealed, and may have grown since: a small one is sent whole again
        return n_bytes > record.acked and n_bytes >= WORTH_JOINING_BYTES
    # Where segments of an earlier file of this name go on behind the plain object, that must not be replaced before this one has
    # a chain of its own, which readers then prefer.
    return record.generation > 1 and record.at == record.path


def is_unsealed(tracked: TrackedFile) -> bool:
    """Whether it is a growing file that has no plain object, or has grown since."""
    record = tracked.record
    is_behind = record.state == "live" or (record.state == "sealed" and tracked.since_s is not None)
    return record.rule == "append" and is_behind and tracked.found is not None
