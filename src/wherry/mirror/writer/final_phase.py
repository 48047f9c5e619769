"""The last phase of a mirror: after close() was called, until everything is sent and sealed, or cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from wherry.clock import Clock
from wherry.mirror.writer.due import FINAL_TRIES, DueTasks, is_unsealed
from wherry.mirror.writer.file_tracker import FileTracker
from wherry.mirror.writer.folder_scanner import FolderScanner

#: Nothing in this phase waits for longer than this by intention.
_FINAL_IDLE_S = 10.0


@dataclass(eq=False)
class FinalPhase:
    """Decides when a mirror that is being closed is finished. For one thread."""

    tracker: FileTracker
    due_tasks: DueTasks
    scanner: FolderScanner
    clock: Clock
    seals: bool
    #: Closed, and nothing more can be done.
    is_finished: bool = field(default=False, init=False)
    #: Finished, every byte is stored, the manifest says so, and all segments of sealed files are gone.
    is_complete: bool = field(default=False, init=False)
    _idle_since_s: float | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin this phase. What has failed so far is tried again at once."""
        self.due_tasks.final_since_s = self.clock.monotonic_s()
        for tracked in (*self.tracker.all_files(), *self.tracker.uncleaned):
            tracked.n_errors, tracked.not_before_s = 0, 0.0

    def finish_without_folder(self, *, is_running: bool) -> bool:
        """Whether the folder is gone, and with it files that are not sealed. Finished once nothing is running."""
        if not self.scanner.is_missing:
            return False
        if all(one.record.state in ("sealed", "deleted") for one in self.tracker.all_files()):
            return False
        self.is_finished = not is_running
        return True

    def note_busy(self) -> None:
        """Something was begun, or is running."""
        self._idle_since_s = None

    def finish(self, announce: Callable[[], object]) -> None:
        """End, as soon as nothing is left to send or to seal: `announce` writes the last manifest, then the segments go.

        It ends also when what is left has failed often enough, or waits for something that will not happen. It is not complete
        then.
        """
        tracker, now_s = self.tracker, self.clock.monotonic_s()
        self._idle_since_s = now_s if self._idle_since_s is None else self._idle_since_s
        is_stuck = now_s - self._idle_since_s >= _FINAL_IDLE_S
        unsealed = filter(is_unsealed, tracker.files.values()) if self.seals else ()
        pending = {*tracker.active, *tracker.rotated, *unsealed}
        if not is_stuck and not all(one.n_errors >= FINAL_TRIES or self.due_tasks.keeps_growing(one) for one in pending):
            if now_s - self._idle_since_s >= _FINAL_IDLE_S / 3:
                self._break_a_tie()
            return
        if not pending and not self.due_tasks.is_announced:
            announce()
            self.due_tasks.is_announced = True
        if pending or is_stuck or all(one.n_errors >= FINAL_TRIES for one in tracker.uncleaned):
            self.is_finished = True
            self.is_complete = not (pending or tracker.uncleaned or tracker.kinds.refused or self.scanner.trouble)

    def _break_a_tie(self) -> None:
        """Of renamed files each of which needs what is stored under the other's new name, one is sent anew."""
        protected = self.tracker.protected()
        for one in self.tracker.rotated:
            if one.record.at in protected and not one.n_errors:
                one.restart_reason = "it has changed places with another file"
                return
