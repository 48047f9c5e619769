"""Actors that make one request at a time, in an order that choices decide, on a store with a clock of its own."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from checkpoint_sets import TimedStore
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.protocol.names import RunKeys
from wherry.errors import AlreadyExistsError, NotFoundError
from wherry.store import Capabilities, ObjectMeta, PutOptions, TakeBlock
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

_T = TypeVar("_T")
KEYS = RunKeys("run/checkpoints")


class Killed(BaseException):
    """The actor is gone: nothing of it is done any more."""


class SeenBefore(BaseException):
    """The search has looked at all that can follow from here."""


class Kind(Enum):
    """What is chosen. SWITCH: whose turn is next; NEXT: the same, when the last one cannot go on; the rest is trouble."""

    SWITCH = "switch"
    NEXT = "next"
    DIE = "die"
    LOSE = "lose an answer"
    LAG = "lag"
    PLAY = "play"


class Choices:
    """The choices of one history, each a number below `n`. 0 is the plain one: go on, live, show everything.

    `deviations`: the choices that are not 0, by their places. They say all about a history.
    """

    def __init__(self, deviations: Mapping[int, int] | None = None) -> None:
        self._wanted = deviations or {}
        self.deviations: dict[int, int] = {}
        self._place = -1

    def choose(self, n: int, kind: Kind, state: Callable[[], int]) -> int:
        """One of `n`. `state`: a number that is the same only where the same has happened to all."""
        self._place += 1
        chosen = self.decide(self._place, n, kind, state)
        if chosen:
            self.deviations[self._place] = chosen
        return chosen

    def decide(self, place: int, n: int, kind: Kind, state: Callable[[], int]) -> int:
        """As was wanted, where that can be."""
        wanted = self._wanted.get(place, 0)
        return wanted if wanted < n else 0


class RandomChoices(Choices):
    """Choices by a seed, which also says how often they deviate."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        often = self._rng.choice((0.03, 0.1, 0.3))
        self._likelihood = {Kind.SWITCH: often, Kind.DIE: self._rng.choice((0.0, 0.01, 0.03)), Kind.LOSE: 0.1, Kind.LAG: 0.5}

    def decide(self, place: int, n: int, kind: Kind, state: Callable[[], int]) -> int:
        """By chance."""
        likelihood = self._likelihood.get(kind)
        if likelihood is None:
            return self._rng.randrange(n)
        return self._rng.randrange(1, n) if self._rng.random() < likelihood else 0


class Actor(threading.Thread):
    """One process: it runs until its next request, and goes on when it is its turn."""

    def __init__(self, stage: Stage, name: str, play: Callable[[], object], may_die: bool) -> None:
        super().__init__(name=name, daemon=True)
        self.stage = stage
        self.may_die = may_die
        self.go = threading.Semaphore(0)
        self.is_over = self.is_killed = False
        #: A number for all that it has seen: the same where it does the same from here on.
        self.seen = 0
        self.n_tokens = 0
        #: What its other threads do each time that time has passed.
        self.helpers: list[Callable[[], object]] = []
        self.has_given_up = False
        self._waits: tuple[str, int] | None = None
        self._looked: dict[str, int] = {}
        self._play = play

    def run(self) -> None:
        """Play, from its first turn on."""
        self.go.acquire()
        try:
            if not self.stage.is_over:
                self._play()
        except Killed:
            pass
        except BaseException as error:
            self.stage.end(error)
        self.is_over = True
        self.stage.leave(self)

    def learn(self, *what: object) -> None:
        """Remember what has been seen."""
        self.seen = hash((self.seen, what))

    def look(self, prefix: str) -> None:
        """From now on it knows what lies below the prefix."""
        self._looked[prefix] = self.stage.store.n_writes[prefix]

    def wait_for(self, prefix: str) -> bool:
        """Wait until something was written below the prefix since the last look. False: nothing will be, it waits no longer."""
        if prefix not in self._looked:
            self.look(prefix)
        self._waits = (prefix, self._looked[prefix])
        if not self.is_ready:
            self.stage.pass_on(self)
        self._waits = None
        self.look(prefix)
        self.learn("waited", self.has_given_up)
        return not self.has_given_up

    @property
    def is_ready(self) -> bool:
        """Whether it can go on."""
        if self.is_over or self._waits is None:
            return not self.is_over
        return self.has_given_up or self.stage.store.n_writes[self._waits[0]] != self._waits[1]


def actor_here() -> Actor:
    """The actor whose thread this is."""
    actor = threading.current_thread()
    assert isinstance(actor, Actor), "only actors come here"
    return actor


class Stage:
    """Where the actors play. `error` is what ended the history early."""

    def __init__(self, choices: Choices, *, has_conditions: bool, lagging: str) -> None:
        self.choices = choices
        self.store = SteppedStore(self, has_conditions, lagging)
        self.actors: list[Actor] = []
        self.history: list[str] = []
        self.error: BaseException | None = None
        self.is_over = False
        self.deaths_left = 2
        #: What of the judge's memory decides what it will say.
        self.memory: Callable[[], object] = tuple
        self._idle = threading.Semaphore(0)

    def add(self, name: str, play: Callable[[], object], *, may_die: bool = True) -> None:
        """Have an actor take part, who may be killed at each request."""
        self.actors.append(Actor(self, name, play, may_die))

    def run(self) -> None:
        """Let all of them play until their ends. Raises what the first one raised, or the judge."""
        for actor in self.actors:
            actor.start()
        self._turn_to_any()
        self._idle.acquire()
        for actor in self.actors:
            actor.join()
        self.actors = []
        if self.error is not None:
            raise self.error

    def alone(self, name: str, play: Callable[[], object]) -> None:
        """Have one actor play to the end, while nobody else does."""
        self.add(name, play, may_die=False)
        self.run()

    def choose(self, n: int, kind: Kind, actor: Actor | None = None) -> int:
        """One of `n`."""
        if n == 1:
            return 0
        try:
            return self.choices.choose(n, kind, lambda: self._state(actor, kind))
        except SeenBefore as error:
            self.end(error)
            if not isinstance(threading.current_thread(), Actor):  # before anybody plays
                raise
            raise Killed from None

    def _state(self, actor: Actor | None, kind: Kind) -> int:
        seen = tuple((one.seen, one.is_over, one.is_ready) for one in self.actors)
        here = None if actor is None else actor.name
        return hash((here, kind, seen, self.store.content, self.store.now_s, self.deaths_left, self.memory()))

    def before_request(self, actor: Actor, *, changes: bool) -> bool:
        """Let others go first, or kill the actor. True: it is killed when the request has been made."""
        if actor.is_killed or self.is_over:
            raise Killed
        others = [one for one in self.actors if one is not actor and one.is_ready]
        if chosen := self.choose(1 + len(others), Kind.SWITCH, actor):
            self._hand_over(actor, others[chosen - 1])
        if not actor.may_die or not self.deaths_left:
            return False
        if chosen := self.choose(3 if changes else 2, Kind.DIE, actor):
            self.history.append(f"{actor.name} is killed {'after' if chosen == 2 else 'before'}")
            self.deaths_left -= 1
            actor.is_killed = True
            if chosen == 1:
                raise Killed
        return actor.is_killed

    def _hand_over(self, actor: Actor, to: Actor) -> None:
        to.go.release()
        actor.go.acquire()
        if self.is_over:
            raise Killed

    def pass_on(self, actor: Actor) -> None:
        """The actor cannot go on now: whoever can does."""
        if (to := self._any_ready()) is not actor:
            self._hand_over(actor, to)

    def _any_ready(self) -> Actor:
        ready = [one for one in self.actors if one.is_ready]
        if not ready:  # all of them wait for one another: the first one's patience ends
            ready = [next(one for one in self.actors if not one.is_over)]
            ready[0].has_given_up = True
        return ready[self.choose(len(ready), Kind.NEXT)]

    def _turn_to_any(self) -> None:
        with suppress(Killed):
            self._any_ready().go.release()

    def leave(self, actor: Actor) -> None:
        """The actor has ended."""
        if all(one.is_over for one in self.actors):
            self._idle.release()
        elif not self.is_over:
            self._turn_to_any()

    def end(self, error: BaseException) -> None:
        """Nothing more is played."""
        self.error = self.error or error
        self.is_over = True
        for one in self.actors:
            one.go.release()


class SteppedStore(WrappedStore):
    """A store that makes one request at a time, when it is the actor's turn. Its clock stands still until an actor moves it on.

    `lagging`: which listings may hide what was written last, before the clock moved on: none, those of data, or all.
    """

    def __init__(self, stage: Stage, has_conditions: bool, lagging: str) -> None:
        self.bare = TimedStore(MemoryStore(StoreURI("memory", "model of checkpoint sets"), {}))
        self.bare.delete_many([meta.key for meta in self.bare.list()])
        super().__init__(self.bare)
        self.has_conditions = has_conditions
        self.n_writes: Counter[str] = Counter()
        #: A number for all that is there.
        self.content = 0
        self.after_change: Callable[[str, str, bytes], object] = lambda operation, key, data: None
        self._stage = stage
        self.lagging = lagging
        self._newest: list[str] = []
        self._hashes: dict[str, int] = {}
        self._is_passing = False

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Without conditions, if the store has none."""
        can = self.bare.capabilities
        return can if self.has_conditions else replace(can, conditional_put=False, conditional_complete=False)

    @property
    def now_s(self) -> float:
        """The time of its clock."""
        return self.bare.now_s

    def wait_s(self, passed_s: float) -> None:
        """Time passes, when it is the actor's turn."""

        def pass_by() -> None:
            self.bare.now_s += passed_s
            self._newest = []
            self._is_passing = True
            for actor in self._stage.actors:
                if not actor.is_killed:
                    for helper in [*actor.helpers]:
                        helper()
            self._is_passing = False

        self._request("time passes:", f"{passed_s / 3600:g} h", pass_by)

    def _request(self, operation: str, key: str, call: Callable[[], _T], *, changes: bool = False) -> _T:
        actor = actor_here()
        if self._is_passing:
            return call()
        is_last = self._stage.before_request(actor, changes=changes)
        self._stage.history.append(f"{actor.name}: {operation} {key.removeprefix(KEYS.base)}")
        try:
            result = call()
        except (NotFoundError, AlreadyExistsError) as error:
            actor.learn(operation, key, type(error))
            raise
        if is_last:
            raise Killed
        return result

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """Without conditions it looks first and writes second. With them an answer may be lost, and the put be made again."""
        data = path.read_bytes()
        if put.if_absent and not self.has_conditions:
            with suppress(NotFoundError):
                self.head(key)
                raise AlreadyExistsError("the name is taken", operation="put", uri=key)
            put = replace(put, if_absent=False)

        def write() -> ObjectMeta:
            meta = self.bare.put_file(key, path, put)
            self._newest = [*self._newest[-3:], key]
            self._changed("put", key, data)
            return meta

        meta = self._request("put", key, write, changes=True)
        if put.if_absent and self._stage.choose(2, Kind.LOSE, actor_here()):
            raise AlreadyExistsError("the name is taken, by us: the answer was lost", operation="put", uri=key)
        actor_here().learn("put", key)
        return meta

    def head(self, key: str) -> ObjectMeta:
        """One request."""
        meta = self._request("head", key, lambda: self.bare.head(key))
        actor_here().learn("head", key, meta.size_bytes, meta.crc32c, meta.modified_s)
        return meta

    def read(self, key: str, take: TakeBlock, *, start: int = 0, end: int | None = None, if_match: str | None = None) -> None:
        """One request."""
        blocks: list[bytes] = []
        self._request("get", key, lambda: self.bare.read(key, lambda block, _: blocks.append(bytes(block)), start=start, end=end))
        actor_here().learn("get", key, *blocks)
        for block in blocks:
            take(block, start)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """One request; what was written last may be hidden."""
        found = self._request("list", prefix, lambda: [*self.bare.list(prefix, start_after=start_after)])
        may_lag = self.lagging == "all" or (self.lagging == "data" and prefix.startswith(KEYS.all_data))
        if may_lag and self._newest and len(self._stage.actors) > 1 and self._stage.choose(2, Kind.LAG, actor_here()):
            found = [meta for meta in found if meta.key not in self._newest]
        actor_here().learn("list", prefix, start_after, *((meta.key, meta.size_bytes, meta.modified_s) for meta in found))
        return iter(found)

    def delete(self, key: str) -> None:
        """One request."""

        def remove() -> None:
            self.bare.delete(key)
            self._changed("delete", key, b"")

        self._request("delete", key, remove, changes=True)
        actor_here().learn("delete", key)

    def delete_many(self, keys: Sequence[str]) -> None:
        """A request for each: who makes them may be killed between any two."""
        for key in keys:
            self.delete(key)

    def _changed(self, operation: str, key: str, data: bytes) -> None:
        part = hash((key, data, self.now_s)) if operation == "put" else 0
        self.content += part - self._hashes.pop(key, 0)
        if part:
            self._hashes[key] = part
        self.n_writes[key.rpartition("/")[0] + "/"] += 1
        try:
            self.after_change(operation, key, data)
        except BaseException as error:  # the judge's words, past whatever the protocol does with errors
            self._stage.end(error)
            raise Killed from None
