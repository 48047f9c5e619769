"""When to look for what is new: in phase with the writer, and within a budget of requests.

A mirror sends a segment of a file about every `max_lag_s`. So the next one is looked for, by its name, when it is due: a request
for one object, which costs a twelfth of a listing. The listing, which alone shows new files, comes once a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from wherry.errors import NotFoundError
from wherry.mirror.format.layout import Assembly, Segment, key_for, segment_name
from wherry.runs.objects.place import version_of
from wherry.runs.objects.reading_store import GET_USD, LIST_USD
from wherry.runs.records import RunState
from wherry.store import ObjectMeta, ObjectStore

#: Requests of one reader for one live run.
PER_HOUR = 900
_BURST = 60.0
LIST_EVERY_S = 60.0
_LISTS_PER_HOUR = 3600 / LIST_EVERY_S
#: 0.0003 USD an hour for the listings, as much for the others.
USD_PER_HOUR = _LISTS_PER_HOUR * LIST_USD + (PER_HOUR - _LISTS_PER_HOUR) * GET_USD
#: What has ended may be continued, or sealed.
_LIST_ENDED_EVERY_S = 600.0
#: For so long after its last sign of life a lost run is listed as a live one is: most jobs are started again soon, or never.
_SOON_BACK_S = 3600.0
#: Then its manifest is asked for: 360 requests an hour, and beside the listings within the budget. Later once a minute.
_WATCH_EVERY_S = 10.0
#: A folder of this machine costs nothing but a moment.
LIST_LOCAL_EVERY_S = 1.0
#: The first look comes so long after the segment is due; it takes a moment to be stored.
_AFTER_S = 0.5
#: Then the waits double, up to this: a point is seen at most ten seconds late.
_LONGEST_S = 8.0
#: Before the pace of a file is known, it is that of a mirror with its default settings.
_PACE_S = 30.0
#: A store's clock that differs by more says nothing about when a segment came.
_SKEW_S = 10.0


@dataclass
class LostWatch:
    """Looks whether the writer of a lost run is back: whether its `manifest` is another object by now. Times as in `Follower`."""

    manifest: ObjectMeta
    every_s: float
    due_s: float

    @classmethod
    def of(cls, manifest: ObjectMeta, silent_s: float, now_s: float) -> LostWatch:
        """A watch that begins now; `silent_s`: since the last heartbeat."""
        every_s = _WATCH_EVERY_S if silent_s < _SOON_BACK_S else LIST_EVERY_S
        return cls(manifest, every_s, now_s + every_s)

    def look(self, store: ObjectStore, now_s: float) -> bool:
        """Whether it has written again; one request, of the price of a get."""
        self.due_s = now_s + self.every_s
        try:
            there = store.head(self.manifest.key)
        except NotFoundError:
            return True
        return version_of(there) != version_of(self.manifest)


def list_every_s(state: RunState, silent_s: float | None) -> float:
    """How often a run is listed; `silent_s`: since its writer was heard of last."""
    is_active = state == "live" or (state == "lost" and silent_s is not None and silent_s < _SOON_BACK_S)
    return LIST_EVERY_S if is_active else _LIST_ENDED_EVERY_S


class LookBudget:
    """Requests that may be made: `per_hour` of them, some of them at once. For one thread at a time."""

    def __init__(self, per_hour: int, clock: Callable[[], float]) -> None:
        self._rate = per_hour / 3600.0
        self._clock = clock
        self._left = _BURST
        self._filled_s = clock()

    def take(self, n: int = 1) -> bool:
        """Whether `n` requests may be made now; then they are counted."""
        now_s = self._clock()
        self._left = min(_BURST, self._left + (now_s - self._filled_s) * self._rate)
        self._filled_s = now_s
        if self._left < n:
            return False
        self._left -= n
        return True


@dataclass
class Follower:
    """Looks for the next segment of one growing file of a mirror. Times are those of `now_s`, by the wall clock."""

    root: str
    assembly: Assembly
    #: Where the last segment ends; None while it is not known.
    end: int | None
    due_s: float = 0.0
    _wait_s: float = field(default=_AFTER_S, init=False)

    def expect(self, now_s: float) -> None:
        """Work out when the next segment is due, from the times of the last ones."""
        times = [one.modified_s for one in self.assembly.segments[-9:] if one.modified_s is not None]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        pace_s = max(1.0, median(gaps)) if gaps else _PACE_S
        last_s = times[-1] if times and 0 <= now_s - times[-1] < _SKEW_S + pace_s else now_s
        self._wait_s = _AFTER_S
        self.due_s = max(now_s + _AFTER_S, last_s + pace_s + _AFTER_S)

    def look(self, store: ObjectStore, now_s: float) -> Segment | None:
        """The next segment, if it is there by now; one request, of the price of a get."""
        if self.end is None or not self.assembly.segments:
            return None
        last = self.assembly.segments[-1]
        key = key_for(self.root, segment_name(last.writer, last.path, last.generation, self.end, last.compression))
        try:
            meta = store.head(key)
        except NotFoundError:
            self.due_s = now_s + self._wait_s
            self._wait_s = min(2 * self._wait_s, _LONGEST_S)
            return None
        length = None if last.compression else meta.size_bytes
        return Segment(
            key, last.writer, last.path, last.generation, self.end, last.compression, meta.size_bytes, meta.modified_s, length,
            meta.etag, meta.crc32c,
        )  # fmt: skip


def next_due_s(followers: Sequence[Follower], list_s: float) -> float:
    """When the next look is due."""
    return min([list_s, *(one.due_s for one in followers)])
