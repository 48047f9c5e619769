"""The lines of a log that belong to a moment: by the step that they name, else by their time."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from wherry.runs import Run
from wherry.web.ansi import plain

#: So much of a log is searched at once; where the moment is in a longer one is found by looks at its middle.
_LOG_BYTES = 2 * 2**20
_LOOK_BYTES = 64 * 1024
_MOST_LOOKS = 24
_LINES_AROUND = 8
#: FileLogger writes `[metric][step=12]: ...`; others begin their lines with a time, which is taken as UTC.
_STEP = re.compile(r"\[step=(-?\d{1,18})\]")
_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
#: A log that ends so long before a moment says nothing of it.
_SILENT_S = 60.0


@dataclass(frozen=True)
class When:
    """A moment in a log. `n_later`: how many later starts of the run came by this step again."""

    step: int
    t: float | None
    n_later: int = 0


@dataclass(frozen=True)
class LogLines:
    """Lines of one rank's log. `found`: the place of the line of the moment, None if none is. `by`: what says so."""

    rank: int | None
    lines: Sequence[str]
    found: int | None
    by: str = ""


def log_lines(run: Run, rank: int | None, when: When) -> LogLines:
    """The lines of a rank's log around a moment; none if it says nothing of it. StoreError."""
    chunk = run.log(rank, max_bytes=_LOG_BYTES)
    text = plain(chunk.text)
    low, high = 0, chunk.start
    if high and _is_before(when, text):
        for _ in range(_MOST_LOOKS):
            if high - low <= _LOG_BYTES // 2:
                break
            middle = (low + high) // 2
            look = plain(run.log(rank, after=middle, max_bytes=_LOOK_BYTES).text)
            if _is_before(when, look):
                high = middle
            else:
                low = middle
        text = plain(run.log(rank, after=low, max_bytes=_LOG_BYTES).text)
    return LogLines(rank, *lines_near(text, when))


def lines_near(text: str, when: When) -> tuple[Sequence[str], int | None, str]:
    """The lines around the one that belongs to the moment, which of them it is, and whether its step or its time says so."""
    lines = text.removesuffix("\n").split("\n")
    at, by = _by_step(lines, when), "step"
    if at is None:
        at, by = _by_time(lines, when), "time"
    if at is None:
        return [], None, ""
    first = max(0, at - _LINES_AROUND)
    return [line[:2000] for line in lines[first : at + _LINES_AROUND + 1]], at - first, by


def _steps(lines: Sequence[str]) -> list[tuple[int, int]]:
    return [(int(found[1]), at) for at, line in enumerate(lines) if (found := _STEP.search(line[:300]))]


def _times(lines: Sequence[str]) -> list[tuple[float, int]]:
    return [(t, at) for at, line in enumerate(lines) if (t := _time(line)) is not None]


def _by_step(lines: Sequence[str], when: When) -> int | None:
    marks = _steps(lines)
    if not marks or not min(marks)[0] <= when.step <= max(marks)[0]:
        return None
    visits: list[int] = []  # the first line of the step in each start of the run: between two starts the steps go back
    is_new, last = True, marks[0][0]
    for step, at in marks:
        is_new = is_new or step < last
        if is_new and step == when.step:
            visits.append(at)
            is_new = False
        last = step
    if visits:
        return visits[max(0, len(visits) - 1 - when.n_later)]
    return max(at for step, at in marks if step <= when.step)


def _by_time(lines: Sequence[str], when: When) -> int | None:
    times = _times(lines)
    if when.t is None or not times or when.t > times[-1][0] + _SILENT_S:
        return None
    # Times without a fraction are cut: a line of this second was written before the next one.
    place = bisect.bisect_right(times, (when.t, len(lines))) - 1
    return times[place][1] if place >= 0 else None


def _is_before(when: When, text: str) -> bool:
    """Whether the moment comes before all that a piece of a log says."""
    lines = text.split("\n")
    if marks := _steps(lines):
        return when.step < marks[0][0]
    times = _times(lines)
    return bool(times) and when.t is not None and when.t < times[0][0]


def _time(line: str) -> float | None:
    found = _TIME.search(line[:100])
    if found is None:
        return None
    try:
        whole = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
    return whole + (float(f"0.{found[3]}") if found[3] else 0.0)
