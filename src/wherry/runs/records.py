"""What a reader of runs hands out: frozen records, without a connection to where they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: live: a writer runs. finished: all have closed. lost: one has been silent for long, or is gone. unknown: nothing says it.
RunState = Literal["live", "finished", "lost", "unknown"]
#: The same of one writer.
WriterState = Literal["alive", "finished", "lost", "unknown"]


@dataclass(frozen=True)
class KeySummary:
    """One metric: its last, least and greatest number with their steps, None if it has none; counts of points, NaN, infinities.

    A point that a restart has overwritten counts in none of them. NaN and infinities are points, and neither last nor least nor
    greatest. `is_partial`: only a part of the file was read, or overwritten points may still be among those that are counted.
    """

    last: float | None = None
    last_step: int | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    n_points: int = 0
    n_nan: int = 0
    is_partial: bool = False
    n_inf: int = 0


@dataclass(frozen=True)
class RunRow:
    """One run in a table of runs.

    `id` is its name below the URI that was given, and names it in `Runs.run()`. `age_s`: since its newest object was stored.
    `heard_s`: since the last heartbeat of its mirrors, None without one. `lag_s`: how late its writer was when it last said so.
    `size_bytes` is a lower bound if `size_is_least`, as folders of media and of checkpoints are not listed to their ends.
    `trouble`: what could not be read, and why.
    """

    id: str
    name: str
    uri: str
    state: RunState = "unknown"
    attempt: int = 1
    age_s: float | None = None
    lag_s: float | None = None
    hparams: Mapping[str, object] = field(default_factory=dict)
    metrics: Mapping[str, KeySummary] = field(default_factory=dict)
    size_bytes: int = 0
    size_is_least: bool = False
    cost_per_day_usd: float = 0.0
    trouble: str | None = None
    heard_s: float | None = None

    def aged(self, by_s: float) -> RunRow:
        """The same row as it reads so much later."""
        age_s, heard_s = (None if one is None else one + by_s for one in (self.age_s, self.heard_s))
        return replace(self, age_s=age_s, heard_s=heard_s)

    @property
    def own_name(self) -> str:
        """What the run calls itself, if its id does not end in that; else empty."""
        return "" if self.name == self.id.rpartition("/")[2] else self.name

    def as_json(self) -> dict[str, object]:
        """The same in plain values, by names that stay. Numbers that JSON lacks are in it."""
        return asdict(self)


@dataclass(frozen=True)
class Usage:
    """What this reader has asked of stores so far, and what that costs by list prices. Local folders cost nothing.

    `looks_per_hour`: its budget, how many requests it may make in an hour to look for what is new in one live run, and what these
    cost; 0 of local folders.
    """

    n_lists: int = 0
    n_gets: int = 0
    n_bytes: int = 0
    usd: float = 0.0
    looks_per_hour: int = 0
    looks_usd_per_hour: float = 0.0


@dataclass(frozen=True)
class Truth:
    """How true what is shown is.

    `complete_to_step`: up to here no metric is missing. `newest_point_age_s`: by the time in the newest line. `segments_missing`:
    files of the run with a gap in the store. `checksums_verified`: True if all bytes of the metrics that were read agree with a
    checksum, False if some do not, None if there was none to compare with, for the reason `unverified_because`. `notes`: what is
    wrong, in words.
    """

    complete_to_step: int | None = None
    newest_point_age_s: float | None = None
    writer: WriterState = "unknown"
    segments_missing: int = 0
    checksums_verified: bool | None = None
    notes: Sequence[str] = ()
    unverified_because: str = ""


@dataclass(frozen=True, eq=False)
class Series:
    """The points of one metric, in the order in which they were logged: arrays of one length.

    `step` (int64), `t` (float64, s since 1970, NaN where it is not known), `value` (float64, may be NaN and infinite).
    `overwritten`: points of a branch that a later start of the run went back behind. `restarts`: the steps at which it went on.
    `tail_only`: these are the last points, and the others are being read; `n_total` counts the points that are known to be there.
    """

    key: str
    step: NDArray[np.int64]
    t: NDArray[np.float64]
    value: NDArray[np.float64]
    overwritten: NDArray[np.bool_]
    restarts: Sequence[int] = ()
    n_total: int = 0
    tail_only: bool = False


@dataclass(frozen=True)
class MediaItem:
    """One file of the media index. `path` is what `Run.read_file()` takes. `classes`: label -> name, of a mask."""

    kind: str
    key: str
    step: int
    t: float
    path: str
    size_bytes: int
    shape: Sequence[int] = ()
    #: Of a mask: the path of its image, and its name.
    image: str | None = None
    mask: str | None = None
    classes: Mapping[str, str] = field(default_factory=dict)
    sample_rate_hz: float | None = None
    frames_per_s: float | None = None


@dataclass(frozen=True)
class TableInfo:
    """A logged table: its name, the path for `Run.read_file()`, and its size in bytes."""

    name: str
    path: str
    size_bytes: int


@dataclass(frozen=True)
class TextItem:
    """A logged text."""

    key: str
    step: int
    t: float
    text: str


@dataclass(frozen=True)
class Histogram:
    """A logged histogram: `counts` of the values between neighbours of `edges`, which has one more."""

    key: str
    step: int
    t: float
    edges: Sequence[float]
    counts: Sequence[float]


@dataclass(frozen=True)
class LogChunk:
    """A piece of a log. `after`: give this to the next call, which goes on there. `ranks`: the logs that there are.

    `is_cut`: what comes before `start` was left out. `size_bytes`: of the whole log, as far as it is in the store.
    """

    path: str = ""
    text: str = ""
    start: int = 0
    after: int = 0
    size_bytes: int = 0
    is_cut: bool = False
    ranks: Sequence[int] = ()


@dataclass(frozen=True)
class RunEnvironment:
    """What one start of a run was made of, as it said at `t`. Texts are empty where it did not know. `diff`: to the `commit`."""

    path: str
    t: float | None
    command: str
    host: str
    commit: str
    branch: str
    is_dirty: bool
    diff: str
    diff_is_cut: bool


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint set. `verified`: ``right`` or ``wrong`` when its bytes were last read, ``when stored``, or None.

    `stored_s`: when it was stored, in s since 1970. `verified_age_s`: since its bytes were last read. `restore_command` is empty
    for what cannot be restored.
    """

    name: str
    step: int
    attempt: str
    state: str
    is_complete: bool
    age_s: float | None
    stored_s: float | None
    size_bytes: int
    metrics: Mapping[str, float]
    verified: str | None
    verified_age_s: float | None
    is_pinned: bool
    is_latest: bool
    proof: str
    restore_command: str


@dataclass(frozen=True)
class QueuedUpload:
    """An upload of this machine's spool. `state`: queued, uploading, failed. `sent_bytes` of it have arrived.

    `name`: its URI below the run. `id`: as ``wherry retry`` takes it. `next_try_s`: until it is tried next.
    """

    id: int
    name: str
    uri: str
    state: str
    size_bytes: int
    sent_bytes: int
    attempts: int
    reason: str = ""
    next_try_s: float | None = None


@dataclass(frozen=True)
class WriterView:
    """One writer of a mirror, as its heartbeat manifest says it."""

    name: str
    state: WriterState
    heard_s: float
    lag_s: float
    unsent_bytes: int
    n_files: int


@dataclass(frozen=True)
class UploadsView:
    """What is on its way: of this machine's spool `queued` (those of this run), of other machines `writers`.

    `spool_bytes` are staged in the spool for all runs, `room_bytes` are free on its disk, `bytes_per_s` was its speed of late.
    `trouble`: why the spool cannot be read.
    """

    spool: str = ""
    has_agent: bool = False
    n_queued: int = 0
    n_failed: int = 0
    spool_bytes: int = 0
    room_bytes: int | None = None
    bytes_per_s: float | None = None
    queued: Sequence[QueuedUpload] = ()
    writers: Sequence[WriterView] = ()
    trouble: str | None = None
