"""Tables and settings as destinations get them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence, Sized
from typing import Any

from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.size_limits import check_cells
from wherry.loggers.values.text import format_json


def check_table(columns: Sequence[str], rows: Sequence[Sequence[object]], name: str) -> list[list[object]]:
    """The rows (n x len(columns)) as lists of their own.

    ValueError, which names table and row, for a row of another length, and for more than `size_limits.MAX_CELLS` cells.
    """
    rows = rows if isinstance(rows, Sized) else list(rows)
    check_cells(len(rows), len(columns), name)
    checked = [list(row) for row in rows]
    for i, row in enumerate(checked):
        if (n := len(row)) != len(columns):
            raise ValueError(f"table {name!r}: row {i} has {n} values, and there are {len(columns)} columns {list(columns)!r}")
    return checked


def plain_cell(value: object) -> object:
    """The value if a tracker's table can hold it: a number, a text, None; else its number, or its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    number = to_number(value)
    return format_json(value) if number is None else number


def free_name(name: str, *taken: Container[str]) -> str:
    """The name, with "_" appended until none of these has it."""
    while any(name in names for names in taken):
        name += "_"
    return name


def joined_names(settings: Mapping[Any, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Each setting with its name; the names of nested settings are joined by "/"."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from joined_names(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value
