"""RunFiles: the folder of one run, held by one process, and what is in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from wherry.loggers.folder_lock import FolderLock
from wherry.loggers.format import format_json
from wherry.loggers.json_lines import JsonLines
from wherry.loggers.media_index import MediaIndex
from wherry.loggers.parquet import has_parquet, write_parquet
from wherry.loggers.safe_name import safe_name
from wherry.loggers.whole_files import WholeFiles

_INDEX = "media/index.jsonl"
_FILES = ("hparams.json", "metrics.jsonl", "metrics.parquet", "text.jsonl", "traces.jsonl", "histograms.jsonl", _INDEX)


class RunFiles:
    """Makes and locks the folder `root`; RuntimeError while another process has it. Any thread may call.

    What grows is JSON Lines (see `JsonLines`); all other files appear whole (see `WholeFiles`, whose folder is ``.tmp``).
    `is_owner` is False in a child that was forked: it adds lines and files of its own, and neither locks nor repairs anything.
    """

    def __init__(self, root: Path, *, fsync: bool = False, is_owner: bool = True) -> None:
        self.root = root
        self._fsync = fsync
        self._is_owner = is_owner
        self._mutex = threading.RLock()
        self._lock = FolderLock(root) if is_owner else None
        self._whole = WholeFiles(root / ".tmp", fsync=fsync)
        self._lines: dict[str, JsonLines] = {}
        self._merged: dict[Path, None] = {}  # the files of merge_json(), in their order
        self.media = MediaIndex(root / "media", self.lines(_INDEX), self._whole)
        if is_owner:
            self._whole.sweep()

    def for_child(self) -> RunFiles:
        """The same folder, for a child that was forked."""
        return RunFiles(self.root, fsync=self._fsync, is_owner=False)

    def lines(self, name: str) -> JsonLines:
        """The JSON Lines file of that name, which stays open."""
        if name not in self._lines:
            self._lines.setdefault(name, JsonLines(self.root / name, may_repair=self._is_owner))
        return self._lines[name]

    def append_table(self, key: str, rows: bytes) -> None:
        """Add lines to a table. Its file is closed again: there may be more tables than a process may have files open."""
        with self._mutex:
            file = JsonLines(self.root / "tables" / f"{safe_name(key)}.jsonl", may_repair=self._is_owner)
            file.append(rows)
            file.check(fsync=self._fsync)
            file.close()

    def merge_json(self, name: str, items: Mapping[str, object]) -> None:
        """Add `items` to the JSON object in the file of that name, which is whole at any time. ValueError if it is no object."""
        path = self.root / name
        with self._mutex:
            before = _object(path) if path.exists() else {}
            known = {**before, **json.loads(format_json(items, significant_digits=None))}
            self._merged[path] = None
            if known == before and path.exists():  # as with the classes of masks, at every step
                return
            with self._whole.temporary(path.suffix) as temporary:
                temporary.write_bytes(_readable(known))
                self._whole.replace(temporary, path)

    def write_parquet(self) -> None:
        """Write the metrics and all tables as Parquet beside them, where they changed since then, if pyarrow is there."""
        if not self._is_owner or not has_parquet():
            return
        for source in (self.root / "metrics.jsonl", *sorted((self.root / "tables").rglob("*.jsonl"))):
            destination = source.with_suffix(".parquet")
            if source.exists() and (not destination.exists() or _time(destination) <= _time(source)):
                with self._whole.temporary(".parquet") as temporary:
                    if write_parquet(source, temporary):
                        self._whole.replace(temporary, destination)

    def all_but_media(self) -> list[Path]:
        """The files that are finished when the run is. What else is in the folder belongs to others."""
        tables = (path for path in (self.root / "tables").rglob("*") if path.suffix in (".jsonl", ".parquet"))
        all_of_them = dict.fromkeys((*(self.root / name for name in _FILES), *self._merged, *sorted(tables)))
        return [path for path in all_of_them if path.is_file()]

    def name_of(self, path: Path) -> str:
        """The path below the folder, with slashes."""
        return path.relative_to(self.root).as_posix()

    def flush(self) -> None:
        """Raise OSError if the folder, or a file of it that is being written, was removed or replaced. Else all is in it.

        What comes then goes to a new folder or file. With `fsync`, what was written is on the disk.
        """
        with self._mutex:
            if self._lock is not None and not self._lock.is_held():
                self._lock.release()
                self._lock = FolderLock(self.root)
            with ExitStack() as checks:  # makes all of them, and raises then
                for lines in self._lines.values():
                    checks.callback(lines.check, fsync=self._fsync)

    def close(self) -> None:
        """Close all files and unlock the folder. Again, it does nothing."""
        with self._mutex:
            for lines in self._lines.values():
                lines.close()
            if self._lock is not None:
                self._whole.close()
                self._lock.release()


def _object(path: Path) -> dict[str, object]:
    try:
        known = json.loads(path.read_bytes())
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise ValueError(f"{path} is no JSON object, so that nothing can be added to it: move it away")
    return known


def _readable(known: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(known, indent=2, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape and UTF-8 cannot hold
        return json.dumps(known, indent=2).encode() + b"\n"


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns
