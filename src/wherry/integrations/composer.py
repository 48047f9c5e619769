"""For Composer (the package ``mosaicml``): wherry's destinations inside its Trainer, and a drop-in for its uploader."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from wherry.errors import ConfigError, MissingExtraError, NotFoundError
from wherry.integrations.composer_options import Replaced, replaced
from wherry.loggers import Event, Logger, LoggerDestination, ObjectStoreLogger, State, Timestamp
from wherry.loggers.call_limits import CallLimits, checked_limits
from wherry.loggers.capture.exit_hooks import before_traceback
from wherry.loggers.handles import UploadHandles
from wherry.loggers.route import Route
from wherry.loggers.run.state import check_name_format, escaped
from wherry.loggers.warn_once import WarnOnce
from wherry.spool.handle import UploadHandle
from wherry.transfer.symlinks import SYMLINK_SUFFIX

try:
    from composer import loggers as composer_loggers
    from composer.callbacks import CheckpointSaver
    from composer.utils import dist
except ImportError as error:
    raise MissingExtraError("this is for Composer, which is not installed: pip install mosaicml") from error

__all__ = ["ComposerLogger", "RemoteUploaderDownloader", "wherry_composer"]

#: The fields that Composer fills in names that it hands to loggers.
_FIELDS = re.compile(r"\{(run_name|rank|local_rank|world_size|local_world_size|node_rank)\}")
_COUNTS = ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")
#: The phase from this event on.
_PHASES = {
    Event.EVAL_BEFORE_ALL: "valid",
    Event.EVAL_START: "valid",
    Event.EVAL_END: "train",
    Event.EVAL_AFTER_ALL: "train",
    Event.EVAL_STANDALONE_START: "test",
    Event.EVAL_STANDALONE_END: "train",
    Event.PREDICT_START: "test",
    Event.PREDICT_END: "train",
}


def wherry_composer(*destinations: LoggerDestination, call_limits: CallLimits | None = None) -> ComposerLogger:
    """One logger for ``Trainer(loggers=...)`` that drives `destinations`::

        from wherry.integrations.composer import wherry_composer

        loggers = [wherry_composer(ObjectStoreLogger("s3://my-bucket"), RunFolderLogger("runs"))]
        Trainer(run_name="my-run", loggers=loggers, save_folder="{run_name}/checkpoints", autoresume=True)

    It gets every event and every call that Composer's own loggers get, on every rank. A destination that raises or hangs does
    not stop the training: it is reported, once, and after `call_limits` the training goes on without it. Only UploadFailed,
    when accepted files did not arrive and the configuration says ``on_failure="raise"`` or the training ends, is raised.
    """
    return ComposerLogger(*destinations, call_limits=call_limits)


class _Logger(Logger):
    """Is closed by the Trainer, also when the program ends, after Composer's own loggers have handed over their files."""

    closes_at_exit = False

    def _warn_nobody_can(self, what: str) -> None:
        """Say nothing: Composer calls all of its loggers, and others beside this one may take it."""

    def make(self, destination: LoggerDestination, what: str, call: Callable[[], object]) -> object:
        """As attempt(), but raises what the call raises, and StuckError."""
        return self._route_of(destination).make(what, call)

    def report(self, destination: LoggerDestination, what: str, error: Exception) -> None:
        """Report an error of a call that make() has made, once."""
        errors: list[Exception] = []
        self._route_of(destination).failed(what, error, errors)
        self._raise(errors)

    def _route_of(self, destination: LoggerDestination) -> Route:
        return next(route for route in self._routes if route.destination is destination)


class ComposerLogger(composer_loggers.LoggerDestination):  # type: ignore[misc]  # its class is unknown where it is not installed
    """Hands on what a Trainer tells its loggers; see wherry_composer(). RuntimeError for a second Trainer after the close.

    download_file() asks the destinations in their order; the first that has the file counts. A file that is still
    queued is found.
    """

    def __init__(self, *destinations: LoggerDestination, call_limits: CallLimits | None = None) -> None:
        if not destinations:
            raise ConfigError("wherry_composer() has no destination, so nothing would be uploaded or logged: give one at least")
        for one in destinations:
            _require_usable(one)
        self.destinations = destinations
        self._call_limits = CallLimits() if call_limits is None else checked_limits(call_limits)
        self._logger = _Logger(State(""), destinations, call_limits=self._call_limits)
        self._has_begun = False
        self._theirs: Any = None
        self._newest: dict[str, bool] = {}  # folders in which autoresume looked for a newest checkpoint -> whether there was one
        self._resumed: frozenset[str] = frozenset()
        self._has_trained = False
        self._is_closed = False
        self._error: BaseException | None = None
        self._warnings = WarnOnce()
        self._forget_uncaught: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(repr, self.destinations))}>"

    @property
    def logger(self) -> Logger:
        """The logger behind this one, to log what Composer has no call for. RuntimeError before Event.INIT."""
        if not self._has_begun:
            raise RuntimeError("the Trainer has not begun, so there is no logger yet: call this after Event.INIT")
        return self._logger

    # what Composer logs

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Log settings."""
        self._now().log_hyperparameters(hyperparameters)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log metrics; Composer gives the batch as `step`."""
        self._now().log_metrics(metrics, step)

    def log_table(self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None) -> None:
        """Log a table."""
        self._now().log_table(columns, rows, name, step)

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Log traces."""
        self._now().log_traces(traces)

    def log_images(  # noqa: PLR0917  Composer's signature
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Log images."""
        self._now().log_images(images, name, channels_last, step, masks, mask_class_labels, use_table)

    # files

    def can_upload_files(self) -> bool:
        """Whether any of the destinations uploads."""
        return self._logger.has_file_upload_destination()

    def upload_file(
        self, state: Any, remote_file_name: str, file_path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> UploadHandle | UploadHandles | None:
        """Have every destination that uploads take the file; it may be changed afterwards. Returns a handle to wait on.

        ``{run_name}`` and Composer's other fields of names are filled; other braces stay as they are. When `autoresume`
        went on from the newest checkpoint, or found none and no pointer in its folder, a file of that folder replaces, even
        without `overwrite`, what a killed attempt of this run has left under the name, as no pointer leads there.
        """
        self._see(state)
        path, name = escaped(os.fspath(file_path)), self._filled(remote_file_name)
        ours = self.logger.state
        ours.is_resumed = _folder_of(name) in self._resumed
        try:
            return self.logger.upload_file(escaped(name), path, overwrite=overwrite)
        finally:
            ours.is_resumed = False  # what destinations upload of their own accord goes by other names

    def download_file(self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        """Download the file from the first destination that has it, by the name with which it was uploaded.

        FileNotFoundError if none has it; NotImplementedError if none of them stores files. What else a destination raises, or
        that it hangs, is raised if no later one has the file, as then nobody knows whether it is there; else it is reported.
        An ObjectStoreLogger has limits of its own, and goes on as long as bytes come; others have `CallLimits.end_s`.
        """
        filled = self._filled(remote_file_name)
        is_search = self._is_search(filled, destination)
        missing: list[FileNotFoundError] = []
        failed: list[tuple[LoggerDestination, Exception]] = []
        for one in self.destinations:
            try:
                has_led = self._download_from(one, filled, destination, overwrite=overwrite, progress_bar=progress_bar)
            except NotImplementedError:  # noqa: PERF203  it stores no files
                continue
            except NotFoundError as error:
                missing.append(error)
            except FileExistsError:  # the destination's own path
                raise
            except Exception as error:
                failed.append((one, error))
            else:
                for other, why in failed:
                    self._logger.report(other, "download_file", why)
                if is_search and has_led:
                    self._newest[_folder_of(filled)] = True
                return
        if failed:
            raise failed[0][1]
        if missing:
            if is_search and not any(_has_pointers(one, escaped(filled)) for one in self.destinations):
                self._newest.setdefault(_folder_of(filled), False)
            raise missing[0]
        raise NotImplementedError("none of these destinations can download files: add an ObjectStoreLogger")

    def _download_from(
        self, one: LoggerDestination, filled: str, destination: str, *, overwrite: bool, progress_bar: bool
    ) -> bool:
        """Whether a pointer has led to the file."""
        name = escaped(filled)
        if not isinstance(one, ObjectStoreLogger):
            self._logger.make(one, "download_file", partial(one.download_file, name, destination, overwrite, progress_bar))
            return False
        is_pointer = filled.endswith(SYMLINK_SUFFIX)  # Composer reads a pointer and follows it itself
        uploader, stored = one.uploader, one.remote_name(name)
        found = uploader.get(stored, destination, overwrite=overwrite, follow_symlinks=not is_pointer)
        return bool(found.key != uploader.uri.key_for(stored))

    def _is_search(self, filled: str, destination: str) -> bool:
        """Whether the Trainer looks for the newest checkpoint, for `autoresume`.

        Only it puts that where its saver keeps the newest. What callbacks ask for, and `load_path`, resumes no attempt.
        """
        for one in getattr(self._theirs, "callbacks", ()):
            if isinstance(one, CheckpointSaver) and one.latest_filename and one.latest_remote_file_name:
                remote, local = (name.format(self._theirs) for name in (one.latest_remote_file_name, one.latest_filename))
                if remote.strip("/") == filled.strip("/") and os.path.abspath(local) == os.path.abspath(destination):
                    return True
        return False

    # what goes into checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What goes into a checkpoint: how long the run has taken, and the states of destinations that have one."""
        with_state = [one for one in self.destinations if hasattr(one, "state_dict")]
        asked = [(type(one).__name__, self._logger.attempt(one, "state_dict", partial(_state_of, one))) for one in with_state]
        kept = [item for item in asked if item[1] is not None]
        return {"elapsed_s": self._logger.state.elapsed_s if self._has_begun else 0.0, "destinations": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what state_dict() returned; destinations are recognised by the names of their classes."""
        elapsed_s, kept = state.get("elapsed_s"), state.get("destinations")
        if self._has_begun and isinstance(elapsed_s, (int, float)):  # a checkpoint of another version may have another kind
            self._logger.state.elapsed_s = float(elapsed_s)
        kept = [item for item in kept if isinstance(item, (list, tuple)) and len(item) == 2] if isinstance(kept, list) else []
        for one in self.destinations:
            found = next((item for item in kept if item[0] == type(one).__name__), None)
            if found is not None and hasattr(one, "load_state_dict"):
                kept.remove(found)
                self._logger.attempt(one, "load_state_dict", partial(one.load_state_dict, found[1]))

    # the run

    def close(self, state: Any, logger: Any) -> None:
        """Note how the run ended. Composer closes its callbacks after its loggers, so all still work until post_close()."""
        self._error = self._error or sys.exc_info()[1]
        if self._has_begun:
            self._see(state)

    def post_close(self) -> None:
        """Close all destinations, in two rounds, and wait for the uploads. UploadFailed for those that failed. Closing again does
        nothing.
        """
        self._forget_uncaught()
        if self._has_begun and not self._is_closed:
            self._is_closed = True
            self._logger.__exit__(type(self._error) if self._error else None, self._error, None)

    def _begin(self, state: Any) -> None:
        if self._is_closed:
            raise RuntimeError("these destinations were closed with their Trainer: make new ones for another Trainer")
        if not self._has_begun:
            self._has_begun = True
            ours = State(
                str(self._read(state, "run_name", "")),
                rank=dist.get_global_rank(),
                local_rank=dist.get_local_rank(),
                world_size=dist.get_world_size(),
                local_world_size=dist.get_local_world_size(),
                node_rank=dist.get_node_rank(),
            )
            self._theirs = state
            self._logger = _Logger(ours, self.destinations, call_limits=self._call_limits)  # of this process, after any fork
            self._forget_uncaught = before_traceback(self._note)

    def _now(self) -> Logger:
        """The logger, with the timestamp of this moment: Composer may log between two events."""
        self._see(self._theirs)
        return self.logger

    def _note(self, error: BaseException) -> None:
        self._error = error

    def _notify(self, event: Event, state: Any) -> None:
        if event is Event.INIT:
            self._begin(state)
        self._see(state)
        ours = self.logger.state
        ours.phase = _PHASES.get(event, ours.phase)
        ours.n_batches = _number(self._read(state, "dataloader_len", None)) or None
        if event is Event.FIT_START and not self._has_trained:
            # With a pointer, but at batch 0, only weights were loaded: that run has published checkpoints of the same names.
            self._has_trained = True
            is_further = ours.timestamp.batch > 0
            self._resumed = frozenset(folder for folder, was_found in self._newest.items() if is_further or not was_found)
        self.logger.run_event(event)

    def _see(self, state: Any) -> None:
        """Take over the timestamp. What this version of Composer does not have is 0, and that is said once."""
        if not self._has_begun or state is None:
            return
        theirs = self._read(state, "timestamp", None)
        counts = {name: _number(self._read(theirs, name, 0)) for name in _COUNTS} if theirs is not None else {}
        ours = self._logger.state
        if (seen := Timestamp(**counts)) != ours.timestamp:
            ours.timestamp = seen

    def _read(self, owner: Any, name: str, default: object) -> Any:
        try:
            return getattr(owner, name)
        except AttributeError:
            kind = type(owner).__name__
            taken_for = "the run is named by RUN_NAME, see State" if name == "run_name" else f"it is taken for {default!r}"
            self._warnings.once(name, f"Composer's {kind} has no {name!r} in this version: {taken_for}")
            return default

    def _filled(self, name: str) -> str:
        if not self._has_begun:
            return name
        fields = self._logger.state.name_fields()
        return _FIELDS.sub(lambda match: str(fields[match[1]]), name)


def _state_of(destination: Any) -> object:
    state = destination.state_dict()
    pickle.dumps(state)  # Composer pickles all states together, and could not name the destination
    return state


def _require_usable(destination: object) -> None:
    if isinstance(destination, LoggerDestination):
        if destination.is_closed:
            raise ConfigError(f"{destination!r} is closed, and a destination serves one Trainer: make a new one")
        return
    if isinstance(destination, (list, tuple)):
        remedy = "give the destinations one by one, wherry_composer(one, two)"
    elif isinstance(destination, type):
        remedy = f"give an object, {destination.__name__}(...)"
    elif destination is None or isinstance(destination, (str, int, float, os.PathLike)):
        remedy = "give an object, such as ObjectStoreLogger('s3://my-bucket')"
    else:
        remedy = "give Composer's own to Trainer(loggers=[...]) beside this one"
    raise ConfigError(f"{destination!r} is no destination of wherry: {remedy}")


def _has_pointers(destination: LoggerDestination, name: str) -> bool:
    """Whether a pointer of another name is beside `name`: the checkpoints there are published, and no attempt's leftovers."""
    if not isinstance(destination, ObjectStoreLogger):
        return False
    uploader, stored = destination.uploader, destination.remote_name(name)
    folder = uploader.uri.key_for(stored).rpartition("/")[0]
    pages = uploader.view().pages(f"{folder}/" if folder else "", one_level=True)
    return any(meta.key.endswith(SYMLINK_SUFFIX) for page in pages for meta in page.objects)


def _folder_of(name: str) -> str:
    return name.strip("/").rpartition("/")[0]


def _number(time: Any) -> int:
    return int(getattr(time, "value", time) or 0)


def _hook(event: Event) -> Callable[..., None]:
    def hook(self: ComposerLogger, state: Any, logger: Any) -> None:
        self._notify(event, state)

    hook.__name__, hook.__doc__ = event.value, event.__doc__
    return hook


for _event in Event:
    setattr(ComposerLogger, _event.value, _hook(_event))


class RemoteUploaderDownloader(ComposerLogger, composer_loggers.RemoteUploaderDownloader):  # type: ignore[misc]
    """Composer's uploader, with its constructor, on top of `ObjectStoreLogger`: change the import and nothing else::

        from wherry.integrations.composer import RemoteUploaderDownloader

        RemoteUploaderDownloader("s3://my-bucket", backend_kwargs={"prefix": "runs"})

    `bucket_uri` and `backend_kwargs` mean what they mean to Composer, for s3, gs, sftp, oci, and libcloud's local and
    azure_blobs; ConfigError, a ValueError, for others. `backend_kwargs` is not changed. `file_path_format_string` counts for
    uploads and downloads. `upload_staging_folder` becomes the spool. `num_concurrent_uploads` is the least, and never costs the
    order of one name. Transient errors are retried until `RetryConfig.job_deadline_s`, not `num_attempts` times, and uploads
    never run in this process, so `num_attempts` and `use_procs` have no effect.
    """

    def __init__(  # noqa: PLR0917  Composer's signature
        self,
        bucket_uri: str,
        backend_kwargs: Mapping[str, Any] | None = None,
        file_path_format_string: str = "{remote_file_name}",
        num_concurrent_uploads: int = 1,
        upload_staging_folder: str | None = None,
        use_procs: bool = True,
        num_attempts: int = 3,
        *,
        call_limits: CallLimits | None = None,
    ) -> None:
        del use_procs
        for name, number in (("num_concurrent_uploads", num_concurrent_uploads), ("num_attempts", num_attempts)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"{name} is {number!r}: it must be a whole number, at least 1")
        check_name_format("file_path_format_string", file_path_format_string)
        store: Replaced = replaced(
            bucket_uri, {} if backend_kwargs is None else backend_kwargs, num_concurrent_uploads, os.environ
        )
        self.remote_backend_name, self.remote_bucket_name = store.scheme, store.bucket
        self.backend_kwargs = dict(store.backend_kwargs)
        self.file_path_format_string = file_path_format_string
        self.num_attempts = num_attempts
        self._num_concurrent_uploads = 1  # the Trainer refuses more with autoresume, as Composer's uploader then loses the order
        self._remote_backend = None
        self._store = ObjectStoreLogger(
            store.uri,
            storage_options=store.options,
            spool=upload_staging_folder,
            config=store.config,
            name_format=file_path_format_string,
        )
        ComposerLogger.__init__(self, self._store, call_limits=call_limits)

    def get_uri_for_file(self, remote_file_name: str) -> str:
        """The URI to which the file is uploaded."""
        return self._store.get_uri_for_file(escaped(self._filled(remote_file_name)))

    def wait_for_workers(self, device: Any = None) -> None:
        """Wait until all files are verified in the store. UploadFailed for those that failed. No other rank is waited for."""
        self._store.uploader.flush()
