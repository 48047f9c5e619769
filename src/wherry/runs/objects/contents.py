"""What one run consists of: its files, put together from objects and segments, and what its writers say."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from wherry.errors import StoreError
from wherry.mirror.format.layout import FOLDER, Assembly, key_for, parse_segment
from wherry.mirror.format.manifest import Manifest
from wherry.mirror.reader.snapshot import SnapshotReader
from wherry.mirror.writer.segment_sender import InlineExecutor
from wherry.runs.objects.discovery import Found, without_parts
from wherry.runs.objects.place import ListedStore, Place
from wherry.runs.records import RunState, WriterState
from wherry.store import ObjectMeta

_LOCK = re.compile(rb"process ([0-9]{1,9}) on (\S+)")
#: Without a heartbeat: objects that are younger are taken for those of a live run, and a live run that is silent for longer for
#: lost.
_SILENT_S = 900.0
_RANK = re.compile(r"rank([0-9]{1,6})")
_ATTEMPT = re.compile(r"attempt-([0-9]{1,6})")
#: What each start of a run writes into its folder.
_ENVIRONMENT = re.compile(r"(?:attempt-[0-9]{1,6}/)?environment(?:-[0-9]{1,6})?\.json")
_WORDS: dict[str, WriterState] = {"open": "alive", "sealed": "finished", "incomplete": "finished", "lost": "lost"}


@dataclass(frozen=True, order=True)
class Part:
    """A folder with metrics inside a run: of an attempt, a rank, a forked child. The run's own has an empty `folder`."""

    attempt: int
    rank: int
    child: str
    folder: str

    @property
    def label(self) -> str:
        """What is put before the names of its metrics: nothing for those of rank 0."""
        return (f"rank{self.rank}/" if self.rank else "") + (f"children/{self.child}/" if self.child else "")

    def name(self, name: str) -> str:
        """The name in the run of a file of this part."""
        return f"{self.folder}/{name}" if self.folder else name


@dataclass
class Contents:
    """A run as a listing shows it. `files` by their names below the run; `broken` ones with the reason."""

    found: Found
    files: dict[str, Assembly] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    #: Objects that cannot be right and writers that are not read, with the reason.
    trouble: dict[str, str] = field(default_factory=dict)
    #: Files with segments that nothing leads to, as some before them are missing.
    gaps: tuple[str, ...] = ()
    size_bytes: int = 0
    newest_s: float | None = None

    def plain(self, name: str) -> ObjectMeta | None:
        """The object of a file that is replaced as a whole; None if there is none."""
        found = self.files.get(name)
        return None if found is None else found.plain

    @property
    def parts(self) -> list[Part]:
        """The folders with metrics or hyperparameters, in the order of attempts, then ranks."""
        folders = {
            name.rpartition("/")[0]
            for name in self.files
            if name.rpartition("/")[2] in ("metrics.jsonl", "metrics.parquet", "hparams.json")
        }
        return sorted(_part(folder) for folder in folders if not without_parts(folder.split("/") if folder else []))

    @property
    def environments(self) -> list[str]:
        """The names of the files in which each start has written what it is made of, the oldest first."""
        return sorted((name for name in self.files if _ENVIRONMENT.fullmatch(name)), key=lambda name: (len(name), name))

    @property
    def attempt(self) -> int:
        """The number of the run's last start, as checkpoints, folders or environments count them; 1 without."""
        attempts = [int(name[len("checkpoints/attempts/") :][:9]) for name in self.files if _is_record(name)]
        return max([*attempts, *(part.attempt for part in self.parts), len(self.environments), 1])

    def writers(self, now_s: float) -> dict[str, WriterState]:
        """Who has mirrored it, and whether he still does."""
        return {name: _WORDS[one.state_at(now_s)] for name, one in self.manifests.items()}

    def state_by_writers(self, now_s: float) -> RunState | None:
        """What the heartbeats say of the run; None without one."""
        writers = set(self.writers(now_s).values())
        return None if not writers else "live" if "alive" in writers else "lost" if "lost" in writers else "finished"

    @property
    def heartbeat_s(self) -> float | None:
        """When a writer was heard of last, in s since 1970; None if none says it."""
        return max((one.heartbeat_s for one in self.manifests.values()), default=None)


def _is_record(name: str) -> bool:
    return re.fullmatch(r"checkpoints/attempts/[0-9]{9}\.json", name) is not None


def _part(folder: str) -> Part:
    attempt, rank, child = 1, 0, ""
    parts = folder.split("/") if folder else []
    for at, part in enumerate(parts):
        if match := _RANK.fullmatch(part):
            rank = int(match[1])
        elif part.startswith("attempt-"):
            numbered = _ATTEMPT.fullmatch(part)
            attempt = int(numbered[1]) if numbered else 2  # a folder that was named without asking: after the first
        elif at and parts[at - 1] == "children":
            child = part
    return Part(attempt, rank, child, folder)


def contents_of(place: Place, found: Found, *, with_manifests: bool = True, pool: Executor | None = None) -> Contents:
    """Put a run together from what was listed of it; manifests are fetched unless told otherwise. StoreError."""
    root = root_of(place, found)
    manifest_start = key_for(root, f"{FOLDER}/")
    objects = found.objects
    if not with_manifests:
        objects = [meta for meta in objects if not (meta.key.startswith(manifest_start) and meta.key.endswith("/manifest.json"))]
    reader = SnapshotReader(ListedStore(place, objects), root, pool or InlineExecutor())
    snapshot = reader.snapshot(place.scratch)
    below = f"{found.path}/" if found.path else ""
    files = {path[len(below) :]: one for path, one in snapshot.files.items() if path.startswith(below)}
    broken = {path[len(below) :]: why for path, why in snapshot.broken.items() if path.startswith(below)}
    mine = [meta for meta in objects if _is_of(meta.key[len(root) :].lstrip("/"), below)]
    times = [meta.modified_s for meta in mine if meta.modified_s is not None]
    return Contents(
        found,
        files,
        snapshot.manifests,
        broken,
        dict(snapshot.flawed),
        gaps=tuple(_gaps(root, mine, files, below)),
        size_bytes=sum(max(0, meta.size_bytes) for meta in mine),
        newest_s=max(times, default=None),
    )


def _is_of(name: str, below: str) -> bool:
    """Whether an object of a mirror's root is of the run in the folder `below`."""
    return name.startswith(below) or (name.startswith(f"{FOLDER}/") and f"/segments/{below}" in name)


def _gaps(root: str, objects: Sequence[ObjectMeta], files: dict[str, Assembly], below: str) -> list[str]:
    """Files with segments behind the end of what could be put together."""
    beyond: Counter[str] = Counter()
    for meta in objects:
        segment = parse_segment(root, meta)
        if segment is None or (found := files.get(segment.path[len(below) :])) is None or not found.segments:
            continue
        last = found.segments[-1]
        if (segment.writer, segment.generation) == (last.writer, last.generation) and segment.start > last.start:
            beyond[segment.path] += 1
    return sorted(beyond)


def run_state(contents: Contents, place: Place, summary_state: str | None, now_s: float) -> RunState:
    """Whether somebody writes the run: by the heartbeats of mirrors, else by the folder's lock, its summary, and its age."""
    by_writers = contents.state_by_writers(now_s)
    if by_writers is not None:
        return by_writers
    is_alive = _holder_lives(contents, place)
    if is_alive is not None:
        return "live" if is_alive else "lost"
    if summary_state == "finished":
        return "finished"
    age_s = now_s - (contents.newest_s or 0.0)
    if summary_state == "live":
        return "live" if age_s < _SILENT_S else "lost"
    if "metrics.parquet" in contents.files:  # written at the close
        return "finished"
    return "live" if age_s < _SILENT_S / 10 else "unknown"


def _holder_lives(contents: Contents, place: Place) -> bool | None:
    """Whether the process that has locked a local folder runs; None where that cannot be known.

    The lock is not tried: a run that begins at that moment would find its own folder locked.
    """
    if not place.is_local or (meta := contents.plain(".lock")) is None:
        return None
    try:
        match = _LOCK.match(place.fetch(meta, 0, min(meta.size_bytes, 200)))
    except StoreError:  # it has just been removed
        return None
    if match is None or match[2].decode(errors="replace") != socket.gethostname():
        return None
    try:
        os.kill(int(match[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def root_of(place: Place, found: Found) -> str:
    """The key of the folder that was listed for a run: of its mirror, or its own."""
    return key_for(place.uri.prefix, found.root) if found.root else place.uri.prefix


def folder_key(place: Place, found: Found) -> str:
    """The key of a run's folder."""
    return key_for(place.uri.prefix, found.folder) if found.folder else place.uri.prefix


def uri_of(place: Place, found: Found) -> str:
    """A run's URI as a person types it: of a local folder its path."""
    return place.typed(folder_key(place, found))
