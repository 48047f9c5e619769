"""TrackerLogger: the base class of destinations that log through a tracker's own package (W&B, MLflow)."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

from wherry.config import default_spool_folder
from wherry.errors import (
    AlreadyExistsError,
    JobFailure,
    MissingExtraError,
    SpoolError,
    StoreError,
    UploadFailed,
    WherryError,
)
from wherry.loggers.files.background import Background
from wherry.loggers.logger import Logger
from wherry.loggers.run.state import State
from wherry.loggers.value_destination import ValueDestination
from wherry.loggers.values.arrays import to_number
from wherry.loggers.values.checks import check_amounts
from wherry.loggers.values.kinds import Value
from wherry.loggers.warn_once import WarnOnce
from wherry.posix.fork import temporary_folder
from wherry.uri import check_name

log = logging.getLogger("wherry")

_Run = TypeVar("_Run")
#: The memory that a metric takes while it waits, roughly.
METRIC_BYTES = 200


@dataclass(frozen=True)
class TrackerConfig:
    """How a TrackerLogger works. ConfigError for values that make no sense."""

    #: Whether only rank 0 has a run, logs and uploads. With False, each rank has its own run, ``<run name>-rank<rank>``.
    rank_zero_only: bool = True
    #: The memory of values that wait to be sent: a few seconds of video, or a million metrics. While it is exceeded, log calls
    #: wait.
    max_pending_bytes: int = 256 * 2**20
    #: The size of copied files that wait to be uploaded: a few checkpoints. While it is exceeded, upload_file() waits.
    max_staged_bytes: int = 64 * 2**30
    #: The folder of those copies. None: beside the spool (see `SpoolConfig`), which is on a disk and not in memory.
    staging_folder: str | None = None

    def __post_init__(self) -> None:
        check_amounts(self, "max_pending_bytes", "max_staged_bytes")


class TrackerLogger(ValueDestination, Generic[_Run]):
    """Calls a tracker's package in two background threads: one for what is logged, in order, and one for files.

    A log call copies what it is given; the package sends it later. If that fails, a warning is logged at once, and flush() and
    the end of training raise the first such error. Later log calls raise it only if `on_error` is "raise" or "disable", as the
    router learns of it in no other way. The event INIT or the first call begins the run, which may wait for the tracker's server.
    If the run cannot begin, that call raises, and so does each later call, without trying again.

    Files are copied when they are handed over. If an upload fails, a warning is logged at once, and flush() and the end of
    training raise UploadFailed. After close(), calls raise RuntimeError; under a `Logger` only after post_close(), as other
    destinations hand over files in their close(). In a forked child, calls raise RuntimeError.

    A subclass overrides the methods below, log_metrics(), log_hyperparameters(), log_traces() and write().
    """

    #: As in ``pip install 'wherry[NAME]'``, and the name of the module.
    package: str

    def __init__(self, config: TrackerConfig, state: State | None) -> None:
        super().__init__(state)
        if find_spec(self.package) is None:
            raise MissingExtraError(
                f"{type(self).__name__} needs {self.package}, which is not installed: pip install 'wherry[{self.package}]'"
            )
        self._config = config
        self.rank_zero_only = config.rank_zero_only
        self._run: _Run | None = None
        self._refusal: Exception | None = None
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._calls = Background(self.package, max_pending_bytes=config.max_pending_bytes)
        self._files = Background(f"{self.package} files", max_pending_bytes=config.max_staged_bytes)
        self._error: Exception | None = None
        self._warnings = WarnOnce()
        self._failures: deque[JobFailure] = deque()
        self._job_ids = itertools.count(1)
        self._has_failed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' closed' if self._is_closed else ''}>"

    # what a subclass does, in one thread at a time for each kind

    @abstractmethod
    def _begin(self, state: State, name: str) -> _Run:
        """Begin the run of that name, or resume it."""

    @abstractmethod
    def _end(self, run: _Run, *, failed: bool) -> None:
        """End the run; everything logged has been sent."""

    @abstractmethod
    def _store(self, run: _Run, remote_file_name: str, path: Path, *, overwrite: bool) -> None:
        """Upload the file or folder `path`, a copy that is deleted afterwards. Return when it has arrived."""

    @abstractmethod
    def _fetch(self, remote_file_name: str, folder: Path, *, progress_bar: bool) -> Path:
        """Download a file or folder into `folder`, and return its path. NotFoundError if there is none."""

    @abstractmethod
    def _translated(self, error: Exception, operation: str, uri: str) -> Exception:
        """An error of the package as one of wherry's."""

    # files

    def can_upload_files(self) -> bool:
        """True on ranks that have a run."""
        return not self._is_left_out()

    def upload_file(
        self, state: State | None, remote_file_name: str, file_path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> None:
        """Copy the file or folder, and upload it as an artifact later. Without `overwrite`, the upload of a taken name fails."""
        self._see(state)
        if (run := self._open()) is None:
            rank = self._known_state().rank
            self._warnings.once("rank", f"{self!r} has no run on rank {rank}, so its files are not uploaded there")
            return
        name = check_name(remote_file_name)
        staged, size_bytes = self._stage(Path(file_path), name)
        self._files.submit(partial(self._upload, run, name, staged, overwrite=overwrite), pending_bytes=size_bytes)

    def download_file(
        self,
        remote_file_name: str,
        destination: str | os.PathLike[str],
        overwrite: bool = False,
        progress_bar: bool = True,
    ) -> None:
        """Download the newest artifact of that name to `destination`, which appears whole. Waits for uploads of this process.

        Raises AlreadyExistsError for a destination that exists (without `overwrite`), and NotFoundError.
        """
        self._check_open()
        name, target = check_name(remote_file_name), Path(destination)
        self._require_free(name, target, overwrite=overwrite)
        self._files.flush()
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(".wherry-", target.parent) as folder:
            try:
                found = self._fetch(name, folder, progress_bar=progress_bar)
            except Exception as error:
                raise self._translated(error, "download", name) from error
            self._require_free(name, target, overwrite=overwrite)
            if found.is_dir() and target.is_dir():
                shutil.rmtree(target)
            os.replace(found, target)

    def _require_free(self, name: str, target: Path, *, overwrite: bool) -> None:
        if not overwrite and os.path.lexists(target):
            hint = "give overwrite=True, or another path"
            raise AlreadyExistsError(f"the destination {target} exists", operation="download", uri=name, hint=hint)

    def _stage(self, source: Path, name: str) -> tuple[Path, int]:
        """A copy in a new folder, named by the last part of the remote name, and its size."""
        if not source.exists():
            raise FileNotFoundError(f"{source} does not exist, so it is not uploaded as {name}")
        parent = Path(self._config.staging_folder or default_spool_folder().parent)
        folder: Path | None = None
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{self.package}-", dir=parent))
            staged = folder / name.rpartition("/")[2]
            if source.is_dir():
                shutil.copytree(source, staged)
                return staged, sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
            shutil.copyfile(source, staged)
            return staged, staged.stat().st_size
        except OSError as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            config = f"{type(self._config).__name__}.staging_folder"
            raise SpoolError(
                f"{source} cannot be copied to {parent} for its upload: {error} ({config} names the place)"
            ) from error

    def _upload(self, run: _Run, name: str, staged: Path, *, overwrite: bool) -> None:
        try:
            self._store(run, name, staged, overwrite=overwrite)
        except Exception as error:
            ours = self._translated(error, "upload", name)
            log.warning("%s: an upload failed: %s", type(self).__name__, ours)
            self._failures.append(JobFailure(next(self._job_ids), name, 1, str(ours)))
        finally:
            shutil.rmtree(staged.parent, ignore_errors=True)

    # for the log calls of subclasses

    def _later(
        self, log_call: str, call: Callable[[_Run], object], n_bytes: int = METRIC_BYTES, *, key: str | None = None
    ) -> None:
        """Have the background thread call `call`, which `log_call` (such as "log_images") has asked for, to log `key`."""
        if (run := self._open()) is None:
            return
        self._calls.submit(partial(self._do, log_call, call, run, key), pending_bytes=n_bytes)
        if self.on_error != "warn" and (error := self._take_error()) is not None:
            raise error

    def _write_later(self, value: Value, call: Callable[[_Run], object]) -> None:
        """Have the background thread call `call`, which sends the value."""
        self._later(f"log_{value.kind}", call, METRIC_BYTES + value.size_bytes, key=value.name)

    def _do(self, log_call: str, call: Callable[[_Run], object], run: _Run, key: str | None) -> None:
        try:
            call(run)
        except Exception as error:
            # As the router would: each text once, and a limited number of them.
            text = str(error) if key is None else f"{key} is not logged: {error}"
            self._warnings.once_each(log_call, text, f"{type(self).__name__}.{log_call} failed: {text}", error)
            where = repr(self) if key is None else key
            ours = self._translated(error, log_call, where)
            if not isinstance(ours, WherryError):  # errors of Python do not say which call it was
                ours = StoreError(f"{type(error).__name__}: {error}", operation=log_call, uri=where)
            if ours is not error:
                ours.__cause__ = error
            with self._mutex:
                self._error = self._error or ours

    def _take_error(self) -> Exception | None:
        """The first error of a log call that was not raised yet."""
        with self._mutex:
            error, self._error = self._error, None
        return error

    def _is_taking(self) -> bool:
        return super()._is_taking() and not self._is_left_out()

    def _is_left_out(self) -> bool:
        return self._config.rank_zero_only and self._known_state().rank > 0

    def _run_name(self) -> str:
        state = self._known_state()
        return state.run_name if self._config.rank_zero_only else f"{state.run_name}-rank{state.rank}".lstrip("-")

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(f"{self!r} belongs to the process {self._pid}, which this one was forked from: make one here")
        super()._check_open()

    def _open(self) -> _Run | None:
        """The run, which begins now if it has not begun; None on a rank without one."""
        self._check_open()
        if self._run is None and not self._is_left_out():
            with self._mutex:
                if self._refusal is not None:
                    raise self._refusal
                try:
                    self._run = self._run or self._begin(self._known_state(), self._run_name())
                except Exception as error:
                    self._refusal = self._translated(error, "begin a run", repr(self))
                    raise self._refusal from error
        return self._run

    # events

    def flush(self) -> None:
        """Return when the package has everything logged so far, and all files have arrived.

        Raises UploadFailed for files that failed, else the first error of a log call that was not raised yet.
        """
        if self._pid != os.getpid():
            return
        self._calls.flush()
        self._files.flush()
        error, failures = self._take_error(), list(self._failures)
        self._failures.clear()
        if failures:
            raise UploadFailed(failures)
        if error is not None:
            raise error

    def init(self, state: State, logger: Logger) -> None:
        """Begin the run."""
        self._see(state)
        self._open()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Flush."""
        self.flush()

    eval_standalone_end = predict_end = fit_end

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Send what is left and end the run; under a logger, in post_close(). Closing again does nothing."""
        self._see(state)
        if logger is None:
            self.post_close()
        else:
            self._has_failed = logger.error is not None

    def post_close(self) -> None:
        """Send what is left and end the run, as failed if an exception ended it."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._calls.close()
        self._files.close()
        try:
            if self._run is not None:
                self._end(self._run, failed=self._has_failed)
        except Exception as error:
            raise self._translated(error, "end the run", repr(self)) from error
        finally:
            self.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._has_failed = error is not None
        self.post_close()


def numbers_of(metrics: Mapping[str, object]) -> tuple[dict[str, int | float], ValueError | None]:
    """The metrics that are numbers, and the error to raise for the others once these were logged."""
    found = {str(key): to_number(value) for key, value in metrics.items()}
    wrong = [key for key, number in found.items() if number is None]
    error = ValueError(f"{', '.join(wrong)}: a metric is a number, or an array or tensor of one") if wrong else None
    return {key: number for key, number in found.items() if number is not None}, error


def as_ours(error: Exception, operation: str, uri: str, kind: type[StoreError] = StoreError) -> Exception:
    """An error of a package as `kind`; errors of wherry and of Python are returned as they are."""
    if isinstance(error, (WherryError, OSError, ValueError, TypeError, NotImplementedError)):
        return error
    return kind(f"{type(error).__name__}: {error}", operation=operation, uri=uri)
