"""One rank's part of a set, on its way: files are put into it, then it is handed over."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from wherry.agent.set_jobs import SetPlan
from wherry.checkpoints.handle import CheckpointHandle, SetLooks
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import failure_of, missing_ranks
from wherry.checkpoints.protocol.names import RunKeys
from wherry.checkpoints.protocol.receipt import Receipt
from wherry.checkpoints.world import World
from wherry.errors import ConfigError, WherryError
from wherry.spool.accept import FollowUp
from wherry.spool.handle import UploadHandle
from wherry.spool.journal.jobs import JobId, JobKind, JobState
from wherry.spool.sources import sources_of
from wherry.spool.spool_file import SpoolWriter
from wherry.uploader import Uploader

log = logging.getLogger("wherry.checkpoints")

#: How long a node's deputy leaves the commit to the node before it; and how many nodes have one. If all of these are gone,
#: whoever resumes the run commits the set.
DEPUTY_S = 60.0
MOST_DEPUTIES = 15
_RESERVED = "_ranks"


class SetPart:
    """One rank's part of a set: put files into it, in any order and from any thread, then hand it over::

        part = checkpoints.part(1000)
        part.put("shard-0.bin")
        with part.open("shard-1.bin") as file:
            file.write(...)
        handle = part.hand_over()

    Its files are on their way from the moment that they are put; readers see none of them before the set is committed. An error
    in putting one gives the part up: the other ranks' handles end with it, at once.
    """

    def __init__(
        self,
        uploader: Uploader,
        base: str,
        world: World,
        receipt: Receipt,
        note: Callable[[CheckpointHandle | None], object],
        *,
        dedupe: bool = False,
    ) -> None:
        """`receipt`: what is known of the part now. `note` is given the handle, or None when the part is given up. `dedupe`: what
        an earlier set has is not sent.
        """
        self.name = receipt.set
        self._uploader = uploader
        #: By the names that the uploader takes, and by the keys of its store.
        self._names, self._keys = RunKeys(base), RunKeys(uploader.uri.key_for(base))
        self._world = world
        self.receipt = receipt
        self._note = note
        self._compared: str | None = None
        if dedupe:
            self._compared = self._plan(receipt=replace(receipt, metrics={}, metadata={})).to_bytes().decode()
        self._objects: dict[str, None] = {}
        self._is_over = False
        self._handle: CheckpointHandle | None = None

    @property
    def uri(self) -> str:
        """Where the set's objects are."""
        return self._uploader.uri_for(self._key_name("").rstrip("/"))

    def _key_name(self, name: str) -> str:
        return f"{self._names.data(self.name)}{name}"

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Give the part up when the block ends with an error: the set will never be complete, and all ranks are told so."""
        try:
            yield
        except BaseException as error:
            self.give_up(f"{type(error).__name__}: {error}")
            raise

    def give_up(self, why: str) -> None:
        """Write down, in the background, that this rank's part will not come. Whatever is in the way of that is logged only."""
        if self._is_over:
            return
        self._is_over = True
        self._note(None)
        why = why.encode(errors="backslashreplace").decode()  # it may name a file whose name is no text
        try:
            self._uploader.follow_up(self._key_name("_ranks"), [self._receipt_job(replace(self.receipt, failed=why), ())])
        except (WherryError, OSError) as error:
            log.warning("other ranks of %s are not told that rank %d has failed: %s", self.name, self._world.rank, error)

    def put(self, path: str | os.PathLike[str], name: str | None = None, *, move: bool = False) -> None:
        """Put a file into the set as `name` (else its own), or all files of a folder under their names (below `name`).

        Raises as `Uploader.put` does.
        """
        path = Path(path)
        with self.giving_up():
            if name is None and not path.is_dir():
                name = path.name
            names = [one.partition("/")[2] for _, one in sources_of(path, f"set/{name}" if name else "set")]
            self._check(names)
            key_name = self._key_name(name) if name else self._key_name("").rstrip("/")
            self._uploader.put(path, key_name, move=move, plan=self._compared)
            self._objects.update(dict.fromkeys(names))

    def open(self, name: str) -> SpoolWriter:
        """Open a file of the set in the spool, for writing; closing it puts it into the set. Raises as `Uploader.open` does."""
        with self.giving_up():
            self._check([name])
            writer = self._uploader.open(self._key_name(name), "xb", plan=self._compared)
        self._objects[name] = None
        return writer

    def _check(self, names: Sequence[str]) -> None:
        for name in names:
            if name.partition("/")[0] == _RESERVED:
                raise ConfigError(f"{name!r}: {_RESERVED} is where the receipts of a set lie, use another name")
            if name in self._objects:
                raise ConfigError(f"{name!r} is in the set already: give each file a name of its own")

    def hand_over(self, kind: str = "folder") -> CheckpointHandle:
        """All files are there: have the receipt written when they are stored, and the set committed when all ranks' are."""
        world = self._world
        with self.giving_up():
            if self._is_over:
                raise ConfigError(f"the part of rank {world.rank} of {self.name} was handed over, or given up, before")
            jobs = [self._receipt_job(replace(self.receipt, kind=kind), list(self._objects))]
            manifest = self._names.manifest(self.name)
            if world.rank == 0:
                told = self._plan().to_bytes()
                jobs.append(FollowUp(JobKind.COMMIT, manifest, told, (jobs[0].name,), waits_for_others=world.size > 1))
            elif world.local_rank == 0 and world.node_order <= MOST_DEPUTIES and self._uploader.config.agent.run_in == "agent":
                plan = self._plan(delay_s=DEPUTY_S * max(1, world.node_order))
                # A name of its own: of two jobs of one name in a spool that nodes share, the later one waits for the other.
                deputy = f"{manifest}.deputy-{world.rank:05d}"
                jobs.append(FollowUp(JobKind.COMMIT, deputy, plan.to_bytes(), (jobs[0].name,), is_deputy=True))
            upload = self._uploader.follow_up(manifest, jobs)
            self._is_over = True
        self._handle = self._handle_of(upload)
        self._note(self._handle)
        return self._handle

    @property
    def handle(self) -> CheckpointHandle:
        """The set's. Before hand_over(), or if another process hands the part over, it only looks for the set in the store."""
        if self._handle is not None:
            return self._handle
        return self._handle_of(self._uploader.follow_up(self._names.manifest(self.name), ()))

    def _handle_of(self, upload: UploadHandle) -> CheckpointHandle:
        store = self._uploader.store
        looks = SetLooks(
            partial(Catalog(store, self._keys).read, self.name),
            partial(failure_of, store, self._keys, self.name),
            partial(missing_ranks, store, self._keys, self.name, self._world.size),
        )
        return CheckpointHandle(self.name, upload, looks, partial(self._told, upload), self._uploader.config.retry.job_deadline_s)

    def _receipt_job(self, receipt: Receipt, names: Sequence[str]) -> FollowUp:
        name = f"{self._names.ranks(self.name)}{self._world.rank:05d}-of-{self._world.size:05d}"
        content = self._plan(receipt=receipt).to_bytes()
        return FollowUp(JobKind.RECEIPT, name, content, tuple(self._key_name(one) for one in names))

    def _plan(self, *, delay_s: float = 0.0, receipt: Receipt | None = None) -> SetPlan:
        return SetPlan(self._keys.base, self.name, self._world.size, delay_s, receipt)

    def _told(self, upload: UploadHandle) -> str | None:
        return next(iter(told_of(self._uploader, upload.ids)), None)


def told_of(uploader: Uploader, ids: Sequence[JobId]) -> list[str]:
    """What the user has to be told of sets that are committed, by the jobs of their handles: another job has this run by now."""
    found = uploader.journal.queries.jobs(ids=ids, states=[JobState.DONE])
    return [job.error for job in found if job.kind is JobKind.COMMIT and job.error]


class SetFolder:
    """``with checkpoints.save(step) as folder``: an empty folder in the spool, handed over at the end of the block.

    After an exception in the block nothing is handed over, and all ranks are told so. `handle` is the set's, after the block.
    """

    def __init__(self, uploader: Uploader, begin: Callable[[], SetPart]) -> None:
        self._uploader = uploader
        self._begin = begin
        self._stack = ExitStack()
        self._entered: tuple[SetPart, Path, int] | None = None
        self.handle: CheckpointHandle | None = None

    def __enter__(self) -> Path:
        part = self._begin()
        with part.giving_up():
            folder = self._stack.enter_context(self._uploader.folder())
        self._entered = (part, folder, os.getpid())
        return folder

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._entered is not None, "the block was entered"
        part, folder, pid = self._entered
        with self._stack:
            if os.getpid() != pid:  # a forked child: the part is its parent's
                return
            if error is not None:
                part.give_up(f"{type(error).__name__}: {error}")
                return
            part.put(folder, move=True)
            self.handle = part.hand_over("folder")
