"""The checkpoint sets of a run as lines of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from wherry.checkpoints.protocol.commit import some_ranks
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.survey import SetState
from wherry.cli.arguments import printable
from wherry.cli.shell.narrow_table import show_table
from wherry.quantities import age_text, size_text
from wherry.runs.telling import best_of, rank

#: A line names so many ranks at most.
_NAMED_RANKS = 10
#: More columns than this a line has no room for; --json has all.
_MOST_METRICS = 3
_NUMBERS = ("STEP", "AGE", "SIZE", "OBJECTS", "RANKS")


def show_sets(sets: Sequence[SetState], now_s: float) -> None:
    """Write a line for each set to stdout, as wide as the terminal."""
    metrics = sorted({name for one in sets for name in one.metrics}, key=rank)[:_MOST_METRICS]
    best = {name: one.name for name in metrics if (one := _best(sets, name)) is not None}
    titles = [*_NUMBERS, *map(printable, metrics), "STATE", "VERIFIED", "PROOF"]
    titles.insert(1, "ATTEMPT")
    numbers = {*_NUMBERS, *map(printable, metrics)}
    rows = (_row(one, metrics, best, now_s) for one in sets)
    show_table(titles, rows, right=numbers, first=("STEP", "STATE", "AGE", "SIZE"))


def _best(sets: Sequence[SetState], metric: str) -> SetState | None:
    """The newest of the complete sets with the best number of a metric, if its name says which way is good."""
    having = [one for one in sets if one.state == "complete" and math.isfinite(one.metrics.get(metric, math.nan))]
    if not having or (order := best_of(metric)) is None:
        return None
    sign = -1.0 if order == "max" else 1.0
    return min(reversed(having), key=lambda one: sign * one.metrics[metric])


def _row(one: SetState, metrics: Sequence[str], best: Mapping[str, SetName], now_s: float) -> tuple[str, ...]:
    version = f" ({one.name.version})" if one.name.version > 1 else ""
    age = "" if one.modified_s is None else age_text(max(0.0, now_s - one.modified_s))
    notes = [one.proof]
    if one.missing_ranks:
        notes.append(f"missing: rank {some_ranks(one.missing_ranks, _NAMED_RANKS)}")
    if one.failed_ranks:
        notes.append(f"failed: rank {some_ranks(one.failed_ranks, _NAMED_RANKS)}")
    if one.shared_bytes:
        notes.append(f"{size_text(one.shared_bytes)} in older sets")
    notes += ["latest"] * one.is_latest + ["pinned"] * one.is_pinned
    if one.parent is not None:
        notes.append(f"after {one.parent}")
    n_objects, n_ranks = str(one.n_objects or ""), str(one.n_ranks or "")
    size, verified = size_text(one.size_bytes) if one.n_objects else "", "when stored" if one.state == "complete" else ""
    if one.verified is not None:
        verified = "right" if one.verified.is_right else "wrong"
        verified += "" if one.verified.at_s is None else f" {age_text(max(0.0, now_s - one.verified.at_s))} ago"
    numbers = [f"{one.metrics[name]:.5g}" if name in one.metrics else "" for name in metrics]
    numbers = [text + " best" * (best.get(name) == one.name) for name, text in zip(metrics, numbers, strict=True)]
    own = f"{one.name.step}{version}", one.name.attempt, age, size, n_objects, n_ranks
    return (*own, *numbers, one.state, verified, "; ".join(notes))
