"""How an object or file gets from one place to another: the shortest of the ways that there are, each of which verifies it.

From a file it is read where it is, from a store to a folder it is downloaded, and between two stores it is copied inside the
server or goes through this process's memory. Nothing is handed to the agent: when the command ends, all is done or named.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from wherry.cli.copy_verbs.sides import Sides
from wherry.cli.store_verbs.bar import Tracked, is_bar_shown
from wherry.cli.store_verbs.selection import Source
from wherry.errors import AlreadyExistsError, ConfigError, IntegrityError, StoreError
from wherry.uri import check_name

if TYPE_CHECKING:
    from wherry.store import ObjectMeta
    from wherry.transfer.copying import Copier
    from wherry.uploader import Uploader
    from wherry.uri import StoreURI

#: From so many writes on, it pays to find out what a server honours: then it need not be asked for what it has just stored.
_WORTH_A_TRIAL = 200
#: No file was written later (the year 2242), whatever a store says.
_LAST_S = 2.0**33
#: What a time may lose as a float of seconds.
_TIME_ERROR_S = 1e-6


@dataclass(frozen=True)
class Place:
    """Where a copy goes: a name in a folder that is open."""

    store: Uploader
    name: str

    @property
    def key(self) -> str:
        """The object's whole key."""
        return key_of(self.store.uri, self.name)

    @property
    def path(self) -> Path | None:
        """The file that it is, in a local folder."""
        return Path("/", self.key) if self.store.uri.scheme == "file" else None

    @property
    def shown(self) -> str:
        """What people read: a URI, or a file's path."""
        return str(self.path or self.store.uri.uri_for(self.key))


@dataclass(frozen=True)
class Made:
    """A copy that is verified. `version` tells the source, as it was copied, from what it may become."""

    size_bytes: int
    version: str | None
    #: When the source was written.
    modified_s: float | None


def key_of(folder: StoreURI, name: str) -> str:
    """The key of a name that a listing gave, or that is going to be one's: as it is, which check_name() would normalise.

    ConfigError for one that cannot be made below a folder, such as ``../x``.
    """
    check_name(name)
    return folder.key_for(name)


class Transfers:
    """Makes the copies of one command. `n_expected`: about how many."""

    def __init__(self, sides: Sides, n_expected: int = 0) -> None:
        self._sides = sides
        self._n_expected = n_expected
        self._stack = ExitStack()
        self._pool: Executor | None = None
        self._copier: Copier | None = None
        self._making = threading.Lock()

    def __enter__(self) -> Transfers:
        from wherry.posix.thread_pool import DaemonThreadPool
        from wherry.transfer.copying import PARTS_AT_ONCE

        self._pool = DaemonThreadPool(PARTS_AT_ONCE, "wherry-copy")
        self._stack.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
        if isinstance(error, KeyboardInterrupt) and self._copier is not None:
            self._copier.abandon()

    def prepare(self, written: Iterable[Uploader]) -> None:
        """Tell the stores that are going to be written to what is known of their servers."""
        from wherry.store.server_features import Endpoints

        for into in dict.fromkeys(written):
            if into.uri.scheme != "file":
                endpoints = Endpoints(into.spool.inside("endpoints.json"))
                if not endpoints.tell(into.store) and self._n_expected >= _WORTH_A_TRIAL:
                    endpoints.find_out(into.store, into.uri.key_for("trial"))

    def copy(self, source: Source, place: Place, *, overwrite: bool) -> Made:
        """Copy one; raises what the stores raise, FileExistsError or AlreadyExistsError for a name that is taken."""
        from wherry.transfer.copying import Copier, Target

        with self._making:
            if self._copier is None:
                assert self._pool is not None
                self._copier = Copier(self._pool, source.store.config.transfer, source.store.config.retry)
        key, view = source.key, source.store.view()
        is_queued = view.queued(key) is not None
        if place.path is not None and source.store.uri.scheme != "file":
            return _download(source, place.path, overwrite=overwrite, is_queued=is_queued)
        target = Target(place.store.store, place.key, place.store.uri.uri_for(place.key), overwrite)
        _refuse_queued(place, target.uri)
        if source.store.uri.scheme == "file" and not is_queued:
            path = Path("/", key)
            before = path.stat()
            if stat.S_ISDIR(before.st_mode):
                raise ConfigError(f"{path} is a folder: give -r for all files below it")
            made = self._copier.file(path, target)
            after = path.stat()
            is_same = _version_of_file(before) == _version_of_file(after)
            return Made(made.size_bytes, _version_of_file(after) if is_same else None, before.st_mtime)
        meta = view.head(key)
        made_inside = None
        if not is_queued and self._sides.are_one and source.store.uri.scheme == place.store.uri.scheme:
            made_inside = self._copier.inside(meta, source.store.uri.root, target)
        made = made_inside or self._copier.through(view, meta, target)
        return Made(made.size_bytes, None if is_queued else _version_of(meta), meta.modified_s)

    def refuse_queued_source(self, source: Source) -> None:
        """AlreadyExistsError for what is still queued for upload: it would be there again after its deletion."""
        if source.store.view().queued(source.key) is not None:
            raise queued_error("move", source.uri)

    def delete_source(self, source: Source, made: Made) -> None:
        """Delete the source of a copy if it is still what was copied; IntegrityError if not: then both stay.

        No service deletes on such a condition alone: what is written between the look and the deletion is lost.
        """
        key = source.key
        if made.version is None or self._version(source) != made.version:
            raise IntegrityError(
                "it changed after it was copied: it stays, and so does its copy",
                operation="move",
                uri=source.uri,
                hint="move it again with --overwrite when its writer has ended",
            )
        try:
            source.store.store.delete(key)
        except StoreError as error:
            error.hint = error.hint or "its copy is made and verified, and both are there: delete this one yourself"
            raise

    def _version(self, source: Source) -> str | None:
        """What tells the source, as it is now, from what it may become; None where nothing can."""
        if source.store.uri.scheme == "file":
            return _version_of_file(Path("/", source.key).stat())
        if source.store.view().queued(source.key) is not None:
            return None
        return _version_of(source.store.store.head(source.key))


def tracked(source: Source, place: Place) -> Tracked:
    """What a bar counts of a copy: what comes into a local folder as it is read, the rest as it is written."""
    is_fetched = place.path is not None and source.store.uri.scheme != "file"
    size_bytes = source.size_bytes
    if size_bytes < 0 and is_bar_shown():
        with suppress(StoreError, OSError):  # the copy says it
            size_bytes = source.head().size_bytes
    return Tracked(source.uri if is_fetched else place.store.uri.uri_for(place.key), size_bytes)


def _version_of(meta: ObjectMeta) -> str | None:
    """By its etag or generation, its time and its token: an object that was copied onto itself has another token."""
    if meta.etag is None and meta.modified_s is None:
        return None
    return f"{meta.etag} {meta.size_bytes} {meta.modified_s} {meta.crc32c} {meta.token}"


def _version_of_file(status: os.stat_result) -> str:
    """By what a write changes."""
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def set_time(path: Path, modified_s: float | None) -> None:
    """Give a file that was copied the time of its source; a file system that keeps coarser times must not make it older."""
    if modified_s is None or not 0 <= modified_s < _LAST_S:
        return
    at_ns = round(modified_s * 1e9)
    os.utime(path, ns=(at_ns, at_ns))
    if path.stat().st_mtime < modified_s - _TIME_ERROR_S:
        os.utime(path)


def _download(source: Source, path: Path, *, overwrite: bool, is_queued: bool) -> Made:
    from wherry.spool.download_notes import note_download
    from wherry.transfer.download import download

    reader, key = source.store, source.key
    note_download(reader.spool, path.parent)
    meta = download(
        reader.view() if is_queued else reader.store.inner,  # download() retries range by range
        key,
        path,
        uri=reader.uri.uri_for(key),
        overwrite=overwrite,
        transfer=reader.config.transfer,
        retry=reader.config.retry,
    )
    return Made(meta.size_bytes, None if is_queued else _version_of(meta), meta.modified_s)


def _refuse_queued(place: Place, uri: str) -> None:
    """What is still queued for the name would replace the copy a moment later."""
    if place.store.view().queued(place.key) is not None:
        raise queued_error("copy", uri)


def queued_error(operation: str, uri: str) -> AlreadyExistsError:
    """The error for a name whose upload is still queued on this machine."""
    return AlreadyExistsError(
        "an upload of this name is still queued on this machine",
        operation=operation,
        uri=uri,
        hint="wait for it with wherry drain, or take it back with wherry rm",
    )


def refuse_itself(source: Source, place: Place) -> None:
    """ConfigError for a copy of something to its own place."""
    same = source.store.uri.scheme == place.store.uri.scheme and source.store.uri.root == place.store.uri.root
    is_one = same and source.key == place.key
    if same and place.path is not None and not is_one:  # by a link, or another name of it
        with suppress(OSError):
            is_one = os.path.samefile(Path("/", source.key), place.path)
    if is_one:
        raise ConfigError(f"{place.shown} would become itself: name another destination")
