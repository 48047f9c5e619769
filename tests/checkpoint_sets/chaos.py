"""Jobs that save and resume checkpoint sets, whose processes are killed at any instant and at any request of the store.

Children are forked from one small process that has imported all there is. A file's bytes follow from the seed, its set and its
rank: so whatever comes back can be judged without knowing who was killed when. The oracle reads the bucket with code of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from checkpoint_sets.oracle import SetOracle
from gate import family, kill
from mirror_chaos import Nursery
from wherry.agent.launch import run_agent
from wherry.agent.set_jobs import SetPlan, commit_set
from wherry.backends.local.store import LocalStore
from wherry.backends.s3.store import S3Store
from wherry.checkpoints.checkpoints import Checkpoints
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.commit import IncompleteSetError, SetAbandonedError, list_receipts
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.checkpoints.protocol.names import RunKeys
from wherry.checkpoints.protocol.uncommitted import uncommitted
from wherry.checkpoints.restore import PrunedWhileRestoringError
from wherry.checkpoints.world import World
from wherry.config import AgentConfig, Config, RetryConfig
from wherry.errors import AlreadyExistsError, NotFoundError, TransientError, UploadFailed
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.store import Capabilities, ObjectMeta, ObjectStore, PutOptions
from wherry.store.registry import open_store
from wherry.store.wrappers import RetryStore, WrappedStore
from wherry.uri import StoreURI, parse_uri

_T = TypeVar("_T")
RUN = "run"
#: How likely a call of the store kills the process that makes it, and how likely its error, or the loss of its answer.
_KILL, _FAIL, _LOSE = 0.004, 0.03, 0.03
#: A job on a busy machine writes its first object within this time, if nobody was killed before.
_BEGUN_S = 30.0
ENTRY_POINTS = "[wherry.backends]\nchaos = checkpoint_sets.chaos:ChaosFolder\nchaoss3 = checkpoint_sets.chaos:ChaosBucket\n"
CONFIG = Config(
    retry=RetryConfig(job_deadline_s=600.0, call_deadline_s=20.0, first_wait_s=0.001, longest_wait_s=0.05),
    agent=AgentConfig(linger_s=60.0),
    give_up_s=30.0,
)


class _Chaos(WrappedStore):
    """One call in fifteen fails, half of these after they were made, and one in 250 is the last of its process."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._rng = random.Random(f"{os.environ.get('CHAOS_SEED')} {os.getpid()}")

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        dice = self._rng.random() * (10 if operation == "list" else 1)  # each entry of a listing is a call
        if dice < _KILL / 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if dice < _FAIL:
            raise TransientError("reset", operation=operation, uri=key)
        result = call()
        if dice < _FAIL + _KILL / 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if dice < _FAIL + _LOSE:
            raise TransientError("the answer was lost", operation=operation, uri=key)
        return result


class ChaosFolder(_Chaos):
    """``chaos://any/absolute/path``: a local folder; with ``lax=True`` one that knows no conditions."""

    public_options = frozenset({"lax"})

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        self._lax = bool(options.get("lax"))
        super().__init__(LocalStore(StoreURI("file", "", uri.prefix), {}))

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Without conditions, if it is lax."""
        can = self.inner.capabilities
        return replace(can, conditional_put=False, conditional_complete=False) if self._lax else can

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """A lax one looks first and writes second."""
        if not (self._lax and put.if_absent):
            return super().put_file(key, path, put)
        with suppress(NotFoundError):
            self.head(key)
            raise AlreadyExistsError("the name is taken", operation="put", uri=key)
        return super().put_file(key, path, replace(put, if_absent=False))


class ChaosBucket(_Chaos):
    """``chaoss3://bucket/prefix``: a bucket of a real server."""

    public_options = frozenset({"endpoint_url", "region", "aws_access_key_id", "aws_secret_access_key", "conditional_writes"})

    def __init__(self, uri: StoreURI, options: Mapping[str, object]) -> None:
        super().__init__(S3Store(StoreURI("s3", uri.root, uri.prefix), options))


# -- what is saved


def content(seed: int, name: str, rank: int, file: str) -> bytes:
    """The bytes of one file of a set."""
    rng = random.Random(f"{seed} {name} {rank} {file}")
    return rng.randbytes(rng.randrange(1, 9000))


def files_of(rank: int, world: int) -> list[str]:
    """The files that a rank saves."""
    return [f"model-{rank}-of-{world}.bin", f"state/optimizer-{rank}.bin"][: 1 + rank % 2]


def whole_set(seed: int, name: str, world: int) -> dict[str, bytes]:
    """All files of a set."""
    return {file: content(seed, name, rank, file) for rank in range(world) for file in files_of(rank, world)}


# -- the processes


def train(order: Mapping[str, Any]) -> None:
    """One rank: restore the newest set, then save a step after the other."""
    rng = random.Random(f"{order['seed']} {order['attempt']} {order['rank']}")
    rank, world, seed = order["rank"], order["world"], order["seed"]
    place = World(rank, world, rank % 2, rank // 2, order["start"])
    run = Checkpoints(
        order["uri"], RUN, attempt=order["number"], world=place, storage_options=order["options"], spool=order["spool"],
        config=CONFIG, keep=Keep(last=2) if order["keeps"] else None,
    )  # fmt: skip
    say = _Log(Path(order["log"]), order["attempt"], rank)
    found = run.latest()
    if found is None:
        say(restored=None)
    else:
        folder = run.restore("latest", Path(order["scratch"]) / "restored")
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        say(restored=str(found.set), is_right=files == whole_set(seed, str(found.set), found.world))
    handles = []
    first = 0 if found is None else found.step + 1
    for step in range(first, first + order["n_steps"]):
        name = f"{run.attempt.key}_{step:012d}"
        folder = Path(order["scratch"]) / f"{step}"
        for file in files_of(rank, world):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content(seed, name, rank, file))
        handles.append(run.save(step, folder, metrics={"loss": 1.0 / (step + 1)}))
        time.sleep(rng.random() * 0.05)
        if rng.random() < 0.4 and handles[-1].wait(2.0):
            say(committed=name)
    run.close(20.0)
    for handle in handles:
        if handle.wait(1.0):
            say(committed=str(handle.name))


def prune(order: Mapping[str, Any]) -> None:
    """Prune again and again, with delays that are over at once."""
    say = _Log(Path(order["log"]), order["attempt"], order["rank"])
    with Checkpoints(order["uri"], RUN, storage_options=order["options"], spool=order["spool"], config=CONFIG) as run:
        for _ in range(order["n_steps"]):
            with suppress(NotFoundError):
                report = run.prune(keep=Keep(last=1), delays=PruneDelays(abandon_after_s=1.0, grace_s=0.3, reader_s=3600.0))
                for done in ("pruned", "abandoned", "removed"):
                    for name in getattr(report, done):
                        say(**{done: str(name)})
            time.sleep(0.1)


def deputy(order: Mapping[str, Any]) -> None:
    """Commit again and again what can be, as the agent of another node does for which rank 0's is gone."""
    say = _Log(Path(order["log"]), order["attempt"], order["rank"])
    uri = parse_uri(order["uri"])
    keys = RunKeys(uri.key_for(f"{RUN}/checkpoints"))
    with RetryStore(open_store(uri, order["options"]), CONFIG.retry) as store:
        for _ in range(order["n_steps"]):
            for name in uncommitted(store, keys):
                receipts = list_receipts(store, keys, name)
                plan = SetPlan(keys.base, name, max(receipts.worlds, default=1), delay_s=1e-9)
                with suppress(IncompleteSetError):
                    commit_set(plan, 1.0, store)
                    say(deputized=str(name))
            time.sleep(0.1)


class _Log:
    """What a rank has seen, in a file that survives it."""

    def __init__(self, path: Path, attempt: int, rank: int) -> None:
        self._path, self._who = path, {"attempt": attempt, "rank": rank}

    def __call__(self, **said: object) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps({**self._who, **said}) + "\n")


#: What ends a rank and is no fault: another process was killed, or pruned, or has the run by now.
_ENDS = (TimeoutError, UploadFailed, TransientError, PrunedWhileRestoringError, AlreadyExistsError, SetAbandonedError)


def _child(order: Mapping[str, Any]) -> None:
    os.environ["CHAOS_SEED"] = f"{order['seed']}"
    if order["what"] == "agent":
        os.setsid()
        Path(order["spool"]).mkdir(parents=True, exist_ok=True)
        run_agent(Spool(Path(order["spool"])), {"linger_s": 60.0})
        return
    try:
        {"train": train, "prune": prune, "deputy": deputy}[order["what"]](order)
    except _ENDS as error:
        _Log(Path(order["log"]), order["attempt"], order["rank"])(ended=f"{type(error).__name__}: {error}")
    except BaseException as error:
        is_pruned = isinstance(error, NotFoundError) and "was pruned" in str(error)
        said = {"ended" if is_pruned else "broken": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
        _Log(Path(order["log"]), order["attempt"], order["rank"])(**said)


def _nursery() -> None:
    """Fork a child for each line of stdin, and print its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            out = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for fd in (1, 2):
                os.dup2(out, fd)
            try:
                _child(order)
            finally:
                os._exit(0)
        print(pid, flush=True)


# -- one seed


@dataclass(frozen=True)
class Place:
    """Where the jobs save to, and how the test looks at it, past all faults."""

    uri: str
    options: Mapping[str, object]
    plain_uri: str
    plain_options: Mapping[str, object]
    store: ObjectStore
    prefix: str
    #: A job that has written nothing for so long waits for somebody who was killed.
    longest_pause_s: float
    #: Between two looks at how many objects there are.
    look_s: float = 0.05
    #: Makes a spool know the server; one that does not know it tries it out.
    introduce: Callable[[Path], object] = lambda spool: None


def folder_place(folder: Path, *, lax: bool) -> Place:
    """A local folder."""
    folder.mkdir(parents=True)
    uri = parse_uri(folder)
    return Place(
        f"chaos://any{folder}", {"lax": lax}, str(folder), {}, LocalStore(uri, {}), f"{uri.prefix}/{RUN}/checkpoints", 3.0
    )


@dataclass
class Game:
    """One seed: jobs that are killed, one after the other, and what must hold of each and in the end."""

    folder: Path
    home: Nursery
    seed: int
    place: Place
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.rng = random.Random(f"{self.seed} killer")
        self.log = self.folder / "log.jsonl"
        self.log.touch()
        self.spools = [self.folder / f"spool{node}" for node in (0, 1)]
        for name in ("spool1", "spool-p", "spool-r"):  # the first spool tries the server
            self.place.introduce(self.folder / name)
        self.oracle = SetOracle(self.place.store, self.place.prefix, lambda name, world: whole_set(self.seed, name, world))

    def play(self) -> None:
        """Play it to the end."""
        try:
            for attempt in range(1, self.rng.randrange(3, 6)):
                self._attempt(attempt)
            if self.rng.random() < 0.3:
                self._let_agents_end()
        finally:
            for spool in self.spools:
                self._end_agent(spool)
        self._check_the_end()

    def _start(self, what: str, attempt: int, rank: int, spool: Path, **more: object) -> int:
        place = self.place
        scratch = self.folder / f"scratch-{attempt}-{rank}"
        scratch.mkdir(exist_ok=True)
        return self.home.start(
            what, seed=self.seed, attempt=attempt, rank=rank, uri=place.uri, options=place.options, spool=f"{spool}",
            log=f"{self.log}", output=f"{self.folder / 'output.txt'}", scratch=f"{scratch}", **more,
        )  # fmt: skip

    def _attempt(self, attempt: int) -> None:
        rng, world = self.rng, self.rng.choice((1, 2, 3, 3))
        for spool in self.spools[: 1 + (world > 2)]:
            self._start("agent", attempt, 99, spool)
        proven = self.oracle.newest()
        is_told = rng.random() < 0.4  # by a launcher, and not by a number
        how = {"number": None if is_told else attempt, "start": f"chaos {attempt}" if is_told else None}
        more = {"world": world, "n_steps": rng.randrange(1, 7), "keeps": rng.random() < 0.7, **how}
        pids = [self._start("train", attempt, rank, self.spools[rank // 2], **more) for rank in range(world)]
        others = [
            self._start(what, attempt, 98, self.folder / "spool-p", n_steps=20)
            for what, likelihood in (("prune", 0.6), ("deputy", 0.4))
            if rng.random() < likelihood
        ]
        self._let_them_write(pids, rng.randrange(1, 30 * world))
        if rng.random() < 0.4:
            self._end_agent(rng.choice(self.spools))
        rng.shuffle(pids)
        for pid in [*pids, *others]:
            self.home.kill(pid)
            time.sleep(rng.random() * 0.05)
        if rng.random() < 0.15:  # a node is gone, with all that it had not sent
            self._end_agent(lost := rng.choice(self.spools))
            shutil.rmtree(lost, ignore_errors=True)
        self._check_attempt(attempt, proven)

    def _let_them_write(self, pids: Sequence[int], n_objects: int) -> None:
        """Until there are so many more objects, or the job has ended, or waits for somebody who was killed: so the kill meets
        each stage of it on any machine.
        """
        there = newest = self._n_objects()
        until_s = time.monotonic() + _BEGUN_S
        while newest < there + n_objects and time.monotonic() < until_s:
            if not any(Path(f"/proc/{pid}").exists() for pid in pids):
                break
            time.sleep(self.place.look_s)
            if (now := self._n_objects()) != newest:
                newest, until_s = now, time.monotonic() + self.place.longest_pause_s

    def _n_objects(self) -> int:
        return sum(1 for _ in self.place.store.list(f"{self.place.prefix}/"))

    def _end_agent(self, spool: Path) -> None:
        if (spool / "agent.lock").exists() and (pid := pid_of_agent(Spool(spool))) is not None:
            kill(*family(pid))

    def _let_agents_end(self) -> None:
        """Give those that live a while: what they commit late is no worse."""
        time.sleep(1.0)

    def said(self) -> list[dict[str, Any]]:
        """What the ranks have seen; the last line of one that was killed may be cut off."""
        found = []
        for line in self.log.read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def _check_attempt(self, attempt: int, proven: str | None) -> None:
        said = [one for one in self.said() if one["attempt"] == attempt]
        broken = [one for one in said if "broken" in one]
        assert not broken, broken[0]["broken"]
        restored = [one for one in said if "restored" in one]
        assert all(one.get("is_right", True) for one in restored), restored
        assert len({one["restored"] for one in restored}) <= 1, f"ranks restored different sets: {restored}"
        for one in restored:
            assert (one["restored"] or "") >= (proven or ""), f"{one} is older than {proven}, which was complete before"
        for what in ("restored", "committed", "ended", "deputized", "pruned", "abandoned", "removed"):
            self.counts[what] = self.counts.get(what, 0) + sum(1 for one in said if one.get(what) is not None)

    def _check_the_end(self) -> None:
        possible = self.oracle.newest(with_uncommitted=True)
        acked: Sequence[str] = [one["committed"] for one in self.said() if "committed" in one]
        with Checkpoints(
            self.place.plain_uri, RUN, storage_options=self.place.plain_options, spool=self.folder / "spool-r", config=CONFIG
        ) as reader:
            found = reader.latest()
            name = None if found is None else str(found.set)
            assert name == possible, f"{name} was found, {possible} is there"
            assert max(acked, default="") <= (name or ""), f"{max(acked)} was committed, {name} is what is left"
            if found is not None:
                back = reader.restore("latest", self.folder / "back")
                files = {path.relative_to(back).as_posix(): path.read_bytes() for path in back.rglob("*") if path.is_file()}
                assert files == whole_set(self.seed, str(found.set), found.world)
                self.counts["found"] = self.counts.get("found", 0) + 1


if __name__ == "__main__":
    _nursery()
