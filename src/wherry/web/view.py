"""The view is the address: what a query says is read here, once, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from wherry.errors import ConfigError
from wherry.web.drawing.curves import AXES, MOST_POINTS, Axis, Wanted

TABS = ("charts", "media", "log", "system", "checkpoints", "uploads")
#: More runs than this in one picture nobody can tell apart, and each is read.
MOST_COMPARED = 50
ROWS_PER_PAGE = 200


@dataclass(frozen=True)
class TableView:
    """The table of runs: its filter, order, grouping, columns (names as `wherry.runs.Where` knows them), and the page."""

    where: str = ""
    sort: str = "id"
    group: str = ""
    columns: tuple[str, ...] = ()
    page: int = 1

    @classmethod
    def of(cls, query: QueryParams) -> TableView:
        """Read it from a query. ConfigError for what is no number."""
        columns = tuple(name.strip() for name in query.get("columns", "").split(",") if name.strip())
        page = max(1, int(_number(query, "page") or 1))
        return cls(query.get("where", "").strip(), _sort_of(query), query.get("group", "").strip(), columns[:50], page)

    def link(self, **changes: object) -> str:
        """The address of the same table with some things changed."""
        own = {"where": self.where, "sort": self.sort, "group": self.group, "columns": ",".join(self.columns), "page": self.page}
        defaults = {"where": "", "sort": "id", "group": "", "columns": "", "page": 1}
        if "page" not in changes:
            own["page"] = 1
        items = {name: value for name, value in (own | changes).items() if value != defaults[name]}
        return "/?" + urlencode(items, errors="replace") if items else "/"


def wanted_of(query: QueryParams) -> Wanted:
    """What a chart asks for. ConfigError for a value that makes no sense."""
    axis = query.get("x", "step")
    if axis not in AXES:
        raise ConfigError(f"x={axis!r} is no axis: use {', '.join(AXES)}")
    low, high = _number(query, "low"), _number(query, "high")
    if low is not None and high is not None and low >= high:
        raise ConfigError(f"low={low:g} must be less than high={high:g}")
    n_points = int(_number(query, "n") or 800)
    half_life = max(0.0, _number(query, "smooth") or 0.0)
    return Wanted(_axis(axis), min(max(n_points, 10), MOST_POINTS), half_life, low, high, query.get("log") == "1")


def run_ids(query: QueryParams, *, most: int = MOST_COMPARED) -> list[str]:
    """The runs that a query names, each once. ConfigError for none, and for more than `most`."""
    found = list(dict.fromkeys(query.getlist("id")))
    if not found:
        raise ConfigError("the address names no run: add ?id=NAME")
    if len(found) > most:
        raise ConfigError(f"the address names {len(found)} runs: choose at most {most}")
    return found


def tab_of(query: QueryParams) -> str:
    """The tab of a run's page. ConfigError for one that there is not."""
    tab = query.get("tab", "charts")
    if tab not in TABS:
        raise ConfigError(f"tab={tab!r} is none: use {', '.join(TABS)}")
    return tab


def whole(query: QueryParams, name: str, default: int | None = None) -> int | None:
    """A whole number of the query. ConfigError for another text."""
    found = _number(query, name)
    return default if found is None else int(found)


def number(query: QueryParams, name: str) -> float | None:
    """A number of the query, None if it is not there. ConfigError for another text."""
    return _number(query, name)


def link(path: str, items: Mapping[str, object | None]) -> str:
    """An address of this page; what is None is left out."""
    given = [(name, value) for name, value in items.items() if value is not None]
    return f"{path}?{urlencode(given, errors='replace')}"


def _sort_of(query: QueryParams) -> str:
    """A name, perhaps with a - before it; a - alone is none."""
    name = query.get("sort", "").strip()
    return name if name.strip("-") else "id"


def _axis(name: str) -> Axis:
    return next(axis for axis in AXES if axis == name)


def _number(query: QueryParams, name: str) -> float | None:
    text = query.get(name)
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        raise ConfigError(f"{name}={text[:40]!r} is no number") from None
    if not math.isfinite(found) or abs(found) > 2**62:
        raise ConfigError(f"{name}={text[:40]!r} is out of range")
    return found
