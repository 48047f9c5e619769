"""Preemption: the job is told to end, and saves before it does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, TypeVar

from wherry.checkpoints.handle import CheckpointHandle
from wherry.checkpoints.preemption.forecast import Forecast, forecast, some
from wherry.checkpoints.preemption.next_line import call_outside
from wherry.checkpoints.protocol.names import SetName
from wherry.checkpoints.world import World, process_group
from wherry.errors import ConfigError, TransientError, UploadFailed, WherryError
from wherry.spool.journal.jobs import JobState
from wherry.uploader import Uploader

#: Code of these is not interrupted by a save at once: locks may be held there, and tensors be half changed.
_NOT_INSIDE = frozenset({"wherry", "torch"})
#: The end of the grace time that is left to the program for its own end.
_RESERVED_SHARE = 0.1
_MOST_RESERVED_S = 2.0
#: A signal's handler may take no lock, so it cannot wake the one who waits: that one looks this often.
_LOOK_S = 0.1
_Self = TypeVar("_Self", bound="Preemption")


@dataclass(frozen=True)
class PreemptionReport:
    """What became of a save before the end.

    `forecast`: what was to be expected when the set was handed over. `is_committed`: the set `set` is complete in the store.
    `left`: the URIs of this program's uploads that are not stored yet. `error`: why the set cannot be committed any more.
    `command` finishes what is left, if the machine, or its disk, stays.
    """

    signal: str
    set: SetName | None
    is_committed: bool
    grace_left_s: float
    forecast: Forecast
    left: tuple[str, ...]
    error: str | None
    command: str

    def __str__(self) -> str:
        what = "what was saved" if self.set is None else f"the set {self.set}"
        if self.is_committed and not self.left:
            return f"{self.signal}: {what} is complete in the store, {self.grace_left_s:.1f} s before the end of the grace time"
        if self.error is not None:
            return f"{self.signal}: {what} will not be complete: {self.error}"
        also = "" if self.is_committed else f"{what} is not complete yet; "
        if not self.left:
            return f"{self.signal}: {also}all objects of this program are stored, and another rank's or the manifest are awaited"
        n = len(self.left)
        return (
            f"{self.signal}: {also}not stored: {n} object{'s' * (n != 1)} ({some(self.left)}). If this machine stays, they are "
            f"sent in the background; if only its disk stays, this finishes it: {self.command}"
        )


class Preemption:
    """Saves when the job is told to end: what `Checkpoints.on_preemption` returns::

        with checkpoints.on_preemption(lambda: checkpoints.save(step, model.state_dict()), grace_s=120) as preemption:
            for step in range(first_step, 1000):
                ...
                if preemption.poll():
                    break

    The first signal is only noted. `poll()`, called at each place where the state is whole, then saves, waits for the commit
    within the grace time, says on stderr what arrives, and returns a PreemptionReport. `should_save()` and `finish()` are its
    two halves. A handler that was there before is called after that. A second signal of the same kind does at once what it did
    before: with no earlier handler it ends the program; during the wait it ends the wait. What was handed over by then is sent.
    """

    def __init__(
        self,
        uploader: Uploader,
        world: World,
        last: Callable[[], CheckpointHandle | None],
        save: Callable[[], object] | None = None,
        *,
        grace_s: float = 30.0,
        signals: Sequence[int] = (signal.SIGTERM, signal.SIGUSR1),
        at_once: bool = False,
        agree: Callable[[bool], bool] | None = None,
        every: int = 1,
    ) -> None:
        """Prefer `Checkpoints.on_preemption`, which says what these are. `last`: the set that was handed over last."""
        _check(grace_s, signals, every)
        if at_once and save is None:
            raise ConfigError("at_once=True needs `save`, a function that saves: nobody else is asked at the signal")
        if at_once and world.size > 1:
            raise ConfigError(
                f"at_once=True with {world.size} ranks: each would save another step, and none of these sets would ever be "
                "complete. Call poll() in the training loop, where the ranks agree on a step"
            )
        self._uploader, self._world, self._last, self._save = uploader, world, last, save
        self._grace_s, self._at_once, self._agree, self._every = grace_s, at_once, agree, every
        self._name: str | None = None  # of the signal that has come, and is not dealt with
        self._number = 0
        self._until_s = 0.0
        self._is_busy = False  # saving, or waiting
        self._is_insisted = False
        self._n_shields = 0
        self._n_polls = 0
        self._is_closed = False
        self._before: dict[int, Any] = {}
        self._install(signals)
        _open.add(self)

    def __repr__(self) -> str:
        return f"<Preemption {self._name or 'no signal'} grace {self._grace_s:g} s>"

    # -- in the training loop

    def should_save(self) -> bool:
        """Whether the job was told to end, and has not saved since. To be asked where the state is whole.

        With several ranks it is the same on all of them: each asks at the same steps, and one signal to one of them is enough.
        That is one all-reduce of a number, in each `every`-th call; in others it is False. ConfigError where several ranks have
        neither torch.distributed nor `agree`.
        """
        own = self._name is not None and not self._is_busy
        if self._world.size == 1 and self._agree is None:
            return own
        self._n_polls += 1
        if self._n_polls % self._every:
            return False
        asked = (self._agree or _any_rank)(own)
        if asked and not own:
            self._note(0, "a signal to another rank")
        return asked

    def poll(self) -> PreemptionReport | None:
        """Save and finish() if should_save(); else None. Raises what `save` raises, ConfigError if none was given."""
        if not self.should_save():
            return None
        if self._save is None:
            raise ConfigError("poll() needs the function that saves: on_preemption(save); or use should_save() and finish()")
        return self._save_now(self._save)

    def finish(self, handle: CheckpointHandle | None = None) -> PreemptionReport:
        """Wait for the commit of the set within the grace time, say on stderr what arrives, and call the earlier handler.

        `handle`: what save() has returned; else that of the last set. Raises nothing for what could not be stored: the report
        says it.
        """
        was_asked, name, number = self._name is not None, self._name or "no signal", self._number
        until_s = self._until_s if was_asked else time.monotonic() + self._grace_s
        until_s -= min(_MOST_RESERVED_S, self._grace_s * _RESERVED_SHARE)
        handle = self._last() if handle is None else handle
        self._is_busy = True
        try:
            expected = forecast(self._uploader.journal.queries, self._uploader.owner, max(0.0, until_s - time.monotonic()))
            _say(f"{name}: {'nothing was saved' if handle is None else f'the set {handle.name} is handed over'}: {expected}")
            report = self._awaited(handle, name, until_s, expected)
            _say(str(report))
        finally:
            self._is_busy = False
            is_insisted, self._is_insisted = self._is_insisted, False
            self._name = None
        if was_asked and number and (callable(self._before.get(number)) or is_insisted):
            self._pass_on(number, None)
        return report

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """With `at_once`: a signal in the block, where the state is not whole, saves at the block's end."""
        self._n_shields += 1
        try:
            yield
        finally:
            self._n_shields -= 1
        if self._at_once and self._name is not None and not self._n_shields and not self._is_busy:
            self._save_then_pass_on()

    # -- the signal

    def _install(self, signals: Sequence[int]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError("on_preemption() is called in another thread than the main one: Python lets only that set handlers")
        before = {number: signal.getsignal(number) for number in signals}
        for number, handler in before.items():
            if handler is None:
                raise ConfigError(
                    f"{_name_of(number)} has a handler that was not installed from Python and cannot be kept: name other signals"
                )
        for number in signals:
            signal.signal(number, self._handle)
        self._before = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs between two byte codes of the main thread, in the middle of anything: it takes no lock."""
        if self._is_closed or self._uploader.is_closed:
            self._pass_on(number, frame)
        elif self._is_busy:
            self._is_insisted = self._is_insisted or number == self._number
        elif self._name is not None and number == self._number:
            self._pass_on(number, frame)
        else:
            self._note(number, _name_of(number))
            if self._at_once and not self._n_shields:
                if not call_outside(frame, _NOT_INSIDE, self._save_then_pass_on):
                    _write("it cannot be saved at once, as all of the program runs inside a library: poll() saves")
            else:
                _write(f"{self._name}: the next safe point saves; the same signal again ends the program")

    @property
    def numbers(self) -> tuple[int, ...]:
        """The signals."""
        return tuple(self._before)

    def _note(self, number: int, name: str) -> None:
        self._number, self._until_s = number, time.monotonic() + self._grace_s
        self._name = name

    def _save_now(self, save: Callable[[], object]) -> PreemptionReport:
        self._is_busy = True
        try:
            made = save()
        except BaseException:
            self._is_busy, self._name = False, None
            raise
        return self.finish(made if isinstance(made, CheckpointHandle) else None)

    def _save_then_pass_on(self) -> None:
        assert self._save is not None, "at_once has one"
        number = self._number
        before = self._before[number]
        try:
            self._save_now(self._save)
        except Exception as error:
            _say(f"it could not be saved: {''.join(traceback.format_exception(error))}")
            if callable(before):
                before(number, None)
        if before is signal.SIG_DFL:
            raise SystemExit(128 + number)  # the default ends the program; like this, what is called at its end is called

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Do what the signal did before."""
        before = self._before.get(number, signal.SIG_DFL)
        if callable(before):
            before(number, frame)
        elif before is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    # -- the wait

    def _awaited(self, handle: CheckpointHandle | None, name: str, until_s: float, expected: Forecast) -> PreemptionReport:
        uploader = self._uploader
        found: list[str | None] = []  # of the end: None for a commit, else the error
        thread = threading.Thread(target=_wait, args=(uploader, handle, until_s, found), name="wherry-preemption", daemon=True)
        thread.start()  # a call to the store may last longer than the grace time
        while thread.is_alive() and not self._is_insisted and (left_s := until_s - time.monotonic()) > 0:
            thread.join(min(_LOOK_S, left_s))
        jobs = uploader.journal.queries.jobs(states=[JobState.QUEUED, JobState.LEASED], checks=False)
        left = tuple(job.uri for job in jobs if job.owner == uploader.owner)
        error = found[0] if found else None
        left_s = max(0.0, self._until_s - time.monotonic())
        return PreemptionReport(
            *(name, None if handle is None else handle.name, bool(found) and error is None, left_s, expected, left, error),
            uploader.drain_command(),
        )

    # -- the end

    def close(self) -> None:
        """Restore the earlier handlers. In another thread, or where a newer handler calls ours, signals are passed on to them."""
        if self._is_closed:
            return
        self._is_closed = True
        _open.discard(self)
        self._restore()
        if self._name is not None and not self._is_busy:
            _say(f"{self._name} came, and nothing was saved since: neither poll() nor finish() was called")

    def leave(self) -> None:
        """In a forked child, such as a worker of a DataLoader: as if there had never been a handler."""
        self._is_closed, self._name = True, None
        self._restore()

    def _restore(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                if signal.getsignal(number) == self._handle:
                    signal.signal(number, before)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


#: Those whose handlers are installed.
_open: weakref.WeakSet[Preemption] = weakref.WeakSet()
_forking = threading.local()


def _before_fork() -> None:
    """Hold the signals back: one that comes before the child has its own handlers would be lost there, as Python forgets it."""
    numbers = {number for one in list(_open) for number in one.numbers}
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers) if numbers else None


def _after_fork() -> None:
    mask, _forking.mask = _forking.mask, None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    for one in list(_open):
        one.leave()
    _open.clear()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _wait(uploader: Uploader, handle: CheckpointHandle | None, until_s: float, found: list[str | None]) -> None:
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            if handle is None:
                uploader.flush(left_s)
            else:
                handle.result(left_s)
        except TransientError:
            time.sleep(min(1.0, left_s))  # the store may answer again before the end
            continue
        except TimeoutError:
            return
        except (UploadFailed, WherryError, OSError, ValueError) as error:
            found.append(str(error))
            return
        found.append(None)
        return


def _any_rank(asked: bool) -> bool:
    """Whether one rank was asked, on all ranks."""
    group = process_group()
    if group is None:
        raise ConfigError(
            "several ranks must save the same step: start torch.distributed before the first should_save(), or give "
            "on_preemption() agree=, a function that is given this rank's answer and returns the one of all ranks"
        )
    torch: Any = sys.modules["torch"]
    device = "cuda" if group.get_backend() == "nccl" else "cpu"
    number = torch.tensor([int(asked)], dtype=torch.int32, device=device)
    group.all_reduce(number, op=group.ReduceOp.MAX)
    return bool(number.item())


def _check(grace_s: float, signals: Sequence[int], every: int) -> None:
    if not 0 < grace_s < float("inf"):
        raise ConfigError(f"grace_s {grace_s!r}: give the seconds between the signal and the end, more than 0")
    if not signals or any(number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD) for number in signals):
        raise ConfigError(f"signals {list(signals)!r}: give signals that a program can handle, such as signal.SIGTERM")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigError(f"every {every!r}: give a whole number of calls, from 1 on")


def _name_of(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _say(text: str) -> None:
    sys.stderr.write(f"wherry: {text}\n")
    sys.stderr.flush()


def _write(text: str) -> None:
    """For a handler: sys.stderr may be in the middle of a write."""
    with contextlib.suppress(OSError):
        os.write(2, f"wherry: {text}\n".encode())
