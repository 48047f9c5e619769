"""Private copies of the protocol's modules, in which nothing is random, nothing sleeps and nothing runs side by side.

A copy is made from the same code as the module. It imports other copies in place of the modules of the protocol, and what is
below in place of `secrets`, `time` and the pool of threads: so a history depends on its choices alone, and each request has a
place of its own in it. One step of a copy can be replaced, to see whether the model notices; the modules themselves never are.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from types import ModuleType, SimpleNamespace
from typing import Any

from checkpoint_sets import in_turn
from checkpoint_sets.model.stage import KEYS, actor_here

_ROOM = "wherry.checkpoints"
_OF_THE_AGENT = ("wherry.agent.set_jobs", "wherry.agent.comparing")


@dataclass(frozen=True)
class Fault:
    """A step that is done wrongly. `plant` is given the copy of the module, before another copy imports it."""

    name: str
    module: str
    plant: Callable[[Any], object]


class Protocol:
    """The functions of the protocol, by the names of their modules; perhaps with a fault."""

    def __init__(self, fault: Fault | None = None) -> None:
        self._fault = fault
        self._copies: dict[str, ModuleType] = {}

    def __getattr__(self, name: str) -> Any:
        """The copy of a module of the room: `protocol.commit` is that of ``wherry.checkpoints.protocol.commit``."""
        for full in (f"wherry.agent.{name}", f"{_ROOM}.protocol.{name}", f"{_ROOM}.{name}"):
            if full in _OF_THE_AGENT or (full.startswith(_ROOM) and importlib.util.find_spec(full) is not None):
                return self._copy(full)
        raise AttributeError(name)

    def _copy(self, name: str) -> ModuleType:
        if name in self._copies:
            return self._copies[name]
        importlib.import_module(name)  # dataclasses look for the module of their class
        spec = importlib.util.find_spec(name)
        assert spec is not None and isinstance(spec.loader, SourceFileLoader), name
        copy = importlib.util.module_from_spec(spec)
        code = spec.loader.get_code(name)
        assert code is not None, name
        vars(copy)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        self._copies[name] = copy
        exec(code, vars(copy))  # noqa: S102  it is the module's own code
        if self._fault is not None and name in (f"{_ROOM}.{self._fault.module}", f"wherry.{self._fault.module}"):
            self._fault.plant(copy)
        return copy

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002  the names of the builtin function
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        if name in _INSTEAD:
            return _INSTEAD[name]
        if fromlist and (name in _OF_THE_AGENT or name.startswith(_ROOM)):
            return self._copy(name)
        return builtins.__import__(name, globals, locals, fromlist, level)


def _token_hex(n_bytes: int) -> str:
    """As random as is needed, and the same in each history that the actor has lived through so far."""
    actor = actor_here()
    actor.n_tokens += 1
    return hashlib.sha256(f"{actor.name} {actor.n_tokens}".encode()).hexdigest()[: 2 * n_bytes]


def _sleep(_: float) -> None:
    """Whoever sleeps in the protocol waits for rank 0 to record an attempt."""
    actor_here().wait_for(KEYS.starts)


def _monotonic() -> float:
    return math.inf if actor_here().has_given_up else 0.0


class _Event:
    """Whoever waits for it in a loop goes round once, and then again when time has passed."""

    def __init__(self) -> None:
        self._is_set = self._has_waited = False

    def set(self) -> None:
        self._is_set = True

    def wait(self, _: float) -> bool:
        self._has_waited = not self._has_waited
        return self._is_set or not self._has_waited


class _Thread:
    """What it does is done each time that time has passed."""

    def __init__(self, target: Callable[..., object], args: Sequence[object], **_: object) -> None:
        self._work = partial(target, *args)
        self.ident: int | None = None

    def start(self) -> None:
        self.ident = 1
        actor_here().helpers.append(self._work)

    def join(self) -> None:
        actor_here().helpers.remove(self._work)


_INSTEAD: Mapping[str, object] = {
    "secrets": SimpleNamespace(token_hex=_token_hex),
    "threading": SimpleNamespace(**{**vars(threading), "Event": _Event, "Thread": _Thread}),
    "time": SimpleNamespace(sleep=_sleep, monotonic=_monotonic),
    "wherry.posix.thread_pool": SimpleNamespace(each_at_once=in_turn, wait_for_end=_Thread.join),
}
