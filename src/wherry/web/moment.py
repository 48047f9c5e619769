"""The moment of a point: the log lines of all ranks, media, the code of its start, and the checkpoint one would go back to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wherry.errors import WherryError
from wherry.redact import redact
from wherry.runs import CheckpointRow, MediaItem, Run, RunEnvironment, Series
from wherry.web.log_lines import LogLines, When, log_lines

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_T = TypeVar("_T")
#: Each of them costs a request or more: the others are read when they are asked for.
RANKS_AT_ONCE = 8
_MOST_MEDIA = 24
#: A start says what it is made of when it logs first.
_SLACK_S = 1.0


@dataclass(frozen=True)
class Restart:
    """A later start of a run went on at `step`, at the time `t`."""

    step: int
    t: float


@dataclass(frozen=True)
class Moment:
    """What belongs to a step. `start`: how many restarts came before. `ranks` have a log. `trouble`: what could not be read."""

    step: int
    t: float | None
    value: float | None
    start: int
    attempt: int
    n_attempts: int
    ranks: Sequence[int]
    logs: Sequence[LogLines]
    media: Sequence[MediaItem]
    code: RunEnvironment | None
    checkpoint: CheckpointRow | None
    trouble: Sequence[str]


def moment_of(run: Run, key: str, step: int, start: int | None = None, first_rank: int = 0) -> Moment:
    """What belongs to the point of `key` at `step`, or at the last step before it that has one, in the start that counts.

    `start`: that of a branch which was overwritten since, by its number. `first_rank`: the place of the first log that is read.
    """
    series = run.series(key)
    starts, restarts = starts_of(series)
    at = _index(series, starts, step, start)
    trouble: list[str] = []

    def tried(what: str, call: Callable[[], _T]) -> _T | None:
        try:
            return call()
        except (WherryError, OSError) as error:
            trouble.append(f"{what}: {redact(str(error))}")
            return None

    t, value, its_start, n_later = None, None, start or 0, 0
    if at is not None:
        step, value, its_start = int(series.step[at]), float(series.value[at]), int(starts[at])
        t = float(series.t[at]) if series.t[at] == series.t[at] else None
        n_later = len({int(one) for one in starts[(series.step == step) & (starts > its_start)]})
    ranks = tried("the log", lambda: run.log(None, max_bytes=1).ranks) or ()
    when = When(step, t, n_later)
    shown: list[int | None] = [*ranks[first_rank : first_rank + RANKS_AT_ONCE]]
    logs = [tried(f"the log of rank {rank}", lambda rank=rank: log_lines(run, rank, when)) for rank in shown]  # type: ignore[misc]
    environments = tried("environment.json", run.environments) or []
    begun = [one for one in environments if one.t is not None and t is not None and one.t <= t + _SLACK_S]
    sets = tried("the checkpoints", run.checkpoints) or []
    return Moment(
        step=step,
        t=t,
        value=value,
        start=its_start,
        attempt=max(its_start + 1, len(begun)),
        n_attempts=max(len(restarts) + 1, run.row.attempt),
        ranks=ranks,
        logs=[one for one in logs if one is not None and one.lines],
        media=tried("the media", lambda: run.media(step=step)[:_MOST_MEDIA]) or [],
        code=begun[-1] if begun else None,
        checkpoint=last_before([one for one in sets if is_on_branch(one, its_start, restarts)], step),
        trouble=trouble,
    )


def starts_of(series: Series) -> tuple[NDArray[np.int64], Sequence[Restart]]:
    """Of each point how many restarts came before it, and the restarts."""
    import numpy as np

    went_back = np.concatenate(([False], np.diff(series.step) < 0))[: len(series.step)]
    restarts = [Restart(int(series.step[at]), float(series.t[at])) for at in np.flatnonzero(went_back)]
    return np.cumsum(went_back, dtype=np.int64), restarts


def is_on_branch(one: CheckpointRow, start: int, restarts: Sequence[Restart]) -> bool:
    """Whether a set was saved on the way to a point of a start: not behind where that start went back, nor by a later one.

    False is returned only where times tell.
    """
    if one.stored_s is None:
        return True
    left = any(one.stored_s < restart.t and one.step > restart.step for restart in restarts[:start])
    later = start < len(restarts) and one.stored_s >= restarts[start].t
    return not left and not later


def last_before(rows: Sequence[CheckpointRow], step: int) -> CheckpointRow | None:
    """The newest complete checkpoint at or before the step whose bytes were verified, else the newest complete one."""
    complete = [row for row in rows if row.is_complete and row.step <= step and row.verified != "wrong"]
    verified = [row for row in complete if row.verified is not None]
    return max(verified or complete, key=lambda row: row.step, default=None)


def _index(series: Series, starts: NDArray[np.int64], step: int, start: int | None) -> int | None:
    import numpy as np

    is_candidate = series.step <= step
    is_candidate &= ~series.overwritten if start is None else starts == start
    kept = np.flatnonzero(is_candidate)
    return int(kept[np.argmax(series.step[kept])]) if len(kept) else None
