"""Data as Markdown, for what shows Markdown (TensorBoard's text dashboard): tables and text that is to stay as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wherry.loggers.values.tables import check_table
from wherry.loggers.values.text import format_json

#: What Markdown takes for markup; HTML's own characters are written as entities.
_MARKUP = re.compile(r"[\\`*_{}\[\]()#+!|~]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown_table(
    columns: Sequence[object], rows: Sequence[Sequence[object]], name: str = "Table", *, max_rows: int | None = None
) -> str:
    """A table of rows: n x len(columns). Rows after `max_rows` are left out, and their number is said.

    Values that are no text are written as `format_json` does. ValueError for a row of another length.
    """
    checked = check_table([str(column) for column in columns], rows, name)
    shown = checked if max_rows is None else checked[:max_rows]
    lines = [_row(columns), "|" + " --- |" * max(len(columns), 1), *map(_row, shown)]
    if len(shown) < len(checked):
        lines += ["", f"{len(checked) - len(shown)} more rows are not shown."]
    return "\n".join(lines)


def code_block(text: str) -> str:
    """A text shown as it is, whatever is in it: indented, as no fence can be broken that way."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else format_json(value)
    for character, entity in _ENTITIES.items():
        text = text.replace(character, entity)
    return "<br>".join(_MARKUP.sub(r"\\\g<0>", text).splitlines())
