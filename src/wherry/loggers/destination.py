"""LoggerDestination: the base class of all destinations. Its methods have the names and parameters of Composer's.

Two older generations of these methods still work, both when they are called and when they are overridden: ``log_metric(epoch,
step, log_level, data)`` of Composer 0.3, and the artifact names of 0.6 to 0.10 (``log_file_artifact`` is upload_file(),
``get_file_artifact`` download_file(), ``can_log_file_artifacts`` can_upload_files()). A class overrides the old name or the new
one, and each name calls the method that was overridden last, also by a base class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from wherry.loggers.callback import Callback, overrides
from wherry.loggers.legacy.metric_levels import sort_leaves
from wherry.loggers.legacy.old_names import tie_old_names, warn_of_old_name
from wherry.loggers.log_methods import LogMethods
from wherry.loggers.route import OnError
from wherry.loggers.run.level import LogLevel
from wherry.loggers.run.state import State


class LoggerDestination(LogMethods, Callback):
    """Takes what a run logs. Override the methods of what the destination can take::

        class PrintLogger(LoggerDestination):
            def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
                print(step, dict(metrics))

        with Logger(State(), PrintLogger()) as logger:
            logger.log_metrics({"loss": 0.5})

    Methods that are not overridden do nothing, except download_file(), which raises. The methods of `Callback` can be overridden
    as well, for example ``epoch_end`` to flush. `Logger` finds out once, when it is made, which methods are overridden, and does
    not call the others.

    Log calls may come from several threads. Their arguments belong to the caller: copy what is kept after the call.
    """

    #: True in a class that fills the templates of remote names itself (see `Logger.upload_file`).
    formats_names: bool = False
    #: Whether log calls are made on rank 0 only; files and events come from every rank. `Logger` decides by it.
    rank_zero_only: bool = True
    #: What `Logger` does when a call raises. "warn": report it once for each kind of call. "disable": report it, and make no more
    #: log calls and events until the close. "raise": raise it once all destinations had their turn.
    on_error: OnError = "warn"
    #: True when it can take nothing any more. `Logger` refuses such a destination.
    is_closed: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        tie_old_names(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Ignore all arguments, as Composer's base class does, so that a subclass may pass its own to all of its bases."""
        del args, kwargs

    def _overrides(self, method: str) -> bool:
        return overrides(self, method, LoggerDestination)

    def name_templates(self) -> Iterable[str]:
        """The templates of names that the destination fills with the state (see `State.fill`), all or some of them.

        If one has ``{run_name}`` and the run has no name, `Logger` raises ConfigError when the run begins, before a metric is
        lost. By default these are all attributes that are texts.
        """
        return [value for value in vars(self).values() if isinstance(value, str)]

    def is_ready(self, state: State) -> bool:
        """Whether log calls can be taken now. Until this returns True, `Logger` keeps them; then it replays them in order.

        It is called before each log call and around each event, until it has returned True. What is still kept at the close is
        replayed right before close(). Events and files are never kept.
        """
        return True

    def will_log(self, state: State, level: LogLevel) -> bool:
        """Whether metrics of this level are wanted now. `Logger.metric` calls it before it computes them."""
        return True

    def log_metric(self, epoch: int, step: int, log_level: LogLevel, data: Mapping[str, object]) -> None:
        """Log what `Logger.metric` was given: names to numbers, texts, tensors, lists and mappings of these.

        `epoch` and `step` (batches) are those of the call. `data` is a deep copy, which may be kept and changed. By default it is
        logged by the newer methods: log_metrics() with all numbers, the names of nested ones joined by "/"
        (``{"lr": [0.1, 0.2]}`` becomes ``lr/0`` and ``lr/1``), log_text() with each text, and log_traces() with the rest, which
        includes the texts if the class does not override log_text().
        """
        metrics, texts, others = sort_leaves(data)
        if metrics:
            self.log_metrics(metrics, step)
        if self._overrides("log_text"):
            for name, text in texts.items():
                self.log_text(text, name, step)
        else:
            others.update(texts)
        if others:
            self.log_traces(others)

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        """Upload the file `file_path` under the name `remote_file_name`.

        The caller may change or delete the file as soon as this returns, so take a snapshot first. Return soon: the training
        loop waits. What is returned is up to the destination; `Logger` ignores it.
        """
        return None

    def note_lost(self, remote_file_name: str, error: Exception) -> None:
        """Hear that upload_file() has raised `error`, and that `Logger` has only logged it. By default nothing is done."""

    def download_file(self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        """Download the file `remote_file_name` to the path `destination`. Without `overwrite` an existing file is an error.

        Destinations that store no files raise NotImplementedError.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot download files: ask a destination that uploads them")

    def can_upload_files(self) -> bool:
        """Whether upload_file() uploads. By default: whether the class overrides upload_file(), by the new name or the old one.

        If this is False, `Logger.upload_file` does not call upload_file().
        """
        return self._overrides("upload_file")

    def log_file_artifact(
        self, state: State | None, log_level: str | int | LogLevel, artifact_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        """The old name of upload_file(), which has no `log_level`."""
        warn_of_old_name("log_file_artifact", "upload_file")
        self.upload_file(state, artifact_name, file_path, overwrite=overwrite)

    def get_file_artifact(self, artifact_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        """The old name of download_file()."""
        warn_of_old_name("get_file_artifact", "download_file")
        self.download_file(artifact_name, destination, overwrite, progress_bar)

    def can_log_file_artifacts(self) -> bool:
        """The old name of can_upload_files()."""
        warn_of_old_name("can_log_file_artifacts", "can_upload_files")
        return self.can_upload_files()
