"""Tables: as narrow as the terminal that shows them; whole in a pipe, for the program that reads it."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence

from wherry.cli.arguments import print_note, print_out
from wherry.cli.shell.terminal_output import columns

#: A cell with less room than this says nothing.
_LEAST_COLUMNS = 12
_LEFT_OUT = "..."


def width_of(text: str) -> int:
    """The columns that a terminal needs for it."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shortened(text: str, width: int | None) -> str:
    """The text in so many columns, without its middle where it is too long: names differ at both ends."""
    if width is None or width_of(text) <= width:
        return text
    room = max(0, width - len(_LEFT_OUT))
    head, tail = text, text
    while width_of(head) > room - room // 2:
        head = head[:-1]
    while width_of(tail) > room // 2:
        tail = tail[1:]
    return f"{head}{_LEFT_OUT}{tail}"[: max(1, width)]


def fitting(
    names: Sequence[str], widths: dict[str, int], width: int | None, *, first: Iterable[str]
) -> tuple[list[str], list[str]]:
    """The columns that fit, in their order, and the others. Those that come `first` are the last to go; the first one stays."""
    if width is None:
        return list(names), []
    kept: set[str] = set()
    left = width
    for name in dict.fromkeys((*first, *names)):
        if not kept or widths[name] + 2 <= left:
            kept.add(name)
            left -= widths[name] + (2 if len(kept) > 1 else 0)
    return [name for name in names if name in kept], [name for name in names if name not in kept]


def show_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str], first: Iterable[str]) -> None:
    """Write a table to stdout; which columns had no room goes to stderr."""
    lines, left_out = table_lines(titles, rows, right=right, first=first)
    for line in lines:
        print_out(line)
    note_left_out(left_out)


def note_left_out(names: Sequence[str]) -> None:
    """Say which columns had no room, if any."""
    if names:
        print_note(f"not shown, as the terminal is too narrow: {', '.join(names)}")


def table_lines(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str], first: Iterable[str]
) -> tuple[list[str], list[str]]:
    """The lines of a table with its titles (n_rows x n_titles), and the titles of the columns for which there is no room.

    `right`: columns of numbers. The last column is text, and is shortened before it is left out.
    """
    width, last = columns(), titles[-1]
    table = [tuple(titles), *rows]
    widths = {title: max(width_of(row[at]) for row in table) for at, title in enumerate(titles)}
    shown, left_out = fitting(titles, widths, width, first=first)
    if width is not None and last in left_out:
        room = width - sum(widths[title] + 2 for title in shown)
        if room >= _LEAST_COLUMNS:
            widths[last] = room
            shown, left_out = [*shown, last], [title for title in left_out if title != last]
    if len(shown) == 1 and width is not None:
        widths[shown[0]] = min(widths[shown[0]], width)
    lines = []
    for row in table:
        cells = []
        for title in shown:
            text = shortened(row[titles.index(title)], widths[title] if width is not None else None)
            padding = " " * (widths[title] - width_of(text))
            cells.append(padding + text if title in right else text + padding)
        lines.append("  ".join(cells).rstrip())
    return lines, left_out
