"""Uploader: hand files over to a store and get them back by name. What every destination and command stands on."""

from __future__ import annotations

import atexit
import json
import logging
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

from wherry.agent.in_process import Caller
from wherry.agent.open_stores import Stores
from wherry.agent.session import LOOK_AGAIN_S, Session
from wherry.config import Config
from wherry.downloads import Reader
from wherry.errors import AlreadyExistsError, ConfigError, JobFailure, SpoolError, UploadFailed, upload_failed
from wherry.posix.file_copy import require_regular
from wherry.posix.thread_pool import DaemonThreadPool
from wherry.progress import ByteBar
from wherry.spool.drain import Patience, wait_until_drained
from wherry.spool.file_system import file_system_warnings
from wherry.spool.handle import UploadHandle
from wherry.spool.journal.jobs import Counts, JobId, JobKind, job_sent_at_once
from wherry.spool.journal.submit import JournalReplaced, NewJob, SnapshotGone, name_is_held
from wherry.spool.recovery import open_journal, remove_unneeded_reserve, restore_quarantined
from wherry.spool.shared_snapshots import share_snapshot, shared_snapshot
from wherry.spool.spool import HALF, Spool
from wherry.spool.spool_file import SpoolWriter
from wherry.spool.staging import Staged, finish_writer, open_writer, release_source, stage
from wherry.store import ObjectMeta
from wherry.store.environment import with_environment
from wherry.store.registry import backend_for, check_usable, split_options
from wherry.transfer.upload import POOL_THREADS, Sender
from wherry.uri import check_name, check_new_name, parse_uri

log = logging.getLogger("wherry")


#: Between looks for a queued file that somebody has taken from the spool: its job fails when it is tried.
_LOST_FILE_S = 0.05
#: An error that names the jobs of more failures than this would be read by nobody.
_NAMED_JOBS = 5
_open_uploaders: set[Uploader] = set()
_warned_spools: set[Path] = set()
_private_spools: dict[Path, int] = {}
_Self = TypeVar("_Self", bound="Uploader")


class Uploader(Reader):
    """Uploads files to the store at `uri` in the background and downloads them by name.

    put() returns as soon as a snapshot of the file and a row in the journal exist; a process of its own, the agent, does
    the rest, also when this process is killed. Safe from several threads, after a fork, and from several processes with
    one spool. `storage_options` go to the backend; those that are secret are kept in memory only.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        spool: str | os.PathLike[str] | None = None,
        config: Config | None = None,
    ) -> None:
        target, config = parse_uri(uri), config or Config()
        self._given = frozenset(storage_options or ())
        options = with_environment(target.scheme, storage_options or {}, os.environ)
        check_usable(target.scheme, options, target.root)
        if target.scheme == "file":
            options.setdefault("links_within", f"/{target.prefix}")  # workers open the store without the prefix
            if config.spool.durability == "power":
                options.setdefault("fsync", True)
        public, self._secrets = split_options(target.scheme, options)
        try:
            json.dumps(self._secrets)
        except TypeError as error:
            raise ConfigError(f"storage_options must be plain JSON values, to be handed to the agent: {error}") from None
        self._in_caller = config.agent.run_in == "caller"
        # Of a store that only this process sees, only this process may have the jobs.
        is_private = backend_for(target.scheme).process_local
        if is_private:
            spool, self._in_caller = tempfile.mkdtemp(prefix="wherry-"), True
        place = Spool(spool, config.spool)
        super().__init__(target, options, config, place, open_journal(place))
        if not is_private:
            self._say_warnings()
        if is_private:  # kept for as long as a handle may ask for it
            _private_spools[self.spool.folder] = os.getpid()
            weakref.finalize(self.journal, _remove_private, self.spool.folder).atexit = False  # that would be before _close_all
        self._store_id = self._register(public)
        self._session = Session(self.spool, None if self._in_caller else self.config.agent)
        self._owner = self._session.name
        if self._secrets:
            self._session.secrets = {str(self._store_id): self._secrets}
        self._closed = False
        self._patience = Patience(self.config.give_up_s)
        self._has_accepted = False
        self._seen_replacements = 0
        self._warned: set[int] = set()
        self._caller: Caller | None = None
        _open_uploaders.add(self)
        self._session.call_agent(warm=self._store_id)

    def __repr__(self) -> str:
        return f"<Uploader {self.uri} spool={self.spool.folder}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: where it uploads to, and how far it is. Names are escaped."""
        counts = self.counts()
        rows = {
            "store": str(self.uri),
            "spool": str(self.spool.folder),
            "uploads": f"{counts.queued} queued, {counts.leased} uploading, {counts.done} done, {counts.failed} failed",
            "to send": f"{counts.bytes_queued / 1e6:.1f} MB",
        }
        cells = "".join(f"<tr><th>{escape(what)}</th><td>{escape(text)}</td></tr>" for what, text in rows.items())
        return f"<table><caption>Uploader</caption>{cells}</table>"

    def _say_warnings(self) -> None:
        if self.spool.folder not in _warned_spools:
            _warned_spools.add(self.spool.folder)
            for text in file_system_warnings(self.spool):
                log.warning("%s", text)

    def _register(self, public: Mapping[str, object]) -> int:
        settings = {"retry": asdict(self.config.retry), "transfer": asdict(self.config.transfer)}
        if self._secrets and not set(self._secrets) & set(self._given):
            settings["secrets"] = {"from_environment": 1}  # who drains the spool may take them from there as well
        return self.journal.uploads.store_id(self.uri.scheme, self.uri.root, public, self._secrets, settings)

    # -- handing over

    def put(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        overwrite: bool = False,
        move: bool = False,
        requires: Sequence[str] = (),
        progress_bar: bool = False,
    ) -> UploadHandle:
        """Accept a file, or all files of a folder, for upload as `name`; returns once they survive the end of this process.

        What is uploaded is what the file holds now: it may be changed or deleted afterwards. `move=True` gives it away:
        nothing is copied, and its old name is gone. `overwrite=False`: an object that has the name by then is kept, and
        the upload fails with AlreadyExistsError. `requires`: names that must exist in the store before this one is sent.
        `progress_bar`: show how far the copy into the spool is, if that takes a while.

        Raises FileNotFoundError, PermissionError, ConfigError (bad name, no regular file), SpoolError (no room), and without
        `overwrite` AlreadyExistsError for a name that another upload of this spool is on its way to. The store is not asked.
        Failures of the upload itself come later: from the handle, from flush() and close(), or as `Config.on_failure` says.
        """
        self._check_open()
        self.raise_failures()
        path = Path(path)
        name = self._new_name(name)
        if path.is_dir():
            files = _files_below(path)
            sources = [(file, check_new_name(f"{name}/{file.relative_to(path).as_posix()}")) for file in files]
            _require_distinct(sources)
        else:
            sources = [(path, name)]
        self._require_usable([each for _, each in sources], requires, only_if_free=not overwrite)
        size_bytes = sum(file.stat().st_size for file, _ in sources)
        if not self._make_room(size_bytes):
            return self._put_directly(sources, name, overwrite=overwrite, move=move)
        with ByteBar("copying into the spool", size_bytes, shown=progress_bar) as bar:
            ids = self._submit_shared(sources, overwrite, requires) or self._submit_staged(
                sources, overwrite, requires, move=move, advance=bar.advance
            )
        if move:
            for file, _ in sources:
                release_source(file)
        return self._accepted(name, ids)

    def _new_name(self, name: str) -> str:
        """As check_new_name(), of the whole key: the prefix of a URI may be given to read what others have made."""
        if self.uri.prefix and self.uri.scheme != "file":  # a local folder is there, or its name is its owner's affair
            check_new_name(self.uri.prefix, what="prefix")
        return check_new_name(name)

    def open(self, name: str, mode: str = "wb", *, requires: Sequence[str] = ()) -> SpoolWriter:
        """Open a new binary file in the spool for writing; closing it hands it over as `name`.

        ``"wb"`` overwrites, ``"xb"`` does not: AlreadyExistsError while another upload of the name is on its way from this spool.
        The writer's `handle` is the upload. An exception inside its ``with`` block throws the file away.
        """
        self._check_open()
        if mode not in ("wb", "xb", "w+b", "x+b"):
            raise ConfigError(f"mode {mode!r}: use 'wb' (overwrite) or 'xb' (only if the name is free)")
        name = self._new_name(name)
        self.raise_failures()
        self._require_usable([name], requires, only_if_free=mode.startswith("x"))
        if not self._make_room(0):
            raise SpoolError(f"the spool {self.spool.folder} is full, and a file that is written there cannot go around it")
        object_id, file = open_writer(self.spool, self._owner)
        accepted: list[JobId] = []

        def accept(written: BinaryIO) -> UploadHandle:
            staged = finish_writer(self.spool, object_id, written)
            # Not only_if_free: what was written is not thrown away because another upload of the name came meanwhile. Its job
            # fails, and the file is kept.
            accepted.extend(self._submit([staged], [name], not mode.startswith("x"), requires))
            return self._accepted(name, accepted)

        def discard() -> None:
            if not accepted:  # else what failed, or was interrupted, is only the upload: the journal has the job
                self.spool.free([object_id + HALF, object_id])

        return SpoolWriter(file, name, accept, discard, lambda error: self.spool.explain(error, name))

    def _require_usable(self, names: Sequence[str], requires: Sequence[str], *, only_if_free: bool) -> None:
        """Refuse before anything is copied or written what would be refused when it is accepted.

        ConfigError for a name that the store cannot have. With `only_if_free` AlreadyExistsError for one that an upload which is
        queued or under way holds; one that has failed, or is done, holds none.
        """
        for name in requires:
            self.uri_for(name)
        for uri in map(self.uri_for, names):
            if only_if_free and (holder := self.journal.queries.newest_open(uri, self._place)) is not None:
                raise name_is_held(holder)

    def _submit_staged(
        self,
        sources: Sequence[tuple[Path, str]],
        overwrite: bool,
        requires: Sequence[str],
        *,
        move: bool,
        advance: Callable[[int], object],
    ) -> list[JobId]:
        """Make snapshots, and jobs for them: all or nothing."""
        staged: list[Staged] = []
        try:
            for file, _ in sources:
                staged.append(stage(self.spool, file, self._owner, move=move, advance=advance))
            ids = self._submit(staged, [name for _, name in sources], overwrite, requires, only_if_free=not overwrite)
        except BaseException:
            self.spool.free([one.object_id for one in staged])
            raise
        for (file, _), one in zip(sources, staged, strict=True):
            share_snapshot(self.spool.folder, file, one)
        return ids

    def _submit_shared(self, sources: Sequence[tuple[Path, str]], overwrite: bool, requires: Sequence[str]) -> list[JobId] | None:
        """Make jobs for the snapshots that another upload of this call has made. None: there are none, or none any more."""
        staged = [one for file, _ in sources if (one := shared_snapshot(self.spool.folder, file)) is not None]
        if len(staged) < len(sources):
            return None
        try:
            names = [name for _, name in sources]
            return self._submit(staged, names, overwrite, requires, shared=True, only_if_free=not overwrite)
        except SnapshotGone:  # uploaded and freed in the meantime
            return None

    def _submit(
        self,
        staged: Sequence[Staged],
        names: Sequence[str],
        overwrite: bool,
        requires: Sequence[str],
        *,
        shared: bool = False,
        only_if_free: bool = False,
    ) -> list[JobId]:
        wanted = tuple((self.uri_for(r), self.uri.key_for(check_name(r))) for r in requires)
        new = [
            NewJob(
                JobKind.PUT,
                self.uri_for(name),
                self.uri.key_for(name),
                one.object_id,
                one.size_bytes,
                overwrite,
                secrets.token_hex(16),
                wanted,
                one.crc32c,
                one.pieces,
                only_if_free,
            )
            for one, name in zip(staged, names, strict=True)
        ]
        object_ids = [one.object_id for one in staged]
        ids, freed = self._journalize(new, shared=shared)
        restore_quarantined(self.spool, object_ids)
        self.spool.free(freed)
        return ids

    def _journalize(self, new: Sequence[NewJob], *, shared: bool = False) -> tuple[list[JobId], list[str]]:
        try:
            accepted = self.journal.uploads.submit(self._owner, self._store_id, new, shared=shared)
        except JournalReplaced:
            self._register(split_options(self.uri.scheme, self._options)[0])
            accepted = self.journal.uploads.submit(self._owner, self._store_id, new, shared=shared)
        if not self._has_accepted:
            self._has_accepted, self._seen_replacements = True, self.journal.replacements
        return accepted

    def _accepted(self, name: str, ids: Sequence[JobId]) -> UploadHandle:
        handle = UploadHandle(self.uri_for(name), ids, self.journal, self._wait_for)
        if self._in_caller:
            self._perform(ids)
        else:
            self._session.call_agent()
        return handle

    def _make_room(self, size_bytes: int) -> bool:
        """Wait until the budget has room for `size_bytes`. False: there is none, and the file is to go around the spool."""
        limit = self.config.spool.max_spool_bytes
        if limit is None:
            return True
        what = self.config.spool.when_full
        while (used := self.journal.queries.spool_bytes()) + size_bytes > limit:
            if what == "direct":
                return False
            counts = self.journal.queries.counts()
            stuck = not (counts.queued + counts.leased)
            if what == "raise" or size_bytes > limit or stuck:
                remedy = (
                    "wherry retry or wherry discard" if stuck and counts.failed else "raise max_spool_bytes or wait for uploads"
                )
                raise SpoolError(
                    f"the spool {self.spool.folder} has {used} of {limit} bytes in use ({counts.failed} failed upload(s) hold "
                    f"{counts.bytes_failed}); {size_bytes} more do not fit: {remedy}"
                )
            self._wait(LOOK_AGAIN_S)
        return True

    def _put_directly(self, sources: Sequence[tuple[Path, str]], name: str, *, overwrite: bool, move: bool) -> UploadHandle:
        """Upload from the caller's own files, now, in this thread. Raises what the store raises."""
        with DaemonThreadPool(POOL_THREADS, "wherry-put") as pool:
            sender = Sender(None, pool)
            made: list[ObjectMeta] = []
            for file, file_name in sources:
                require_regular(file, file.stat())
                self._wait_for_name(self.uri_for(file_name))
                uri, key = self.uri_for(file_name), self.uri.key_for(file_name)
                job = job_sent_at_once(uri, key, file.stat().st_size, owner=self._owner, overwrite=overwrite)
                made.append(sender.send(job, file, self._own_store(), self.config.transfer, frozen=False))
                if move:
                    file.unlink()
        uri = self.uri_for(name)
        whole = made[0] if len(made) == 1 else ObjectMeta(uri, sum(one.size_bytes for one in made))
        return UploadHandle(uri, (), self.journal, self._wait_for, made=whole)

    def _wait_for_name(self, uri: str) -> None:
        while self.journal.queries.newest_open(uri, self._place) is not None:
            self._wait(LOOK_AGAIN_S)

    # -- the agent, or its work done here

    def _perform(self, ids: Sequence[JobId]) -> None:
        for job_id in ids:  # one by one: asking for all of them after each would take long for a folder of many files
            while self.journal.queries.unfinished(ids=[job_id]) and not self.journal.overview.held_up(self._owner):
                self._wait(LOOK_AGAIN_S)

    def _wait(self, timeout_s: float) -> None:
        """Wait until some job ends, at most `timeout_s`; without an agent do the next job instead, however long it takes."""
        if not self._in_caller:
            self._session.wait(timeout_s)
            return
        self._forget_after_fork()
        if self._caller is None:
            stores = Stores(self.spool.inside("endpoints.json"), self.journal.work.note_error)
            stores.learn(self._store_id, self._secrets)
            self._caller = Caller(self.spool, self.journal, stores, self._owner)
        if pause_s := self._caller.work():
            self._session.listener().wait(min(pause_s, timeout_s))

    def _forget_after_fork(self) -> None:
        """In a forked child: its parent's threads are not here, either."""
        if self._pid != os.getpid():
            self._caller = None
        super()._forget_after_fork()

    def _wait_for(self, ids: Sequence[JobId], timeout_s: float | None) -> bool:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._session.listener()  # from now on nothing that ends can be missed
        while ids and self.journal.queries.unfinished(ids=ids):
            left_s = LOOK_AGAIN_S if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                return False
            if until_s is None and (held := self.journal.overview.held_up(self._owner)):
                own = [one for one in held if one.job_id in ids] or held  # `held` names the oldest ones only
                raise UploadFailed(own, remedy=self._waiting(len(own)))
            self._wait(left_s)
        return True

    # -- failures and the end

    def start_check(self) -> None:
        """Have the agent find out, in the background, whether the store lets us in; raise_failures() reports if it does not."""
        key = self.uri.key_for(f"wherry-check-{secrets.token_hex(8)}")
        ids, _ = self._journalize([NewJob(JobKind.CHECK, self.uri.uri_for(key), key, "", 0, False, "")])
        if self._in_caller:
            self._perform(ids)
        else:
            self._session.call_agent()

    def check(self, timeout_s: float | None = 60.0) -> None:
        """Find out whether the store lets us in; raises UploadFailed with the server's own words, or TimeoutError."""
        self.start_check()
        ids = [job.id for job in self.journal.queries.jobs(owner=self._owner, kind=JobKind.CHECK)][-1:]
        if not self._wait_for(ids, timeout_s):
            raise TimeoutError(f"{self.uri} did not answer within {timeout_s} s")
        checks = self.journal.uploads.failures(self._owner, kind=JobKind.CHECK)
        if bad := [failure for failure in checks if failure.job_id in ids]:
            raise UploadFailed(bad)

    def raise_failures(self) -> None:
        """Report uploads that failed since the last time: as warnings in the log, or as UploadFailed, as `on_failure` says."""
        raising = self.config.on_failure == "raise"
        checks = self.journal.uploads.failures(self._owner, kind=JobKind.CHECK)
        puts = [*self._lost(), *self.journal.uploads.failures(self._owner, mark=raising)]
        if raising:
            self._seen_replacements = self.journal.replacements
        if raising and (checks or puts):
            raise upload_failed([*checks, *puts], remedy=self._remedy(puts))
        for failure in [*checks, *puts]:
            if failure.job_id not in self._warned:
                self._warned.add(failure.job_id)
                log.warning("upload of %s failed: %s", failure.uri, failure.error)

    def _lost(self) -> list[JobFailure]:
        """A report that the journal was damaged and put aside, if it was: what had not been uploaded by then is not known."""
        if self.journal.replacements == self._seen_replacements or not self._has_accepted:
            return []
        where = self.spool.folder / "quarantine"
        text = f"the journal was damaged and put aside: files that were not uploaded by then are kept and listed in {where}"
        return [JobFailure(0, str(self.uri), 0, text, "JournalError")]

    def _remedy(self, failures: Sequence[JobFailure]) -> str:
        """What works: an upload whose name is taken fails again when it is only tried again."""
        if not failures:
            return ""
        spool = f"--spool {shlex.quote(str(self.spool.folder))}"
        taken = [str(failure.job_id) for failure in failures if failure.kind == AlreadyExistsError.__name__]
        found = [] if len(taken) == len(failures) else [f"wherry retry --all {spool} (or discard)"]
        if taken:
            jobs = " ".join(taken) if len(taken) <= _NAMED_JOBS else "JOB..."
            found.append(f"where the name is taken, wherry retry --overwrite {jobs} {spool} (or discard)")
        return f"their files are kept: {'; '.join(found)}"

    def _waiting(self, n_named: int) -> str:
        n_left = self.counts().queued
        more = f"{n_left - n_named} more wait as well. " if n_left > n_named else ""
        return (
            f"{more}They stay queued until somebody mends that, and are tried every five minutes, or at once when new secrets "
            f"arrive or by: {self.drain_command()}"
        )

    def counts(self) -> Counts:
        """How many of this uploader's uploads are in each state."""
        return self.journal.queries.counts(self._owner)

    def flush(self, timeout_s: float | None = None, *, progress_bar: bool = False) -> None:
        """Wait until every upload accepted so far is verified in the store or has failed.

        Raises UploadFailed for failures that were not raised before (an AlreadyExistsError, too, if each is of a name that was
        taken), TimeoutError after `timeout_s` (nothing is lost then). Without `timeout_s` it also ends with UploadFailed when all
        that is left waits for somebody to mend something: expired credentials, a skewed clock, a read-only destination.
        """
        self._drain(timeout_s, None, progress_bar=progress_bar)

    def _drain(self, timeout_s: float | None, patience: Patience | None, *, progress_bar: bool) -> None:
        held: list[JobFailure] = []

        def is_stuck(counts: Counts) -> bool:
            if timeout_s is None:
                held[:] = self.journal.overview.held_up(self._owner)
            if held or patience is None:
                return bool(held)
            sent_bytes = self.journal.parts.sent_bytes(self._owner)
            return patience.is_over((counts.queued + counts.leased, counts.done, sent_bytes))

        self._session.listener()
        is_done = wait_until_drained(self.counts, self._wait, timeout_s=timeout_s, is_stuck=is_stuck, progress=progress_bar)
        if not is_done and not held:
            raise TimeoutError(self._unfinished(timeout_s))
        failures = self.journal.uploads.failures(self._owner)
        if held:
            raise UploadFailed([*failures, *held], remedy=self._waiting(len(held)))
        if lost := self._lost():
            self._seen_replacements = self.journal.replacements
        if lost or failures:
            raise upload_failed([*lost, *failures], remedy=self._remedy([*lost, *failures]))

    def drain_command(self) -> str:
        """The command that finishes what is in the spool."""
        return f"wherry drain --spool {shlex.quote(str(self.spool.folder))}"

    def close(self, timeout_s: float | None = None, *, progress_bar: bool = False) -> None:
        """flush(), then sign off. It is closed also when that raises; what was not finished goes on in the background.

        Without `timeout_s` it waits for `Config.drain_at_exit_s`; without that, as long as uploads get on (`Config.give_up_s`).
        TimeoutError says what is left, and the command that finishes it.
        """
        if self._closed:
            return
        try:
            if self._session.is_here:
                self._drain_at_an_end(timeout_s, progress_bar=progress_bar)
        finally:
            self._sign_off()

    def _drain_at_an_end(self, timeout_s: float | None, *, progress_bar: bool) -> None:
        if timeout_s is None:
            timeout_s = self.config.drain_at_exit_s
        self._drain(timeout_s, self._patience if timeout_s is None else None, progress_bar=progress_bar)

    def _unfinished(self, timeout_s: float | None) -> str:
        """What an end leaves, why, and the command that finishes it."""
        counts = self.counts()
        why = f"as nothing has got on for {self.config.give_up_s:g} s" if timeout_s is None else f"after {timeout_s:g} s"
        where = "they stay in the spool" if self._in_caller else "they go on in the background"
        failures = self.journal.uploads.failures(self._owner, mark=False)
        failed = f". {len(failures)} failed: {failures[0].error}" if failures else ""
        return (
            f"{counts.queued + counts.leased} upload(s) to {self.uri} are not finished {why}; {where}, "
            f"{counts.bytes_queued} bytes. To finish them: {self.drain_command()}{failed}"
        )

    def _sign_off(self) -> None:
        self._closed = True
        self._forget_after_fork()
        _open_uploaders.discard(self)
        if self._store is not None:
            self._store.close()
        if self._caller is not None:
            self._caller.close()
        self._session.sign_off()
        if self._in_caller and self._session.is_here:  # else the agent does it
            remove_unneeded_reserve(self.spool, self.journal)
        self.journal.close()  # a handle that is still in use opens it again

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the uploader to {self.uri} is closed")

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(error)

    def flush_at_end(self, timeout_s: float | None = None) -> None:
        """flush() with the limits of close(). When time is up, stderr says so, and nothing is raised."""
        try:
            self._drain_at_an_end(timeout_s, progress_bar=True)
        except TimeoutError as late:
            sys.stderr.write(f"wherry: {late}\n")

    def end(self, error: BaseException | None = None, timeout_s: float | None = None) -> None:
        """close() as the end of a ``with`` block does it: when time is up, stderr says so, and nothing is raised.

        `error` is what ended the block; then UploadFailed is not raised either, and Ctrl-C ends the waiting only.
        """
        if error is not None:
            self._close_at_exit(timeout_s)
            return
        try:
            self.close(timeout_s, progress_bar=True)
        except TimeoutError as late:
            sys.stderr.write(f"wherry: {late}\n")

    def _close_at_exit(self, timeout_s: float | None = None) -> None:
        """Close when nobody can handle an exception any more: say what failed, and how to finish what is not finished."""
        if self._closed or not self._session.is_here:
            return
        try:
            self.close(timeout_s, progress_bar=True)
        except (UploadFailed, TimeoutError) as error:
            sys.stderr.write(f"wherry: {error}\n")
        except KeyboardInterrupt:
            left = self.counts()
            sys.stderr.write(
                f"\nwherry: {left.queued + left.leased} upload(s), {left.bytes_queued} bytes, are left to the background. "
                f"To wait for them: {self.drain_command()}\n"
            )

    # -- taking back

    def delete(self, name: str) -> None:
        """Remove the object, and take back uploads of it that are queued; no error when there is none."""
        self.withdraw(name)
        self._own_store().delete(self.uri.key_for(check_name(name)))

    def withdraw(self, name: str) -> None:
        """Take back uploads of `name` that are queued, and wait for the end of one that is under way. What is stored stays."""
        uri = self.uri_for(name)
        self.spool.free(self.journal.uploads.cancel(uri, self._place))
        self._wait_for_name(uri)


def _require_distinct(sources: Sequence[tuple[Path, str]]) -> None:
    """Names are brought into one Unicode form, in which two files may have the same one: neither is to replace the other."""
    seen: dict[str, Path] = {}
    for file, name in sources:
        if (other := seen.setdefault(name, file)) is not file:
            raise ConfigError(f"{other} and {file} differ by their Unicode form only, and would both become {name!r}: rename one")


def _files_below(folder: Path) -> list[Path]:
    """All files of a folder, by path. ConfigError for what cannot be uploaded, before anything is."""
    found: list[Path] = []

    def stop(error: OSError) -> None:
        raise error

    for base, folders, names in os.walk(folder, onerror=stop):
        folders.sort()
        for name in folders:
            if (Path(base) / name).is_symlink():
                raise ConfigError(
                    f"{Path(base) / name} is a symbolic link to a folder: copy the folder there or upload it by itself"
                )
        found += [Path(base) / name for name in sorted(names)]
    if not found:
        raise ConfigError(f"the folder {folder} has no files: object stores keep no empty folders")
    for path in found:
        if not path.is_file():
            raise ConfigError(f"{path} is no regular file: only regular files can be uploaded")
    return found


def _remove_private(folder: Path) -> None:
    if _private_spools.pop(folder, 0) == os.getpid():  # a forked child has a copy of us, but not of the folder
        shutil.rmtree(folder, ignore_errors=True)


def _close_all() -> None:
    for uploader in list(_open_uploaders):
        uploader._close_at_exit()
    for folder in list(_private_spools):
        _remove_private(folder)


atexit.register(_close_all)
