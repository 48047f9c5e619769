"""DestinationSink: a LoggerDestination, or a whole Logger, as a sink of the typed API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from wherry.loggers.destination import LoggerDestination
from wherry.loggers.failures import raise_first
from wherry.loggers.logger import Logger
from wherry.loggers.route import Destination
from wherry.loggers.run.event import Event
from wherry.loggers.run.settings import config_as_dict
from wherry.loggers.run.state import State
from wherry.loggers.typed.multi import FRAMES_PER_S
from wherry.loggers.typed.sink import BaseLoggerConfig, CollectingLogger
from wherry.loggers.values.deep_copy import deep_copy

#: Kind of value (see `Collected`) -> the methods of which a destination must override one to take it.
_CALLS = {
    "scalars": ("log_metrics", "log_metric"),
    "strings": ("log_text",),
    "images": ("log_images",),
    "audios": ("log_audio",),
    "videos": ("log_video",),
    "histograms": ("log_histogram",),
    "point_clouds": ("log_point_cloud",),
}


class DestinationSink(CollectingLogger[BaseLoggerConfig]):
    """Logs what a `MultiLogger` passes on to a destination, or to all destinations of a `Logger`.

    Names are ``namespace/key``; the phases "valid" and "test" are put in front. The step is the batch. All scalars are logged in
    one call. Values that no destination takes on this rank are not computed.

    A destination gets a `Logger` of its own, which begins with the first state and is closed with the sink. Give a destination
    that a `Logger` has already by that `Logger`, which stays open.
    """

    def __init__(self, destination: LoggerDestination | Logger, config: BaseLoggerConfig | None = None) -> None:
        super().__init__(config or BaseLoggerConfig(name=type(destination).__name__))
        self._destination = destination
        self._logger = destination if isinstance(destination, Logger) else None
        self._settings: list[dict[str, Any]] = []  # those that were logged before there was a Logger

    def log_config(self, config: Any) -> None:
        """Log the settings as hyperparameters. Before the first state they are kept until then."""
        settings = config_as_dict(config)
        if self._logger is not None:
            self._logger.log_hyperparameters(settings)
        else:
            self._settings.append(deep_copy(settings))

    def write(self, state: State) -> None:
        """Log everything that was collected. An error that the `Logger` raises is raised when all is logged."""
        logger = self._begun(state)
        wanting = [one for one in logger.destinations if not (state.rank and one.rank_zero_only)]
        for kind in self.kept_kinds(state.phase) - _served(logger.destinations):
            names = ", ".join(type(one).__name__ for one in logger.destinations) or "there is none"
            self._warnings.once(kind, f"{kind.replace('_', ' ')} are not logged: no destination takes them ({names})")
        found, step = self.take(state.phase, kinds=_served(wanting)), state.timestamp.batch

        def name(where: tuple[str, str]) -> str:
            return "/".join(where if state.phase == "train" else (state.phase, *where))

        calls: list[Callable[[], None]] = []
        if found.scalars:
            calls.append(partial(logger.log_metrics, {name(where): value for where, value in found.scalars.items()}, step))
        calls += [partial(logger.log_text, text, name(where), step) for where, text in found.strings.items()]
        calls += [partial(logger.log_images, image, name(where), step=step) for where, image in found.images.items()]
        calls += [partial(logger.log_audio, one, name(where), rate, step) for where, (one, rate) in found.audios.items()]
        calls += [partial(logger.log_video, video, name(where), FRAMES_PER_S, step) for where, video in found.videos.items()]
        calls += [partial(logger.log_histogram, values, name(where), step) for where, values in found.histograms.items()]
        calls += [partial(logger.log_point_cloud, points, name(where), step) for where, points in found.point_clouds.items()]
        errors: list[Exception] = []
        for call in calls:
            try:
                call()
            except Exception as error:  # noqa: PERF203  of a destination whose on_error is "raise"; the rest is logged
                errors.append(error)
        raise_first(errors, state, self._warnings.each, is_asked_for=True)

    def close(self) -> None:
        """Write what was not written, and close the `Logger` if it is the sink's own. Closing again does nothing."""
        try:
            super().close()
        finally:
            if self._settings:
                self._begun(State())  # no step was made: log the settings nevertheless
            if self._logger is not None and self._logger is not self._destination:
                self._logger.close()

    def _begun(self, state: State) -> Logger:
        """The Logger, with this state, and with the settings logged."""
        if isinstance(self._destination, Logger):
            return self._destination
        if self._logger is None:
            self._logger = Logger(state, self._destination)
            self._logger.run_event(Event.INIT)
        self._logger.state = state
        settings, self._settings = self._settings, []
        for one in settings:
            self._logger.log_hyperparameters(one)
        return self._logger


def _served(destinations: Sequence[Destination]) -> set[str]:
    """The kinds that any of the destinations takes."""
    return {kind for kind, calls in _CALLS.items() if any(one._overrides(call) for one in destinations for call in calls)}
