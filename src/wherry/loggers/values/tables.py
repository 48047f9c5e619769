"""Tables as destinations get them: columns and rows."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from wherry.loggers.values.size_limits import check_cells


def check_table(columns: Sequence[str], rows: Sequence[Sequence[object]], name: str) -> list[list[object]]:
    """The rows (n x len(columns)) as lists of their own.

    ValueError for a row of another length, which names table and row, and for more cells than `amounts.MAX_CELLS`.
    """
    rows = rows if isinstance(rows, Sized) else list(rows)
    check_cells(len(rows), len(columns), name)
    checked = [list(row) for row in rows]
    for i, row in enumerate(checked):
        if len(row) != len(columns):
            raise ValueError(
                f"table {name!r}: row {i} has {len(row)} values, and there are {len(columns)} columns {list(columns)!r}"
            )
    return checked
