"""Uploader: hand files over to a store and get them back by name. What every destination and command stands on."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

from wherry.agent.job_waiter import JobWaiter
from wherry.agent.session import LOOK_AGAIN_S, Session
from wherry.config import Config
from wherry.downloads import Reader
from wherry.errors import ConfigError, JobFailure, SpoolError, UploadFailed
from wherry.posix.file_copy import require_regular
from wherry.progress import ByteBar
from wherry.quantities import size_text
from wherry.spool.accept import Acceptance, FollowUp
from wherry.spool.drain import Patience, wait_until_drained
from wherry.spool.failures import Failures, drain_command
from wherry.spool.file_system import warn_of_file_system
from wherry.spool.handle import UploadHandle
from wherry.spool.journal.jobs import Counts, JobId, job_sent_at_once
from wherry.spool.journal.tokens import Attempt, new_token
from wherry.spool.recovery import open_journal, remove_unneeded_reserve
from wherry.spool.sources import Source, sources_of
from wherry.spool.spool import HALF, Spool
from wherry.spool.spool_file import SpoolWriter
from wherry.spool.staging import finish_writer, mark_of, open_folder, open_writer, release_source
from wherry.store import ObjectMeta
from wherry.store.environment import carried, with_environment
from wherry.store.registry import backend_for, check_usable, split_options
from wherry.uri import check_name, parse_uri

_open_uploaders: set[Uploader] = set()
_private_spools: dict[Path, int] = {}
_Self = TypeVar("_Self", bound="Uploader")


class Uploader(Reader):
    """Uploads files to the store at `uri` in the background and downloads them by name::

        with wherry.Uploader("s3://my-bucket/run1") as uploader:
            uploader.put("model.pt", "checkpoints/model.pt", overwrite=True)
            uploader.get("data/labels.csv", "labels.csv")

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
        options = with_environment(target.scheme, storage_options or {}, os.environ)
        check_usable(target.scheme, options, target.root)
        if target.scheme == "file":
            options.setdefault("links_within", f"/{target.prefix}")  # workers open the store without the prefix
            if config.spool.durability == "power":
                options.setdefault("fsync", True)
        public, secret = split_options(target.scheme, options)
        try:
            json.dumps(secret)
        except TypeError as error:
            raise ConfigError(f"storage_options must be plain JSON values, to be handed to the agent: {error}") from None
        in_caller = config.agent.run_in == "caller"
        # Of a store that only this process sees, only this process may have the jobs.
        is_private = backend_for(target.scheme).process_local
        if is_private:
            spool, in_caller = tempfile.mkdtemp(prefix="wherry-"), True
        place = Spool(spool, config.spool)
        super().__init__(target, options, config, place, open_journal(place))
        if not is_private:
            warn_of_file_system(self.spool)
        else:  # kept for as long as a handle may ask for it
            _private_spools[self.spool.folder] = os.getpid()
            weakref.finalize(self.journal, _remove_private, self.spool.folder).atexit = False  # that would be before _close_all
        environment, more_secrets = carried(target.scheme, os.environ)
        secret |= more_secrets
        settings = _settings(config, frozenset(storage_options or ()), secret)
        register = partial(self.journal.uploads.store_id, target.scheme, target.root, public, secret, settings, environment)
        store_id = register()
        self._session = Session(self.spool, None if in_caller else self.config.agent)
        #: The name under which the journal has this uploader's jobs.
        self.owner = self._session.name
        self._acceptance = Acceptance(self.spool, self.journal, target, self._session.name, self._endpoint, store_id, register)
        self._failures = Failures(self.journal, self._acceptance, self.spool.folder)
        self._session.store_id = store_id
        self._session.secrets = {str(store_id): secret} if secret else {}
        self._waiter = JobWaiter(self._session, self.journal)
        self._closed = False
        self._patience = Patience(self.config.give_up_s)
        _open_uploaders.add(self)
        self._session.call_agent(warm=store_id)

    def __repr__(self) -> str:
        return f"<Uploader {self.uri} spool={self.spool.folder}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the destination and the progress. Names are escaped."""
        from html import escape

        counts = self.counts()
        rows = {
            "store": str(self.uri),
            "spool": str(self.spool.folder),
            "uploads": f"{counts.queued} queued, {counts.leased} uploading, {counts.done} done, {counts.failed} failed",
            "to send": size_text(counts.bytes_queued),
        }
        cells = "".join(f"<tr><th>{escape(what)}</th><td>{escape(text)}</td></tr>" for what, text in rows.items())
        return f"<table><caption>Uploader</caption>{cells}</table>"

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
        plan: str | None = None,
        attempt: Attempt | None = None,
    ) -> UploadHandle:
        """Accept a file, or all files of a folder, for upload as `name`; returns once they survive the end of this process::

            uploader.put("out/model.pt", "model.pt", overwrite=True)
            uploader.put("out/logs", "logs")  # logs/train.log, logs/eval/0.log, ...

        What is uploaded is what the file holds now: it may be changed or deleted afterwards. `move=True` gives it away:
        nothing is copied, and its old name is gone. `overwrite=False`: an object that has the name by then is kept, and
        the upload fails with AlreadyExistsError. `requires`: names that must exist in the store before this one is sent.
        `progress_bar`: show how far the copy into the spool is, if that takes a while. `plan` is for checkpoint sets.
        `attempt`: the run that uploads, by which a later attempt of it knows the object; one that `is_resumed` replaces, without
        `overwrite`, what an earlier attempt has left under the name, if the store keeps metadata (S3, GCS, most local folders).

        Raises FileNotFoundError, PermissionError, ConfigError (bad name, no regular file), SpoolError (no room), and without
        `overwrite` AlreadyExistsError for a name that another upload of this spool is on its way to. The store is not asked.
        Failures of the upload itself come later: from the handle, from flush() and close(), or as `Config.on_failure` says.
        """
        self._check_open()
        self.raise_failures()
        path = Path(path)
        name = self.uri.check_new_name(name)
        sources = sources_of(path, name)
        may_replace = overwrite or (attempt is not None and attempt.is_resumed)
        self._acceptance.require_usable([each for _, each in sources], requires, only_if_free=not may_replace)
        # Nobody else asks for their sizes before they are copied.
        is_asked = progress_bar or self.spool.config.max_spool_bytes is not None
        size_bytes = sum(os.stat(file).st_size for file, _ in sources) if is_asked else 0
        if not self._acceptance.make_room(size_bytes, partial(self._wait, LOOK_AGAIN_S)):
            return self._put_now(sources, name, attempt, overwrite=overwrite, move=move)
        with ByteBar("copying into the spool", size_bytes, shown=progress_bar) as bar:
            ids = self._acceptance.accept(
                sources, requires, overwrite=overwrite, move=move, advance=bar.advance, plan=plan, attempt=attempt
            )
        if move:
            for file, _ in sources:
                release_source(file)
        return self._accepted(name, ids)

    def open(
        self,
        name: str,
        mode: str = "wb",
        *,
        requires: Sequence[str] = (),
        plan: str | None = None,
        attempt: Attempt | None = None,
    ) -> SpoolWriter:
        """Open a binary file for writing, which replaces an object `name` unless `mode` is ``"xb"``; closing it hands it over::

            with uploader.open("model.pt") as file:
                torch.save(model.state_dict(), file)

        ``"wb"`` overwrites, as in Python, and put() does not. ``"xb"`` never does, and raises AlreadyExistsError while this spool
        has another upload of the name. The file lies in the spool. The writer's `handle` is the upload. An exception inside its
        ``with`` block discards the file. `plan` is for checkpoint sets. `attempt` is the run, as of put(); it replaces nothing.
        """
        self._check_open()
        if mode not in ("wb", "xb", "w+b", "x+b"):
            raise ConfigError(f"mode {mode!r}: use 'wb' (overwrite) or 'xb' (only if the name is free)")
        name = self.uri.check_new_name(name)
        self.raise_failures()
        self._acceptance.require_usable([name], requires, only_if_free=mode.startswith("x"))
        if not self._acceptance.make_room(0, partial(self._wait, LOOK_AGAIN_S)):
            raise SpoolError(f"the spool {self.spool.folder} is full, and a file that is written there cannot go around it")
        object_id, file = open_writer(self.spool, self._session.name)
        accepted: list[JobId] = []
        by = attempt and replace(attempt, is_resumed=False)

        def accept(written: BinaryIO) -> UploadHandle:
            staged = finish_writer(self.spool, object_id, written)
            # Not only_if_free: if another upload has taken the name meanwhile, this one is accepted and fails; its file is kept.
            accepted.extend(self._acceptance.submit([staged], [name], not mode.startswith("x"), requires, plan=plan, attempt=by))
            return self._accepted(name, accepted)

        def discard() -> None:
            if not accepted:  # else what failed, or was interrupted, is only the upload: the journal has the job
                self.spool.free([object_id + HALF, object_id, mark_of(object_id)])

        return SpoolWriter(file, name, accept, discard, lambda error: self.spool.explain(error, name))

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder in the spool, from which put() with ``move=True`` copies nothing; removed at the end of the block."""
        self._check_open()
        object_id, folder = open_folder(self.spool, self._session.name)
        pid = os.getpid()
        try:
            yield folder
        finally:
            if os.getpid() == pid:  # else it is the parent's
                self.spool.free([object_id])

    def follow_up(self, name: str, jobs: Sequence[FollowUp]) -> UploadHandle:
        """Accept jobs whose objects the agent makes itself, as of a checkpoint set; the handle is of all but deputies."""
        self._check_open()
        ids = self._acceptance.submit_follow_ups(jobs)
        here = (job for job in jobs if not job.is_deputy)
        self._waiter.start([job_id for job_id, job in zip(ids, here, strict=True) if not job.waits_for_others])
        return UploadHandle(self.uri_for(name), ids, self.journal, self._wait_for)

    def _accepted(self, name: str, ids: Sequence[JobId]) -> UploadHandle:
        handle = UploadHandle(self.uri_for(name), ids, self.journal, self._wait_for)
        self._waiter.start(ids)
        return handle

    def _put_now(self, sources: Sequence[Source], name: str, by: Attempt | None, *, overwrite: bool, move: bool) -> UploadHandle:
        """Upload from the caller's own files, now, in this thread. Raises what the store raises."""
        from wherry.posix.thread_pool import DaemonThreadPool
        from wherry.transfer.upload import POOL_THREADS, Sender

        with DaemonThreadPool(POOL_THREADS, "wherry-put") as pool:
            sender = Sender(None, pool)
            made: list[ObjectMeta] = []
            for file, file_name in sources:
                require_regular(file, file.stat())
                self._wait_for_name(self.uri_for(file_name))
                uri, key, token = self.uri_for(file_name), self.uri.key_for(file_name), new_token(by, self.owner)
                job = job_sent_at_once(uri, key, file.stat().st_size, self.owner, overwrite=overwrite, token=token)
                job = replace(job, schedule=replace(job.schedule, replaces_earlier=bool(by and by.is_resumed)))
                made.append(sender.send(job, file, self.store, self.config.transfer, frozen=False))
                if move:
                    file.unlink()
        whole = made[0] if len(made) == 1 else ObjectMeta(self.uri_for(name), sum(one.size_bytes for one in made))
        return UploadHandle(self.uri_for(name), (), self.journal, self._wait_for, made=whole)

    def _wait_for_name(self, uri: str) -> None:
        while self.journal.queries.newest_open(uri, self._endpoint) is not None:
            self._wait(LOOK_AGAIN_S)

    def _wait(self, timeout_s: float) -> None:
        self._waiter.wait(timeout_s)

    def _wait_for(self, ids: Sequence[JobId], timeout_s: float | None) -> bool:
        return self._waiter.wait_for(ids, timeout_s, self._failures.remedy_for_waiting)

    # -- failures and the end

    def start_check(self) -> None:
        """Have the agent find out, in the background, whether the store grants access; raise_failures() reports a refusal."""
        self._waiter.start(self._acceptance.submit_check())

    def check(self, timeout_s: float | None = 60.0) -> None:
        """Find out whether the store grants access. Raises UploadFailed with the server's message, or TimeoutError."""
        ids = self._acceptance.submit_check()
        self._waiter.start(ids)
        if not self._wait_for(ids, timeout_s):
            raise TimeoutError(f"{self.uri} did not answer within {timeout_s} s")
        self._failures.raise_checks(ids)

    def raise_failures(self) -> None:
        """Report uploads that failed since the last time: as warnings in the log, or as UploadFailed, as `on_failure` says."""
        self._failures.report(raising=self.config.on_failure == "raise")

    def counts(self) -> Counts:
        """How many of this uploader's uploads are in each state."""
        return self.journal.queries.counts(self._session.name)

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
                held[:] = self.journal.overview.held_up(self._session.name)
            if held or patience is None:
                return bool(held)
            sent_bytes = self.journal.parts.sent_bytes(self._session.name)
            needs_others = partial(self.journal.overview.needs_others, self._session.name)
            return patience.is_over((counts.queued + counts.leased, counts.done, sent_bytes), needs_others)

        self._session.listener()
        is_done = wait_until_drained(self.counts, self._wait, timeout_s=timeout_s, is_stuck=is_stuck, progress=progress_bar)
        if not is_done and not held:
            why = f"after {timeout_s:g} s" if patience is None else patience.why
            where = "they go on in the background" if self._session.reaches_agent() else "they stay in the spool"
            raise TimeoutError(self._failures.unfinished(self.uri, why, where))
        self._failures.raise_uploads(held)

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def drain_command(self) -> str:
        """The command that finishes what is in the spool."""
        return drain_command(self.spool.folder)

    def close(self, timeout_s: float | None = None, *, progress_bar: bool = False) -> None:
        """Flush, then leave the spool. It is closed even if the flush raises; unfinished uploads go on in the background.

        Without `timeout_s` it waits for `Config.drain_at_exit_s`; without that, as long as uploads progress (`Config.give_up_s`).
        TimeoutError says what is left, and the command that finishes it; after Ctrl-C stderr says so.
        """
        if self._closed:
            return
        try:
            if self._session.is_here:
                self._drain_at_an_end(timeout_s, progress_bar=progress_bar)
        except (KeyboardInterrupt, SystemExit):  # a signal's handler may raise the second, as Composer's does
            sys.stderr.write(f"\nwherry: {self._failures.left(has_agent=self._session.reaches_agent())}\n")
            raise
        finally:
            self._sign_off()

    def _drain_at_an_end(self, timeout_s: float | None, *, progress_bar: bool) -> None:
        if timeout_s is None:
            timeout_s = self.config.drain_at_exit_s
        self._drain(timeout_s, self._patience if timeout_s is None else None, progress_bar=progress_bar)

    def _sign_off(self) -> None:
        self._closed = True
        _open_uploaders.discard(self)
        if self._store is not None:
            self._store.close()
        self._waiter.close()
        self._session.sign_off()
        if not self._session.has_agent and self._session.is_here:  # else the agent does it
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
            _close_at_exit(self, timeout_s)
            return
        try:
            self.close(timeout_s, progress_bar=True)
        except TimeoutError as late:
            sys.stderr.write(f"wherry: {late}\n")

    # -- taking back

    def delete(self, name: str) -> None:
        """Remove the object, and take back uploads of it that are queued; no error when there is none."""
        self.withdraw(name)
        self.store.delete(self.uri.key_for(check_name(name)))

    def withdraw(self, name: str) -> None:
        """Take back uploads of `name` that are queued, and end one that is under way. What is stored stays."""
        uri = self.uri_for(name)
        self.spool.free(self.journal.uploads.cancel(uri, self._endpoint))
        moving = self.journal.queries.newest_open(uri, self._endpoint)
        while moving is not None and self.journal.queries.unfinished(ids=[moving.id]):
            self._wait(LOOK_AGAIN_S)
            self._session.let_go([moving.id])  # its end may be far: it is large, or its server silent
            # It may be queued again, for its next attempt or as an object that it requires is missing.
            self.spool.free(self.journal.uploads.cancel(uri, self._endpoint, up_to=moving.id))


def _close_at_exit(uploader: Uploader, timeout_s: float | None = None) -> None:
    """Close when nobody can handle an exception any more: say what failed, and how to finish the rest."""
    if uploader._closed or not uploader._session.is_here:
        return
    uploader._patience.is_ending = True
    with suppress(KeyboardInterrupt):  # it ends the waiting only, and close() has said what is left
        try:
            uploader.close(timeout_s, progress_bar=True)
        except (UploadFailed, TimeoutError) as error:
            sys.stderr.write(f"wherry: {error}\n")


def _settings(config: Config, given: frozenset[str], secret: Mapping[str, object]) -> dict[str, Mapping[str, float]]:
    """What the journal keeps of the configuration, for the agent. `given`: the options that the caller has named."""
    settings: dict[str, Mapping[str, float]] = {"retry": asdict(config.retry), "transfer": asdict(config.transfer)}
    if secret and not given & set(secret):
        settings["secrets"] = {"from_environment": 1}  # who drains the spool may take them from there as well
    return settings


def _remove_private(folder: Path) -> None:
    if _private_spools.pop(folder, 0) == os.getpid():  # a forked child has a copy of us, but not of the folder
        shutil.rmtree(folder, ignore_errors=True)


def _close_all() -> None:
    for uploader in list(_open_uploaders):
        _close_at_exit(uploader)
    for folder in list(_private_spools):
        _remove_private(folder)


atexit.register(_close_all)
