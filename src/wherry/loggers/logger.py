"""Logger: hands each call of a training loop to every destination."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from wherry.errors import UploadFailed
from wherry.loggers.callback import Callback
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.event import Event
from wherry.loggers.state import State

log = logging.getLogger("wherry")


class Logger:
    """Routes what a run logs to `destinations`, and events to them and to `callbacks`.

    A destination that raises stops neither the others nor the training: its error is written to the log "wherry", once for
    each kind of call, and each time for upload_file(), as a file is lost then. Two errors do come through, after all destinations
    had their turn: UploadFailed, by which a destination says on purpose that accepted files did not arrive; and any error of
    a callback, which may stop a training on purpose.
    """

    def __init__(self, state: State, destinations: Sequence[LoggerDestination] = (), callbacks: Sequence[Callback] = ()) -> None:
        self.state = state
        self.destinations = list(destinations)
        self.callbacks = list(callbacks)
        self._warned: set[tuple[int, str]] = set()
        self._closed = False

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        """Log settings that do not change during the run."""
        self._each("log_hyperparameters", lambda destination: destination.log_hyperparameters(hyperparameters))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log figures; `step=None` is the current batch."""
        at = self._step(step)
        self._each("log_metrics", lambda destination: destination.log_metrics(metrics, at))

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
        """Log images as `LoggerDestination.log_images` describes; `step=None` is the current batch."""
        at = self._step(step)
        self._each(
            "log_images",
            lambda destination: destination.log_images(images, name, channels_last, at, masks, mask_class_labels, use_table),
        )

    def log_table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], name: str = "Table", step: int | None = None
    ) -> None:
        """Log a table, `rows` is n x len(columns); `step=None` is the current batch."""
        at = self._step(step)
        self._each("log_table", lambda destination: destination.log_table(columns, rows, name, at))

    def log_traces(self, traces: Mapping[str, object]) -> None:
        """Log what helps in debugging."""
        self._each("log_traces", lambda destination: destination.log_traces(traces))

    def has_file_upload_destination(self) -> bool:
        """Whether upload_file() reaches any destination that uploads."""
        return any(destination.can_upload_files() for destination in self.destinations)

    def upload_file(self, remote_file_name: str, file_path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Have every destination that uploads take the file; it may be changed or deleted afterwards.

        Both names are templates with the fields of `State.name_fields`; ConfigError for a field that is unknown. A destination
        that `formats_names` gets the remote name as it is here, the others get it filled.
        """
        path = Path(self.state.fill(os.fspath(file_path)))
        filled = self.state.fill(remote_file_name)
        if not self.has_file_upload_destination():
            self._warn(self, "upload_file", f"no destination can upload files, so {path} is not uploaded")

        def upload(destination: LoggerDestination) -> None:
            name = remote_file_name if destination.formats_names else filled
            destination.upload_file(self.state, name, path, overwrite=overwrite)

        self._each("upload_file", upload)

    def run_event(self, event: Event) -> None:
        """Tell all of an event: at INIT the destinations first, so that callbacks can log at once; else the callbacks first."""
        event = Event(event)
        if event is not Event.INIT:
            self._run_callbacks(event)
        self._each(event.value, lambda destination: destination.run_event(event, self.state, self))
        if event is Event.INIT:
            self._run_callbacks(event)

    def close(self) -> None:
        """Close everything, in two rounds (see `Callback`); errors are logged. Closing again does nothing.

        Raises UploadFailed at the very end if accepted files did not arrive.
        """
        if self._closed:
            return
        self._closed = True
        failed: list[UploadFailed] = []
        everything: list[Callback] = [*self.callbacks, *self.destinations]
        closed = [one for one in everything if self._attempt(one, "close", partial(one.close, self.state, self), failed)]
        for one in closed:
            self._attempt(one, "post_close", one.post_close, failed)
        _raise_joined(failed)

    def _step(self, step: int | None) -> int:
        return self.state.timestamp.batch if step is None else step

    def _run_callbacks(self, event: Event) -> None:
        for callback in self.callbacks:
            callback.run_event(event, self.state, self)

    def _each(self, what: str, call: Callable[[LoggerDestination], object]) -> None:
        failed: list[UploadFailed] = []
        for destination in self.destinations:
            self._attempt(destination, what, partial(call, destination), failed)
        _raise_joined(failed)

    def _attempt(self, who: Callback, what: str, call: Callable[[], object], failed: list[UploadFailed]) -> bool:
        """Whether the call worked. UploadFailed is added to `failed`, any other error is logged."""
        try:
            call()
        except UploadFailed as error:
            failed.append(error)
            return False
        except Exception as error:
            self._warn(who, what, f"{type(who).__name__}.{what} failed: {error}", error)
            return False
        return True

    def _warn(self, who: object, what: str, text: str, error: Exception | None = None) -> None:
        if (id(who), what) not in self._warned or (error is not None and what == "upload_file"):
            self._warned.add((id(who), what))
            log.warning("%s", text, exc_info=error)


def _raise_joined(failed: Sequence[UploadFailed]) -> None:
    if len(failed) == 1:
        raise failed[0]
    if failed:
        remedies = dict.fromkeys(error.remedy for error in failed if error.remedy)
        raise UploadFailed([failure for error in failed for failure in error.failures], remedy="\n".join(remedies))
