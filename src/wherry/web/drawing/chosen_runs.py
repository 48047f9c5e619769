"""choose(): the runs and metrics that a command line names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate

from wherry.errors import ConfigError, NotFoundError, WherryError
from wherry.runs import Run, RunRow, Runs, sort_rows
from wherry.web.view import MOST_COMPARED

#: So many runs are read side by side.
_AT_ONCE = 8
_MOST_NAMED = 12


@dataclass(frozen=True)
class Choice:
    """Runs by their ids, and names of metrics, from one reader."""

    reader: Runs
    rows: Mapping[str, RunRow]
    keys: Sequence[str]

    @property
    def ids(self) -> list[str]:
        """The ids of the runs, in order."""
        return list(self.rows)

    @property
    def runs(self) -> list[Run]:
        """The runs, in order."""
        return [self.run(one) for one in self.rows]

    def run(self, run_id: str) -> Run:
        """The run. NotFoundError."""
        return self.reader.run(run_id)

    def row(self, run_id: str) -> RunRow:
        """Its row. NotFoundError."""
        if run_id not in self.rows:
            raise NotFoundError("it is not among the chosen runs", operation="read", uri=run_id)
        return self.rows[run_id]

    def read(self) -> None:
        """Read the metrics of all runs whole, several runs at a time. What cannot be read is told by who asks for it then."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._read, self.ids))

    def _read(self, run_id: str) -> None:
        for key in self.keys:
            with suppress(WherryError, OSError):  # chart_data() meets it again, and says so
                self.run(run_id).series(key, whole=True)


def choose(reader: Runs, runs: Sequence[str] = (), keys: Sequence[str] = ()) -> Choice:
    """The runs and metrics that match the names or patterns; all runs, and all metrics but those of the machine, without any.

    NotFoundError for a name that nothing has, with the nearest ones; ConfigError for more runs than can be told apart.
    """
    rows = {row.id: row for row in sort_rows(reader.rows(), "id")}
    if not rows:
        hint = "a run is a folder with metrics.jsonl, hparams.json, logs or checkpoints: see wherry ls"
        raise NotFoundError("there are no runs here", operation="list", uri=", ".join(reader.uris), hint=hint)
    ids = matching(list(rows), _as_ids(rows, runs), "run") if runs else list(rows)
    if len(ids) > MOST_COMPARED:
        raise ConfigError(f"{len(ids):,} runs are too many for one picture: choose at most {MOST_COMPARED} with --runs")
    chosen = {run_id: rows[run_id] for run_id in ids}
    return Choice(reader, chosen, _keys(reader, chosen, keys))


def matching(names: Sequence[str], patterns: Iterable[str], what: str) -> list[str]:
    """The names that are meant, in the order of the patterns: the name that is written so, else all that match the pattern.

    ``*``, ``?`` and ``[...]`` are as in a shell; upper and lower case are the same in a pattern. As a shell passes over hidden
    files, only a pattern that begins with the word matches what is below ``system/``. NotFoundError for one without a match, with
    the nearest names.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if pattern in names:
            found[pattern] = None
            continue
        match = re.compile(translate(pattern), re.IGNORECASE).match
        has_system = pattern.lower().startswith("system")
        mine = [name for name in names if match(name) and (has_system or not name.startswith("system/"))]
        if not mine:
            raise NotFoundError(f"no {what} is called {pattern!r}", hint=_nearest(pattern, names))
        found |= dict.fromkeys(mine)
    return list(found)


def _as_ids(rows: Mapping[str, RunRow], names: Iterable[str]) -> Iterable[str]:
    """The names, and in place of one that runs call themselves the ids of those."""
    for name in names:
        of_name = [row.id for row in rows.values() if row.name == name]
        yield from of_name if of_name and name not in rows else [name]


def _keys(reader: Runs, rows: Mapping[str, RunRow], patterns: Sequence[str]) -> list[str]:
    known = sorted({key for row in rows.values() for key in row.metrics})
    try:
        return matching(known, patterns or ["*"], "metric")
    except NotFoundError:  # a row may know the last metrics only
        known = _all_keys(reader, rows)
        return matching(known, patterns, "metric") if patterns else [key for key in known if not key.startswith("system/")]


def _all_keys(reader: Runs, rows: Mapping[str, RunRow]) -> list[str]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sorted({key for keys in pool.map(lambda run_id: reader.run(run_id).keys(), rows) for key in keys})


def _nearest(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, n=_MOST_NAMED, cutoff=0.4) or sorted(names)
    if not near:
        return "there are none"
    more = f" and {len(near) - _MOST_NAMED:,} more" if len(near) > _MOST_NAMED else ""
    return f"{'the nearest' if len(near) < len(names) else 'there are'}: {', '.join(near[:_MOST_NAMED])}{more}"
