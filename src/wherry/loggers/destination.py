"""LoggerDestination: where logged things go. The base class of the family; its calls are those of Composer's, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wherry.loggers.callback import Callback

if TYPE_CHECKING:
    from wherry.loggers.level import LogLevel
    from wherry.loggers.state import State


class LoggerDestination(Callback):
    """Takes what a run logs. Override what the destination can take: the rest does nothing, except download_file().

    Every method of `Callback` can be overridden as well, for example ``epoch_end`` to flush.

    `formats_names`: set it to True in a class that fills the templates of remote names itself (see `Logger.upload_file`).
    """

    formats_names: bool = False
    #: Whether what is logged (not: files) is taken from rank 0 only. The router sees to it, not the destination.
    rank_zero_only: bool = True

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Ignore all arguments, as Composer's base class does, so that a subclass may hand on its own to all of its bases."""
        del args, kwargs

    def will_log(self, state: State, level: LogLevel) -> bool:
        """Whether figures of this level are wanted now; asked by `Logger.metric` before it computes them."""
        return True

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
        with whole numbers that `mask_class_labels` names. `use_table`: show them as a table, where the destination has tables.
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
        """Whether upload_file() uploads: True in a class that overrides it."""
        return False
