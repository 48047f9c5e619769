"""Sinks: the sinks of a run, which write the values of its MultiLoggers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from wherry.errors import UploadFailed
from wherry.loggers.run.state import State
from wherry.loggers.typed.multi import MultiLogger, never_written
from wherry.loggers.typed.sink import BaseLogger
from wherry.loggers.warn_once import WarnOnce

#: A message names at most so many values.
_MOST_NAMES = 5


class Sinks:
    """The sinks of a run. Call step() after each step: it passes on what was logged, and sinks that are due write::

        with Sinks([DestinationSink(logger)]) as sinks:
            for batch in loader:
                log.log_scalar("loss", train(batch))
                sinks.step(state, log)

    The last values of a phase are written when the phase changes, at end_phase() and at close(), due or not. An error of a sink
    stops neither the others nor the training; it is reported once for each kind of call. UploadFailed is raised after all sinks
    had their turn: a destination reports by it that accepted files did not arrive.

    One thread makes the calls of this class. Any thread may log values.
    """

    def __init__(self, sinks: Sequence[BaseLogger[Any]]) -> None:
        self.sinks = tuple(sinks)
        self._warnings = WarnOnce()
        self._loggers: dict[int, MultiLogger] = {}  # all that were given: close() writes their last values, too
        self._last: State | None = None
        self._has_open_phase = False
        self._is_closed = False

    def log_config(self, config: object) -> None:
        """Pass the settings of the run to all sinks: a mapping, an OmegaConf DictConfig, a dataclass or an argparse Namespace."""
        self._each("log_config", lambda sink: sink.log_config(config))

    def step(self, state: State, *loggers: MultiLogger) -> None:
        """End a step of the loop. What was logged belongs to the phase of `state`."""
        self._hand_over(state, loggers)
        self._each("write", lambda sink: sink.write(state) if sink.should_write(state) else None)

    def end_phase(self, state: State, *loggers: MultiLogger) -> None:
        """End the phase of `state`: write everything, also what loggers of earlier steps have logged since."""
        self._hand_over(state, loggers, also_earlier=True)
        self._write_all(state)
        self._has_open_phase = False

    def close(self) -> None:
        """Write what is left, also what was logged after the last step, and close the sinks. Closing again does nothing.

        Values of a MultiLogger that was never given to step() or end_phase() belong to no known state. They are reported and not
        written.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as stack:  # makes all calls, also after Ctrl-C
            stack.callback(self._each, "close", lambda sink: sink.close())
            if self._last is not None:
                self._has_open_phase |= any(logger.has_values() for logger in self._loggers.values())
                for logger in self._loggers.values():
                    logger.write(self.sinks, self._last)
                if self._has_open_phase:
                    self._write_all(self._last)
            if names := never_written():
                more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
                self._warnings.each(
                    f"at the close of Sinks, not written: {', '.join(names[:_MOST_NAMES])}{more}. No step was made with the "
                    "MultiLogger that has it, so the state is unknown: call step(state, logger) or end_phase() before close()"
                )

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except UploadFailed as failed:
            if error is None:
                raise
            self._warnings.each(f"after {type(error).__name__}, at the close: {failed}", failed)

    def _hand_over(self, state: State, loggers: Sequence[MultiLogger], *, also_earlier: bool = False) -> None:
        if self._has_open_phase and self._last is not None and self._last.phase != state.phase:
            self._write_all(self._last)
        self._loggers.update((id(logger), logger) for logger in loggers)
        self._last, self._has_open_phase = copy.copy(state), True
        for logger in tuple(self._loggers.values()) if also_earlier else loggers:
            logger.write(self.sinks, state)

    def _write_all(self, state: State) -> None:
        self._each("write", lambda sink: sink.write(state))

    def _each(self, what: str, call: Callable[[BaseLogger[Any]], object]) -> None:
        """Make a call of every sink. After Ctrl-C in a close() the others are closed, too."""
        uploads: list[UploadFailed] = []

        def attempt(sink: BaseLogger[Any]) -> None:
            try:
                call(sink)
            except UploadFailed as error:
                uploads.append(error)
            except Exception as error:  # of a sink; the others and the training go on
                self._warnings.once((id(sink), what), f"{type(sink).__name__}.{what} failed: {error}", error)

        with ExitStack() as stack:
            for sink in reversed(self.sinks):
                stack.callback(attempt, sink)
        if uploads:
            raise uploads[0]
