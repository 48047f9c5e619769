"""CallLimits: how long a training loop waits for one call of a destination, and what becomes of calls that take longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from dataclasses import dataclass

from wherry.errors import ConfigError, WherryError
from wherry.posix.interrupts import Interrupt, raise_if_interrupted
from wherry.posix.thread_pool import DaemonThreadPool

#: The calls that wait for files, which takes as long as it takes: each destination has its own limit for that.
_CALLS_THAT_WAIT = frozenset({"fit_end", "eval_standalone_end", "predict_end", "close", "post_close", "download_file"})
#: The calls whose caller must know that they were not made.
_CALLS_FOR_FILES = frozenset({"upload_file", "download_file"})
#: Ctrl-C that strikes just before a wait begins is noticed by the interpreter only when that wait ends.
_LOOK_S = 0.5
#: So long a call may take to end after Ctrl-C: those that wait for uploads look up once a second.
_END_AFTER_CTRL_C_S = 3.0

#: The ids of the LimitedCalls in whose calls this code runs. A destination that logs while it is called is called in the same
#: thread, which would wait for itself otherwise.
_around: ContextVar[frozenset[int]] = ContextVar("wherry_limited_calls_around", default=frozenset())


@dataclass(frozen=True)
class CallLimits:
    """How long a destination's call may take before the training goes on without it, in seconds::

        Logger(state, destinations, call_limits=CallLimits(call_s=60.0))

    ConfigError for values that make no sense.
    """

    #: A log call, an event, or taking a snapshot of a file. The longest of these is the copy of a checkpoint into the spool where
    #: it cannot be a reflink: 100 GB at 400 MB/s take 250 s. It must end before other ranks give up waiting for this one:
    #: torch.distributed's default is 600 s with NCCL.
    call_s: float = 300.0
    #: The calls at the end of training, evaluation and prediction, and the close, which wait for uploads. ObjectStoreLogger gives
    #: up by itself when nothing has progressed for 1,800 s (`Config.give_up_s`), so this ends only what that does not see. It is
    #: four times that, as 1 TB, the last checkpoint of a large model, takes 6,700 s at 150 MB/s; no upload is lost by it, as the
    #: agent goes on. Downloads have it as well.
    end_s: float = 7200.0

    def __post_init__(self) -> None:
        for name in ("call_s", "end_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"CallLimits.{name} is {value!r}: it must be a number of seconds above 0")


def checked_limits(limits: object) -> CallLimits:
    """The limits. ConfigError for anything else, such as a number of seconds."""
    if not isinstance(limits, CallLimits):
        raise ConfigError(f"call_limits is {limits!r}: give CallLimits(call_s=..., end_s=...)")
    return limits


class StuckError(WherryError, TimeoutError):
    """A destination's call has taken longer than its limit and still runs, so the training goes on without the destination."""


class LimitedCalls:
    """Makes the calls of one destination in a thread of its own, one at a time, and waits for each as `limits` say.

    States: free; busy, while a call runs within its limit; stuck, from then on until that call returns. While it is stuck no
    call is made: StuckError for a file, which this destination neither gets nor gives, and None for all others. Ctrl-C, or what
    another signal's handler raises, ends the call if that waits for uploads; one that does not end is stuck.
    """

    def __init__(self, name: str, limits: CallLimits, warn: Callable[[str], object]) -> None:
        self._name = name
        self._limits = limits
        self._warn = warn
        self._pool = DaemonThreadPool(1, f"wherry-{name}")
        self._pid = os.getpid()
        self._stuck: tuple[str, float, Future[object]] | None = None

    def make(self, what: str, call: Callable[[], object]) -> object:
        """Make the call and return what it returns; raises what it raises, and StuckError when its time is up."""
        if id(self) in _around.get() or os.getpid() != self._pid:  # a forked child has no such thread
            return call()
        if self.is_stuck() and self._stuck is not None:
            if what not in _CALLS_FOR_FILES:
                return None
            verb = "get" if what == "upload_file" else "give"
            raise StuckError(f"{self._name} does not {verb} the file, as its {self._stuck[0]}() has not returned yet")
        limit_s = self._limits.end_s if what in _CALLS_THAT_WAIT else self._limits.call_s
        interrupt = Interrupt()
        context = copy_context()
        context.run(_around.set, _around.get() | {id(self)})
        context.run(interrupt.listen)
        began_s = time.monotonic()
        future: Future[object] = self._pool.submit(context.run, call)
        try:
            is_done = _is_done(future, began_s + limit_s)
        except BaseException as error:
            self._stuck = what, began_s, future  # before the wait, which may be interrupted as well
            interrupt.set(error)
            if not wait((future,), _END_AFTER_CTRL_C_S).done:
                raise
            self._stuck = None
            if not interrupt.is_taken:
                raise
            is_done = True  # the call decides what comes of it, as if it had been interrupted itself
        if not is_done:
            self._stuck = what, began_s, future
            raise StuckError(
                f"it has not returned within {limit_s:g} s. The training goes on without {self._name} until it returns: "
                "look at what it waits for (a disk, a server), or give it more time with CallLimits"
            )
        return future.result()

    def is_stuck(self) -> bool:
        """Whether a call has taken longer than its limit and still runs."""
        return self._stuck is not None and not self._is_free_again(*self._stuck)

    def _is_free_again(self, what: str, began_s: float, future: Future[object]) -> bool:
        if not future.done():
            return False
        self._stuck = None
        error = future.exception()
        end = "returned" if error is None else f"failed ({error!r})"
        took_s = time.monotonic() - began_s
        self._warn(f"{self._name}.{what} has {end} after up to {took_s:.0f} s: {self._name} is called again from now on")
        return True


def _is_done(future: Future[object], until_s: float) -> bool:
    """Wait for the end of the call. Whether it came in time."""
    while not wait((future,), min(_LOOK_S, max(0.0, until_s - time.monotonic()))).done:
        raise_if_interrupted()
        if time.monotonic() >= until_s:
            return False
    return True
