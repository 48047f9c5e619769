"""Run a function from a signal handler, but not inside the calls of a library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def call_outside(frame: FrameType | None, libraries: frozenset[str], call: Callable[[], object]) -> bool:
    """Call `call` now, or, if the code at `frame` was called by one of the libraries, when the program's own code goes on.

    `frame` is what a signal handler is given. `libraries` are names of top-level packages. The program's own code is the
    innermost frame that no frame of a library has called; `call` runs before its next line, in the same thread. An exception of
    `call` is raised there. False if there is no such frame: then nothing is called, now or later.
    """
    own, is_inside = frame, False
    at = frame
    while at is not None:
        if str(at.f_globals.get("__name__", "")).partition(".")[0] in libraries:
            own, is_inside = at.f_back, True
        at = at.f_back
    if not is_inside:
        call()
        return True
    if own is None:
        return False
    _before_next_line(own, call)
    return True


def _before_next_line(frame: FrameType, call: Callable[[], object]) -> None:
    """Have `call` called once, at the frame's next line or at its end. A debugger's trace function goes on afterwards."""
    tracer, frame_tracer = sys.gettrace(), frame.f_trace

    def at_line(where: FrameType, event: str, argument: object) -> Any:
        frame.f_trace = frame_tracer
        sys.settrace(tracer)
        call()
        return frame_tracer

    frame.f_trace = at_line
    if tracer is None:
        sys.settrace(_trace_nothing)  # frames have their trace functions called only where a thread has one


def _trace_nothing(frame: FrameType, event: str, argument: object) -> None:
    return None
