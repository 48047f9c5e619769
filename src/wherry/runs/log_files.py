"""The logs of a run: text files of its ranks, by their ends, and on from there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wherry.errors import NotFoundError
from wherry.mirror.format.layout import Assembly
from wherry.runs.objects.contents import Contents
from wherry.runs.objects.logical_file import LogicalFile
from wherry.runs.objects.place import Place
from wherry.runs.records import LogChunk

MOST_BYTES = 8 * 2**20
_SUFFIXES = (".log", ".txt", ".out", ".err")
_RANK = re.compile(r"(?:^|[^A-Za-z])rank[-_]?([0-9]{1,6})(?![0-9])")
#: Folders of a run that hold other texts.
_OTHERS = ("checkpoints/", "media/", "tables/", "_mirror/")
#: ``log.0001.txt`` goes on with ``log.txt``: as FileLogger rolls its files.
_ROLLED = re.compile(r"\.([0-9]{4,})(?=\.[a-z]+$)")


def logs_by_rank(contents: Contents) -> dict[int, list[tuple[str, Assembly]]]:
    """The log files of each rank, in their order. A log that names no rank counts as that of rank 0."""
    found: dict[int, list[tuple[str, Assembly]]] = {}
    for name, assembly in contents.files.items():
        if name.endswith(_SUFFIXES) and not any(part in f"/{name}" for part in (f"/{other}" for other in _OTHERS)):
            match = _RANK.search(name)
            found.setdefault(int(match[1]) if match else 0, []).append((name, assembly))
    return {rank: sorted(found[rank], key=lambda one: _order(one[0])) for rank in sorted(found)}


def _order(name: str) -> tuple[str, int]:
    match = _ROLLED.search(name)
    return _ROLLED.sub("", name), int(match[1]) if match else 0


def read_log(
    place: Place, files: Sequence[tuple[str, Assembly]], ranks: Sequence[int], after: int | None, max_bytes: int
) -> LogChunk:
    """The end of the files, read as one, or what comes behind byte `after` of them."""
    opened = [(name, LogicalFile(place, assembly)) for name, assembly in files]
    sizes = [file.size_bytes for _, file in opened]
    total = sum(sizes)
    start = max(0, total - max_bytes) if after is None or after > total else after
    end = min(total, start + max_bytes)
    data, base = b"", 0
    for (_, file), size in zip(opened, sizes, strict=True):
        if base < end and base + size > start:
            data += file.read(max(0, start - base), end - base)
        base += size
    if after is None and start:  # the first line is a half
        cut = data.find(b"\n") + 1
        data, start = data[cut:], start + cut
    if end < total or data[-1:] != b"\n":  # so that no character is cut in the middle
        data = data[: data.rfind(b"\n") + 1] or data
    return LogChunk(opened[-1][0], data.decode(errors="replace"), start, start + len(data), total, start > 0, tuple(ranks))


def log_of(place: Place, contents: Contents, rank: int | None, after: int | None, max_bytes: int) -> LogChunk:
    """The log of a rank; None: of the first that has one. An empty one if the run has no log. NotFoundError for another rank."""
    logs = logs_by_rank(contents)
    if not logs:
        return LogChunk()
    chosen = next(iter(logs)) if rank is None else rank
    if chosen not in logs:
        raise NotFoundError(
            f"rank {chosen} has no log, only {', '.join(map(str, logs))}", operation="read", uri=contents.found.folder
        )
    return read_log(place, logs[chosen], list(logs), after, min(max(1, max_bytes), MOST_BYTES))
