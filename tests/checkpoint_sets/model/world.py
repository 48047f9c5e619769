"""What ranks, committers, deputies, pruners and readers of a run do: the protocol's own functions, one request at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from checkpoint_sets.model.copies import Protocol
from checkpoint_sets.model.judge import BYTES, DAMAGED, ENDS, NEWEST, POSSIBLE, Broken, Judge
from checkpoint_sets.model.stage import KEYS, Choices, Stage, actor_here
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checksum import crc32c
from wherry.errors import AccessDeniedError, AlreadyExistsError, ConfigError, NotFoundError
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.work import Requirement
from wherry.store import ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore

HOUR_S = 3600.0
DELAYS = PruneDelays()
#: Whoever finds nothing, or is disturbed, so often in a row does not end.
_MOST_TRIES = 6


class ReadOnlyStore(WrappedStore):
    """For a reader who may not write."""

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """Refused."""
        raise AccessDeniedError("may only read", operation="put", uri=key)


class World:
    """One run of a job, on one store. The sets of attempts that it was not told of have no parent."""

    def __init__(
        self,
        choices: Choices,
        protocol: Protocol,
        *,
        has_conditions: bool = True,
        lagging: str = "none",
        n_ranks: int = 2,
        shares: bool = False,
    ) -> None:
        self.stage = Stage(choices, has_conditions=has_conditions, lagging=lagging)
        self.store = self.stage.store
        self.judge = Judge(self.stage, lambda name, _: wanted(name, n_ranks, shares=shares), DELAYS)
        #: Each rank has a file that is the same in all sets, and refers to that of an older one.
        self._shares = shares
        self.n_ranks = n_ranks
        self.keys: RunKeys = protocol.names.RunKeys(KEYS.base)
        self._protocol = protocol
        #: By attempt.
        self._parents: dict[str, SetName | None] = {}

    def add(self, name: str, play: Callable[[], object], *, may_die: bool = True) -> None:
        """Have an actor take part."""
        self.stage.add(name, play, may_die=may_die)

    # -- those who save

    def set(self, attempt: str, step: int) -> SetName:
        """The name of a set."""
        name: SetName = self._protocol.names.SetName(attempt, step)
        return name

    def save(self, name: SetName, rank: int, *, fails: bool = False, hours: float = 0.0, refers: bool | None = None) -> None:
        """What a rank's agent does: its objects, unless an older set has them, and the receipt; or the failure of one of them."""
        jobs = self._protocol.set_jobs
        receipt = self._protocol.receipt.Receipt(
            name, rank, self.n_ranks, "folder", parent=self._parents.get(name.attempt), metrics={"loss": 1.0}
        )
        plan = jobs.SetPlan(self.keys.base, name, self.n_ranks, receipt=receipt)
        candidates = self._protocol.comparing.Candidates(plan)
        required = []
        for file, data in wanted(str(name), self.n_ranks, shares=self._shares).items():
            if not file.startswith(f"{rank}/"):
                continue
            key, sha256, source = self.keys.data(name) + file, None, None
            if self._shares if refers is None else refers:
                sha256 = hashlib.sha256(data).hexdigest()
                source = candidates.find(key, len(data), crc32c(data), sha256, self.store)
            if source is None:
                with suppress(AlreadyExistsError):
                    self._protocol.documents.put_small(self.store, key, data, if_absent=True)
            state = JobState.FAILED if fails else JobState.DONE
            required.append(Requirement(key, state, crc32c(data), len(data), None, sha256, str(source or "")))
        if hours:  # what it takes to send the rest
            self.passes(hours)
        with suppress(jobs.RankFailedError):
            jobs.write_receipt(plan, required, self.store)

    def commit(self, name: SetName, *, delay_s: float = 0.0) -> None:
        """What an agent does of whom a commit is asked: rank 0's, or a deputy's whose time comes."""
        commit, jobs = self._protocol.commit, self._protocol.set_jobs
        plan = jobs.SetPlan(self.keys.base, name, self.n_ranks, delay_s=delay_s)
        ranks, passed_s = self.keys.ranks(name), 0.0
        while True:
            actor_here().look(ranks)
            try:
                jobs.commit_set(plan, passed_s, self.store)
            except commit.IncompleteSetError:
                if passed_s < delay_s:
                    passed_s = delay_s
                elif not actor_here().wait_for(ranks):
                    return
            except (commit.SetAbandonedError, commit.SetFailedError):
                return
            else:
                if not delay_s:
                    self.judge.accepted(str(name))
                return

    def claim(self, number: int) -> None:
        """The attempt of this number begins, from nothing."""
        self._protocol.attempts.claim_number(self.store, self.keys, number, None)

    def start(self, rank: int, start: str) -> str | None:
        """A rank of another start begins: the attempt; None if the start was used before, or rank 0 is gone."""
        protocol, place = self._protocol, self._protocol.world.World
        try:
            attempt = protocol.start.begin(
                self.store,
                self.keys,
                place(rank, self.n_ranks, rank, 0, start),
                None,
                lambda: protocol.choice.set_of(self._latest()),
            )
        except (AlreadyExistsError, ConfigError):
            return None
        self._parents[attempt.key] = attempt.resumed_from
        self.judge.begins(rank, start, attempt.key, None if attempt.resumed_from is None else str(attempt.resumed_from))
        key: str = attempt.key
        return key

    def job(self, start: str = "job 2", *, step: int | None = None) -> None:
        """All of a start in one process: it resumes, saves a set with all ranks, and commits it."""
        if (attempt := self.start(0, start)) is None:
            return
        parent = self._parents[attempt]
        name = self.set(attempt, step if step is not None else 5 if parent is None else parent.step + 5)
        for rank in range(self.n_ranks):
            self.save(name, rank)
        self.commit(name)

    # -- those who read

    def _latest(self) -> Manifest | None:
        catalog = self._protocol.catalog.Catalog(self.store, self.keys)
        found: Manifest | None = catalog.newest()
        if self._protocol.uncommitted.roll_forward(self.store, self.keys, None if found is None else found.set):
            found = catalog.newest()
        return found

    def read(self, *, may_write: bool = True) -> None:
        """Find the newest set as a resuming job does, and restore it."""
        store: ObjectStore = self.store if may_write else ReadOnlyStore(self.store)
        for _ in range(_MOST_TRIES):
            floor = self.judge.proven
            actor_here().learn(floor)
            found = self._latest() if may_write else self._protocol.catalog.Catalog(self.store, self.keys).newest()
            if found is None:
                self.judge.expect(self.judge.is_as_new("", floor), NEWEST, f"nothing was found, {floor} was complete")
                return
            try:
                self._restore(store, found)
            except self._protocol.restore.PrunedWhileRestoringError:
                continue
            self.judge.expect(
                self.judge.is_as_new(str(found.set), floor), NEWEST, f"{found.set} was restored, {floor} was complete"
            )
            return
        raise Broken(ENDS, "a reader found nothing that stayed")

    def restore(self, name: SetName, *, may_write: bool = True) -> None:
        """Restore this set, if it is there."""
        store: ObjectStore = self.store if may_write else ReadOnlyStore(self.store)
        with suppress(NotFoundError, self._protocol.restore.PrunedWhileRestoringError):
            found = self._protocol.catalog.Catalog(store, self.keys).read(name)
            if isinstance(found, self._protocol.set_manifest.Manifest):
                self._restore(store, found)

    def _restore(self, store: ObjectStore, found: Manifest) -> None:
        catalog, damaged = self._protocol.catalog.Catalog(store, self.keys), self._protocol.restore.DamagedSetError
        files: dict[str, bytes] = {}
        try:
            with (
                self._protocol.reading.reading(store, self.keys, found.set),
                self._believing(str(found.set), store is self.store),
            ):
                try:
                    for key, one in catalog.objects(found):
                        files[one.name] = self._protocol.documents.read_small(store, key)
                except NotFoundError as error:
                    raise damaged("an object is gone", operation="restore", uri=str(found.set)) from error
        except self._protocol.restore.PrunedWhileRestoringError:
            raise
        except damaged as error:
            raise Broken(DAMAGED, f"{found.set}: {error}") from error
        self.judge.expect(
            files == wanted(str(found.set), self.n_ranks, shares=self._shares), BYTES, f"{found.set} is {sorted(files)}"
        )

    @contextmanager
    def _believing(self, name: str, may_write: bool) -> Iterator[None]:
        actor = actor_here().name
        if may_write:
            self.judge.reads(actor, name)
        try:
            yield
        finally:
            self.judge.has_read(actor)

    # -- time, and those who delete and keep

    def passes(self, *hours: float) -> None:
        """Time passes by the store's clock."""
        for each in hours:
            self.store.wait_s(each * HOUR_S)

    def prune(self, *, own: str | None = None, times: int = 1) -> None:
        """Prune: keep the last one."""
        attempts, Pruner = self._protocol.attempts, self._protocol.prune.Pruner  # noqa: N806  a class
        attempt = None if own is None else attempts.Attempt(own)
        actor = actor_here()
        pruner = Pruner(self.store, self.keys, keep=Keep(last=1), delays=DELAYS, own=attempt)
        for _ in range(times):
            self.judge.prunes(actor.name, None if own is None else int(own[:9]))
            report = pruner.prune()
            self.judge.has_pruned(actor.name, [str(name) for name in report.pruned])

    def delete(self, name: SetName) -> None:
        """Delete one set, if another one stays."""
        self.judge.gives_up(str(name))
        with suppress(NotFoundError, self._protocol.deletion.InUseError):
            self._protocol.prune.Pruner(self.store, self.keys, delays=DELAYS).delete(name)

    def pin(self, name: SetName, *, unpins: bool = False) -> None:
        """Pin a set, if it is there, and perhaps take the pin away again."""
        try:
            self._protocol.uses.pin(self.store, self.keys, name)
        except NotFoundError:
            return
        self.judge.pinned(str(name))
        if unpins:
            self.judge.unpins(str(name))
            self._protocol.uses.unpin(self.store, self.keys, name)

    # -- the end

    def play(self) -> None:
        """Let all actors play; then a reader comes, and the deletions are ended."""
        self.stage.run()
        self.stage.alone("end", self._end)

    def _end(self) -> None:
        self.passes(0.001)
        possible = self.judge.newest_possible()
        self.read()
        self.judge.expect(self.judge.proven == possible, POSSIBLE, f"{self.judge.proven} is the newest, {possible} could be")
        for hours in (50, 7, 7):  # what is not complete is abandoned, then its objects go, then those that it used
            self.passes(hours)
            self.prune()
        self.judge.ends()


def wanted(name: str, n_ranks: int, *, shares: bool = False) -> dict[str, bytes]:
    """The files of a set, which begin with the number of their rank."""
    files = {f"{rank}/a": f"{name} {rank}".encode() for rank in range(n_ranks)}
    return {**files, **{f"{rank}/b": f"the same {rank}".encode() for rank in range(n_ranks)}} if shares else files
