"""Writes the manifest, as often as that costs little, and never later than the last one has promised."""

from __future__ import annotations

from collections.abc import Iterable

from wherry.checksum import format_crc32c
from wherry.clock import Clock
from wherry.mirror.budget import Budget
from wherry.mirror.format.layout import manifest_name
from wherry.mirror.format.manifest import FileEntry, Manifest, State
from wherry.mirror.mirror_config import MirrorConfig
from wherry.mirror.report import MirrorReport
from wherry.mirror.writer.segment_sender import SegmentSender
from wherry.mirror.writer.state_db import Record

#: Once in so many `max_lag_s`, so that a live run looks alive ...
_EVERY = 2.0
#: ... where it is so small beside what was sent since, or so small at all and no great part of the budget; ...
_SHARE = 0.02
_SMALL_BYTES = 2000
_MANY_REQUESTS = 600
#: ... else later, after so many of those intervals.
_LATEST = 10.0
#: The interval that readers are told is no less: one slow call must not make a running writer seem lost.
_SOONEST_S = 20.0


class ManifestWriter:
    """One writer's manifest. For one thread."""

    def __init__(self, sender: SegmentSender, config: MirrorConfig, budget: Budget, clock: Clock) -> None:
        self._sender = sender
        self._budget = budget
        self._clock = clock
        self._interval_s = max(1.0, _EVERY * config.max_lag_s)
        self._written_s: float | None = None
        self._size_bytes = 0
        self._promised_s = 0.0
        self._sent_bytes = 0

    def is_due(self) -> bool:
        """Whether it is time, and there is a call left for it."""
        if self._written_s is None:
            return True
        age_s = self._clock.monotonic_s() - self._written_s
        is_cheap = self._size_bytes <= _SHARE * (self._sender.sent_bytes - self._sent_bytes)
        has_calls = self._budget.left() >= self._budget.burst / 2  # more than the files need
        is_due = age_s >= self._promised_s or (is_cheap and has_calls and age_s >= self._interval_s)
        return is_due and self._budget.left() >= 1

    def write(self, state: State, epoch: int, report: MirrorReport, records: Iterable[Record]) -> None:
        """Replace the manifest. All files are in one that is sealed, else those with segments."""
        is_frequent = self._size_bytes < _SMALL_BYTES and self._budget.per_hour >= _MANY_REQUESTS
        self._promised_s = max(_SOONEST_S, self._interval_s * (1.0 if is_frequent else _LATEST))
        entries = tuple(
            FileEntry(one.path, one.at, one.rule, one.state, one.generation, one.acked, format_crc32c(one.crc32c))
            for one in records
            if one.state != "new" and (state == "sealed" or one.has_segments)
        )
        manifest = Manifest(
            writer=report.writer,
            epoch=epoch,
            state=state,
            heartbeat_s=self._clock.wall_s(),
            interval_s=self._promised_s,
            lag_s=report.lag_s,
            unsent_bytes=report.unsent_bytes,
            n_files=report.n_files,
            files=entries,
        )
        text = manifest.to_json()
        sent_bytes = self._sender.sent_bytes
        self._sender.send_text(manifest_name(report.writer), text)
        self._written_s, self._size_bytes, self._sent_bytes = self._clock.monotonic_s(), len(text), sent_bytes
