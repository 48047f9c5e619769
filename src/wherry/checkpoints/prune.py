"""Pruning a run: sets are committed that can be, and those that no rule keeps are deleted, in two steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.attempts import Attempt, attempt_numbers, forget_attempt, forget_start, old_starts, read_attempt
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.deletion import Deletion, InUseError, PruneDelays, ReferencedKeys, being_saved
from wherry.checkpoints.protocol.documents import DamagedDocumentError, NewerFormatError
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.checkpoints.protocol.uncommitted import MOST_SETS, commit_if_complete, receipts_or_none, sets_with_data
from wherry.checkpoints.protocol.uses import pinned, readers, store_now_s
from wherry.checkpoints.reading import reading
from wherry.checkpoints.restore import PrunedWhileRestoringError
from wherry.errors import NotFoundError
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectMeta, ObjectStore

log = logging.getLogger("wherry.checkpoints")

#: Fields of a PruneReport that list sets.
_WORDS = ("committed", "pruned", "abandoned", "removed", "put_back", "incomplete")


class _NotProvenError(Exception):
    """No set that stays is complete now, or the run is another attempt's: nothing more is taken away."""


@dataclass
class PruneReport:
    """What prune() has done, or would do with ``dry_run=True``; sets by their names.

    `kept`: the sets that stay, each with the reasons. `pruned`: their manifests have become tombstones. `removed`: their objects
    are gone. `waiting`: sets with a tombstone whose objects stay for now, each with the reason. `incomplete`: sets without a
    manifest that are not given up yet. `abandoned`: those that were. `committed`: those whose receipts were all there.
    `put_back`: sets whose pin, or reader, came while they were pruned. `stopped`: why it ended early, if it did.
    """

    dry_run: bool = False
    committed: list[SetName] = field(default_factory=list)
    kept: dict[SetName, list[str]] = field(default_factory=dict)
    pruned: list[SetName] = field(default_factory=list)
    abandoned: list[SetName] = field(default_factory=list)
    removed: list[SetName] = field(default_factory=list)
    put_back: list[SetName] = field(default_factory=list)
    waiting: dict[SetName, str] = field(default_factory=dict)
    incomplete: list[SetName] = field(default_factory=list)
    freed_bytes: int = 0
    stopped: str | None = None

    def lines(self) -> Iterator[tuple[str, SetName, str]]:
        """What has become of each set, in a word, its name, and why."""
        yield from (("kept", name, ", ".join(why)) for name, why in sorted(self.kept.items()))
        for word in _WORDS:
            yield from ((word.replace("_", " "), name, "") for name in getattr(self, word))
        yield from (("waiting", name, why) for name, why in sorted(self.waiting.items()))

    def as_json(self) -> dict[str, object]:
        """The same in plain values."""
        return {
            "dry_run": self.dry_run,
            "kept": {str(name): why for name, why in self.kept.items()},
            **{word: [str(name) for name in getattr(self, word)] for word in _WORDS},
            "waiting": {str(name): why for name, why in self.waiting.items()},
            "freed_bytes": self.freed_bytes,
            "stopped": self.stopped,
        }


@dataclass
class _Look:
    """What one look at the run has shown, from the oldest set to the newest. `metas`: of manifests and tombstones."""

    metas: dict[SetName, ObjectMeta]
    manifests: list[Manifest]
    tombstones: list[Tombstone]
    with_data: list[SetName]

    @property
    def known(self) -> set[SetName]:
        return {*(one.set for one in self.manifests), *(one.set for one in self.tombstones)}


class Pruner:
    """Prunes one run. `own`: the attempt that it prunes for, which ends it when a newer attempt has begun; None: nobody's.

    One object may prune again and again, from one thread at a time: manifests that it has read are not read again.
    """

    def __init__(
        self,
        store: ObjectStore,
        keys: RunKeys,
        *,
        keep: Keep | None = None,
        delays: PruneDelays | None = None,
        own: Attempt | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._keep = keep
        self._delays = delays if delays is not None else PruneDelays()
        self._own = own
        self._catalog = Catalog(store, keys)
        self._read: dict[SetName, tuple[tuple[object, ...], Manifest | Tombstone]] = {}
        self._referenced = ReferencedKeys(store, keys)
        #: Of sets whose other objects were removed: the keys that newer sets use.
        self._left: dict[SetName, set[str]] = {}

    def prune(self, *, dry_run: bool = False) -> PruneReport:
        """Do all steps that are due, once. It may be killed, and called again, at any time, by several at once."""
        report = PruneReport(dry_run)
        try:
            self._check_own()
            now_s = time.time() if dry_run else store_now_s(self._store, self._keys)
            look = self._commit(report, self._look(list(sets_with_data(self._store, self._keys))))
            newest = self._newest_complete(look)
            with self._proving(newest) as prove:
                steps = Deletion(self._store, self._keys, now_s, self._delays, prove)
                self._decide(report, look, newest, steps, now_s)
                self._delete(report, look, newest, steps)
                self._finish_tombstones(report, look, steps)
            if not dry_run:
                self._tidy(look, newest, steps, now_s)
        except _NotProvenError as error:
            report.stopped = str(error)
        return report

    def delete(self, name: SetName, *, dry_run: bool = False) -> None:
        """Write the tombstone of one set. NotFoundError; InUseError if it is in use, or no other set is complete.

        With `dry_run` only see whether that may be done, as far as reading tells.
        """
        there = self._catalog.read(name)
        if isinstance(there, Tombstone):
            return
        look = self._look([])
        if name in self._resumed_from(look.manifests[-1].set.number if look.manifests else 0):
            raise InUseError(f"the set {name} is the one that the newest attempt resumes from: prune deletes it later")
        others = [one for one in look.manifests if one.set != name]
        newest = self._newest_complete(_Look(look.metas, others, [], []))
        if newest is None:
            raise InUseError(f"the set {name} is the only complete one of this run: delete the run's prefix to lose all of it")
        if dry_run:
            if name in pinned(self._store, self._keys):
                raise InUseError(f"the set {name} is pinned: unpin it first")
            return
        try:
            with self._proving(newest) as prove:
                steps = Deletion(self._store, self._keys, store_now_s(self._store, self._keys), self._delays, prove)
                if not steps.bury(there, lambda: self._resumed_from(newest.set.number)):
                    if name in pinned(self._store, self._keys):
                        raise InUseError(f"the set {name} is pinned: unpin it first")
                    raise InUseError(f"the set {name} is being restored, or stays while others go: wait for the end of that")
        except _NotProvenError as error:
            raise InUseError(f"the set {name} is not deleted: {error}") from error

    # -- what is there

    def _look(self, with_data: list[SetName]) -> _Look:
        metas: dict[SetName, ObjectMeta] = {}
        for meta in self._store.list(self._keys.manifests):
            if (name := self._keys.set_of_manifest(meta.key)) is not None:
                metas[name] = meta
        names = sorted(metas)
        found = [one for one in each_at_once(lambda name: self._read_once(name, metas[name]), names) if one is not None]
        self._read = {one.set: self._read[one.set] for one in found}
        manifests = [one for one in found if isinstance(one, Manifest)]
        return _Look(metas, manifests, [one for one in found if isinstance(one, Tombstone)], with_data)

    def _read_once(self, name: SetName, meta: ObjectMeta) -> Manifest | Tombstone | None:
        version = (meta.etag, meta.size_bytes, meta.modified_s)
        if (known := self._read.get(name)) is not None and known[0] == version:
            return known[1]
        if (there := self._read_or_none(name)) is None:
            return None
        self._read[name] = (version, there)
        return there

    def _read_or_none(self, name: SetName) -> Manifest | Tombstone | None:
        try:
            return self._catalog.read(name)
        except NotFoundError:
            return None
        except (DamagedDocumentError, NewerFormatError) as error:
            log.warning("the set %s is left alone: %s", name, error)
            return None

    def _newest_complete(self, look: _Look) -> Manifest | None:
        return next((one for one in reversed(look.manifests) if self._is_complete(one)), None)

    def _is_complete(self, manifest: Manifest) -> bool:
        try:
            return not self._catalog.missing(manifest)
        except (DamagedDocumentError, NewerFormatError, NotFoundError):
            return False

    @contextmanager
    def _proving(self, newest: Manifest | None) -> Iterator[Callable[[SetName], None]]:
        """What proves, by a manifest and a listing asked for then, that the set which stays is complete, whatever else goes.

        From the first proof to the end of the block this process is a reader of that set. So nobody else deletes it meanwhile.
        """
        with ExitStack() as stack:

            def prove(_: SetName) -> None:
                self._check_own()
                if newest is None:
                    raise _NotProvenError("no complete set was found, so nothing is deleted")
                if not held:
                    try:
                        stack.enter_context(reading(self._store, self._keys, newest.set))
                    except PrunedWhileRestoringError as error:
                        raise _NotProvenError(f"the set {newest.set} was deleted meanwhile, so nothing else is") from error
                    held.append(newest.set)
                if self._read_or_none(newest.set) != newest or not self._is_complete(newest):
                    raise _NotProvenError(f"the set {newest.set} is not complete any more, so nothing is deleted")

            held: list[SetName] = []
            yield prove

    def _check_own(self) -> None:
        if self._own is None:
            return
        number = int(self._own.key[:9])
        if newer := list(attempt_numbers(self._store, self._keys, after=number)):
            raise _NotProvenError(f"attempt {newer[-1]} has begun, this is {number}: the newer attempt prunes")

    # -- the steps

    def _commit(self, report: PruneReport, look: _Look) -> _Look:
        begun = [name for name in look.with_data if name not in look.metas]
        for name in begun[-MOST_SETS:]:
            if report.dry_run:
                receipts = receipts_or_none(self._store, self._keys, name)
                is_committed = receipts is not None and receipts.are_complete
            else:
                is_committed = commit_if_complete(self._store, self._keys, name) is not None
            (report.committed if is_committed else report.incomplete).append(name)
        return self._look(look.with_data) if report.committed and not report.dry_run else look

    def _decide(self, report: PruneReport, look: _Look, newest: Manifest | None, steps: Deletion, now_s: float | None) -> None:
        """Say of each committed set why it is kept; those without a reason are pruned."""
        kept = report.kept

        def keep(names: Sequence[SetName] | set[SetName], why: str) -> None:
            for name in names:
                if name in look.metas:
                    kept.setdefault(name, []).append(why)

        names = [one.set for one in look.manifests]
        if self._keep is None:
            keep(names, "no rule deletes any")
        else:
            times = {name: meta.modified_s for name, meta in look.metas.items()}
            kept.update(self._keep.reasons(look.manifests, lambda name, age_s: not steps.is_older(times[name], age_s)))
        if newest is None:
            keep(names, "no set is proven complete")
        else:
            keep([newest.set], "the newest complete set")
            keep([name for name in names if name > newest.set], "newer than the newest complete set")
            parents = [] if newest.parent is None else [newest.parent]
            keep({*self._resumed_from(newest.set.number), *parents}, "resumed from")
        keep(pinned(self._store, self._keys), "pinned")
        keep(readers(self._store, self._keys, now_s, self._delays.reader_s)[0], "is being restored")
        for name in [name for name in kept if name not in names]:
            del kept[name]
        for name in look.metas.keys() - look.known:
            kept[name] = ["its manifest cannot be read"]

    def _resumed_from(self, number: int) -> set[SetName]:
        """The sets that attempts from this number on were resumed from: their ranks may restore them yet."""
        numbers = list(attempt_numbers(self._store, self._keys, after=number - 1))
        found = each_at_once(self._attempt_or_none, numbers)
        return {one.resumed_from for one in found if one is not None and one.resumed_from is not None}

    def _attempt_or_none(self, number: int) -> Attempt | None:
        try:
            return read_attempt(self._store, self._keys, number)
        except (NotFoundError, DamagedDocumentError, NewerFormatError):
            return None

    def _delete(self, report: PruneReport, look: _Look, newest: Manifest | None, steps: Deletion) -> None:
        number = newest.set.number if newest is not None else 0
        for manifest in look.manifests:
            if manifest.set in report.kept:
                continue
            if report.dry_run or steps.bury(manifest, lambda: self._resumed_from(number)):
                report.pruned.append(manifest.set)
            else:
                report.put_back.append(manifest.set)
        for name in list(report.incomplete):
            if self._is_abandoned(report, name, newest, steps):
                report.incomplete.remove(name)
                report.abandoned.append(name)

    def _is_abandoned(self, report: PruneReport, name: SetName, newest: Manifest | None, steps: Deletion) -> bool:
        # A store without conditions lets the tombstone replace a manifest that is written at the same moment. So it is
        # written there only for a set that nobody restores as the newest.
        if not self._store.capabilities.conditional_put and newest is not None and name > newest.set:
            return False
        if self._own is not None and name.attempt == self._own.key:
            return False  # this job may be sending a large object for days; a newer attempt gives the set up
        return steps.is_quiet(name) if report.dry_run else steps.abandon(name)

    def _finish_tombstones(self, report: PruneReport, look: _Look, steps: Deletion) -> None:
        """The second step, of tombstones that are old enough; those written just now are, without a grace."""
        if self._delays.grace_s == 0 and not report.dry_run:
            look = self._look(look.with_data)
        with_data = set(look.with_data)
        in_use = pinned(self._store, self._keys)
        due: list[Tombstone] = []
        for one in look.tombstones:
            if one.set in in_use and one.manifest is not None and (report.dry_run or steps.put_back(one)):
                report.put_back.append(one.set)
            elif one.set not in with_data:
                if not report.dry_run:
                    steps.forget(one.set, look.metas[one.set])
            elif not steps.is_older(look.metas[one.set].modified_s, self._delays.grace_s):
                report.waiting[one.set] = f"its objects go {self._delays.grace_s / 3600:g} h after its tombstone was written"
            elif steps.is_used(one.set):
                report.waiting[one.set] = "somebody is restoring it"
            else:
                due.append(one)
        if due:
            self._remove(report, look, steps, due)

    def _remove(self, report: PruneReport, look: _Look, steps: Deletion, due: Sequence[Tombstone]) -> None:
        """Remove the objects of these sets that no other set uses, from the newest set to the oldest.

        So a set that is put back in between, and not removed, still counts for those that it refers to, which are older.
        """
        try:
            saving = being_saved(self._store, self._keys, look.known)
            for name in {name for receipts in saving.values() for name in receipts.uses}.intersection(one.set for one in due):
                report.waiting[name] = "a set that is being saved may use its objects"
            not_leaving = {*report.waiting, *report.put_back}
            leaving = {one.set: self._leaving_manifest(one) for one in due if one.set not in not_leaving}
            buried = [self._manifest_of(one) for one in look.tombstones if one.set in not_leaving]
            staying = [*look.manifests, *(one for one in buried if one is not None)]
            users = self._referenced.by_user(staying, saving, leaving)
        except (DamagedDocumentError, NewerFormatError, NotFoundError) as error:
            why = f"it is not known which of its objects are used: {error}"
            report.waiting.update(dict.fromkeys([one.set for one in due], why))
            return
        for name in sorted(leaving, reverse=True):
            used = {key for keys in users.values() for key in keys if key.startswith(self._keys.data(name))}
            if not report.dry_run and self._left.get(name) != used:
                freed_bytes = steps.remove_objects(name, used)
                if freed_bytes is None:
                    report.waiting[name] = "somebody has begun to use it"
                    continue
                report.freed_bytes += freed_bytes
                self._left[name] = used
            users.pop(name, None)
            if used:
                report.waiting[name] = "newer sets use some of its objects"
            else:
                report.removed.append(name)
        report.removed.sort()

    def _manifest_of(self, tombstone: Tombstone) -> Manifest | None:
        data = tombstone.manifest
        return None if data is None else Manifest.from_bytes(data, self._keys.manifest(tombstone.set), tombstone.set)

    def _leaving_manifest(self, tombstone: Tombstone) -> Manifest | None:
        try:
            return self._manifest_of(tombstone)
        except (DamagedDocumentError, NewerFormatError):  # nobody can put it back
            return None

    def _tidy(self, look: _Look, newest: Manifest | None, steps: Deletion, now_s: float | None) -> None:
        """Remove what readers that are dead, and attempts that have left nothing, wrote long ago."""
        for key in readers(self._store, self._keys, now_s, self._delays.reader_s)[1]:
            self._store.delete(key)
        if newest is None:
            return
        numbers = {name.number for name in (*look.metas, *look.with_data)}
        listed = ((self._keys.number_of_attempt(meta.key), meta) for meta in self._store.list(self._keys.attempts))
        old = {
            number
            for number, meta in listed
            if number is not None and number < newest.set.number and self._is_forgotten(steps, meta)
        }
        for number in sorted(old - numbers):
            forget_attempt(self._store, self._keys, number)
        if old:
            for number in old_starts(self._store, self._keys, newest.set.number, partial(self._is_forgotten, steps)):
                forget_start(self._store, self._keys, number)

    def _is_forgotten(self, steps: Deletion, meta: ObjectMeta) -> bool:
        return steps.is_older(meta.modified_s, self._delays.forget_after_s)
