"""The protocol of checkpoint sets, request by request: ranks, committers, a pruner and readers, in an order that a seed decides.

Each actor is a thread that runs the real functions and stops before every request; one request is made at a time. Actors are
killed at requests. The store may know no conditions, and its listings may hide what was written last. After each request the
bucket is judged by the oracle of the tests.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from checkpoint_sets.oracle import SetOracle
from wherry.agent.comparing import Candidates
from wherry.agent.set_jobs import RankFailedError, SetPlan, commit_set, write_receipt
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.attempts import claim, claim_number
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import IncompleteSetError, SetAbandonedError
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.checkpoints.protocol.documents import put_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checkpoints.protocol.uncommitted import roll_forward
from wherry.checkpoints.prune import Pruner
from wherry.checkpoints.reading import reading
from wherry.checkpoints.restore import DamagedSetError, PrunedWhileRestoringError
from wherry.checksum import crc32c
from wherry.errors import AlreadyExistsError, NotFoundError
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.work import Requirement
from wherry.store import Capabilities, ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

_T = TypeVar("_T")
KEYS = RunKeys("run/checkpoints")
WORLD = 3
_NUMBERS = itertools.count()


class Killed(BaseException):
    """The actor is gone: nothing of it is done any more."""


class Actor:
    """One process: it runs until its next request, when it is its turn."""

    def __init__(self, name: str, play: Callable[[], object], dies_at: int | None) -> None:
        self.name = name
        self.go, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.is_over = self.is_killed = False
        self.error: BaseException | None = None
        self.n_requests = 0
        self.dies_at = dies_at
        self._play = play
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self.go.acquire()
        try:
            self._play()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.is_over = True
        self.stopped.release()

    def pause(self) -> None:
        """Before a request: wait for the next turn."""
        if self.is_killed:
            raise Killed
        self.stopped.release()
        self.go.acquire()
        self.n_requests += 1

    def dies(self) -> bool:
        """Whether it is killed at the request that it makes now."""
        self.is_killed = self.is_killed or self.n_requests == self.dies_at
        return self.is_killed


class SteppedStore(WrappedStore):
    """Makes one request at a time, in the order of the scheduler. Other threads belong to the actor whose turn it is."""

    def __init__(self, inner: ObjectStore, model: Model) -> None:
        super().__init__(inner)
        self._model = model
        self._newest: list[str] = []

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Without conditions, if the model has none."""
        can = self.inner.capabilities
        return can if self._model.has_conditions else replace(can, conditional_put=False, conditional_complete=False)

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        actor = self._model.actor_here()
        if actor is None:
            return self._made(operation, key, call)
        actor.pause()
        is_killed, is_before = actor.dies(), self._model.rng.random() < 0.5
        if is_killed and is_before:
            raise Killed
        result = self._made(operation, key, call)
        if is_killed:
            raise Killed
        return result

    def _made(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        result = call()
        if operation == "put":
            self._newest = [*self._newest[-3:], key]
        self._model.history.append(f"{self._model.turn} {operation} {key.removeprefix(KEYS.base)}")
        if operation in ("delete", "delete_many") or (operation == "put" and key.startswith(KEYS.manifests)):
            self._model.judge()
        return result

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """Without conditions it looks first and writes second."""
        if self._model.has_conditions or not put.if_absent:
            return super().put_file(key, path, put)
        with suppress(NotFoundError):
            self.head(key)
            raise AlreadyExistsError("the name is taken", operation="put", uri=key)
        return super().put_file(key, path, replace(put, if_absent=False))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """One request; of what was written last, some may be hidden."""
        found = self._call("list", prefix, lambda: list(self.inner.list(prefix, start_after=start_after)))
        hidden = set(self._newest) if self._model.lags(prefix) else set()
        return iter([meta for meta in found if meta.key not in hidden])


class Model:
    """One history. `lagging`: which listings may hide the newest keys: none, those of data, or all.

    `shares`: ranks refer to what older sets have, where no listing lags: of what it hides only the grace of a deletion, which no
    pruner has here, keeps the objects.
    """

    def __init__(self, seed: int, *, has_conditions: bool, lagging: str, shares: bool = False) -> None:
        assert not shares or lagging == "none", "there is no grace"
        self.rng = random.Random(f"{seed} {has_conditions} {lagging}")
        self.shares = shares
        self.n_shared = 0
        self.has_conditions = has_conditions
        self.lagging = lagging
        self.history: list[str] = []
        self.turn = ""
        self.bare = MemoryStore(StoreURI("memory", f"model {next(_NUMBERS)}"), {})
        self.store = SteppedStore(self.bare, self)
        self.oracle = SetOracle(self.bare, KEYS.base, lambda name, world: wanted(name))
        self.proven = ""
        self.n_restored = 0
        self._actors: dict[str, Actor] = {}
        self._by_thread: dict[threading.Thread, Actor] = {}

    def actor_here(self) -> Actor | None:
        """The actor that this thread is; None for helpers of one."""
        return self._by_thread.get(threading.current_thread())

    def lags(self, prefix: str) -> bool:
        """Whether this listing hides something."""
        may = self.lagging == "all" or (self.lagging == "data" and prefix.startswith(KEYS.all_data))
        return may and bool(self._actors) and self.rng.random() < 0.5

    def judge(self) -> None:
        """What was proven complete stays, or something newer is. With references each committed set is whole at any time.

        Without conditions a late committer may replace the tombstone of a set that is older than the newest one.
        """
        if self.shares and self.has_conditions:
            assert not (broken := self.oracle.broken()), f"committed, and not whole: {broken}"
        now = self.oracle.newest() or ""
        assert now >= self.proven, f"{self.proven} was complete, {now or 'nothing'} is left"
        self.proven = now

    # -- the actors

    def add(self, name: str, play: Callable[[], object], *, dies: float = 0.3) -> None:
        """Have an actor take part, who is killed with that likelihood."""
        dies_at = self.rng.randrange(1, 40) if self.rng.random() < dies else None
        self._actors[name] = Actor(name, play, dies_at)

    def run(self) -> None:
        """Let all of them play until their ends, in an order that follows priorities which change now and then."""
        for actor in self._actors.values():
            actor.thread.start()
            self._by_thread[actor.thread] = actor
        rank = {name: self.rng.random() for name in self._actors}
        alive = dict(self._actors)
        while alive:
            name = max(alive, key=lambda one: rank[one])
            self.turn = name
            alive[name].go.release()
            alive[name].stopped.acquire()
            if alive[name].is_over:
                del alive[name]
            elif self.rng.random() < 0.15:
                rank[name] = self.rng.random()
        for actor in self._actors.values():
            if actor.error is not None:
                raise actor.error
        self._actors.clear()
        self.turn = "end"

    def save(self, name: SetName, rank: int) -> None:
        """What a rank's agent does: two objects, if no older set has them, and the receipt, perhaps twice."""
        required = []
        parent = self.parents.get(name.attempt)
        plan = SetPlan(KEYS.base, name, WORLD, receipt=Receipt(name, rank, WORLD, "folder", parent=parent, metrics={"loss": 1.0}))
        candidates = Candidates(plan)
        for file, data in wanted(str(name)).items():
            if file.startswith(f"{rank}"):
                key, sha256, source = KEYS.data(name) + file, hashlib.sha256(data).hexdigest(), None
                if self.shares:
                    source = candidates.find(key, len(data), crc32c(data), sha256, self.store)
                if source is None:
                    with suppress(AlreadyExistsError):
                        put_small(self.store, key, data, if_absent=True)
                self.n_shared += source is not None
                required.append(Requirement(key, JobState.DONE, crc32c(data), len(data), None, sha256, str(source or "")))
        for _ in range(self.rng.choice((1, 1, 2))):
            write_receipt(plan, required, self.store)

    def commit(self, name: SetName, *, delay_s: float = 0.0) -> None:
        """What an agent does of whom a commit is asked: rank 0's, or a deputy's whose time comes."""
        plan = SetPlan(KEYS.base, name, WORLD, delay_s=delay_s)
        for passed_s in range(12):
            with suppress(IncompleteSetError, RankFailedError):
                with suppress(SetAbandonedError):
                    commit_set(plan, float(passed_s), self.store)
                return

    def prune(self) -> None:
        """Prune without any delay: the grace is over at once. Sets that refer to others are not given up in most histories."""
        patience_s = 86_400.0 if self.shares and self.rng.random() < 0.8 else 0.0
        for _ in range(2):
            delays = PruneDelays(abandon_after_s=patience_s, grace_s=0.0, forget_after_s=86_400.0)
            Pruner(self.store, KEYS, keep=Keep(last=1), delays=delays).prune()

    def read(self) -> None:
        """Find the newest set as a resuming job does, and restore it."""
        for _ in range(6):
            floor = self.proven
            catalog = Catalog(self.store, KEYS)
            found = catalog.newest()
            if roll_forward(self.store, KEYS, None if found is None else found.set):
                found = catalog.newest()
            if found is None:
                assert not floor or self.lagging == "all", f"nothing was found, {floor} was complete"
                return
            try:
                files = self._restored(catalog, found)
            except (PrunedWhileRestoringError, NotFoundError):
                continue
            assert files == wanted(str(found.set)), f"{found.set} came back as {sorted(files)}"
            assert str(found.set) >= floor or self.lagging == "all", f"{found.set} was restored, {floor} was complete before"
            self.n_restored += 1
            return

    def _restored(self, catalog: Catalog, found: Manifest) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        with reading(self.store, KEYS, found.set):
            try:
                for key, one in catalog.objects(found):
                    blocks: list[bytes] = []
                    self.store.read(key, lambda block, _, to=blocks: to.append(bytes(block)))  # type: ignore[misc]
                    files[one.name] = b"".join(blocks)
            except NotFoundError as error:
                raise DamagedSetError("an object is gone", operation="restore", uri=str(found.set)) from error
        return files

    parents: dict[str, SetName | None] = {}  # noqa: RUF012  replaced by each history

    def play(self) -> None:
        """Two attempts of three ranks; the second begins when it pleases, from the set that is the newest then."""
        self.parents = {}
        self.rng.shuffle(steps := [10, 20])
        first = claim_number(self.bare, KEYS, 1, None).key
        if self.shares:  # something to refer to, and somebody more who takes it away
            steps.append(30)
            self._save_all(SetName(first, 5))
            self.add("replacing", lambda: self._replace_all(SetName(first, 25)), dies=0.1)
        for step in sorted(steps):
            name = SetName(first, step)
            for rank in range(WORLD):
                self.add(f"1 rank {rank} step {step}", lambda name=name, rank=rank: self.save(name, rank), dies=0.15)  # type: ignore[misc]
            self.add(f"1 committer {step}", lambda name=name: self.commit(name))  # type: ignore[misc]
            self.add(f"1 deputy {step}", lambda name=name: self.commit(name, delay_s=2.0))  # type: ignore[misc]
        self.add("2", self._second_attempt, dies=0.1)
        self.add("pruner", self.prune)
        for reader in range(2):
            self.add(f"reader {reader}", self.read, dies=0.2)
        self.run()
        self._end()

    def _second_attempt(self) -> None:
        newest = Catalog(self.store, KEYS).newest()
        attempt = claim(self.store, KEYS, None if newest is None else newest.set)
        self.parents[attempt.key] = attempt.resumed_from
        self._save_all(SetName(attempt.key, 10 if newest is None else newest.step + 5))

    def _replace_all(self, name: SetName) -> None:
        self._save_all(name)
        self.prune()

    def _save_all(self, name: SetName) -> None:
        for rank in range(WORLD):
            self.save(name, rank)
        self.commit(name)

    def _end(self) -> None:
        """When all is quiet, a reader finds the newest set that is there, committed or not."""
        possible = self.oracle.newest(with_uncommitted=True) or ""
        self.read()
        assert self.proven == possible, f"{self.proven} is the newest, {possible} is there"


def wanted(name: str) -> dict[str, bytes]:
    """The files of a set, which begin with the number of their rank; one of each rank is the same in many sets, not in all."""
    shared = b"thawed" if name.endswith(("20", "25")) else b"frozen"
    return {f"{rank}/{file}": data for rank in range(WORLD) for file, data in (("a", f"{name} {rank}".encode()), ("b", shared))}
