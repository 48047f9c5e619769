"""A job prunes its own run: after its saves, in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from wherry.checkpoints.prune import Pruner, PruneReport
from wherry.errors import WherryError
from wherry.posix.thread_pool import wait_for_end

log = logging.getLogger("wherry.checkpoints")


class Retention:
    """Prunes when it is told of a save, one prune at a time, in a thread. What is in the way is logged, and raised nowhere.

    `pruner` is called when the first prune is due.
    """

    def __init__(self, pruner: Callable[[], Pruner]) -> None:
        self._new_pruner = pruner
        self._pruner: Pruner | None = None
        self._thread: threading.Thread | None = None
        self._said = ""

    def saved(self) -> None:
        """A set is being saved: prune in the background what the sets before it have made superfluous."""
        if self._thread is not None and self._thread.is_alive():
            return  # the next save prunes for this one
        self._thread = threading.Thread(target=self.prune, daemon=True, name="wherry-prune")
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter ends: whoever prunes next does this, too
            self._thread = None

    def finish(self) -> None:
        """Wait for the prune under way, and prune once more, for the sets that are committed by now."""
        if self._thread is not None:
            wait_for_end(self._thread)
        self.prune()

    def prune(self) -> PruneReport | None:
        """Prune now, in this thread. None if that failed."""
        try:
            self._pruner = self._pruner or self._new_pruner()
            report = self._pruner.prune()
        except (WherryError, OSError) as error:
            self._say(f"the run is not pruned for now: {error}")
            return None
        if report.stopped is not None:
            self._say(f"the run is not pruned: {report.stopped}")
        return report

    def _say(self, text: str) -> None:
        if text != self._said:  # once, and not at each save
            log.warning("%s", text)
        self._said = text
