"""Metrics: all metrics of a run, from the files of its attempts, ranks and children: Parquet where it is there, else lines."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from importlib.util import find_spec

from wherry.errors import IntegrityError, NotFoundError, StoreError
from wherry.runs.columns.checked import Checked, all_of
from wherry.runs.columns.metrics_file import MetricsFile
from wherry.runs.columns.parquet_columns import ParquetColumns
from wherry.runs.columns.points import Points
from wherry.runs.columns.series import series_of
from wherry.runs.objects.contents import Contents, Part
from wherry.runs.objects.disk_cache import DiskCache
from wherry.runs.objects.place import Place, version_of
from wherry.runs.records import Series
from wherry.store import ObjectMeta

#: Lines of less than this are parsed as fast as a footer is fetched.
_SMALL_BYTES = 8 * 2**20
#: A Parquet file is made of the lines at the close, and may be stored a little before them.
_SLACK_S = 600.0
MOST_KEYS = 20_000
#: Series are kept, ready to be drawn, up to so many points together, of 9 to 25 bytes each; the others are on the disk.
_MOST_KEPT_POINTS = 4_000_000


class Metrics:
    """The metrics of one run. Any thread may call; update() tells it what the run is by now."""

    def __init__(self, place: Place, columns: DiskCache, pool: Executor, filling: Executor) -> None:
        self._place = place
        self._columns = columns
        self._pool = pool
        self._filling = filling
        self._lock = threading.RLock()
        self._files: dict[Part, MetricsFile] = {}
        self._parquet: dict[Part, tuple[str, ParquetColumns]] = {}
        self._kept: dict[str, tuple[object, Series]] = {}
        #: What could not be read, in words.
        self.trouble: dict[str, str] = {}

    def update(self, contents: Contents) -> bool:
        """Take what the run is now; True if there may be new points. What cannot be read is noted in `trouble`."""
        with self._lock:
            return max([self._tried(contents, part) for part in contents.parts], default=False)

    def _tried(self, contents: Contents, part: Part) -> bool:
        try:
            is_new = self._update_part(contents, part)
        except StoreError as error:
            self.trouble[part.folder] = f"{part.name('metrics.jsonl')}: {error.message}"
            return False
        self.trouble.pop(part.folder, None)
        return is_new

    def _update_part(self, contents: Contents, part: Part) -> bool:
        lines = contents.files.get(part.name("metrics.jsonl"))
        whole = contents.plain(part.name("metrics.parquet"))
        is_large = lines is None or (lines.size_bytes or 0) > _SMALL_BYTES
        if whole is not None and is_large and find_spec("pyarrow") is not None and not _is_stale(whole, contents, part):
            if self._parquet.get(part, ("",))[0] == version_of(whole):
                return False
            if self._take_parquet(part, whole, has_lines=lines is not None):
                return True
        self._parquet.pop(part, None)
        if lines is None:
            return False
        if part not in self._files:
            self._files[part] = MetricsFile(self._place, self._columns, self._filling.submit)
        return self._files[part].update(lines)

    def _take_parquet(self, part: Part, whole: ObjectMeta, *, has_lines: bool) -> bool:
        """Read the footer; False if it is damaged, and the lines are there."""
        columns = ParquetColumns(self._place, whole, self._pool)
        try:
            assert columns.n_rows >= 0
        except IntegrityError:
            if not has_lines:
                raise
            return False
        self._parquet[part] = version_of(whole), columns
        self._files.pop(part, None)
        return True

    @property
    def keys(self) -> list[str]:
        """The names of all metrics, sorted, 20,000 at most."""
        with self._lock:
            found = {f"{part.label}{key}" for part, file in self._files.items() for key in file.keys}
            found |= {f"{part.label}{key}" for part, (_, file) in self._parquet.items() for key in file.keys}
        if len(found) > MOST_KEYS or any(file.keys_cut for file in self._files.values()):
            self.trouble["keys"] = f"there are more than {MOST_KEYS} metrics: only the first are shown"
        return sorted(found)[:MOST_KEYS]

    @property
    def version(self) -> object:
        """A new value means new points."""
        files = tuple((part, file.version) for part, file in self._files.items())
        return files, tuple((part, version) for part, (version, _) in self._parquet.items())

    @property
    def tail_only(self) -> bool:
        """Whether only the end of some file is known yet."""
        return any(file.tail_only for file in self._files.values())

    @property
    def unreadable(self) -> dict[str, int]:
        """Of each file with lines that hold no JSON object: how many there are in what was read of it."""
        with self._lock:
            found = {part.name("metrics.jsonl"): file.n_unreadable for part, file in self._files.items()}
        return {name: n for name, n in sorted(found.items()) if n}

    def check(self) -> Checked:
        """Whether all that was read of the metrics agrees with checksums. May ask the store, once for each version of a file."""
        with self._lock:
            files, columns = list(self._files.values()), [one for _, one in self._parquet.values()]
        return all_of([*(file.check() for file in files), *(one.check() for one in columns)])

    @property
    def last(self) -> tuple[int | None, float | None]:
        """The greatest step and the newest time of what was read."""
        with self._lock:
            found = [file.last for file in self._files.values()] + [one.last for _, one in self._parquet.values()]
        steps = [step for step, _ in found if step is not None]
        return max(steps, default=None), max((t for _, t in found if t is not None), default=None)

    def series(self, key: str, *, n_total: int | None, whole: bool) -> Series:
        """The points of one metric. NotFoundError; StoreError."""
        with self._lock:
            if whole:
                for file in self._files.values():
                    file.fill()
            version = self.version
            if key in self._kept and self._kept[key][0] == version:
                return self._kept[key][1]
            tail_only = self.tail_only  # asked first: a thread may read the rest meanwhile
            found: list[Points] = []
            is_there = False
            for part in sorted({*self._files, *self._parquet}):
                if not key.startswith(part.label):
                    continue
                pieces = self._points(part, key[len(part.label) :])
                is_there |= bool(pieces)
                found += pieces
            if not is_there and key not in self.keys:
                raise NotFoundError(f"no metric is called {key!r}", operation="read", uri=str(self._place.uri))
            series = series_of(key, found, n_total=n_total if tail_only else None, tail_only=tail_only)
            self._kept.pop(key, None)
            self._kept[key] = version, series
            while len(self._kept) > 1 and sum(len(one.step) for _, one in self._kept.values()) > _MOST_KEPT_POINTS:
                del self._kept[next(iter(self._kept))]
            return series

    def _points(self, part: Part, key: str) -> list[Points]:
        if part in self._parquet:
            points = self._parquet[part][1].points(key)
            return [] if points is None else [points]
        return self._files[part].points(key)


def _is_stale(whole: ObjectMeta, contents: Contents, part: Part) -> bool:
    """Whether the lines have gone on since the Parquet file was made of them: the folder of a run may be continued."""
    lines = contents.files.get(part.name("metrics.jsonl"))
    if lines is None:
        return False
    if lines.segments or lines.plain is None:
        return True
    return (lines.plain.modified_s or 0.0) > (whole.modified_s or 0.0) + _SLACK_S
