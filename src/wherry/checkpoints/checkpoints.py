"""Checkpoints: a run's sets, saved without waiting, found proven complete, restored verified."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from signal import SIGTERM, SIGUSR1
from types import TracebackType
from typing import IO, Any, Literal, TypeVar, cast

from wherry.checkpoints.arguments import attempt_of, check_settings, folder_of, source_of, whole
from wherry.checkpoints.choice import best_of, not_found, set_of, why_none
from wherry.checkpoints.handle import CheckpointHandle
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.opening import opened_again, opening_of
from wherry.checkpoints.plain_values import checked
from wherry.checkpoints.preemption.preemption import Preemption
from wherry.checkpoints.protocol.attempts import Attempt
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.checkpoints.protocol.uncommitted import roll_forward
from wherry.checkpoints.protocol.uses import pin, unpin
from wherry.checkpoints.prune import Pruner, PruneReport
from wherry.checkpoints.restoring.all_ranks import Ranks, Restoring
from wherry.checkpoints.retention import Retention
from wherry.checkpoints.saved_steps import SavedSteps
from wherry.checkpoints.saving import SetFolder, SetPart, told_of
from wherry.checkpoints.start import begin, recorded
from wherry.checkpoints.state_dicts import check_format, find_state, read_state, state_name, write_state
from wherry.checkpoints.world import World
from wherry.config import Config
from wherry.errors import ConfigError, NotFoundError, absence_is_fine
from wherry.posix.fork import ChildLock, temporary_folder
from wherry.store.portable_secrets import resolve
from wherry.uploader import Uploader
from wherry.uri import check_new_name

log = logging.getLogger("wherry.checkpoints")

#: Of so many sets handed over it is asked whether their user has to be told something.
_REMEMBERED = 20
_Self = TypeVar("_Self", bound="Checkpoints")


class Checkpoints:
    """The checkpoint sets of the run `run_name` at `uri`::

        checkpoints = wherry.Checkpoints("s3://my-bucket/project", "run1")
        if checkpoints.latest() is not None:
            model.load_state_dict(checkpoints.load("latest"))
        for step in range(1000):
            ...
            checkpoints.save(step, model.state_dict())
        checkpoints.close()

    A set is what all ranks save at a step. It exists for readers when the objects of all ranks are verified in the store and its
    manifest is written; what is there of it before is not shown. save() returns after a snapshot; the rest goes on in the
    background, also when this process is killed.

    `attempt`: the number of this start of the job, equal on all its ranks and higher than that of any start before; else it is
    agreed on by torch.distributed, or by what torchrun or Slurm tell all ranks. Then the first call of all ranks that needs it is
    the same call, as for any collective operation. `world`: this process's place among the ranks; else as torch.distributed,
    torchrun or Slurm say. `keep`: which sets stay. With it rank 0 prunes the run, in the background at each save() and once in
    close(), and says in the log what is in the way of that; not once a newer attempt has begun. `dedupe`: a file that an earlier
    set has, with the same name and SHA-256, is referred to and not sent again. `storage_options`, `spool` and `config` are those
    of `Uploader`.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        run_name: str,
        *,
        attempt: int | None = None,
        world: World | None = None,
        keep: Keep | None = None,
        dedupe: bool = False,
        storage_options: Mapping[str, object] | None = None,
        spool: str | os.PathLike[str] | None = None,
        config: Config | None = None,
    ) -> None:
        self.run_name = check_new_name(run_name, what="run name")
        check_settings(world=world, keep=keep, config=config, storage_options=storage_options)
        self.world = world if world is not None else World.of_this_process()
        self._number = attempt_of(attempt)
        self._options = dict(storage_options or {})
        self._uploader = Uploader(uri, storage_options=resolve(self._options), spool=spool, config=config)
        self._base = f"{self.run_name}/checkpoints"
        self._keys = RunKeys(self._uploader.uri.key_for(self._base))
        self._attempt: Attempt | None = None
        self.parent: SetName | None = None
        self._agreed: tuple[Manifest | None] | None = None
        self._steps = SavedSteps(self.world.size)
        self._handed_over: list[CheckpointHandle] = []
        self._keep = keep
        self._dedupe = dedupe
        self._retention = None if keep is None or self.world.rank != 0 else Retention(lambda: self._pruner(self.attempt))
        self._is_rolled_forward = False
        #: Of the attempt and the steps: save() may be called by several threads.
        self._lock = ChildLock()

    def __repr__(self) -> str:
        return f"<Checkpoints {self._uploader.uri} {self.run_name} rank {self.world.rank} of {self.world.size}>"

    # -- saving

    def save(
        self,
        step: int,
        source: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[str, object] | None = None,
        overwrite: bool = False,
        format: str = "torch",  # noqa: A002  the word that the libraries use
    ) -> Any:
        """Hand over this rank's part of the set of `step`: a file, a folder, or a state dict of torch. Returns a
        CheckpointHandle.

        Without a `source` it is a context manager that yields an empty folder in the spool: what is in it at the end of the block
        is the part, moved and not copied, and its `handle` is there then::

            with checkpoints.save(1000) as folder:
                trainer.save_model(folder)

        `metrics` and `metadata` (plain JSON) are those of rank 0; `restore("best:loss")` compares the former. All ranks save the
        same steps. `format` is that of a state dict: "torch" (torch.save) or "safetensors", which holds one flat dict of tensors
        and no pickle. A step that this attempt has saved is refused with AlreadyExistsError; `overwrite=True` makes a newer set
        of it. A step of which this call has raised is not saved: a job of one rank may save it again, of several all ranks with
        `overwrite=True`.

        Raises what `Uploader.put` raises; ConfigError for a bad step, for numbers that are not finite, and where nothing tells
        the ranks which attempt this is.
        """
        begin = partial(self.part, step, metrics=metrics, metadata=metadata, overwrite=overwrite)
        if check_format(format) != "torch" and not isinstance(source, Mapping):
            raise ConfigError(f"format={format!r} is that of a state dict: a file or a folder is saved as it is")
        if source is None:
            return SetFolder(self._uploader, begin)
        part = begin()
        if isinstance(source, Mapping):
            with part.giving_up(), part.open(state_name(self.world, format)) as file:
                write_state(source, cast("IO[bytes]", file), format)
            return part.hand_over("state")
        with part.giving_up():
            path = source_of(source)
        part.put(path)
        return part.hand_over("folder" if path.is_dir() else "file")

    def part(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[str, object] | None = None,
        overwrite: bool = False,
    ) -> SetPart:
        """Begin this rank's part of a set, to put files into it one by one, and hand it over; save() is made of it."""
        metrics, metadata = checked(metrics, metadata)
        with self._lock:
            name = self._new_set(whole(step), overwrite)
        parent = self.parent or self.attempt.resumed_from
        return self.part_of(Receipt(name, self.world.rank, self.world.size, "folder", (), parent, metrics, metadata))

    def part_of(self, receipt: Receipt) -> SetPart:
        """The part that part() has begun, perhaps in another process: `SetPart.receipt` names its set."""

        def note(handle: CheckpointHandle | None) -> None:
            if handle is None:
                self._steps.given_up(receipt.set)
            else:
                self._handed_over.append(handle)

        part = SetPart(self._uploader, self._base, self.world, receipt, note, dedupe=self._dedupe)
        del self._handed_over[:-_REMEMBERED]
        return part

    def _new_set(self, step: int, overwrite: bool) -> SetName:
        self._uploader.raise_failures()
        SetName("000000000", step)  # a bad step is refused before the store is asked for anything
        version = self._steps.next_version(step, overwrite=overwrite)
        for told in told_of(self._uploader, [one for handle in self._handed_over for one in handle.ids]):
            log.error("%s", told)
        name = SetName(self.attempt.key, step, version)
        self._steps.begun(name)
        if self._retention is not None:
            self._retention.saved()
        return name

    def on_preemption(
        self,
        save: Callable[[], object] | None = None,
        *,
        grace_s: float = 30.0,
        signals: Sequence[int] = (SIGTERM, SIGUSR1),
        at_once: bool = False,
        agree: Callable[[bool], bool] | None = None,
        every: int = 1,
    ) -> Preemption:
        """Save when one of these signals tells the job to end, `grace_s` before it is killed; see `Preemption`.

        `save()` saves and returns the handle. `at_once=True`: in the signal's handler, as soon as neither torch nor wherry is at
        work; one rank only. Several ranks ask one another by torch.distributed, or by `agree(asked)`, at each `every`-th poll.
        Raises ConfigError in another thread than the main one.
        """
        last = lambda: self._handed_over[-1] if self._handed_over else None  # noqa: E731
        options: Any = {"grace_s": grace_s, "signals": signals, "at_once": at_once, "agree": agree, "every": every}
        return Preemption(self._uploader, self.world, last, save, **options)

    # -- the attempt

    @property
    def attempt(self) -> Attempt:
        """The start of the job that this is; recorded in the bucket, or agreed on, when it is first needed."""
        with self._lock:
            if self._attempt is None:
                self.world.check_still_true()
                newest = lambda: set_of(self._newest())  # noqa: E731
                self._attempt = begin(self._uploader.store, self._keys, self.world, self._number, newest)
            return self._attempt

    def _newest(self) -> Manifest | None:
        """The newest complete set; the first time sets are committed that a node which is gone has left."""
        newest = self.catalog.newest()
        if self._is_rolled_forward:
            return newest
        self._is_rolled_forward = True
        return self.catalog.newest() if roll_forward(self._uploader.store, self._keys, set_of(newest)) else newest

    # -- finding and restoring

    @property
    def catalog(self) -> Catalog:
        """The sets as the store shows them."""
        return Catalog(self._uploader.store, self._keys)

    def latest(self) -> Manifest | None:
        """The newest set that is proven complete, or None. With several ranks: the one that all of them restore, found once.

        Newest is the highest attempt that has a complete set, and in it the highest step.
        """
        if self.world.size == 1:
            return self._newest()
        if self._agreed is None:
            self._agreed = (self._agree_on_latest(),)
        return self._agreed[0]

    def _agree_on_latest(self) -> Manifest | None:
        if self.world.can_agree:
            return self.world.agree_on(self._newest)
        attempt = self.attempt
        if self._number is not None and self.world.rank != 0:
            attempt = recorded(self._uploader.store, self._keys, self._number)
        return None if attempt.resumed_from is None else self._read(attempt.resumed_from)

    def list(self) -> list[Manifest]:
        """All committed sets, from the oldest to the newest."""
        return self.catalog.manifests()

    def find(self, which: int | str) -> Manifest:
        """The set of a step (the newest of that step), "latest", "best:METRIC" (the lowest; "best:METRIC:max" the highest), or
        the one of this name, which is `str(manifest.set)`.

        NotFoundError if there is none.
        """
        which = whole(which)
        if which == "latest":
            found = self.latest()
        elif isinstance(which, str) and which.startswith("best:"):
            found = best_of(self.list(), which)
        elif isinstance(which, str) and (name := SetName.parse(which)) is not None:
            found = self._read(name)
        elif isinstance(which, int) and not isinstance(which, bool):
            names = [name for name in self.catalog.names() if name.step == which]
            found = next((one for name in reversed(names) if isinstance(one := self.catalog.read(name), Manifest)), None)
        else:
            raise ConfigError(f"{which!r} names no set: give a step (a number), 'latest', 'best:METRIC' or a set's name")
        if found is None:
            error = not_found(why_none(self.list(), which), self._uploader.uri, self._keys)
            if which == "latest" and self._agreed is not None:
                error.hint = "all ranks restore what was there when the job began: give the step of a set that was saved since"
            raise error
        return found

    def _read(self, name: SetName) -> Manifest:
        there: Manifest | Tombstone | None = None
        with absence_is_fine():
            there = self.catalog.read(name)
        if not isinstance(there, Manifest):
            why = "is not complete, or not there" if there is None else f"was {there.reason}"
            raise not_found(f"the set {name} {why}", self._uploader.uri, self._keys)
        return there

    def restore(
        self,
        which: int | str,
        folder: str | os.PathLike[str],
        *,
        ranks: Ranks = None,
        together: bool | None = None,
        exchange: bool | Literal["auto"] = "auto",
        progress_bar: bool = False,
    ) -> Path:
        """Download a set into `folder`, which must not be there yet or be empty, and return it. It appears whole and verified, or
        not at all. A folder that holds exactly this set already is verified and stays as it is.

        `which` is as in find(). `ranks`: whose objects, a list of ranks or "own" for those of this rank; else the whole set.

        Where torch.distributed is up, all ranks call it together: they restore the same set. If one of them finds "latest"
        damaged, or pruned meanwhile, all of them go on with the newest other set that is whole, and say so as an error in the
        log; so does a job of one rank. With `together=False`, and on several ranks without torch.distributed, a rank restores for
        itself, and never falls back; a rank that also asks alone which set is the latest uses alone().restore(). The ranks of a
        node that have one spool download once: the others copy, or find the set there if they give the same folder. `exchange`:
        whether nodes pass on to one another what they fetch, over a gloo group of torch.distributed, so that the store is read
        once in all; "auto": for whole sets of at least 64 MiB. Meanwhile prune leaves the set, if this job may write there.

        Raises NotFoundError; FileExistsError; OSError (ENOSPC) if the disk has no room, before any byte moves; DamagedSetError,
        which names the set, or PrunedWhileRestoringError, which is one; OtherRankFailedError if another rank could not restore.
        After an error, and after a kill -9, the same call goes on with what is there.
        """
        folder = folder_of(folder)
        if which == "latest":
            self.latest()  # all ranks ask for it at this point, for the first time or again
        call = Restoring(self._uploader, self._keys, self.world, folder, ranks, together, exchange, progress_bar)
        restored = call.first_whole(self._candidates(which), falls_back=which == "latest")
        if restored is None:
            raise NotFoundError(
                f"the run {self.run_name} has no set that is whole", operation="restore", uri=str(self._uploader.uri)
            )
        if which == "latest" and self._agreed is not None:
            self._agreed = (restored,)
        self.parent = restored.set
        return call.folder

    def _candidates(self, which: int | str) -> Iterator[Manifest]:
        first = self.find(which)
        yield first
        tried = {first.set}
        while which == "latest":  # anew each time: a set that was pruned meanwhile has newer ones
            found = (one for one in self.catalog.newest_first() if one.set not in tried and not self.catalog.missing(one))
            if (manifest := next(found, None)) is None:
                return
            tried.add(manifest.set)
            yield manifest

    def load(self, which: int | str, map_location: object = None) -> dict[str, Any]:
        """The state dict of a set that save() was given one for; this rank's, of several. Nothing but tensors and plain values is
        unpickled.

        Raises as restore() does; ConfigError if the set holds other files; IntegrityError for a pickle that wants more.
        """
        with temporary_folder("wherry-load-") as folder:
            self.restore(which, folder / "set", ranks="own")
            return read_state(find_state(folder / "set", self.world), map_location)

    # -- another process

    def alone(self) -> Checkpoints:
        """The same run for this process alone, as a job of one rank: no call of it waits for other ranks. Close it, too."""
        uploader = self._uploader
        return Checkpoints(
            str(uploader.uri),
            self.run_name,
            world=World(),
            dedupe=self._dedupe,
            storage_options=self._options,
            spool=uploader.spool.folder,
            config=uploader.config,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is opened again, with the attempt of this one. ConfigError for a secret that is in no variable
        of the environment, and for a store that only this process sees.
        """
        said: Any = {"number": self._number, "dedupe": self._dedupe, "attempt": self._attempt}
        opening = opening_of(self._uploader, self.run_name, self.world, self._options, **said)
        return opened_again, (type(self), opening), {"_attempt": self._attempt, "parent": self.parent}

    # -- keeping and deleting

    def prune(self, *, keep: Keep | None = None, delays: PruneDelays | None = None, dry_run: bool = False) -> PruneReport:
        """Commit the sets that can be, delete those that no rule keeps (`keep`, else that of this object; without any: none), and
        give up those that were begun and never completed. Says what it did, or would do with `dry_run`, which writes nothing.

        A set is deleted in two steps: it is gone for readers at once, and its objects go at the first prune when `delays.grace_s`
        (6 h) have passed, by the store's clock. A set stays if it is pinned, is being restored, or is the one that the newest
        attempt was resumed from; nothing is deleted unless a newer set is proven complete, by a listing made just before. It may
        be killed, and called by several at once.
        """
        check_settings(keep=keep, delays=delays)
        return self._pruner(None, keep, delays).prune(dry_run=dry_run)

    def _pruner(self, own: Attempt | None, keep: Keep | None = None, delays: PruneDelays | None = None) -> Pruner:
        return Pruner(self._uploader.store, self._keys, keep=keep or self._keep, delays=delays, own=own)

    def delete(self, which: int | str, *, dry_run: bool = False) -> SetName:
        """Delete one set, `which` as in find(); its objects go at a later prune(). Raises NotFoundError; InUseError, a
        ConfigError, if it is pinned, is being restored, is what the newest attempt was resumed from, or if no other set is
        complete. With `dry_run` nothing is deleted; a restore under way is not noticed then.
        """
        name = self.find(which).set
        self._pruner(None).delete(name, dry_run=dry_run)
        return name

    def pin(self, which: int | str) -> SetName:
        """Keep a set, `which` as in find(), until unpin(). NotFoundError if it is not there, or is being deleted just now."""
        name = self.find(which).set
        pin(self._uploader.store, self._keys, name)
        return name

    def unpin(self, which: int | str) -> SetName:
        """Let prune() delete the set again; no error if it was not pinned."""
        name = self.find(which).set
        unpin(self._uploader.store, self._keys, name)
        return name

    # -- the end

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was saved here is committed, or has failed; raises as `Uploader.flush` does."""
        self._uploader.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """flush(), then leave the spool; raises as `Uploader.close` does. What is unfinished goes on in the background."""
        try:
            self._prune_at_the_end(timeout_s)
        finally:
            self._uploader.close(timeout_s)

    def _prune_at_the_end(self, timeout_s: float | None = None) -> None:
        if self._retention is not None and self._attempt is not None:
            self._uploader.flush(timeout_s)
            self._retention.finish()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._prune_at_the_end()
        finally:
            self._uploader.end(error)
