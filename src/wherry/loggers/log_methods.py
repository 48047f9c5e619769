"""LogMethods: the log methods that `Logger` and `LoggerDestination` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wherry.errors import ConfigError

#: As W&B names them.
ALERT_LEVELS = ("INFO", "WARN", "ERROR")


class LogMethods:
    """Each method passes its name and its arguments to `_log_call`, which does nothing here.

    `step=None` is the current batch in a `Logger`; a destination counts by itself.
    """

    def _log_call(self, method: str, *arguments: object) -> None: ...

    def _step_of(self, step: int | None) -> int | None:
        return step

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Log settings that do not change during the run: name -> value."""
        self._log_call("log_hyperparameters", hyperparameters)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics, which change during the run: name -> number."""
        self._log_call("log_metrics", metrics, self._step_of(step))

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

        `channels_last`: the channels are the last dimension. `masks`: name (prediction, truth ...) -> mask or sequence of masks.
        Their labels are whole numbers from 0 to 255, which `mask_class_labels` names; map an ignore label such as -100 to 255.
        If a mask has other labels, the images are logged without it and ValueError is raised. `use_table`: show the images as a
        table, if the destination has tables.
        """
        self._log_call("log_images", images, name, channels_last, self._step_of(step), masks, mask_class_labels, use_table)

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table: `rows` is n x len(columns)."""
        self._log_call("log_table", columns, rows, name, self._step_of(step))

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Log values for debugging: name -> anything."""
        self._log_call("log_traces", traces)

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        """Log a text."""
        self._log_call("log_text", text, name, self._step_of(step))

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        """Log the distribution of the numbers in an array or tensor of any shape."""
        self._log_call("log_histogram", values, name, self._step_of(step))

    def log_audio(self, audio: object, name: str = "Audio", sample_rate_hz: int = 44_100, step: int | None = None) -> None:
        """Log a sound: samples, channels x samples, or samples x channels. Several channels are mixed into one."""
        self._log_call("log_audio", audio, name, sample_rate_hz, self._step_of(step))

    def log_video(self, video: object, name: str = "Video", frames_per_s: float = 12.0, step: int | None = None) -> None:
        """Log a video: frames x height x width, with channels second or last."""
        self._log_call("log_video", video, name, frames_per_s, self._step_of(step))

    def alert(self, title: str, text: str = "", level: str = "WARN") -> None:
        """Tell people at once: a line on the console and in the text log, an alert of W&B, a request to a webhook.

        `level` is "INFO", "WARN" or "ERROR", in any case; ConfigError for others.
        """
        if str(level).upper() not in ALERT_LEVELS:
            raise ConfigError(f"alert(): level is {level!r}: use one of {', '.join(ALERT_LEVELS)}")
        self._log_call("alert", str(title), str(text), str(level).upper())

    def log_point_cloud(self, points: object, name: str = "PointCloud", step: int | None = None) -> None:
        """Log points in space: n x 3, or a batch of clouds."""
        self._log_call("log_point_cloud", points, name, self._step_of(step))
