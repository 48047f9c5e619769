"""rail_of(): the runs that stand beside the charts, to go to one, to choose some, and to show or hide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wherry.runs import RunRow
from wherry.web.drawing.colours import Mark, marks_of

#: Of more runs nobody reads the names one by one: the search reaches the others.
_MOST_ROWS = 300


@dataclass(frozen=True)
class Rail:
    """The rows, in the order of their ids; `n_found` runs pass the search, and `n_all` are known. `marks`: by ids."""

    rows: Sequence[RunRow]
    n_found: int
    n_all: int
    find: str
    marks: Mapping[str, Mark]


def rail_of(rows_shown: Sequence[RunRow], rows_known: Sequence[RunRow], find: str) -> Rail:
    """The runs that a page shows, and of the others that are known those whose name or id has `find` in it."""
    shown = {row.id: row for row in rows_shown}
    known = {row.id: row for row in rows_known} | shown
    found = {row.id: row for row in known.values() if find.lower() in row.name.lower() or find.lower() in row.id.lower()}
    others = sorted((row for row in found.values() if row.id not in shown), key=_by_id)[: max(0, _MOST_ROWS - len(shown))]
    rows = sorted([*shown.values(), *others], key=_by_id)
    # The marks of what is shown are those of its charts.
    marks = marks_of([row.id for row in rows]) | marks_of(list(shown))
    return Rail(rows, len(found | shown), len(known), find, marks)


def _by_id(row: RunRow) -> tuple[str, str]:
    return row.id, row.name
