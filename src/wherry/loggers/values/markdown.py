"""Tables and verbatim text as Markdown, for TensorBoard's text dashboard."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wherry.loggers.values.text import as_text

#: Markdown's special characters, which get a backslash; those of HTML become entities.
_MARKUP = re.compile(r"[\\`*_{}\[\]()#+!|~]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown_table(columns: Sequence[object], rows: Sequence[Sequence[object]], *, max_rows: int | None = None) -> str:
    """A table of rows: n x len(columns). Rows after `max_rows` are left out, and their number is said.

    Values that are no text are written as `format_json` does.
    """
    shown = rows if max_rows is None else rows[:max_rows]
    lines = [_row(columns), "|" + " --- |" * max(len(columns), 1), *map(_row, shown)]
    if len(shown) < len(rows):
        lines += ["", f"{len(rows) - len(shown)} more rows are not shown."]
    return "\n".join(lines)


def code_block(text: str) -> str:
    """A text shown verbatim: indented, as a fence could be closed by the text."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(value: object) -> str:
    text = as_text(value)
    for character, entity in _ENTITIES.items():
        text = text.replace(character, entity)
    return "<br>".join(_MARKUP.sub(r"\\\g<0>", text).splitlines())
