"""The checkpoint sets of a run, as a table of them shows them: the rows, their order, and which is the best."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.survey import SetState, survey
from wherry.mirror.format.layout import key_for
from wherry.runs.objects.contents import Contents, folder_key, uri_of
from wherry.runs.objects.discovery import Found
from wherry.runs.objects.place import Place
from wherry.runs.records import CheckpointRow
from wherry.runs.shell_words import option_words, shell_word
from wherry.runs.telling import best_of, rank

_OWN: dict[str, Callable[[CheckpointRow], float | None]] = {
    "step": lambda row: row.step,
    "age": lambda row: row.age_s,
    "size": lambda row: row.size_bytes,
}
_MANIFEST = re.compile(r"checkpoints/manifests/([^/]+)\.json")


def checkpoints_of(place: Place, run: Found, now_s: float) -> list[CheckpointRow]:
    """The sets of a run, from the oldest to the newest. StoreError."""
    found = survey(place.store, RunKeys(key_for(folder_key(place, run), "checkpoints")))
    return [_row(one, uri_of(place, run), place.options, now_s) for one in found]


def committed_steps(contents: Contents) -> list[int]:
    """The steps of the sets that are committed and not deleted, in order, as the last listing shows them: without a request."""
    names = (one for name in contents.files if (one := _MANIFEST.fullmatch(name)) is not None)
    there = {name.split("/")[2] for name in contents.files if name.startswith("checkpoints/data/")}
    # A set that was deleted keeps a document in the place of its manifest.
    kept = {SetName.parse(one[1]) for one in names if contents.found.is_cut or one[1] in there}
    return sorted({one.step for one in kept if one is not None})


def _row(one: SetState, uri: str, options: Mapping[str, object], now_s: float) -> CheckpointRow:
    verified, verified_age_s = "when stored" if one.state == "complete" else None, None
    if one.verified is not None:
        verified = "right" if one.verified.is_right else "wrong"
        verified_age_s = None if one.verified.at_s is None else max(0.0, now_s - one.verified.at_s)
    name = str(one.name)
    words = [uri, f"restored-{one.name.step}", *option_words(options), "--which", name]
    command = " ".join(["wherry checkpoints restore", *map(shell_word, words)])
    return CheckpointRow(
        name=name,
        step=one.name.step,
        attempt=one.name.attempt,
        state=one.state,
        is_complete=one.state == "complete",
        age_s=None if one.modified_s is None else max(0.0, now_s - one.modified_s),
        stored_s=one.modified_s,
        size_bytes=one.size_bytes,
        metrics=one.metrics,
        verified=verified,
        verified_age_s=verified_age_s,
        is_pinned=one.is_pinned,
        is_latest=one.is_latest,
        proof=one.proof,
        restore_command=command if one.state == "complete" and verified != "wrong" else "",
    )


@dataclass(frozen=True)
class BestSet:
    """The set with the least (`order` is ``min``) or greatest number of a metric, and the command that restores it."""

    metric: str
    order: str
    row: CheckpointRow
    command: str


def metrics_of(rows: Sequence[CheckpointRow]) -> list[str]:
    """The metrics that the sets were saved with, those that say most first."""
    return sorted({key for row in rows for key in row.metrics}, key=rank)


def sorted_sets(rows: Sequence[CheckpointRow], key: str) -> list[CheckpointRow]:
    """By ``step``, ``age``, ``size`` or a metric; with a ``-`` before it the greatest first. Sets without it come last."""
    name = key.removeprefix("-")
    there = [(value, row) for row in rows if (value := _number(row, name)) is not None and not math.isnan(value)]
    there.sort(key=lambda one: one[0], reverse=key.startswith("-"))
    known = {row.name for _, row in there}
    return [*(row for _, row in there), *(row for row in rows if row.name not in known)]


def _number(row: CheckpointRow, name: str) -> float | None:
    own = _OWN.get(name)
    return row.metrics.get(name) if own is None else own(row)


def best_set(rows: Sequence[CheckpointRow], sort: str = "") -> BestSet | None:
    """The best set that can be restored, of equal ones the newest: by the metric of the order, else by the one that says most.

    Where the name of the metric does not say which way is good, the order does.
    """
    known, wanted = metrics_of(rows), sort.removeprefix("-")
    metric = wanted if wanted in known else known[0] if known else ""
    order = best_of(metric) or ("max" if wanted == metric and sort.startswith("-") else "min")
    good = [row for row in rows if row.restore_command and math.isfinite(row.metrics.get(metric, math.nan))]
    if not good:
        return None
    sign = -1.0 if order == "max" else 1.0
    best = min(good, key=lambda row: (sign * row.metrics[metric], -row.step))
    # The word of the command may mean a set that is damaged, or one whose number is none.
    is_plain = all(row.restore_command and not math.isnan(row.metrics.get(metric, 0.0)) for row in rows if row.is_complete)
    which = f"best:{metric}{':max' if order == 'max' else ''}" if is_plain else best.name
    return BestSet(metric, order, best, best.restore_command.removesuffix(best.name) + shell_word(which))
