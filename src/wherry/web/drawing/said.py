"""said(): how much of the data a chart shows, in words. `static/chart.js` says the same on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def said(data: Mapping[str, object], *, has_part: bool = False, has_clip: bool = False) -> list[str]:
    """What `chart_data()` has left out, and why. `has_part`: only a part of x is shown; `has_clip`: outliers are outside."""
    every: Sequence[Mapping[str, Any]] = data["runs"]  # type: ignore[assignment]
    runs = [run for run in every if "lines" in run]
    words = _counts(runs, has_part=has_part, has_clip=has_clip) if runs else []
    bands: Sequence[Mapping[str, Any]] = data["bands"]  # type: ignore[assignment]
    words += [f"{band['group']}: {band['n_runs']} of {band['n_of']} run{'' if band['n_of'] == 1 else 's'}" for band in bands]
    words += _of_bands(bands, has_part=has_part) if bands else []
    if n_missing := sum("missing" in run for run in every):
        words.append(f"{n_missing} run{' has' if n_missing == 1 else 's have'} no such metric")
    return [*words, *(f"{run['id']}: {run['trouble']}" for run in every if "trouble" in run)]


def _of_bands(bands: Sequence[Mapping[str, Any]], *, has_part: bool) -> list[str]:
    def total(name: str) -> int:
        return sum(band[name] for band in bands)

    words = [f"mean, least and greatest of {total('n_points'):,} points" + (" of this part" if has_part else "")]
    n, n_of = sum(len(band["x"]) for band in bands), total("n_places")
    if n < n_of:
        words.append(f"{n:,} of {n_of:,} places of x, spikes kept")
    if any(band["tail_only"] for band in bands):
        words.append("only the end of the file; the rest is being read")
    if count := total("n_not_finite"):
        words.append(f"{count:,} NaN or infinite, not in it")
    if count := total("n_not_positive"):
        words.append(f"{count:,} not above 0, not in it")
    return words


def _counts(runs: Sequence[Mapping[str, Any]], *, has_part: bool, has_clip: bool) -> list[str]:
    def total(count: Callable[[Mapping[str, Any]], int]) -> int:
        return sum(map(count, runs))

    n, n_of = total(lambda run: run["lines"][0]["n"]), total(lambda run: run["lines"][0]["n_of"])
    words = [f"{n:,} of {n_of:,}, spikes kept" if n < n_of else f"all {n:,} point{'' if n == 1 else 's'}"]
    if has_part:
        words.append(f"of this part; {total(lambda run: run['n_total']):,} in all")
    if any(run["tail_only"] for run in runs):
        words.append("only the end of the file; the rest is being read")
    marks = Counter[str]()
    for run in runs:
        marks.update({name: mark["n"] for name, mark in run["marks"].items()})
    words += [f"{marks[name]:,} {name}" for name in ("NaN", "+inf", "-inf") if marks[name]]
    if count := total(lambda run: run["n_not_positive"]):
        words.append(f"{count:,} not above 0, not drawn")
    if has_clip and (count := total(lambda run: run["n_clipped"])):
        words.append(f"{count:,} outside of the axis")
    if count := total(lambda run: run["n_restarts"]):
        words.append(f"{count:,} restart{'' if count == 1 else 's'}")
    if count := total(lambda run: run["n_checkpoints"]):
        words.append(f"{count:,} checkpoint{'' if count == 1 else 's'}")
    if count := total(lambda run: sum(line["n_of"] for line in run["lines"] if line["kind"] == "older")):
        words.append(f"{count:,} overwritten by a restart, pale")
    return words
