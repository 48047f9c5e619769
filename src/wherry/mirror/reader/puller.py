"""Puller: brings a local folder up to date with a mirrored prefix, one snapshot of the store at a time."""

from __future__ import annotations

import functools
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from wherry.checksum import crc32c_of_file
from wherry.config import FOLLOW_RETRY, RetryConfig, TransferConfig
from wherry.errors import ConfigError, IntegrityError, NotFoundError, WherryError
from wherry.mirror.budget import Budget, CountedStore
from wherry.mirror.format.layout import Assembly
from wherry.mirror.format.rules import DEFAULT_RULES, Rules
from wherry.mirror.reader.growing import GrowingFile, not_ours, source_of, version_of
from wherry.mirror.reader.local_limits import DiskRoomStore, check_local_path, file_name_problem, folders_of, full_disk
from wherry.mirror.reader.pull_state import Copied, PullState
from wherry.mirror.reader.reader import MirrorReader
from wherry.mirror.reader.snapshot import Snapshot
from wherry.mirror.report import PullReport, first_few, printable
from wherry.posix.thread_pool import DaemonThreadPool
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.options import MOST_IN_FLIGHT
from wherry.store.wrappers import LimitStore, RetryStore, WrappedStore
from wherry.transfer.download import download
from wherry.uri import StoreURI

log = logging.getLogger("wherry.mirror")

#: Files that are brought up to date side by side; the pieces of all of them together are `MOST_IN_FLIGHT`.
_FILES_AT_ONCE = 8
#: While much is fetched the state is written down so often: what came since is fetched again after a kill, and compared.
_SAVE_EVERY_S = 2.0
#: More requests than any pull makes: they are counted, and not limited.
_ANY = 10**9
_RULES = Rules(DEFAULT_RULES)

_T = TypeVar("_T")


@dataclass(eq=False)
class Puller(AbstractContextManager["Puller"]):
    """Brings a folder up to date, one snapshot of the store after another. Not for several threads; it uses some of its own.

    `store` is asked with retries.
    """

    store: ObjectStore
    uri: StoreURI
    folder: Path
    overwrite: bool = False
    retry: RetryConfig = FOLLOW_RETRY
    now: Callable[[], float] = time.time
    #: The last one.
    snapshot: Snapshot = field(default_factory=Snapshot, init=False)
    #: How long that took.
    snapshot_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is no folder: give the folder that shall hold the copy")
        self._stop = threading.Event()
        self._requests = Budget(_ANY)
        self._asked = _Stoppable(LimitStore(DiskRoomStore(CountedStore(self.store, self._requests)), MOST_IN_FLIGHT), self._stop)
        self._reader = MirrorReader(RetryStore(self._asked, self.retry), self.uri.prefix)
        self._pool = DaemonThreadPool(_FILES_AT_ONCE, "wherry-pull")
        self._lock = threading.Lock()
        self._state: PullState | None = None
        self._errors: dict[str, BaseException] = {}
        self._refused: dict[str, str] = {}
        self._warned: set[tuple[str, str]] = set()
        self._was_broken: frozenset[str] = frozenset()
        self._n_bytes = 0

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with ExitStack() as stack:
            stack.callback(self._close_state)
            stack.callback(self._pool.shutdown, cancel_futures=True)
            stack.callback(self._reader.close)

    def _close_state(self) -> None:
        if self._state is not None:
            state, self._state = self._state, None
            try:
                state.save()
            except OSError as error:  # on a full disk; the next pull compares what is here from its beginning
                log.info("the state of the copy could not be written: %s", error)
            finally:
                state.close()

    def step(self) -> PullReport:
        """Take a snapshot of the store, and bring every file up to date. Errors of single files are kept for raise_first().

        OSError when the disk of the copy is full.
        """
        began_s = time.monotonic()
        try:
            snapshot = self.snapshot = self._reader.snapshot()
            self.snapshot_s = time.monotonic() - began_s
            self._errors = {}
            if not snapshot.is_empty:
                self._update_all(snapshot)
        except OSError as error:
            if (told := full_disk(error, self.folder)) is not None:
                raise told from error
            raise
        self._warn(snapshot)
        return self.report()

    @property
    def is_worth_retrying(self) -> bool:
        """Whether another snapshot may be without the errors of this one: a seal was under way."""
        gone = any(isinstance(error, NotFoundError) for error in self._errors.values())
        return gone or bool(self.snapshot.broken)

    @property
    def seal(self) -> object:
        """The manifests, when all writers have sealed; None while one may still write."""
        return tuple(sorted(self.snapshot.manifests.items())) if self.snapshot.is_sealed else None

    def raise_first(self) -> None:
        """Raise the error of the first file that has one."""
        for path, reason in sorted(self.snapshot.trouble.items()):
            raise IntegrityError(reason, operation="pull", uri=printable(f"{self.uri}/{path}"))
        for path in sorted(self._errors):
            raise self._errors[path]

    def report(self) -> PullReport:
        """How far it is."""
        now_s, manifests = self.now(), self.snapshot.manifests.values()
        states = {one.state_at(now_s) for one in manifests}
        state = next((one for one in ("open", "lost", "incomplete", "sealed") if one in states), self._unmirrored)
        living = [one for one in manifests if one.state != "sealed"]
        trouble = {**self.snapshot.trouble, **self._refused, **{path: _words(error) for path, error in self._errors.items()}}
        return PullReport(
            uri=str(self.uri),
            folder=self.folder,
            n_files=len(self.snapshot.files),
            n_segments=self.snapshot.n_segments,
            n_bytes=self._n_bytes,
            state=state,
            heard_s=max((now_s - one.heartbeat_s for one in living), default=None),
            lag_s=max((one.lag_s for one in living), default=None),
            lost=tuple(sorted(one.writer for one in manifests if one.state_at(now_s) == "lost")),
            trouble=tuple(f"{printable(path)}: {reason}" for path, reason in sorted(trouble.items())),
            n_requests=self._requests.spent,
        )

    @property
    def _unmirrored(self) -> str:
        """The state without a manifest: the mirror may only be about to begin, or there is none."""
        return "unknown" if self.snapshot.is_mirror or self.snapshot.is_empty else "none"

    def _warn(self, snapshot: Snapshot) -> None:
        """Of each thing once, and again when it has come back meanwhile."""
        now: dict[tuple[str, str], str] = {}
        for one in snapshot.manifests.values():
            if one.state_at(self.now()) == "lost":
                silent_s = self.now() - one.heartbeat_s
                now["lost", one.writer] = f"the writer {one.writer} of {self.uri} may be lost: silent for {silent_s:.0f} s"
        for path, writers in snapshot.contested.items():
            now["contested", path] = f"{printable(path)}: {' and '.join(writers)} both write it; the last one counts"
        # Files that cannot be put together are named only when the next snapshot shows them so, too: a seal may be under way.
        broken = {path for path in snapshot.broken if path in self._was_broken}
        self._was_broken = frozenset(snapshot.broken)
        for path, reason in snapshot.trouble.items():
            if path in broken or path in snapshot.flawed:
                now["broken", path] = f"{printable(path)} cannot be read: {reason}"
        if snapshot.unknown:
            now["unknown", ""] = (
                f"{self.uri} has names that this wherry does not understand, perhaps a newer one's: {first_few(snapshot.unknown)}"
            )
        if self._unmirrored == "none":
            now["mirror", ""] = f"{self.uri} has no mirror: what is pulled are its objects as they are now"
        for path, error in self._errors.items():
            now["file", path] = f"{printable(path)} is not up to date: {_words(error)}"
        for path, reason in self._refused.items():
            now["name", path] = f"{printable(path)} is not pulled: {reason}"
        for key in now.keys() - self._warned:
            log.warning("%s", now[key])
        self._warned = set(now)

    def _update_all(self, snapshot: Snapshot) -> None:
        if self._state is None:
            self._state = PullState(self.folder, str(self.uri))
            self._reader.scratch = self._state.scratch
        state = self._state
        self._refused = {path: reason for path in snapshot.files if (reason := file_name_problem(path))}
        files = {path: found for path, found in snapshot.files.items() if path not in self._refused}
        folders = {folder for path in files for folder in folders_of(path)}
        for path in files:
            # Written down before anything is written: after a kill we know that it is ours.
            if path not in state.files and (self.overwrite or not os.path.lexists(self.folder / path)):
                state.note(path, Copied())
        state.save()
        futures: dict[Future[None], str] = {
            self._pool.submit(self._update_file, state, snapshot, found, is_folder_too=path in folders): path
            for path, found in files.items()
            if not self._is_current(state, found)
        }
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=_SAVE_EVERY_S)
                for future in done:
                    if (error := future.exception()) is not None:
                        self._note(futures[future], error)
                state.save()
        finally:
            for future in pending:
                future.cancel()

    def _note(self, path: str, error: BaseException) -> None:
        if not isinstance(error, (WherryError, OSError)) or full_disk(error, self.folder) is not None:
            raise error  # where the disk is full no other file would do better
        self._errors[path] = error

    def _is_current(self, state: PullState, found: Assembly) -> bool:
        """Whether nothing is to be done, by the local file's size and time."""
        copied = state.files.get(found.path)
        if copied is None or not copied.mtime_ns:
            return False
        if found.segments:
            last = found.segments[-1]
            end = last.end if last.end is not None else (copied.size if last.start < copied.size else None)
            is_all_here = (copied.source, copied.size) == (source_of(found), end)
        else:
            assert found.plain is not None
            is_all_here = (copied.version, copied.size) == (version_of(found.plain), found.plain.size_bytes)
        try:
            status = os.stat(self.folder / found.path, follow_symlinks=False)
        except OSError:
            return False
        return is_all_here and (status.st_size, status.st_mtime_ns) == (copied.size, copied.mtime_ns)

    def _update_file(self, state: PullState, snapshot: Snapshot, found: Assembly, *, is_folder_too: bool) -> None:
        """Make one local file what the store has. `is_folder_too`: it has files below that name as well."""
        path = self.folder / found.path
        check_local_path(self.folder, found.path, is_folder_too=is_folder_too)
        path.parent.mkdir(parents=True, exist_ok=True)
        copied = state.files.get(found.path)
        if found.segments or (copied is not None and copied.source) or _RULES.kind(found.path) == "append":
            growing = GrowingFile(path, found, copied, functools.partial(state.note, found.path))
            try:
                growing.update(self._reader, snapshot.entry(found))
            finally:
                self._count(growing.n_written)
        else:
            self._replace(state, found, path, copied)

    def _replace(self, state: PullState, found: Assembly, path: Path, copied: Copied | None) -> None:
        """A file that is not appended to: it appears whole."""
        plain = found.plain
        assert plain is not None
        if copied is None and self._equals(path, plain):
            copied = Copied()
        elif copied is None:
            raise not_ours(path)
        elif not self._equals(path, plain):
            os.replace(self._downloaded(state, plain, found.path), path)
            self._count(plain.size_bytes)
        status = os.stat(path, follow_symlinks=False)
        crc = crc32c_of_file(path)
        state.note(found.path, Copied(status.st_size, crc, status.st_size, "", version_of(plain), status.st_mtime_ns))

    def _equals(self, path: Path, plain: ObjectMeta) -> bool:
        """Whether a local file is what the store has, by its checksum."""
        try:
            if not stat.S_ISREG(path.lstat().st_mode) or path.lstat().st_size != plain.size_bytes:
                return False
        except FileNotFoundError:
            return False
        known = self._reader.store.head(plain.key)
        return known.crc32c is not None and (known.size_bytes, known.crc32c) == (plain.size_bytes, crc32c_of_file(path))

    def _downloaded(self, state: PullState, plain: ObjectMeta, name: str) -> Path:
        """A verified download in our scratch folder. Its name there says nothing: TensorBoard would take it for an event file."""
        scratch = state.scratch / sha256(name.encode(errors="surrogateescape")).hexdigest()[:24]
        uri = self.uri.uri_for(plain.key)
        download(self._asked, plain.key, scratch, uri=uri, overwrite=True, transfer=TransferConfig(), retry=self.retry)
        return scratch

    def _count(self, n_bytes: int) -> None:
        with self._lock:
            self._n_bytes += n_bytes


def _words(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and not isinstance(error, WherryError) and error.strerror else str(error)


class _Stoppable(WrappedStore):
    """Makes no more calls once `stop` is set: a large download ends with the range that is under way."""

    def __init__(self, inner: ObjectStore, stop: threading.Event) -> None:
        super().__init__(inner)
        self._stop = stop

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        if self._stop.is_set():
            raise CancelledError
        return call()
