"""What the media tab shows: of one name the files of one step, histograms over steps, tables, texts."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from wherry.runs import Histogram, MediaItem, Run, TableInfo, TextItem
from wherry.web.view import whole

#: What one page shows of them at most; the table has its own pages.
_MOST_ITEMS, _MOST_TEXTS, TABLE_ROWS = 64, 20, 50
_MOST_TEXT = 20_000


@dataclass(frozen=True)
class Shown:
    """An image with the masks over it, or another file by itself."""

    item: MediaItem
    masks: Sequence[MediaItem] = ()


@dataclass(frozen=True)
class TablePage:
    """Some rows of a logged table, from the number `first` on."""

    info: TableInfo
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    first: int


@dataclass(frozen=True)
class MediaView:
    """`keys` are the names of media. Of `key`, the files at `step` are shown, whose neighbours are `earlier` and `later`."""

    keys: Sequence[str]
    key: str
    steps: Sequence[int]
    step: int | None
    earlier: int | None
    later: int | None
    shown: Sequence[Shown]
    n_items: int
    histograms: Mapping[str, Sequence[Histogram]]
    texts: Sequence[TextItem]
    tables: Sequence[TableInfo]
    table: TablePage | None


def media_view(run: Run, query: QueryParams) -> MediaView:
    """What the query asks for; without a name the first one, without a step the last one."""
    items = run.media()
    keys = list(dict.fromkeys(item.key for item in items if item.kind != "mask"))
    key = query.get("key", "") if query.get("key", "") in keys else (keys[0] if keys else "")
    mine = [item for item in items if item.key == key and item.kind != "mask"]
    steps = sorted({item.step for item in mine})
    step, at = _step(steps, whole(query, "step"))
    here = [item for item in mine if item.step == step]
    masks = [item for item in items if item.kind == "mask" and item.step == step]
    shown = [Shown(item, [mask for mask in masks if mask.image == item.path]) for item in here[:_MOST_ITEMS]]
    histograms: dict[str, list[Histogram]] = {}
    for one in run.histograms():
        histograms.setdefault(one.key, []).append(one)
    tables = run.tables()
    return MediaView(
        keys,
        key,
        steps,
        step,
        steps[at - 1] if at > 0 else None,
        steps[at + 1] if at + 1 < len(steps) else None,
        shown,
        len(here),
        histograms,
        _last_texts(run),
        tables,
        _table(run, tables, query),
    )


def _step(steps: Sequence[int], wanted: int | None) -> tuple[int | None, int]:
    """The last step at or before the wanted one, and its place."""
    if not steps:
        return None, 0
    at = len(steps) - 1 if wanted is None else max(0, bisect.bisect_right(steps, wanted) - 1)
    return steps[at], at


def _last_texts(run: Run) -> list[TextItem]:
    texts = run.texts()[-_MOST_TEXTS:]
    return [TextItem(one.key, one.step, one.t, one.text[:_MOST_TEXT]) for one in reversed(texts)]


def _table(run: Run, tables: Sequence[TableInfo], query: QueryParams) -> TablePage | None:
    info = next((table for table in tables if table.name == query.get("table")), tables[0] if tables else None)
    if info is None:
        return None
    first = max(0, whole(query, "first", 0) or 0)
    columns, rows = run.table_rows(info.name, first=first, n_rows=TABLE_ROWS)
    return TablePage(info, columns, rows, first)
