"""Tables as destinations get them: columns and rows."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.size_limits import check_cells
from wherry.loggers.values.text import format_json


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


def plain_cell(value: object) -> object:
    """The value if a tracker's table can hold it: a number, a text, None; else its number, or its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    number = to_number(value)
    return format_json(value) if number is None else number
