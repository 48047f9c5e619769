"""Runs as lines of text: which columns, and how wide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from wherry.cli.arguments import printable
from wherry.cli.shell.narrow_table import fitting, width_of
from wherry.quantities import age_text, size_text
from wherry.runs import KeySummary, RunRow
from wherry.runs.filters import differing, is_there, value_of
from wherry.runs.telling import metric_columns

_MOST_HPARAMS = 8
_LONGEST_CELL = 40
_OWN: dict[str, Callable[[RunRow], str]] = {
    "id": lambda row: row.id,
    "name": lambda row: row.name,
    "state": lambda row: row.state if row.attempt == 1 else f"{row.state}, attempt {row.attempt}",
    "age_s": lambda row: "" if row.age_s is None else age_text(row.age_s),
    "lag_s": lambda row: "" if row.lag_s is None else age_text(row.lag_s),
    "size_bytes": lambda row: f"{'>' if row.size_is_least else ''}{size_text(row.size_bytes)}",
    "cost_per_day_usd": lambda row: f"${row.cost_per_day_usd:.4f}",
}
_TITLES = {
    "id": "RUN",
    "name": "NAME",
    "state": "STATE",
    "age_s": "AGE",
    "lag_s": "LAG",
    "size_bytes": "SIZE",
    "cost_per_day_usd": "USD/DAY",
}


@dataclass
class Table:
    """Lines to print, and the columns that had no room."""

    lines: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def table_of(rows: Sequence[RunRow], wanted: Iterable[str], *, width: int | None) -> Table:
    """The rows as a table: what was asked for, hyperparameters that differ, and some metrics. Of any width if `width` is None."""
    names = ["id", "state", "age_s"]
    names += ["lag_s"] if any(row.lag_s is not None for row in rows) else []
    names += ["size_bytes"]
    names += ["cost_per_day_usd"] if any(row.cost_per_day_usd for row in rows) else []
    chosen = [name for name in dict.fromkeys(wanted) if name not in names]
    names += chosen
    names += [name for name in differing(rows)[:_MOST_HPARAMS] if name not in names]
    names += [name for name in metric_columns(rows) if name not in names]
    names += ["name"] if "name" not in names and any(row.own_name for row in rows) else []  # the first to go
    cells = {name: [printable(_TITLES.get(name, name)), *(cell(row, name) for row in rows)] for name in names}
    if width is not None:  # a program that reads a pipe needs whole names
        cells = {name: list(map(_cut, column)) for name, column in cells.items()}
    widths = {name: max(map(width_of, column)) for name, column in cells.items()}
    shown, left_out = fitting(names, widths, width, first=("id", *chosen, "state"))
    lines = [
        "  ".join(
            cells[name][at].ljust(widths[name]) if name in ("id", "name", "state") else cells[name][at].rjust(widths[name])
            for name in shown
        ).rstrip()
        for at in range(len(rows) + 1)
    ]
    return Table(lines if rows else [], left_out)


def cell(row: RunRow, name: str) -> str:
    """One cell: a least or greatest number with its step."""
    if name in _OWN:
        text = _OWN[name](row)
    else:
        value = value_of(row, name)
        text = _text(value) if is_there(value) else ""
        key, _, aspect = name.rpartition(".")
        summary = row.metrics.get(key)
        if text and aspect in ("min", "max") and summary is not None:
            text = f"{'~' if summary.is_partial else ''}{text}{_at(summary, aspect)}"
    return printable(text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 3]}..."


def _at(summary: KeySummary, aspect: str) -> str:
    step = summary.min_step if aspect == "min" else summary.max_step
    return "" if step is None else f" @{step}"


def _text(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
