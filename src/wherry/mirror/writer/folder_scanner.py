"""Scans the mirrored folder as often as that costs little, and tells the file tracker what is there."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from wherry.clock import Clock
from wherry.mirror.format.rules import Rules
from wherry.mirror.report import printable
from wherry.mirror.writer.file_tracker import FileTracker
from wherry.mirror.writer.scan import scan

log = logging.getLogger("wherry.mirror")

#: A scan of the folder, and what follows, takes at most this share of the time.
_SCAN_SHARE = 0.01
#: While tasks are running, or more is due than one batch takes, at most this share.
_BUSY_SCAN_SHARE = 0.1


class FolderScanner:
    """Scans one folder again and again. For one thread.

    Each trouble is logged once, and again when it has passed and come back.
    """

    def __init__(self, folder: Path, tracker: FileTracker, rules: Rules, max_lag_s: float, clock: Clock) -> None:
        self._folder = folder
        self._tracker = tracker
        self._clock = clock
        self._max_lag_s = max_lag_s
        self._warned: set[str] = set()
        self._scanned_s = self._cost_s = 0.0
        self._check_rules_at_s = clock.monotonic_s() + max(60.0, 10 * max_lag_s)
        self.rules = rules
        #: The folder was not there, or was no folder, at the last scan.
        self.is_missing = False
        #: The folder was there at some scan.
        self.has_scanned = False
        #: The last call of scan() scanned, and did not put it off.
        self.is_fresh = False
        #: Path -> why it could not be read at the last scan.
        self.trouble: Mapping[str, str] = {}

    @property
    def interval_s(self) -> float:
        """How long to wait between two scans while nothing is running."""
        return max(0.02, min(1.0, self._max_lag_s / 10), self._cost_s / _SCAN_SHARE)

    def scan(self, *, is_busy: bool) -> bool:
        """Scan the folder and update the tracker. `is_busy`: not if that was done a short while ago. Whether it was done."""
        self.is_fresh = not is_busy or time.perf_counter() - self._scanned_s >= self._cost_s / _BUSY_SCAN_SHARE
        if self.is_fresh:
            self._scan()
            self._scanned_s = time.perf_counter()
        return self.is_fresh

    def _scan(self) -> None:
        began_s = time.perf_counter()
        found = scan(self._folder)
        was_missing, self.is_missing = self.is_missing, found is None
        if found is None:
            if not was_missing:
                what = "no folder" if os.path.lexists(self._folder) else "not there"
                log.warning("the folder %s is %s: the mirror waits for it", self._folder, what)
            return
        if was_missing:
            log.info("the folder %s is there", self._folder)
        for path, reason in found.trouble.items():
            shown = printable(str(self._folder / path))
            self.warn_once(f"scan {path}", f"{shown} cannot be read: {reason}; the rest is mirrored")
        self.trouble = found.trouble
        for path in found.symlinks:
            self.warn_once(f"link {path}", f"{printable(path)} is a symbolic link, which is not followed: it is not mirrored")
        self._tracker.update(found, self._clock.monotonic_s())
        self.has_scanned = True
        self._cost_s = time.perf_counter() - began_s
        if self._clock.monotonic_s() > self._check_rules_at_s:
            self._check_rules_at_s = float("inf")
            for rule in self.rules.unmatched():
                self.warn_once(f"rule {rule.pattern}", f"the rule {rule.pattern!r} ({rule.kind}) has matched no file so far")

    def warn_once(self, what: str, text: str) -> None:
        """Log the text, unless something was logged under the name `what` before."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", text)
