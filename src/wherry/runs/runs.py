"""Runs: all runs below one or several prefixes."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from wherry.errors import ConfigError, NotFoundError
from wherry.mirror.format.layout import FOLDER
from wherry.mirror.reader.reader import find_mirror
from wherry.posix.thread_pool import DaemonThreadPool, result_of
from wherry.runs.kept_rows import KeptRows
from wherry.runs.looks import PER_HOUR, USD_PER_HOUR
from wherry.runs.objects.discovery import Found, runs_of
from wherry.runs.objects.disk_cache import DiskCache, default_folder
from wherry.runs.objects.place import Place, open_place
from wherry.runs.objects.reading_store import Tally
from wherry.runs.records import RunRow, Usage
from wherry.runs.row import row_of
from wherry.runs.run import Run
from wherry.store.options import MOST_IN_FLIGHT
from wherry.uri import StoreURI, parse_uri


class Runs:
    """All runs below `uris`: a prefix of runs, a single run or a folder; any URI that wherry opens::

        with Runs("s3://my-bucket/runs") as runs:
            for row in runs.rows():
                print(row.id, row.state, row.metrics["loss"].min)

    `cache_dir`: where what was read is kept, 2 GiB at most; None: ``$XDG_CACHE_HOME/wherry``, else ``~/.cache/wherry``, else, for
    a user without a home, a temporary folder. `options` are storage options, those of all URIs. Any thread may call. Nothing can
    be written to a store.

    ConfigError for a wrong URI or option; MissingExtraError.
    """

    def __init__(
        self,
        *uris: str | os.PathLike[str],
        cache_dir: Path | None = None,
        options: Mapping[str, object] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if not uris:
            raise ConfigError("no URI was given: name a prefix of runs, such as s3://my-bucket/runs, or a folder")
        self._now = now
        self._tally = Tally()
        self._scratch = tempfile.TemporaryDirectory(prefix="wherry-runs-")
        self._cache = DiskCache((cache_dir or default_folder() or Path(self._scratch.name)) / "runs")
        self._pool = DaemonThreadPool(MOST_IN_FLIGHT, "wherry-runs")
        #: Parses in the background what takes long; the pool of rows would be in its way.
        self._filling = DaemonThreadPool(1, "wherry-columns")
        self._lock = threading.RLock()
        self._known: dict[str, tuple[Place, Found]] = {}
        self._runs: dict[str, Run] = {}
        self._is_closed = False
        self._options = dict(options or {})
        self._outers: dict[str, Place] = {}
        self._places = [self._open(parse_uri(uri)) for uri in uris]

    @property
    def uris(self) -> list[str]:
        """The URIs that were given, in their full form; of local folders their paths, as `RunRow.uri` has them."""
        return [place.typed(place.uri.prefix) for place in self._places]

    def rows(self, *, as_told: bool = False) -> Iterator[RunRow]:
        """Yield the runs as they are known, in no order: one listing a URI, then 32 requests at a time.

        What cannot be read of one run is its row's `trouble`. StoreError if the listing itself fails; NotFoundError for a bucket
        or a local folder that is not there. `as_told`: the first ones sooner, while servers that list in another order than
        Amazon's are still listing; where such a server tells of a run in two places, it is yielded twice: the last one counts.
        """
        kept, now_s = self._kept_rows(), self._now()
        waiting: deque[tuple[Found, Future[RunRow]]] = deque()

        def first() -> RunRow:
            found, future = waiting.popleft()
            row = result_of(future)
            kept.take(row, found, now_s)
            if (known := self._runs.get(row.id)) is not None:
                known.hear(row)
            return row

        for run_id, place, found in self._found(as_told=as_told):
            if not place.is_local and (row := kept.row(run_id, found, now_s)) is not None:
                yield row
                continue
            waiting.append((found, self._pool.submit(row_of, place, found, run_id, now_s)))
            while waiting and waiting[0][1].done():
                yield first()
        while waiting:
            yield first()
        kept.save(now_s)

    def rows_of_before(self) -> tuple[Sequence[RunRow], float | None]:
        """The rows as they were when all were last read, by whatever process of this user, and how many seconds ago that was.

        None, with no row, if that never happened, or the runs are in folders of this machine. Asks no store.
        """
        return self._kept_rows().of_before(self._now())

    def _kept_rows(self) -> KeptRows:
        is_kept = any(not place.is_local for place in self._places)  # a folder of this machine is read as fast
        name = " ".join(f"{place.ident} {place.uri.prefix}" for place in self._places)
        return KeptRows(self._cache if is_kept else None, name)

    def _found(self, *, as_told: bool = False) -> Iterator[tuple[str, Place, Found]]:
        """All runs, each with an id that no other has."""
        taken: dict[str, tuple[int, str]] = {}
        for at, place in enumerate(self._places, 1):
            for where, found in self._runs_in(place, as_told=as_told):
                run_id = plain = found.folder or where.uri.prefix.rpartition("/")[2] or where.uri.root
                number = at
                while taken.setdefault(run_id, (at, found.folder)) != (at, found.folder):
                    run_id, number = f"{number}:{plain}", number + 1
                with self._lock:
                    self._known[run_id] = where, found
                yield run_id, where, found

    def _runs_in(self, place: Place, *, as_told: bool) -> Iterator[tuple[Place, Found]]:
        """The runs below a place's URI, which may lie inside of a mirror: then only all of that one is whole."""
        prefix = place.uri.prefix
        if place.is_local and not Path("/", prefix).is_dir():
            raise NotFoundError("there is no such folder", operation="list", uri=f"/{prefix}")
        above = _mirror_above(place)
        if above is None:
            for found in runs_of(place.store, prefix, as_told=as_told):
                yield place, found
            return
        outer = self._outer(place, StoreURI(place.uri.scheme, place.uri.root, above))
        wanted = prefix[len(above) :].strip("/")
        for found in runs_of(outer.store, above):
            if found.folder == wanted or found.folder.startswith(f"{wanted}/"):
                yield outer, found

    def _outer(self, place: Place, uri: StoreURI) -> Place:
        """The place of a mirror that a URI lies in; of local folders each has a store of its own."""
        if not place.is_local:
            return replace(place, uri=uri)
        with self._lock:
            if str(uri) not in self._outers:
                self._outers[str(uri)] = self._open(uri)
            return self._outers[str(uri)]

    def _open(self, uri: StoreURI) -> Place:
        return open_place(uri, self._options, tally=self._tally, cache=self._cache, scratch=Path(self._scratch.name))

    def run(self, run_id: str) -> Run:
        """One run, by the `id` of its row; the same object each time. NotFoundError."""
        with self._lock:
            if run_id in self._runs:
                return self._runs[run_id]
            known = self._known.get(run_id)
        if known is None:
            known = next(((place, found) for one, place, found in self._found() if one == run_id), None)
        if known is None:
            shown = ", ".join(self.uris)
            raise NotFoundError(
                f"no run is called {run_id!r}", operation="read", uri=shown, hint=f"wherry runs {shown} lists them"
            )
        place, found = known
        with self._lock:
            made = Run(place, found, run_id, columns=self._cache, pool=self._pool, filling=self._filling, now=self._now)
            return self._runs.setdefault(run_id, made)

    def usage(self) -> Usage:
        """What this reader has asked of the stores so far, and its price."""
        found = self._tally.usage()
        if all(place.is_local for place in self._places):
            return found
        return replace(found, looks_per_hour=PER_HOUR, looks_usd_per_hour=USD_PER_HOUR)

    def close(self) -> None:
        """End what is under way, and free connections. No call may follow; closing again is fine."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for pool in (self._pool, self._filling):
            pool.shutdown(cancel_futures=True)
        for place in (*self._places, *self._outers.values()):
            place.close()
        self._scratch.cleanup()

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _mirror_above(place: Place) -> str | None:
    """The prefix of the mirror that a URI lies inside of; None if it lies in none, or is that of one."""
    prefix = place.uri.prefix
    if not prefix:
        return None
    if place.is_local:
        folders = Path("/", prefix).parents
        found = next((str(one).strip("/") for one in folders if (one / FOLDER).is_dir()), None)
    else:
        found = find_mirror(place.store, f"{prefix}/x")
    return None if found == prefix else found
