"""rail_of(): the runs that stand beside the charts, to go to one, to choose some, and to show or hide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wherry.runs import RunRow
from wherry.web.drawing.colours import Mark, marks_of
from wherry.web.site import Site

#: Of more runs nobody reads the names one by one: the search reaches the others.
_MOST_ROWS = 300


@dataclass(frozen=True)
class Rail:
    """The rows, in the order of their names; `n_found` runs pass the search, and `n_all` are known. `marks`: by ids."""

    rows: Sequence[RunRow]
    n_found: int
    n_all: int
    find: str
    marks: Mapping[str, Mark]


def rail_of(site: Site, ids: Sequence[str], find: str) -> Rail:
    """The runs `ids`, which a page shows, and of the others those whose name or id has `find` in it.

    Only what this viewer has read already: a page of one run asks the store for no other run.
    """
    shown = {run_id: site.run(run_id).row for run_id in ids}
    known = {row.id: row for row in site.listing.known()} | shown
    found = {row.id: row for row in known.values() if find.lower() in row.name.lower() or find.lower() in row.id.lower()}
    others = sorted((row for row in found.values() if row.id not in shown), key=_by_name)[: max(0, _MOST_ROWS - len(shown))]
    rows = sorted([*shown.values(), *others], key=_by_name)
    # The marks of what is shown are those of its charts.
    marks = marks_of([row.id for row in rows]) | marks_of(ids)
    return Rail(rows, len(found | shown), len(known), find, marks)


def _by_name(row: RunRow) -> tuple[str, str]:
    return row.name, row.id
