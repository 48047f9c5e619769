"""The moment of a point: what the log said then, which media there are, and the checkpoint that one would go back to."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from wherry.errors import WherryError
from wherry.redact import redact
from wherry.runs import CheckpointRow, MediaItem, Run, Series
from wherry.web.ansi import plain

#: How much of a log's end is searched, of how many ranks, and how many lines are shown around the one that was found.
_LOG_BYTES = 2 * 2**20
_MOST_RANKS = 8
_LINES_AROUND = 8
#: FileLogger writes `[metric][step=12]: ...`; others begin their lines with a time, which is taken as UTC.
_STEP = re.compile(r"\[step=(-?\d{1,18})\]")
_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class LogLines:
    """Lines of one rank's log; `found`: the number of the line that belongs to the moment, None if no line says so."""

    rank: int | None
    lines: Sequence[str]
    found: int | None


@dataclass(frozen=True)
class Moment:
    """What belongs to a step. `trouble`: what could not be read."""

    step: int
    t: float | None
    value: float | None
    attempt: int
    logs: Sequence[LogLines]
    media: Sequence[MediaItem]
    checkpoint: CheckpointRow | None
    trouble: Sequence[str]


def moment_of(run: Run, key: str, step: int) -> Moment:
    """What belongs to the point of `key` at `step`, or at the last step before it that has one."""
    series = run.series(key)
    at = _index(series, step)
    t = float(series.t[at]) if at is not None else None
    step = int(series.step[at]) if at is not None else step
    trouble: list[str] = []
    try:
        logs = _logs(run, step, t)
    except (WherryError, OSError) as error:
        logs = []
        trouble.append(f"the log: {redact(str(error))}")
    try:
        checkpoint = last_before(run.checkpoints(), step)
    except (WherryError, OSError) as error:
        checkpoint = None
        trouble.append(f"the checkpoints: {redact(str(error))}")
    value = float(series.value[at]) if at is not None else None
    attempt = 1 + sum(1 for restart in series.restarts if restart <= step)
    return Moment(step, t, value, attempt, logs, run.media(step=step)[:24], checkpoint, trouble)


def last_before(rows: Sequence[CheckpointRow], step: int) -> CheckpointRow | None:
    """The newest complete checkpoint at or before the step whose bytes were verified, else the newest complete one."""
    complete = [row for row in rows if row.is_complete and row.step <= step and row.verified != "wrong"]
    verified = [row for row in complete if row.verified is not None]
    return max(verified or complete, key=lambda row: row.step, default=None)


def lines_near(text: str, step: int, t: float | None) -> tuple[Sequence[str], int | None]:
    """The lines around the one that belongs to the step, or else to its second, and which of them it is; else none."""
    lines = text.split("\n")
    marks = [(int(found[1]), at) for at, line in enumerate(lines) if (found := _STEP.search(line[:300]))]
    if marks and min(marks)[0] <= step <= max(marks)[0]:
        at = next((at for known, at in marks if known == step), max(at for known, at in marks if known <= step))
    elif t is not None and (times := [(when, at) for at, line in enumerate(lines) if (when := _time(line)) is not None]):
        place = bisect.bisect_right(times, (t + 0.5, len(lines))) - 1
        if place < 0 or t > times[-1][0] + 60:
            return [], None
        at = times[place][1]
    else:
        return [], None
    first = max(0, at - _LINES_AROUND)
    return [line[:2000] for line in lines[first : at + _LINES_AROUND + 1]], at - first


def _index(series: Series, step: int) -> int | None:
    import numpy as np

    kept = np.flatnonzero(~series.overwritten & (series.step <= step))
    return int(kept[np.argmax(series.step[kept])]) if len(kept) else None


def _logs(run: Run, step: int, t: float | None) -> list[LogLines]:
    first = run.log(None, max_bytes=_LOG_BYTES)
    found = []
    ranks: list[int | None] = [*first.ranks[:_MOST_RANKS]]
    for rank in ranks or [None]:
        chunk = first if rank is None else run.log(rank, max_bytes=_LOG_BYTES)
        lines, at = lines_near(plain(chunk.text), step, t)
        found.append(LogLines(rank, lines, at))
    return [one for one in found if one.lines]


def _time(line: str) -> float | None:
    found = _TIME.search(line[:100])
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
