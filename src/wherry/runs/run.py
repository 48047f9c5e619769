"""Run: one run, whatever it is made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from wherry.errors import BucketNotFoundError, ConfigError, IntegrityError, NotFoundError, StoreError
from wherry.mirror.format.layout import key_for, manifest_name
from wherry.runs.checkpoint_rows import checkpoints_of, committed_steps
from wherry.runs.columns.checked import Checked
from wherry.runs.columns.metrics import Metrics
from wherry.runs.environments import environments_in
from wherry.runs.log_files import log_of
from wherry.runs.looks import (
    LIST_EVERY_S,
    LIST_LOCAL_EVERY_S,
    PER_HOUR,
    Follower,
    LookBudget,
    LostWatch,
    list_every_s,
    next_due_s,
)
from wherry.runs.media import check_path, histograms_in, is_inside, media_in, rows_of_table, tables_in, texts_in
from wherry.runs.objects.contents import Contents, contents_of, folder_key, root_of, uri_of
from wherry.runs.objects.discovery import Found, Walk
from wherry.runs.objects.disk_cache import DiskCache
from wherry.runs.objects.logical_file import LogicalFile
from wherry.runs.objects.place import Place
from wherry.runs.records import (
    CheckpointRow,
    Histogram,
    LogChunk,
    MediaItem,
    RunEnvironment,
    RunRow,
    RunState,
    Series,
    TableInfo,
    TextItem,
    Truth,
    UploadsView,
    WriterState,
)
from wherry.runs.row import read_hparams, row_from
from wherry.runs.upload_view import uploads_of

_T = TypeVar("_T")
MOST_READ_BYTES = 64 * 2**20
#: Tables are read up to here, from their beginnings.
_MOST_TABLE_BYTES = 32 * 2**20
#: The logs that are followed beside the metrics: who reads more of them waits for the listing.
_MOST_FOLLOWED = 4
_WRITERS: dict[RunState, WriterState] = {"live": "alive", "finished": "finished", "lost": "lost", "unknown": "unknown"}


class Run:
    """One run, from `Runs.run()`. Any thread may call; what was read is kept until refresh() finds something new.

    StoreError: a store cannot be read just now, or refuses it.
    """

    def __init__(
        self,
        place: Place,
        found: Found,
        run_id: str,
        *,
        columns: DiskCache,
        pool: Executor,
        filling: Executor,
        now: Callable[[], float] = time.time,
        spool: Path | None = None,
    ) -> None:
        self.id = run_id
        self.uri = uri_of(place, found)
        self._place = place
        self._found = found
        self._pool = pool
        self._now = now
        self._spool = spool
        self._lock = threading.RLock()
        self._contents: Contents | None = None
        self._row = RunRow(run_id, run_id, self.uri)
        self._metrics = Metrics(place, columns, pool, filling)
        self._budget = LookBudget(PER_HOUR, now)
        self._followers: list[Follower] = []
        self._lost: LostWatch | None = None
        self._list_s = 0.0
        self._seen: object = None
        #: How often refresh() has found something new: several who look on can each tell whether they have seen it.
        self.version = 0
        #: Whether a look at it has come to its end yet.
        self.is_read = False
        self._kept: dict[str, object] = {}

    @property
    def row(self) -> RunRow:
        """Its row, as of the last look; its ages, and whether its writer is lost, as of now."""
        contents, now_s = self._known(), self._now()
        age_s, heard_s = (None if t is None else max(0.0, now_s - t) for t in (contents.newest_s, contents.heartbeat_s))
        return replace(self._row, state=_state(contents, self._row, now_s), age_s=age_s, heard_s=heard_s)

    def hear(self, row: RunRow) -> None:
        """Take into account that a table has just read this row: a run that is not known to be live is looked at again now."""
        contents = self._contents  # without the lock: a slow look at this run is not to hold up the table
        if row.state == "live" and contents is not None and _state(contents, self._row, self._now()) != "live":
            self._list_s = 0.0

    # what is new

    def refresh(self) -> bool:
        """Look for what is new, if it is time to, in as few requests as can be; True if something is. Call it as often as you
        like.

        A store that does not answer is no error: what is known stays, and truth() says how old it is.
        """
        with self._lock:
            now_s = self._now()
            try:
                is_time = now_s >= self._list_s or _seems_lost(self._contents, self._row, now_s)
                is_due = is_time and (self._place.is_local or self._budget.take(2))
                has_asked = True
                if self._contents is None or is_due:
                    self._list()
                else:
                    has_asked = self._look()
            except StoreError as error:
                self._list_s = now_s + LIST_EVERY_S / 4
                self._metrics.trouble["store"] = error.message
            else:
                if has_asked:
                    self._metrics.trouble.pop("store", None)
            state = self._row.state if self._contents is None else _state(self._contents, self._row, self._now())
            seen = _signature(self._contents, self._metrics, state, self._now())
            is_new, self._seen = seen != self._seen, seen
            self.version += is_new
            return is_new

    @property
    def next_look_s(self) -> float:
        """In how many seconds refresh() may find something; before that it asks nobody."""
        with self._lock:
            list_s = self._list_s if self._lost is None else min(self._list_s, self._lost.due_s)
            return max(0.0, next_due_s(self._followers, list_s) - self._now())

    def _list(self) -> None:
        """Look at all of the run: one listing, and the manifests that have changed."""
        root = root_of(self._place, self._found)
        walk = Walk(self._place.store, key_for(root, "") if root else "")
        objects = list(walk)
        if not objects and self._contents is not None:  # it was deleted: who looks at it keeps what he sees
            self._metrics.trouble["gone"] = "no object of this run is left in the store: this is what was read before"
            self._list_s = self._now() + LIST_EVERY_S
            return
        self._metrics.trouble.pop("gone", None)
        self._found = replace(self._found, objects=objects, is_cut=bool(walk.cut))
        contents = contents_of(self._place, self._found, pool=self._pool)
        now_s = self._now()
        self._row = row_from(self._place, contents, self.id, now_s)
        self._contents, self.is_read = contents, True
        self._kept.clear()
        self._metrics.update(contents)
        self._followers = [] if self._place.is_local or self._row.state != "live" else _followed(self._place, contents, now_s)
        silent_s = self._row.age_s if self._row.heard_s is None else self._row.heard_s
        self._lost = None if self._place.is_local or self._row.state != "lost" else _lost_watch(self._place, contents, now_s)
        every_s = LIST_LOCAL_EVERY_S if self._place.is_local else list_every_s(self._row.state, silent_s)
        self._list_s = self._now() + every_s

    def _look(self) -> bool:
        """Look for the next segments of those files for which one is due; False if none is, and nobody was asked."""
        contents = self._contents
        assert contents is not None
        if self._lost is not None and self._now() >= self._lost.due_s and self._budget.take():
            if self._lost.look(self._place.store, self._now()):
                self._list()
            return True
        below = f"{self._found.path}/" if self._found.path else ""
        files = dict(contents.files)
        has_asked = False
        for follower in self._followers:
            now_s = self._now()
            if now_s < follower.due_s or not self._budget.take():
                continue
            has_asked = True
            segment = follower.look(self._place.store, now_s)
            if segment is None:
                continue
            known = follower.assembly
            if known.segments[-1].end is None:  # compressed: now it is known where it ends
                last = replace(known.segments[-1], length_bytes=segment.start - known.segments[-1].start)
                known = replace(known, segments=(*known.segments[:-1], last))
            follower.assembly = replace(known, segments=(*known.segments, segment))
            follower.end = LogicalFile(self._place, follower.assembly).size_bytes
            follower.expect(now_s)
            files[known.path[len(below) :]] = follower.assembly
        if files != contents.files:
            newest_s = max((one.segments[-1].modified_s or 0.0 for one in files.values() if one.segments), default=0.0)
            self._contents = replace(contents, files=files, newest_s=max(contents.newest_s or 0.0, newest_s))
            row = row_from(self._place, self._contents, self.id, self._now())  # its numbers are of the points that are shown
            self._row = replace(row, state=self._row.state)  # which is for the listing to say
            self._kept.clear()
            self._metrics.update(self._contents)
        return has_asked

    def _known(self) -> Contents:
        with self._lock:
            if self._contents is None:
                self._list()
            assert self._contents is not None
            return self._contents

    def _read(self, call: Callable[[Contents], _T]) -> _T:
        """Call it; once more, after a new look, if an object is gone or replaced by now: a mirror seals, a file is begun anew."""
        try:
            return call(self._known())
        except BucketNotFoundError:
            raise
        except (NotFoundError, IntegrityError):
            with self._lock:
                self._list()
            return call(self._known())

    def _kept_or(self, what: str, call: Callable[[Contents], _T]) -> _T:
        """What call() has returned since the last news."""
        contents = self._known()
        if what not in self._kept:
            found = self._read(call)
            if self._contents is not contents:
                return found
            self._kept[what] = found
        return self._kept[what]  # type: ignore[return-value]

    # what there is

    def truth(self) -> Truth:
        """How true all that is shown is, by what was read so far. May ask the store for a file's checksum, once."""
        contents, now_s = self._known(), self._now()
        step, t = self._metrics.last
        notes = [f"{path}: {why}" for path, why in (*contents.broken.items(), *contents.trouble.items())]
        notes += [f"{path}: segments are missing before its last ones" for path in contents.gaps]
        notes += [
            f"{one.writer} has closed with {one.unsent_bytes} bytes unsent"
            for one in contents.manifests.values()
            if one.state == "incomplete"
        ]
        notes += self._metrics.trouble.values()
        notes += [f"{path}: {_lines(n)} could not be read" for path, n in self._metrics.unreadable.items()]
        is_damaged = any("CRC32C" in note for note in notes)
        checked = Checked(is_right=False) if is_damaged else self._metrics.check()
        return Truth(
            complete_to_step=step,
            newest_point_age_s=None if t is None else max(0.0, now_s - t),
            writer=_WRITERS[_state(contents, self._row, now_s)],
            segments_missing=len(contents.gaps) + len(contents.broken),
            checksums_verified=checked.is_right,
            notes=tuple(notes),
            unverified_because=checked.why,
        )

    def keys(self) -> list[str]:
        """The names of the metrics, sorted; at most 20,000."""
        self._known()
        return self._metrics.keys

    def series(self, key: str, *, whole: bool = False) -> Series:
        """The points of one metric. NotFoundError for a key that is not there.

        Of a long file only the last points are returned at first (`tail_only`), while a thread reads the others: then refresh()
        says True. With `whole` the call waits for them. Needs numpy; a finished run with a Parquet file is read from that if
        pyarrow is installed.
        """
        self._known()
        known = self._row.metrics.get(key)
        return self._metrics.series(key, n_total=None if known is None or known.is_partial else known.n_points, whole=whole)

    def hparams(self) -> Mapping[str, object]:
        """The hyperparameters as they were logged; those of later attempts replace earlier ones."""

        def read(contents: Contents) -> Mapping[str, object]:
            found: dict[str, object] = {}
            for part in contents.parts:
                if not part.label:
                    found |= read_hparams(self._place, contents, part)
            return found

        return self._kept_or("hparams", read)

    def environments(self) -> list[RunEnvironment]:
        """What each start of the run was made of (git commit and changes, command line), in the order of time."""
        return self._kept_or("environments", lambda contents: environments_in(self._place, contents))

    def media(self, key: str | None = None, step: int | None = None) -> list[MediaItem]:
        """The files of the media index, of one name and one step if they are given; none whose path leaves the run."""
        found = self._kept_or("media", lambda contents: media_in(self._place, contents))
        return [one for one in found if key in (None, one.key) and step in (None, one.step)]

    def read_file(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of one file of the run, at most 64 MiB a call. NotFoundError; ConfigError for a path that leaves the run.

        A symbolic link in a local run may lead to another file of the run, and not out of it.
        """
        name = check_path(path)
        if self._place.is_local and not is_inside(Path(self.uri), name):
            raise ConfigError(f"the path {path!r} is a symbolic link that leads out of the run: it is not followed")
        if offset < 0 or (size is not None and size < 0):
            raise ConfigError(f"offset={offset!r}, size={size!r}: neither may be negative")
        end = offset + min(MOST_READ_BYTES if size is None else size, MOST_READ_BYTES)

        def read(contents: Contents) -> bytes:
            if (assembly := contents.files.get(name)) is not None:
                return LogicalFile(self._place, assembly).read(offset, end)
            if not self._found.is_cut:
                raise NotFoundError("the run has no such file", operation="read", uri=f"{self.uri}/{name}")
            # The listing was cut short in a large folder: the object may be there.
            meta = self._place.store.head(key_for(folder_key(self._place, self._found), name))
            return self._place.fetch(meta, min(offset, meta.size_bytes), min(end, meta.size_bytes))

        return self._read(read)

    def tables(self) -> list[TableInfo]:
        """The logged tables."""
        return tables_in(self._known())

    def table_rows(self, name: str, *, first: int = 0, n_rows: int = 100) -> tuple[list[str], list[list[object]]]:
        """The columns of a table, and `n_rows` of its rows from the `first` on; of a long table those of its first 32 MiB."""
        for table in self.tables():
            if table.name == name:
                return rows_of_table(self.read_file(table.path, 0, _MOST_TABLE_BYTES), max(0, first), n_rows)
        raise NotFoundError(f"no table is called {name!r}", operation="read", uri=self.uri)

    def texts(self) -> list[TextItem]:
        """The logged texts, in order."""
        return self._kept_or("texts", lambda contents: texts_in(self._place, contents))

    def histograms(self, key: str | None = None) -> list[Histogram]:
        """The logged histograms, in order."""
        return self._kept_or(f"histograms {key}", lambda contents: histograms_in(self._place, contents, key))

    def log(self, rank: int | None = None, *, after: int | None = None, max_bytes: int = 256 * 1024) -> LogChunk:
        """The end of a rank's log (None: the first that there is), or what comes `after` an offset that an earlier call gave."""
        return self._read(lambda contents: log_of(self._place, contents, rank, after, max_bytes))

    def system(self) -> list[str]:
        """The metrics below ``system/``, those of other ranks included."""
        return [key for key in self.keys() if key.startswith("system/") or "/system/" in key]

    def checkpoints(self) -> Sequence[CheckpointRow]:
        """The checkpoint sets, from the oldest to the newest. Asks the store at each call."""
        return checkpoints_of(self._place, self._found, self._now())

    def checkpoint_steps(self) -> Sequence[int]:
        """The steps of the committed checkpoint sets, as of the last listing: asks nobody."""
        return self._kept_or("checkpoint steps", committed_steps)

    def uploads(self) -> UploadsView:
        """What is on its way to the store."""
        return uploads_of(self._known(), self._place.uri.uri_for(folder_key(self._place, self._found)), self._now(), self._spool)


def _lines(n: int) -> str:
    return f"{n:,} line{'' if n == 1 else 's'}"


def _state(contents: Contents, row: RunRow, now_s: float) -> RunState:
    """The state by now: heartbeats grow old without a request; without them it is as the row says."""
    return contents.state_by_writers(now_s) or row.state


def _seems_lost(contents: Contents | None, row: RunRow, now_s: float) -> bool:
    """Whether what was live when it was listed seems lost by now: its writer may have been heard of since."""
    return contents is not None and row.state == "live" and _state(contents, row, now_s) == "lost"


def _followed(place: Place, contents: Contents, now_s: float) -> list[Follower]:
    """Those who look for the next segments of the files that grow."""
    names = [part.name("metrics.jsonl") for part in contents.parts]
    names += [name for name in contents.files if name.endswith((".log", ".txt", "index.jsonl"))]
    root = root_of(place, contents.found)
    followers: list[Follower] = []
    for name in dict.fromkeys(names):
        found = contents.files.get(name)
        if found is not None and found.segments and len(followers) < _MOST_FOLLOWED:
            follower = Follower(root, found, LogicalFile(place, found).size_bytes)
            follower.expect(now_s)
            followers.append(follower)
    return followers


def _lost_watch(place: Place, contents: Contents, now_s: float) -> LostWatch | None:
    """Watches the manifest of the writer that was heard of last."""
    if contents.heartbeat_s is None:
        return None
    writer = max(contents.manifests, key=lambda name: contents.manifests[name].heartbeat_s)
    key = key_for(root_of(place, contents.found), manifest_name(writer))
    meta = next(one for one in contents.found.objects if one.key == key)
    return LostWatch.of(meta, now_s - contents.heartbeat_s, now_s)


def _signature(contents: Contents | None, metrics: Metrics, state: RunState, now_s: float) -> object:
    """What is equal as long as nothing is new."""
    files = () if contents is None else tuple((name, one.size_bytes, len(one.segments)) for name, one in contents.files.items())
    states = () if contents is None else tuple(sorted(contents.writers(now_s).items()))
    return files, states, metrics.version, metrics.tail_only, state, tuple(sorted(metrics.trouble.items()))
