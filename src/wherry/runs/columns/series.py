"""Series: the points of one metric from all attempts of a run, with the branches that later starts have overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wherry.runs.columns.points import Points
from wherry.runs.records import Series

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: More restarts are not ticks on a chart; a hostile file may go back at every second line.
_MOST_RESTARTS = 1000


def series_of(key: str, found: Sequence[Points], *, n_total: int | None = None, tail_only: bool = False) -> Series:
    """Put pieces together, in the order in which they were logged."""
    import numpy as np

    if len(found) == 1:  # of a finished run: metrics that share steps and times go on sharing them
        step, t, value = found[0].step, found[0].t, found[0].value
    else:
        step = np.concatenate([np.empty(0, np.int64), *(one.step for one in found)])
        t = np.concatenate([np.empty(0, np.float64), *(one.t for one in found)])
        value = np.concatenate([np.empty(0, np.float64), *(one.value for one in found)])
    back = np.flatnonzero(step[1:] < step[:-1]) + 1
    overwritten = _overwritten(step, back) if len(back) else np.zeros(len(step), np.bool_)
    restarts = [int(one) for one in step[back][:_MOST_RESTARTS]]
    return Series(key, step, t, value, overwritten, restarts, max(len(step), n_total or 0), tail_only)


def _overwritten(step: NDArray[np.int64], back: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which points a later start has gone back behind; `back`: where one begins."""
    import numpy as np

    most = np.iinfo(np.int64).max
    went_back = np.full(len(step), most)
    went_back[back] = step[back]
    # The least step that the run has gone on at behind each point: from there on all before is overwritten.
    behind = np.minimum.accumulate(went_back[::-1])[::-1]
    overwritten = step >= np.append(behind[1:], most)[: len(step)]
    found: NDArray[np.bool_] = overwritten & (step < most)
    return found
