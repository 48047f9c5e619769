"""The table of runs, as the page shows it: its columns, its groups, and what stands in each cell."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wherry.errors import ConfigError
from wherry.runs import KeySummary, RunRow, Where, filters, sort_rows
from wherry.runs.filters import differing, flat
from wherry.runs.telling import best_columns, metric_columns
from wherry.web.view import ROWS_PER_PAGE, TableView
from wherry.web.words import measure, number

#: More columns than this cannot be read side by side; the others can be asked for.
_MOST_DIFFERENT = 8


@dataclass(frozen=True)
class Cell:
    """What a cell says, and what more is said when it is looked at closely. `sub`: the second line."""

    text: str
    sub: str = ""


@dataclass(frozen=True)
class Group:
    """The rows of one value of what the table is grouped by, and the mean of each metric's column with its least and greatest."""

    title: str
    rows: Sequence[RunRow]
    summary: Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """`columns` are names; `groups` hold this page's rows; `n_shown` of `n_all` runs pass the filter. `notes`: what is to be said
    of names that no run has; `faults`: what is wrong with the filter; all rows are shown then.
    `example`: a filter by these runs' names.
    """

    columns: Sequence[str]
    groups: Sequence[Group]
    n_all: int
    n_shown: int
    n_pages: int
    names: Sequence[str]
    notes: Sequence[str] = ()
    faults: Sequence[str] = ()
    example: str = ""


def table_of(rows: Sequence[RunRow], view: TableView) -> Table:
    """The table that the view asks for."""
    passes, faults = _filter_of(view.where)
    shown = sort_rows((row for row in rows if passes is None or passes(row)), view.sort)
    columns = view.columns or default_columns(shown or rows)
    begin = (view.page - 1) * ROWS_PER_PAGE
    asked = [*(passes.names if passes else ()), view.sort.removeprefix("-"), *([view.group] if view.group else ()), *view.columns]
    notes = filters.notes_of(rows, asked)
    if view.group:
        parts: dict[str, list[RunRow]] = {}
        for row in shown:
            parts.setdefault(text_of(value_of(row, view.group)), []).append(row)
        groups = [Group(f"{view.group} = {title}", part, _summary(part, columns)) for title, part in parts.items()]
        return Table(columns, groups, len(rows), len(shown), 1, _names(rows), notes, faults, example_of(rows))
    page = shown[begin : begin + ROWS_PER_PAGE]
    n_pages = max(1, math.ceil(len(shown) / ROWS_PER_PAGE))
    return Table(columns, [Group("", page, {})], len(rows), len(shown), n_pages, _names(rows), notes, faults, example_of(rows))


def _filter_of(text: str) -> tuple[Where | None, list[str]]:
    """The filter, or what is wrong with it: whoever mistypes keeps the table that has the names."""
    try:
        return (Where(text) if text else None), []
    except ConfigError as error:
        return None, [str(error)]


def example_of(rows: Sequence[RunRow]) -> str:
    """A filter that some of these runs pass: of a number that differs, and of the best of a metric."""
    differing = [name for name in different(rows) if _middle(rows, name) is not None]
    middles = {name: _middle(rows, name) for name in (*differing[:1], *best_columns(rows)[:1])}
    signs = {name: ">=" if name.endswith(".max") else "<=" for name in middles}
    terms = [f"{filters.written(name)}{signs[name]}{middle:.4g}" for name, middle in middles.items() if middle is not None]
    return " and ".join(terms) or "lr<1e-3 and loss<2"


def _middle(rows: Sequence[RunRow], name: str) -> float | None:
    numbers = sorted(_numbers(rows, name))
    return numbers[(len(numbers) - 1) // 2] if numbers else None


def _numbers(rows: Sequence[RunRow], name: str) -> list[float]:
    """The finite numbers of a column; a whole number that no float can hold is none."""
    found = [value for row in rows if isinstance(value := value_of(row, name), (int, float)) and not isinstance(value, bool)]
    return [value for value in found if abs(value) <= sys.float_info.max]


def default_columns(rows: Sequence[RunRow]) -> tuple[str, ...]:
    """The hyperparameters that differ, then of the most common metrics the last and the best."""
    return (*different(rows)[:_MOST_DIFFERENT], *metric_columns(rows))


def different(rows: Iterable[RunRow]) -> list[str]:
    """The hyperparameters that differ, by their dotted names; those with few values first, as they were varied on purpose."""
    values: dict[str, set[str]] = {}
    rows = list(rows)
    for row in rows:
        for name, value in flat(row.hparams).items():
            values.setdefault(name, set()).add(text_of(value))
    return sorted(differing(rows), key=lambda name: len(values[name]))


def value_of(row: RunRow, name: str) -> object:
    """What a row has by the name of a column, as `wherry.runs.Where` knows names; None if it has none."""
    found = filters.value_of(row, name)
    return found if filters.is_there(found) else None


def cell(row: RunRow, name: str) -> Cell:
    """The text of a cell; of a metric with its step, and with its NaN counted."""
    value = value_of(row, name)
    if value is None:
        return Cell("")
    if name in flat(row.hparams):
        return Cell(text_of(value))
    if (summary := row.metrics.get(name)) is not None:
        return Cell(measure(name, value), _sub(summary, summary.last_step, with_nan=True))
    key, _, stat = name.rpartition(".")
    if (summary := row.metrics.get(key)) is not None and stat in ("min", "max"):
        return Cell(measure(key, value), _sub(summary, summary.min_step if stat == "min" else summary.max_step))
    return Cell(text_of(value))


def text_of(value: object) -> str:
    """A value as a cell says it, in one line."""
    if isinstance(value, (dict, list, tuple)):
        return number(json.dumps(value, default=str))
    return number(value)


def _sub(summary: KeySummary, step: int | None, *, with_nan: bool = False) -> str:
    """The step. Of a run that was read in part its last number is known, and its least and greatest may be others."""
    words = [] if step is None else [f"at {step:,}"]
    if with_nan and summary.n_nan:
        words.append(f"{summary.n_nan:,} NaN{' or more' if summary.is_partial else ''}")
    if summary.is_partial and words and not with_nan:
        words.append("partly read")
    return " · ".join(words)


def _summary(rows: Sequence[RunRow], columns: Sequence[str]) -> dict[str, Cell]:
    found = {}
    for name in columns:
        if values := _numbers(rows, name):
            mean = sum(values) / len(values)
            spread = f"{number(min(values))} to {number(max(values))}" if min(values) < max(values) else ""
            found[name] = Cell(f"mean {number(mean)}" if spread else number(values[0]), spread)
    return found


def _names(rows: Sequence[RunRow]) -> list[str]:
    """What columns there could be, for the input of names; a thousand at most."""
    names = {name for row in rows for name in flat(row.hparams)}
    keys = {key for row in rows for key in row.metrics}
    return sorted(names)[:500] + sorted(name for key in sorted(keys)[:200] for name in (key, f"{key}.min", f"{key}.max"))
