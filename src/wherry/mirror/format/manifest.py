"""The manifest of one writer: who mirrors, how late it is, and what is in the store of each file.

Readers can do without it: every file can be read from the names of its objects alone (wherry.mirror.format.layout). It adds what
those do not have: whether the writer runs, how late it is, and the checksums. Its `format` is layout.FORMAT, and holds for all
objects of the writer: a reader that does not know it reads none of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from wherry.errors import IntegrityError, NotFoundError
from wherry.mirror.format.layout import FORMAT, MOST_BYTES, MOST_GENERATIONS, fetched
from wherry.store import ObjectStore

#: open: the writer runs. sealed: it has closed, and every file is there under its plain name. incomplete: it has closed, and not
#: everything is there; the next mirror of the folder sends the rest. lost: it has been silent for long. Manifests of 0.1.0 also
#: use lost for incomplete.
State = Literal["open", "sealed", "incomplete", "lost"]
#: A writer whose manifest is older than this many of its intervals is taken for lost.
_LOST_AFTER = 3.0
#: A larger one is not read: Python takes ten times its size in memory. A million files come to 250 MB.
MOST_MANIFEST_BYTES = 2**28
#: No time is beyond the year 5138, and no duration longer; a clock that steps back makes negative ones.
_MOST_S = 1e11
_CRC32C = re.compile(r"[0-9a-f]{8}")


class NewerFormatError(IntegrityError):
    """The manifest has a format that this version of wherry does not know, so its writer's objects are not read."""


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
    """The state of a writer at `heartbeat_s` (seconds since the epoch). It is written again every `interval_s` at least.

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
        """The state as a reader sees it: an open writer that is silent for too long is lost."""
        is_silent = self.state == "open" and now_s - self.heartbeat_s > _LOST_AFTER * self.interval_s
        return "lost" if is_silent else self.state

    def to_json(self) -> str:
        """As text, one line a file."""
        head = {name: value for name, value in vars(self).items() if name != "files"}  # asdict() takes ten times as long
        lines = ",\n  ".join(json.dumps(vars(one)) for one in self.files)
        return json.dumps({"format": FORMAT, **head})[:-1] + f', "files": [\n  {lines}\n]}}\n'


def parse_manifest(text: str, *, uri: str = "") -> Manifest:
    """Read what to_json() wrote; fields that are unknown are left out.

    NewerFormatError for a higher format; IntegrityError for anything that is not a manifest.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError(f"it is a {type(data).__name__}")
        _check_format(data["format"], uri)
        files = data["files"]
        if not isinstance(files, list):
            raise TypeError("files is no list")
        entries = tuple(FileEntry(**_checked(FileEntry, one)) for one in files)
        return Manifest(**{**_checked(Manifest, data), "files": entries})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IntegrityError(f"this is no manifest of a mirror: {_words(error)}", operation="read", uri=uri) from error


def _check_format(found: object, uri: str) -> None:
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ValueError("format is no number")
    if found > FORMAT:
        raise NewerFormatError(
            f"it has format {min(found, MOST_BYTES)}, this wherry knows {FORMAT} at most",
            operation="read",
            uri=uri,
            hint="update wherry: nothing of this writer is read until then",
        )


def _checked(kind: type[Manifest | FileEntry], data: object) -> dict[str, Any]:
    """The values of a dataclass's fields, except `files`. Raises KeyError, TypeError, ValueError."""
    if not isinstance(data, Mapping):
        raise TypeError(f"an entry is a {type(data).__name__}")
    values = {one.name: data[one.name] for one in fields(kind) if one.name != "files"}
    for name, value in values.items():
        if problem := _problem(name, value, is_manifest=kind is Manifest):
            raise ValueError(f"{name} is {problem}")
    return values


def _problem(name: str, value: object, *, is_manifest: bool) -> str:
    """What the value of a field is instead of one that can be; empty if it can."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if name.endswith("_s"):  # NaN is no such number either
        return "" if number is not None and -_MOST_S <= number <= _MOST_S else "no number of seconds"
    if name in ("epoch", "generation", "n_files") or name.endswith("_bytes"):
        most = MOST_GENERATIONS if name == "generation" else MOST_BYTES
        return "" if isinstance(number, int) and 0 <= number <= most else "no number that can be"
    if not isinstance(value, str):
        return "no text"
    if name == "state" and is_manifest and value not in get_args(State):
        return f"none of {', '.join(get_args(State))}"
    return "no checksum" if name == "crc32c" and not _CRC32C.fullmatch(value) else ""


def _words(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def read_manifest(store: ObjectStore, key: str, scratch: Path | None = None) -> Manifest | None:
    """The manifest with that key; None if there is none. A temporary file lies in `scratch`."""
    try:
        file = fetched(store, key, scratch)
    except NotFoundError:
        return None
    with file:
        check_manifest_size(os.fstat(file.fileno()).st_size, key)
        return parse_manifest(file.read().decode(errors="replace"), uri=key)


def check_manifest_size(size_bytes: int, key: str) -> None:
    """IntegrityError for more than any manifest has."""
    if size_bytes > MOST_MANIFEST_BYTES:
        words = f"it has {size_bytes} bytes, a manifest at most {MOST_MANIFEST_BYTES}"
        raise IntegrityError(words, operation="read", uri=key)
