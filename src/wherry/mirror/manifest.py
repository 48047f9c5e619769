"""The manifest of one writer: who mirrors, how late it is, and what is in the store of each file.

It is a help and no need: every file can be read from the names of its objects alone (wherry.mirror.layout). It says what
those cannot: whether the writer lives, how far behind he is, and the checksums.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from wherry.errors import IntegrityError, NotFoundError
from wherry.mirror.layout import FOLDER, key_for, manifest_name
from wherry.store import ObjectMeta, ObjectStore

#: open: the writer lives, as far as he knows. sealed: he has closed, and all is there under its plain name.
#: incomplete: he has closed, and not all of it is there; the next mirror of the folder sends the rest.
#: lost: he has not been heard of for long. Manifests of 0.1.0 say this of the incomplete, too.
State = Literal["open", "sealed", "incomplete", "lost"]
#: A writer whose manifest is older than this many of its intervals is taken for lost.
_LOST_AFTER = 3.0
_FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """One file. `state`: live (segments, may grow), rotated (renamed to `name`, soon sealed), sealed (the plain object `name`),
    deleted (gone from the folder; what was sent stays as segments), superseded (begun anew, see the next generation).

    `acked_bytes` are in the store, and `crc32c` (8 hex digits) is theirs.
    """

    path: str
    name: str
    rule: str
    state: str
    generation: int
    acked_bytes: int
    crc32c: str


@dataclass(frozen=True)
class Manifest:
    """What a writer says of himself at `heartbeat_s` (seconds since the epoch); he says so every `interval_s` at least.

    `lag_s` is the age of the oldest byte that was not in the store then. While the run is open only files with segments are
    listed; a sealed manifest lists every file.
    """

    writer: str
    epoch: int
    state: State
    heartbeat_s: float
    interval_s: float
    lag_s: float
    unsent_bytes: int
    n_files: int
    files: tuple[FileEntry, ...] = ()

    def state_at(self, now_s: float) -> State:
        """The state as a reader sees it: an open writer who is silent for too long is lost."""
        is_silent = self.state == "open" and now_s - self.heartbeat_s > _LOST_AFTER * self.interval_s
        return "lost" if is_silent else self.state

    def to_json(self) -> str:
        """As text, one line a file."""
        head = {name: value for name, value in asdict(self).items() if name != "files"}
        lines = ",\n  ".join(json.dumps(asdict(one)) for one in self.files)
        return json.dumps({"format": _FORMAT, **head})[:-1] + f', "files": [\n  {lines}\n]}}\n'


def parse_manifest(text: str, *, uri: str = "") -> Manifest:
    """Read what to_json() wrote; fields of later versions are left out. IntegrityError for anything else."""
    try:
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise IntegrityError(f"it has format {data['format']}, this wherry knows {_FORMAT}", operation="read", uri=uri)
        entries = tuple(FileEntry(**{f.name: one[f.name] for f in fields(FileEntry)}) for one in data["files"])
        return Manifest(files=entries, **{f.name: data[f.name] for f in fields(Manifest) if f.name != "files"})
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"this is no manifest of a mirror: {error!r}", operation="read", uri=uri) from error


def read_manifest(store: ObjectStore, prefix: str, writer: str, *, scratch: Path | None = None) -> Manifest | None:
    """A writer's manifest; None if there is none. A temporary file lies in `scratch`."""
    return read_manifest_at(store, key_for(prefix, manifest_name(writer)), scratch)


def read_manifest_at(store: ObjectStore, key: str, scratch: Path | None = None) -> Manifest | None:
    """The manifest with that key; None if there is none."""
    with tempfile.NamedTemporaryFile(dir=scratch, prefix="wherry-manifest-") as file:
        try:
            store.get_file(key, Path(file.name))
        except NotFoundError:
            return None
        return parse_manifest(file.read().decode(errors="replace"), uri=key)


def find_manifests(listed: Iterable[ObjectMeta], prefix: str) -> list[str]:
    """The keys of the manifests among objects that a listing has shown."""
    base, end = key_for(prefix, f"{FOLDER}/"), "/manifest.json"
    keys = (meta.key for meta in listed)
    return [key for key in keys if key.startswith(base) and key.endswith(end) and "/" not in key[len(base) : -len(end)]]


def generations(manifests: Iterable[Manifest]) -> dict[str, int]:
    """The newest generation of each file that some manifest knows, as layout.survey() takes them."""
    newest: dict[str, int] = {}
    for one in (entry for manifest in manifests for entry in manifest.files):
        if one.rule == "append":
            newest[one.path] = max(one.generation, newest.get(one.path, 0))
    return newest
