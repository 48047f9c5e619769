"""The row of a run: from its summary and what was written since, else from its hyperparameters and the end of its metrics."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from wherry.errors import PermanentError, StoreError
from wherry.loggers.files.run_summary import SUMMARY, KeyFold, MetricsFold, fold_of, parse_object, parse_summary
from wherry.runs.objects.contents import Contents, Part, contents_of, run_state, uri_of
from wherry.runs.objects.discovery import Found
from wherry.runs.objects.logical_file import LogicalFile
from wherry.runs.objects.place import Place
from wherry.runs.objects.reading_store import GIGABYTE_MONTH_USD, LIST_USD
from wherry.runs.records import KeySummary, RunRow

#: So much is read to bring a summary up to date; behind more, only the end is.
_MOST_REST_BYTES = 2 * 2**20
#: The end of a file of metrics: some hundred lines.
_TAIL_BYTES = 256 * 2**10
#: A run without a summary whose metrics are no longer than this is read whole.
_MOST_WHOLE_BYTES = 2**20
_HOUR_S = 3600.0
_MONTH_DAYS = 30.4


@dataclass
class Digest:
    """What is known of the metrics and hyperparameters of a run."""

    name: str = ""
    state: str | None = None
    hparams: dict[str, object] = field(default_factory=dict)
    metrics: dict[str, KeySummary] = field(default_factory=dict)
    size_bytes: int = 0
    last_t: float | None = None
    #: As the steps in the metrics tell, which go back where a run is resumed in its own folder.
    n_starts: int = 1
    trouble: list[str] = field(default_factory=list)


def row_of(place: Place, found: Found, run_id: str, now_s: float) -> RunRow:
    """The row of a run. What cannot be read of it is in the row's `trouble`; no StoreError is raised."""
    try:
        contents = _contents(place, found)
    except (StoreError, OSError) as error:
        return RunRow(run_id, _name(place, found), uri_of(place, found), trouble=words_of(error))
    return row_from(place, contents, run_id, now_s)


def _name(place: Place, found: Found) -> str:
    return found.folder.rpartition("/")[2] or place.uri.prefix.rpartition("/")[2] or place.uri.root


def row_from(place: Place, contents: Contents, run_id: str, now_s: float) -> RunRow:
    """The row of a run that was put together. What cannot be read of it is in the row's `trouble`; no StoreError is raised."""
    found, name, uri = contents.found, _name(place, contents.found), uri_of(place, contents.found)
    try:
        digest = digest_of(place, contents)
        state = run_state(contents, place, digest.state, now_s)
    except (StoreError, OSError) as error:
        return RunRow(run_id, name, uri, trouble=words_of(error))
    digest.trouble += [f"{path}: {why}" for path, why in (*contents.broken.items(), *contents.trouble.items())][:3]
    open_manifests = [one for one in contents.manifests.values() if one.state_at(now_s) == "open"]
    n_bytes = max(contents.size_bytes, digest.size_bytes)
    return RunRow(
        id=run_id,
        name=digest.name or name,
        uri=uri,
        state=state,
        attempt=max(contents.attempt, digest.n_starts),
        age_s=None if contents.newest_s is None else max(0.0, now_s - contents.newest_s),
        heard_s=None if contents.heartbeat_s is None else max(0.0, now_s - contents.heartbeat_s),
        lag_s=max((one.lag_s for one in open_manifests), default=None),
        hparams=digest.hparams,
        metrics=digest.metrics,
        size_bytes=n_bytes,
        size_is_least=found.is_cut and not digest.size_bytes,
        cost_per_day_usd=0.0 if place.is_local else _cost(contents, n_bytes, now_s, is_live=state == "live"),
        trouble="; ".join(digest.trouble) or None,
    )


def _contents(place: Place, found: Found) -> Contents:
    """The run, with its manifests unless its summary says that it has ended: then they would add nothing."""
    contents = contents_of(place, found, with_manifests=False)
    summary = _summary(place, contents, "")
    is_ended = (
        summary is not None and summary.get("state") == "finished" and not any(one.segments for one in contents.files.values())
    )
    return contents if is_ended else contents_of(place, found)


def words_of(error: BaseException) -> str:
    """An error in a few words: a store's without the operation."""
    return error.message if isinstance(error, StoreError) else str(error)


@dataclass
class _Read:
    """The metrics of one part; `is_partial`: of the end of its file only."""

    part: Part
    file: LogicalFile | None
    fold: MetricsFold
    is_partial: bool


def digest_of(place: Place, contents: Contents) -> Digest:
    """Read the summaries of all parts of a run, and what was written since."""
    digest = Digest()
    found = [one for part in contents.parts if (one := _tried(place, contents, part, digest)) is not None]
    below: dict[str, float] = {}
    first: dict[str, int] = {}
    for one in reversed(found):  # what a later attempt has overwritten is known before the earlier one is counted
        _take_back(one, below, first)
        for key, summary in summaries(one.fold, is_partial=one.is_partial).items():
            shown = f"{one.part.label}{key}"
            later = digest.metrics.get(shown)
            digest.metrics[shown] = summary if later is None else joined(summary, later)
    starts = Counter[int]()
    for one in found:
        if one.fold.keys and not one.part.child:
            starts[one.part.rank] += 1 + one.fold.n_restarts
    digest.n_starts = max(starts.values(), default=1)
    return digest


def _tried(place: Place, contents: Contents, part: Part, digest: Digest) -> _Read | None:
    try:
        return _take_part(place, contents, part, digest)
    except (PermanentError, OSError) as error:  # a refusal of one object is no reason to show nothing of the others
        digest.trouble.append(f"{part.name('metrics.jsonl')}: {words_of(error)}")
        return None


def _take_back(one: _Read, below: dict[str, float], first: dict[str, int]) -> None:
    """Count only what no later attempt has overwritten. `first`: the step at which the next attempt began with each metric."""
    label, lowest = one.part.label, {key: fold.first_step for key, fold in one.fold.keys.items()}
    bounds: dict[str, float] = {}
    for key, fold in one.fold.keys.items():
        shown = f"{label}{key}"
        if fold.end_step is not None and (next_step := first.get(shown)) is not None and next_step < fold.end_step:
            below[shown] = min(below.get(shown, math.inf), next_step)
        if (bound := below.get(shown)) is not None:
            bounds[key] = bound
            fold.go_back(int(bound))
    if one.fold.is_cut and one.file is not None and not one.is_partial and one.fold.n_bytes <= _MOST_REST_BYTES:
        one.fold.read_again(one.file.read, bounds)
    for key, fold in one.fold.keys.items():
        step = fold.first_step if lowest[key] is None else lowest[key]
        if step is not None:
            first[f"{label}{key}"] = step


def _summary(place: Place, contents: Contents, folder: str) -> dict[str, object] | None:
    meta = contents.plain(f"{folder}/{SUMMARY}" if folder else SUMMARY)
    return None if meta is None else parse_summary(place.fetch_small(meta))


def _take_part(place: Place, contents: Contents, part: Part, digest: Digest) -> _Read:
    summary = _summary(place, contents, part.folder) or {}
    hparams = summary.get("hparams")
    if not isinstance(hparams, dict):
        hparams = read_hparams(place, contents, part)
        if not hparams and (meta := contents.plain(part.name("hparams.json"))) and parse_object(place.fetch_small(meta)) is None:
            digest.trouble.append(f"{meta.key.rpartition('/')[2]}: it is no JSON object")
    digest.hparams |= {} if part.child or part.rank else hparams
    fold = fold_of(summary)
    is_partial, file = False, None
    if (assembly := contents.files.get(part.name("metrics.jsonl"))) is not None:
        file = LogicalFile(place, assembly)
        is_partial = _bring_up_to_date(file, fold)
        if fold.n_bytes and not (fold.n_lines or fold.keys):  # a last line that is half written is not counted in either
            digest.trouble.append(f"{part.name('metrics.jsonl')}: no line of it is a JSON object")
    if not part.label:
        digest.name, digest.state = _text(summary.get("name")) or digest.name, _text(summary.get("state")) or None
        size_bytes = summary.get("size_bytes")
        digest.size_bytes = size_bytes if isinstance(size_bytes, int) else 0
    if fold.last_t is not None:
        digest.last_t = max(digest.last_t or fold.last_t, fold.last_t)
    if fold.keys_cut:
        digest.trouble.append(f"only the first {len(fold.keys)} metrics are shown")
    return _Read(part, file, fold, is_partial)


def _bring_up_to_date(file: LogicalFile, fold: MetricsFold) -> bool:
    """Take what the file has behind the summary; True if only its end was read."""
    size_bytes = file.size_bytes
    if fold.n_bytes > size_bytes:  # the file was begun anew since
        fold.begin_anew()
    rest = size_bytes - fold.n_bytes
    if rest <= (_MOST_REST_BYTES if fold.n_bytes else _MOST_WHOLE_BYTES):
        data = file.read(fold.n_bytes, size_bytes)
        fold.add(data[: data.rfind(b"\n") + 1])
        return False
    tail = file.read(size_bytes - _TAIL_BYTES, size_bytes)
    fold.add(tail[tail.find(b"\n") + 1 : tail.rfind(b"\n") + 1])
    return True


def summaries(fold: MetricsFold, *, is_partial: bool) -> dict[str, KeySummary]:
    """The metrics of a fold, as a row has them."""
    return {key: _key_summary(one, is_partial=is_partial or one.is_cut) for key, one in fold.keys.items()}


def _key_summary(one: KeyFold, *, is_partial: bool) -> KeySummary:
    numbers = one.last, one.last_step, one.min, one.min_step, one.max, one.max_step
    return KeySummary(*numbers, n_points=one.n_points, n_nan=one.n_nan, n_inf=one.n_inf, is_partial=is_partial)


def joined(before: KeySummary, one: KeySummary) -> KeySummary:
    """A metric of two attempts: the last number is that of the later one."""
    last = one if one.last is not None else before
    least = min((each for each in (before, one) if each.min is not None), key=lambda each: each.min or 0.0, default=one)
    most = max((each for each in (before, one) if each.max is not None), key=lambda each: each.max or 0.0, default=one)
    return KeySummary(
        *(last.last, last.last_step, least.min, least.min_step, most.max, most.max_step),
        n_points=before.n_points + one.n_points,
        n_nan=before.n_nan + one.n_nan,
        n_inf=before.n_inf + one.n_inf,
        is_partial=before.is_partial or one.is_partial,
    )


def read_hparams(place: Place, contents: Contents, part: Part) -> dict[str, object]:
    """The hyperparameters of a part; none if the file is not there or holds no JSON object."""
    meta = contents.plain(part.name("hparams.json"))
    if meta is None:
        return {}
    return parse_object(place.fetch_small(meta)) or {}


def _text(value: object) -> str:
    return value[:1000] if isinstance(value, str) else ""


def _cost(contents: Contents, n_bytes: int, now_s: float, *, is_live: bool) -> float:
    """USD a day by list prices: the room, and of a live run the segments at the pace of the last hour, and the manifests."""
    room = n_bytes / 1e9 * GIGABYTE_MONTH_USD / _MONTH_DAYS
    if not is_live:
        return room
    times = [one.modified_s for file in contents.files.values() for one in file.segments if one.modified_s is not None]
    recent = [time_s for time_s in times if now_s - time_s < _HOUR_S]
    seen_s = max(60.0, min(_HOUR_S, now_s - min(times, default=now_s)))
    puts = len(recent) * 86_400 / seen_s + sum(86_400 / max(1.0, one.interval_s) for one in contents.manifests.values())
    return room + puts * LIST_USD  # a put costs as much as a list
