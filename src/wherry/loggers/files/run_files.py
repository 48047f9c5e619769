"""RunFiles: the folder of one run, which one process writes, and the files in it."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from wherry.loggers.files.folder_lock import FolderLock
from wherry.loggers.files.json_lines import JsonLines, warn_removed
from wherry.loggers.files.media_index import MediaIndex
from wherry.loggers.files.parquet import write_parquet
from wherry.loggers.files.run_summary import SUMMARY, MetricsFold, fold_of, parse_object, parse_summary, summary_bytes
from wherry.loggers.values.safe_name import safe_name
from wherry.loggers.values.text import format_json
from wherry.posix.atomic_write import AtomicFiles

log = logging.getLogger("wherry")

_INDEX = "media/index.jsonl"
_CHILDREN = "children"
_FILES = ("hparams.json", SUMMARY, "metrics.jsonl", "metrics.parquet", "text.jsonl", "traces.jsonl", "histograms.jsonl", _INDEX)
_ENVIRONMENTS = "environment*.json"


class RunFiles:
    """The folder `root`, which this process alone writes. Any thread of it may call.

    Growing files are JSON Lines (see `JsonLines`); all others appear whole (see `AtomicFiles`, whose folder is ``.tmp``).

    If the folder is removed, the next call that writes makes and locks it again, with a warning in the log "wherry", writes the
    files of merge_json() again, and goes on there.
    """

    def __init__(self, root: Path, lock: FolderLock | None, *, fsync: bool = False) -> None:
        self.root = root
        self._fsync = fsync
        self._mutex = threading.RLock()
        self._lock = lock
        self._whole = AtomicFiles(root / ".tmp", fsync=fsync)
        self._lines: dict[str, JsonLines] = {}
        self._merged: dict[Path, dict[str, object]] = {}  # what merge_json() has written, in the order of the first calls
        #: Files that went with a removed folder, for which there was one warning.
        self._gone: set[Path] = set()
        self._fold: MetricsFold | None = None
        self.media = MediaIndex(root / "media", self.lines(_INDEX), self._whole)
        self._whole.sweep()

    def lines(self, name: str) -> JsonLines:
        """The JSON Lines file of that name. It stays open."""
        if name not in self._lines:
            self._lines.setdefault(name, JsonLines(self.root / name, on_removed=self._see_removed))
        return self._lines[name]

    def append_table(self, key: str, rows: bytes) -> None:
        """Add lines to a table. Its file is closed afterwards: a run may have more tables than a process may have open files."""
        with self._mutex:
            self._keep_folder()
            file = JsonLines(self.root / "tables" / f"{safe_name(key)}.jsonl", on_removed=self._see_removed)
            file.append(rows)
            file.check(fsync=self._fsync)
            file.close()

    def merge_json(self, name: str, items: Mapping[str, object]) -> None:
        """Add `items` to the JSON object in the file of that name, replaced as a whole. ValueError if it has no object."""
        path = self.root / name
        with self._mutex:
            self._keep_folder()
            before = _object(path) if path.exists() else {}
            known = {**before, **json.loads(format_json(items, significant_digits=None))}
            self._merged[path] = known
            if known != before or not path.exists():  # the classes of masks are the same at every step
                self._whole.write(path, _readable(known))

    def write_parquet(self) -> None:
        """If pyarrow is installed, write the metrics and tables that have changed as Parquet files beside them."""
        if find_spec("pyarrow") is None:
            return
        for source in (self.root / "metrics.jsonl", *sorted((self.root / "tables").rglob("*.jsonl"))):
            destination = source.with_suffix(".parquet")
            if source.exists() and (not destination.exists() or destination.stat().st_mtime_ns <= source.stat().st_mtime_ns):
                with self._whole.temporary(".parquet") as temporary:
                    if write_parquet(source, temporary):
                        self._whole.replace(temporary, destination)

    def write_environment(self, found: Mapping[str, object]) -> None:
        """Write it to the next free one of ``environment.json``, ``environment-2.json`` ...: each process has its own."""
        with self._mutex:
            self._keep_folder()
            n = sum(1 for _ in self.root.glob(_ENVIRONMENTS))
            self._whole.write(self.root / (f"environment-{n + 1}.json" if n else "environment.json"), _readable(found))

    def write_summary(self, name: str, state: str, now_s: float) -> None:
        """Replace the summary by one of what the files hold now; without metrics and hyperparameters do nothing.

        It goes on with the summary that an earlier process left. For one thread at a time.
        """
        path, metrics, hparams = self.root / SUMMARY, self.root / "metrics.jsonl", self.root / "hparams.json"
        if not metrics.exists() and not hparams.exists():
            return
        if self._fold is None:
            self._fold = fold_of((parse_summary(path.read_bytes()) if path.exists() else None) or {})
        self._fold.read_on(metrics)  # outside of the lock, as an old file may be long
        if state == "finished":
            self._fold.n_bytes_again = 0  # what is written last is exact
        self._fold.read_again_from(metrics)
        size_bytes = _size_bytes(self.root) if state == "finished" else 0
        with self._mutex:
            self._keep_folder()
            settings = self._merged.get(hparams)
            if settings is None:
                settings = (parse_object(hparams.read_bytes()) if hparams.exists() else None) or {}
            summary = summary_bytes(self._fold, name=name, state=state, written_s=now_s, hparams=settings, size_bytes=size_bytes)
            self._whole.write(path, summary)

    def all_but_media(self) -> list[Path]:
        """The files that are finished at the end of the run, and those of children. Other files are not the run's."""
        tables = (path for path in (self.root / "tables").rglob("*") if path.suffix in (".jsonl", ".parquet"))
        children = (path for path in (self.root / _CHILDREN).rglob("*") if path.parent.name != ".tmp")
        named = (self.root / name for name in _FILES)
        environments = sorted(self.root.glob(_ENVIRONMENTS))
        all_of_them = dict.fromkeys((*environments, *named, *self._merged, *sorted(tables), *sorted(children)))
        return [path for path in all_of_them if path.is_file()]

    def name_of(self, path: Path) -> str:
        """The path below the folder, with slashes."""
        return path.relative_to(self.root).as_posix()

    def flush(self) -> None:
        """Find out whether the folder or one of its open files was removed, replaced or renamed.

        If so, a warning is logged, and what is written later goes to a new folder or file. With `fsync`, sync the files.
        """
        self._keep_folder()
        for lines in list(self._lines.values()):  # without our lock: on_removed takes it while it holds theirs
            lines.check(fsync=self._fsync)

    def close(self) -> None:
        """Close all files and unlock the folder. May be called again."""
        for lines in list(self._lines.values()):
            lines.close()
        self._whole.close()
        if self._lock is not None:
            self._lock.release()

    def _see_removed(self, path: Path) -> None:
        """Treat an open file that has lost its name, perhaps together with the folder."""
        with self._mutex:
            self._keep_folder()
            if path in self._gone:
                self._gone.discard(path)
            else:
                warn_removed(path)

    def _keep_folder(self) -> None:
        """Make and lock the folder again if it was removed. RuntimeError if another process has locked it by now."""
        with self._mutex:
            if self._lock is None or self._lock.is_held():
                return
            has_folder = self._lock.has_folder()
            self._lock.release()
            self._lock = FolderLock(self.root)
            if has_folder:  # only the lock's own file was removed
                return
            log.warning(
                "the folder %s was removed or replaced while it was being written: what was in it is lost, and it is made anew",
                self.root,
            )
            self._gone = {lines.path for lines in self._lines.values()}
            for path, known in self._merged.items():
                self._whole.write(path, _readable(known))


class RunPlace:
    """Decides which folder this process writes to: the run's own, or one inside it for a forked child. Any thread may call.

    The folder of `find_folder()` belongs to the process that made this object, or that called begin_here() when the run began. A
    process that is forked from that one never takes it, even if it writes first, as a DataLoader's worker must not keep the
    training process out.
    """

    def __init__(self, find_folder: Callable[[], Path], *, fsync: bool = False) -> None:
        self._find_folder = find_folder
        self._fsync = fsync
        self._mutex = threading.RLock()
        self._folder: Path | None = None
        self.is_child = False
        self.files: RunFiles | None = None

    @property
    def folder(self) -> Path:
        """The run's folder. Until take() it is the one that `find_folder` returns now."""
        return self._folder or self._find_folder()

    def begin_here(self) -> bool:
        """Note that the run begins in this process, which owns the folder unless its parent has taken it. True if that is new."""
        begins = self.is_child and self._folder is None
        self.is_child = self.is_child and not begins
        return begins

    def take(self) -> RunFiles:
        """The files to write to, made once. RuntimeError while another process has the folder."""
        with self._mutex:
            if self.files is None:
                folder = self.folder
                # A child's folder, children/<process>, needs no lock, as no other process writes there.
                lock = None if self.is_child else FolderLock(folder)
                root = _new_folder(folder / _CHILDREN) if self.is_child else folder
                self.files, self._folder = RunFiles(root, lock, fsync=self._fsync), folder
            return self.files

    def start_afresh(self) -> None:
        """In a forked child: another thread may have held the lock, and the open files are the parent's."""
        self._mutex = threading.RLock()
        self.files = None
        self.is_child = True


def _new_folder(parent: Path) -> Path:
    """A new folder. In containers a process of an earlier run may have had the same number."""
    parent.mkdir(parents=True, exist_ok=True)
    numbers, folder = count(2), parent / f"{os.getpid()}"
    while folder.exists():  # from an earlier run, as no other process has our number now
        folder = parent / f"{os.getpid()}-{next(numbers)}"
    folder.mkdir()
    return folder


def _size_bytes(root: Path) -> int:
    """The bytes of all files; of those that vanish meanwhile none."""
    found = 0
    for base, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                found += os.stat(os.path.join(base, name)).st_size
    return found


def _object(path: Path) -> dict[str, object]:
    try:
        known = json.loads(path.read_bytes())
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise ValueError(f"{path} is no JSON object, so nothing can be added to it: move it away")
    return known


def _readable(known: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(known, indent=2, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape and UTF-8 cannot hold
        return json.dumps(known, indent=2).encode() + b"\n"
