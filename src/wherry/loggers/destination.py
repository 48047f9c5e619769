"""LoggerDestination: where logged things go. The base class of the family; its calls are those of Composer's, exactly.

Two older generations of these calls still work, called from outside and overridden alike: ``log_metric(epoch, step, log_level,
data)`` of Composer 0.3, and the artifact names of 0.6 to 0.10 (``log_file_artifact`` is upload_file, ``get_file_artifact``
download_file, ``can_log_file_artifacts`` can_upload_files). A class overrides the old name or the new one; the other leads to it,
also where a class that it derives from has overridden the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from wherry.loggers.callback import Callback, overrides
from wherry.loggers.legacy.metric_levels import sort_leaves
from wherry.loggers.legacy.old_names import tie_old_names, warn_of_old_name
from wherry.loggers.route import OnError
from wherry.loggers.run.level import LogLevel
from wherry.loggers.run.state import State


class LoggerDestination(Callback):
    """Takes what a run logs. Override what the destination can take: the rest does nothing, except download_file().

    Every method of `Callback` can be overridden as well, for example ``epoch_end`` to flush.

    What a log call is given belongs to the caller: take a copy of what is kept after the call. Calls come from any thread.
    `Logger` looks once at which methods a class overrides; it does not call the others.

    `formats_names`: set it to True in a class that fills the templates of remote names itself (see `Logger.upload_file`).
    """

    formats_names: bool = False
    #: Whether what is logged (not: files and events) is taken from rank 0 only. The router sees to it, not the destination.
    rank_zero_only: bool = True
    #: What the router does when a call raises: "warn" says it once a kind of call, "disable" says it and makes no more log calls
    #: and events until the close, "raise" lets it through once all destinations had their turn.
    on_error: OnError = "warn"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        tie_old_names(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Ignore all arguments, as Composer's base class does, so that a subclass may hand on its own to all of its bases."""
        del args, kwargs

    def _overrides(self, method: str) -> bool:
        return overrides(self, method, LoggerDestination)

    def name_templates(self) -> Iterable[str]:
        """The templates of names that it fills with the state (see `State.fill`), all or some of them.

        If one has ``{run_name}`` and the run has no name, `Logger` says so when the run begins, and not when the first figure is
        lost. Not overridden, these are the texts among its attributes.
        """
        return [value for value in vars(self).values() if isinstance(value, str)]

    def is_ready(self, state: State) -> bool:
        """Whether log calls can be taken now. Until this is True the router keeps them, and replays them in order then.

        It is asked before each log call and around each event, and not again once it was True. What is still kept at the
        close is replayed right before close(). Events and files are never kept back.
        """
        return True

    def will_log(self, state: State, level: LogLevel) -> bool:
        """Whether figures of this level are wanted now; asked by `Logger.metric` before it computes them."""
        return True

    def log_metric(self, epoch: int, step: int, log_level: LogLevel, data: Mapping[str, object]) -> None:
        """Log what `Logger.metric` was given: names to numbers, texts, tensors, lists and mappings of these.

        `epoch` and `step` (batches) are those of the call, and `data` is a deep copy of its own: keep or change it as you like.
        Not overridden, it makes today's calls of it: log_metrics() of all numbers, with the names joined by "/" where
        they were nested (``{"lr": [0.1, 0.2]}`` is ``lr/0`` and ``lr/1``), log_text() of each text, log_traces() of the rest,
        and of the texts where the class does not override log_text().
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

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Log settings that do not change during the run: name -> value."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log figures that change during the run: name -> value. `step=None`: the destination counts itself."""

    def log_images(
        self,
        images: object,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: Mapping[str, object] | None = None,
        mask_class_labels: Mapping[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Log an image or a sequence of them: arrays or tensors, height x width, channels x height x width, or a batch of these.

        `channels_last`: the channels are the last dimension. `masks`: name (prediction, truth ...) -> mask or sequence of masks,
        with labels that `mask_class_labels` names: whole numbers from 0 to 255; map an ignore label such as -100 to 255. If a
        mask has others, the images are logged without it, and a ValueError says so. `use_table`: show them as a table, where
        the destination has tables.
        """

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table: `rows` is n x len(columns)."""

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Log what helps in debugging: name -> anything."""

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Log a text."""

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Log how the numbers of an array or tensor of any shape are distributed."""

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Log sound: samples, channels x samples, or samples x channels; a channel is mixed into one."""

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = 12.0, step: int | None = None) -> None:
        """Log a video: frames x height x width, with channels second or last."""

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Log points in space: n x 3, or a batch of clouds."""

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        """Upload the file `file_path` under the name `remote_file_name`.

        The file may be changed or deleted as soon as this returns, so take a snapshot of it first. Keep it short: the training
        loop waits. What is returned is the destination's own; None where there is nothing to say.
        """
        return None

    def download_file(self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        """Download the file `remote_file_name` to the path `destination`; an existing file is an error without `overwrite`.

        Raises NotImplementedError in destinations that keep no files.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot download files: ask a destination that uploads them")

    def can_upload_files(self) -> bool:
        """Whether upload_file() uploads. Not overridden, it is whether the class overrides upload_file(), by either name.

        Where this is False, `Logger.upload_file` hands over nothing. A class with the old names only is asked by the old name.
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
