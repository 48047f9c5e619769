"""ObjectStoreLogger: uploads a run's files to an object store and downloads them by name."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from wherry.config import Config
from wherry.errors import ConfigError, JobFailure, PermanentError, StoreError, UploadFailed, kind_of, upload_failed
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.destinations.other_writers import OtherWriters
from wherry.loggers.run.state import State, check_name_format, escaped
from wherry.spool.journal.tokens import Attempt
from wherry.transfer.symlinks import SYMLINK_SUFFIX, read_pointer

if TYPE_CHECKING:
    from wherry.loggers.logger import Logger
    from wherry.spool.handle import UploadHandle
    from wherry.spool.spool_file import SpoolWriter

log = logging.getLogger("wherry")

_Self = TypeVar("_Self", bound="ObjectStoreLogger")


class ObjectStoreLogger(LoggerDestination):
    """Uploads files to the store at `uri` in the background; `storage_options`, `spool` and `config` are those of `Uploader`.

    Remote file names are templates with the fields of `State.name_fields`, such as ``{run_name} {rank} {epoch:04d}``.
    `name_format` is put around each name, for example ``"{run_name}/{remote_file_name}"``. Uploads and downloads fill both in the
    same way, with the last state that an event or a call has given, else with `state`, else with the environment's (see
    `State`). Write ``{{`` for a brace. A leading slash is dropped, as in Composer.

    In a training loop it reports failed uploads after each batch and epoch, as `Config.on_failure` says. At the end of training,
    evaluation and prediction it waits for all uploads, and raises UploadFailed for those that failed. It closes in
    post_close(), so that other loggers can hand over files in their close(). With `check`, it tries access to the store in
    the background as soon as the run begins. Without a trainer use it as a context manager::

        with ObjectStoreLogger("s3://bucket/runs") as log:
            log.upload_file(None, "notes.txt", "notes.txt")
    """

    formats_names = True

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        spool: str | os.PathLike[str] | None = None,
        config: Config | None = None,
        name_format: str = "{remote_file_name}",
        state: State | None = None,
        check: bool = True,
    ) -> None:
        from wherry.uploader import Uploader  # late: half of what importing this class would cost

        super().__init__()
        check_name_format("name_format", name_format)
        self._name_format = name_format
        self._state = state or State()
        self._has_a_run = state is not None
        self._check_is_due = check
        self._refused: dict[str, str] = {}  # names whose last file was not accepted -> why
        self._lost: list[JobFailure] = []
        self._error: BaseException | None = None
        self._time_left_s: Callable[[], float | None] = lambda: None
        #: For what a destination has no call for, such as list and delete. Its names are those that remote_name() returns.
        self.uploader = Uploader(uri, storage_options=storage_options, spool=spool, config=config)
        self._others = OtherWriters(self.uploader)

    def __repr__(self) -> str:
        return f"<ObjectStoreLogger {self.uploader.uri} name_format={self._name_format!r}>"

    # names

    def remote_name(self, remote_file_name: str) -> str:
        """The name below the URI that `remote_file_name` is filled to now. ConfigError for an unknown field."""
        name = self._state.fill(remote_file_name).lstrip("/")
        return self._state.fill(self._name_format, remote_file_name=name).lstrip("/")

    def get_uri_for_file(self, remote_file_name: str) -> str:
        """The full URI of remote_name()."""
        return self.uploader.uri_for(self.remote_name(remote_file_name))

    def _see(self, state: State | None) -> None:
        self._state = state or self._state
        self._has_a_run = self._has_a_run or state is not None

    @property
    def is_closed(self) -> bool:  # type: ignore[override]
        """Whether post_close() was called."""
        return self.uploader.is_closed

    @property
    def on_failure(self) -> str:
        """``Config.on_failure``. With ``"raise"``, a Logger of several ranks raises errors of names, and does not log them."""
        return self.uploader.config.on_failure

    # files

    def upload_file(
        self,
        state: State | None,
        remote_file_name: str,
        file_path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        move: bool = False,
    ) -> UploadHandle:
        """Accept the file, or all files of the folder, `file_path` for upload; it may be changed or deleted afterwards.

        `state` may be None outside a trainer. Without `overwrite`, an existing object of the name is kept and the upload fails.
        With `move`, the file is moved away instead of copied, whatever its size. Returns a handle to wait on. Raises as
        `Uploader.put` does.

        With `State.is_resumed`, an object of the name that an earlier attempt of this run has left is replaced also without
        `overwrite`, and one that anybody else has written is kept. A process that lives is no earlier attempt.

        Names stay as they are given, so that a new run finds ``model.pt``. Where two runs overwrite one name, each gets a
        warning, once: at the call if they share a spool, else once it has replaced what the other wrote, if the store keeps
        metadata (S3, GCS, most local folders).

        A file ``NAME.symlink`` is sent after the upload that it names, and not at all if that has failed, so that it never leads
        to an object that is not there. PermanentError if the last call for what it names was refused. Its text is a name below
        the URI; where the spool knows only an upload with `name_format` around that, the object's text is the whole name.
        """
        self._see(state)
        name = self.remote_name(remote_file_name)
        self._others.report()
        attempt = self._attempt(name, overwrite=overwrite)
        try:
            handle = self._hand_over(name, file_path, overwrite=overwrite, move=move, attempt=attempt)
        except Exception as error:
            self._refused[name] = str(error)
            raise
        self._refused.pop(name, None)
        if attempt is not None and attempt.looks_first:
            self._others.listen(self._state, handle)
        return handle

    def _hand_over(
        self, name: str, file_path: str | os.PathLike[str], *, overwrite: bool, move: bool, attempt: Attempt | None
    ) -> UploadHandle:
        requires: list[str] = []
        if name.endswith(SYMLINK_SUFFIX) and (target := read_pointer(file_path)) is not None:
            names = (target, self.remote_name(escaped(target)))
            self._require_accepted(names, pointer=name)
            requires = [each for each in names if self.uploader.has_accepted(each)][:1]
            if requires and requires != [target]:
                return self._upload_text(requires[0], name, overwrite=overwrite, requires=requires, attempt=attempt)
        try:
            return self.uploader.put(file_path, name, overwrite=overwrite, move=move, requires=requires, attempt=attempt)
        except FileNotFoundError as error:
            if isinstance(error, StoreError) or os.path.exists(file_path):  # another file is missing
                raise
            raise FileNotFoundError(f"{os.fspath(file_path)} does not exist, so it is not uploaded as {name}") from error

    def _attempt(self, name: str, *, overwrite: bool) -> Attempt | None:
        """Who uploads `name` now, which other writers of it are looked for; None: nobody has said which run this is."""
        state = self._state
        if not (state.run_name and self._has_a_run):
            return None
        looks_first = self._others.may_overwrite(state, name, overwrite=overwrite)
        is_resumed = state.is_resumed and not self._others.has_a_double
        return Attempt(state.run_name, state.rank, is_resumed=is_resumed, looks_first=looks_first)

    def _require_accepted(self, names: Sequence[str], *, pointer: str) -> None:
        """Refuse a pointer to a file that was refused, or to the folder of one. The journal has nothing to wait for then."""
        for refused, why in self._refused.items():
            if any(refused == name or refused.startswith(f"{name}/") for name in names):
                raise PermanentError(
                    f"it names {names[0]}, and {refused} was not accepted: {why}",
                    operation="put",
                    uri=self.uploader.uri_for(pointer),
                    hint="it stays at what it names now; hand that file over again first",
                )

    def _upload_text(
        self, text: str, name: str, *, overwrite: bool, requires: list[str], attempt: Attempt | None
    ) -> UploadHandle:
        with self.uploader.folder() as folder:
            (folder / "text").write_text(text)
            return self.uploader.put(folder / "text", name, overwrite=overwrite, move=True, requires=requires, attempt=attempt)

    def note_lost(self, remote_file_name: str, error: Exception) -> None:
        """Name the file in the UploadFailed at the end of the training, or at the close."""
        with suppress(ConfigError):
            remote_file_name = self.remote_name(remote_file_name)
        self._lost.append(
            JobFailure(0, f"{str(self.uploader.uri).rstrip('/')}/{remote_file_name}", 0, str(error), kind_of(error))
        )

    @contextmanager
    def _naming_lost(self) -> Iterator[None]:
        """Add the files that note_lost() has heard of to the UploadFailed of the block, or raise one for them."""
        failed: UploadFailed | None = None
        try:
            yield
        except UploadFailed as error:
            failed = error
        lost, self._lost = self._lost, []
        if lost:
            failures, remedy = (failed.failures, f"{failed.remedy}\n".lstrip()) if failed else ((), "")
            remedy += "what has no job was not accepted and is not in the spool: upload it again"
            raise upload_failed([*failures, *lost], remedy=remedy) from failed
        if failed is not None:
            raise failed

    def open(self, remote_file_name: str, mode: str = "wb") -> SpoolWriter:
        """Open a file for writing, which replaces an object of its name unless `mode` is ``"xb"``; closing it uploads it.

        So a checkpoint is written only once. upload_file() does not overwrite by default, and this does, as Python's open() does.
        See `Uploader.open`.
        """
        name = self.remote_name(remote_file_name)
        attempt = self._attempt(name, overwrite="w" in mode)
        file = self.uploader.open(name, mode, attempt=attempt)
        if attempt is not None and attempt.looks_first:
            self._others.listen(self._state, file)
        return file

    def download_file(
        self,
        remote_file_name: str,
        destination: str | os.PathLike[str],
        overwrite: bool = False,
        progress_bar: bool = True,
    ) -> None:
        """Download the object to `destination`, verified; an upload that is still queued here is copied from the queue.

        Follows ``.symlink`` objects. Raises FileExistsError, NotFoundError and so on, as `Uploader.get` does.
        """
        self.uploader.get(self.remote_name(remote_file_name), destination, overwrite=overwrite, progress_bar=progress_bar)

    def exists(self, state: State | None, remote_file_name: str) -> bool:
        """Whether the object is in the store, or on its way there. Raises as `Uploader.exists` does."""
        self._see(state)
        return self.uploader.exists(self.remote_name(remote_file_name))

    # events

    def init(self, state: State, logger: Logger) -> None:
        """Take the state, and have the access to the store tried in the background."""
        self._see(state)
        self._start_check()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Report uploads that failed, and other runs that write the same names."""
        self._see(state)
        self._others.report()
        self.uploader.raise_failures()

    epoch_end = batch_end

    def fit_end(self, state: State, logger: Logger) -> None:
        """Wait for all uploads. UploadFailed if some failed, or if the log alone says that files were not accepted."""
        self._see(state)
        with self._naming_lost():
            self.uploader.flush_at_end()
        self._others.report()

    eval_standalone_end = predict_end = fit_end

    def close(self, state: State, logger: Logger) -> None:
        """Take the state and how the run ended. Other loggers may hand over files until post_close()."""
        self._see(state)
        self._error, self._time_left_s = logger.error, logger.time_left_s

    def post_close(self, timeout_s: float | None = None) -> None:
        """Wait for all uploads and close. UploadFailed for failures that were not raised yet. Closing again does nothing.

        It waits for `timeout_s`, else for what `Logger.close()` was given, else as long as `Uploader.close()`. Then it prints to
        stderr what is left to the background. If an exception ended the run (`Logger.error`), failures are printed there too
        and not raised, so that the exception is seen.
        """
        try:
            with self._naming_lost():
                self.uploader.end(self._error, self._time_left_s() if timeout_s is None else timeout_s)
        except UploadFailed as error:
            if self._error is None:
                raise
            sys.stderr.write(f"wherry: {error}\n")
        finally:
            self._others.report_at_end()

    def _start_check(self) -> None:
        if self._check_is_due:
            self._check_is_due = False
            self.uploader.start_check()

    def __enter__(self: _Self) -> _Self:
        self._start_check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.uploader.__exit__(kind, error, trace)
        finally:
            self._others.report_at_end()
