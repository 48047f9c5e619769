"""An upload that need not be made: an earlier checkpoint set has the same bytes under the same name (``dedupe=True``)."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from pathlib import Path

from wherry.agent.not_ready import NotReadyError
from wherry.agent.set_jobs import SetPlan
from wherry.checkpoints.protocol.candidates import earlier_sets, objects_to_share
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checkpoints.protocol.uses import announce_use
from wherry.checksum import PIECE_BYTES, join_crc32c, sha256_and_crc32cs_of_file
from wherry.errors import IntegrityError, NotFoundError, PermanentError
from wherry.spool.journal.jobs import Job, JobState
from wherry.spool.journal.journal import Journal, retry_until_written
from wherry.store import ObjectStore

log = logging.getLogger("wherry.agent.worker")

#: A file of less is sent a second time while it is on its way in an earlier set: that takes no longer than to wait for it.
_WORTH_WAITING_BYTES = 2**20
#: How long it waits for the commit of a set whose receipt was written here: other ranks may be slower, or gone.
_COMMIT_S = 30.0
#: Parts of sets whose candidates are remembered.
_MOST_PARTS = 8


class OnItsWayError(NotReadyError):
    """The same bytes are on their way in an older set, to which this one can refer when that is committed."""


class Comparing:
    """Decides for uploads of checkpoint sets whether their bytes are sent, or referred to. Safe from several threads.

    `waits`: a large file that is on its way in an older set of this spool waits until that is committed, and is not sent twice.
    """

    def __init__(self, journal: Journal, *, waits: bool) -> None:
        self._journal = journal
        self._waits = waits
        self._parts: OrderedDict[tuple[int, str], Candidates] = OrderedDict()
        self._lock = threading.Lock()

    def decided(self, job: Job, path: Path, store: ObjectStore) -> tuple[Job, bool]:
        """(the job with the checksum of its file, whether an older set has the bytes, so that nothing is to be sent).

        It is decided once, before anything is sent, and kept in the journal, where the receipt finds it. Whatever is in the way
        of comparing, but for what is worth trying again, has the file sent. Raises OnItsWayError; IntegrityError if the staged
        file is damaged.
        """
        if (asked := self._journal.comparisons.asked(job.id)) is None:
            return job, False
        plan, sha256, source = asked
        if source is None:
            if sha256 is None or job.crc32c is None:
                job, sha256 = self._summed(job, path)
            found = self._found(job, plan, sha256, store)
            decide = partial(self._journal.comparisons.decide, job.id, "" if found is None else str(found))
            source = retry_until_written(decide)
        if source:
            log.info("%s is in the set %s already", job.uri, source)
        return job, bool(source)

    def _summed(self, job: Job, path: Path) -> tuple[Job, str]:
        sha256, pieces = sha256_and_crc32cs_of_file(path)
        crc = join_crc32c(pieces, PIECE_BYTES, job.size_bytes)
        if job.crc32c not in (None, crc):
            raise IntegrityError("the staged file is not what was accepted any more", operation="put", uri=job.uri)
        retry_until_written(partial(self._journal.work.set_crc32c, job.id, crc, pieces))
        retry_until_written(partial(self._journal.comparisons.note_sum, job.id, sha256))
        return replace(job, crc32c=crc), sha256

    def _found(self, job: Job, plan: str, sha256: str, store: ObjectStore) -> SetName | None:
        """The older set that has the bytes; None: none that can be found."""
        is_being_sent, may_come, just_sent = self._on_their_way(job, SetPlan.from_bytes(plan.encode()), sha256)
        if not is_being_sent:
            may_come = may_come or any(_awaits_its_commit(store, other, key) for other, key in just_sent)
            if just_sent:  # maybe committed since another file of this set has looked
                self._forget(job, plan)
            assert job.crc32c is not None, "it was summed"
            try:
                found = self._candidates(job, plan).find(job.key, job.size_bytes, job.crc32c, sha256, store)
            except PermanentError as error:
                if error.waits_for is not None:
                    raise
                log.warning("%s is sent, as it cannot be compared with earlier sets: %s", job.uri, error)
                return None
            if found is not None or not may_come:
                return found
        self._forget(job, plan)
        raise OnItsWayError("the same bytes are on their way in an earlier set", operation="put", uri=job.uri)

    def _candidates(self, job: Job, plan: str) -> Candidates:
        with self._lock:
            part = self._parts.get((job.store_id, plan)) or Candidates(SetPlan.from_bytes(plan.encode()))
            self._parts[job.store_id, plan] = part
            self._parts.move_to_end((job.store_id, plan))
            if len(self._parts) > _MOST_PARTS:
                self._parts.popitem(last=False)
        return part

    def _forget(self, job: Job, plan: str) -> None:
        """Have the next look at earlier sets see what is there by then."""
        with self._lock:
            self._parts.pop((job.store_id, plan), None)

    def _on_their_way(self, job: Job, plan: SetPlan, sha256: str) -> tuple[bool, bool, list[tuple[SetPlan, str]]]:
        """(whether an older set of this run is sending the same file from this spool, whether it may do so, those that just did).

        It may if it is summed and not decided yet: it looks for an older set itself, or its worker was killed meanwhile. Those
        that just did: the plan, and the key of the object.
        """
        is_being_sent = may_come = False
        just_sent: list[tuple[SetPlan, str]] = []
        if not self._waits or job.size_bytes < _WORTH_WAITING_BYTES:
            return is_being_sent, may_come, just_sent
        name = job.key.removeprefix(RunKeys(plan.base).data(plan.set))
        for one in self._journal.comparisons.sent_before(job, sha256):
            other = SetPlan.from_bytes(one.plan.encode())
            if other.base != plan.base or other.set >= plan.set or one.key != RunKeys(other.base).data(other.set) + name:
                continue
            ended_ago_s = one.ended_ago_s
            if one.state is JobState.DONE:
                ended_ago_s = self._journal.comparisons.receipt_ended_ago_s(
                    job.uri.removesuffix(job.key) + other.receipt_key, unknown_s=one.ended_ago_s
                )
            is_being_sent = is_being_sent or (ended_ago_s is None and not one.is_summed)
            may_come = may_come or one.is_summed
            if one.state is JobState.DONE and ended_ago_s is not None and ended_ago_s < _COMMIT_S:
                just_sent.append((other, one.key))
        return is_being_sent, may_come, just_sent


def _awaits_its_commit(store: ObjectStore, plan: SetPlan, key: str) -> bool:
    """Whether the set may still be committed, and has the object `key`: not if that is gone, with the set or without."""
    try:
        store.head(key)
    except NotFoundError:
        return False
    try:
        store.head(RunKeys(plan.base).manifest(plan.set))
    except NotFoundError:
        return True
    return False


class Candidates:
    """What one rank's part of a set may refer to: objects of the newest earlier set, looked up when they are first asked for.

    That it uses the set is announced when the first of them turns out to be equal, and then that set is looked for once more:
    so prune, which removes objects, sees the announcement, or this sees the tombstone.
    """

    def __init__(self, plan: SetPlan) -> None:
        assert plan.receipt is not None, "it names the rank"
        self._keys = RunKeys(plan.base)
        self._receipt = plan.receipt
        self._tried: list[SetName] = []
        self._source: Manifest | None = None
        self._objects: dict[str, SetObject] = {}
        self._is_announced = False
        self._lock = threading.Lock()

    def find(self, key: str, size_bytes: int, crc32c: int, sha256: str, store: ObjectStore) -> SetName | None:
        """The older set that has these bytes under the name of the object `key`; None: none that may be referred to."""
        name = key[len(self._keys.data(self._receipt.set)) :]
        with self._lock:
            if not self._tried:
                self._take_next(store)
            while (one := self._objects.get(name)) is not None:
                if (one.size_bytes, one.crc32c, one.sha256) != (size_bytes, crc32c, sha256):
                    return None
                if self._is_announced or self._announce(store):
                    break
                self._take_next(store)  # it was pruned meanwhile
        if one is None or one.set is None:
            return None
        return one.set if _is_there(store, self._keys.data(one.set) + name, size_bytes, crc32c) else None

    def _announce(self, store: ObjectStore) -> bool:
        receipt = self._receipt
        assert self._source is not None, "its objects are known"
        self._is_announced = announce_use(store, self._keys, receipt.set, receipt.rank, receipt.world, self._source)
        return self._is_announced

    def _take_next(self, store: ObjectStore) -> None:
        """Take the objects of the newest earlier set that was not tried; of none, if there is no other."""
        receipt = self._receipt
        earlier = (one for one in earlier_sets(store, self._keys, receipt.set) if one.set not in self._tried)
        self._source, self._objects = next(earlier, None), {}
        if self._source is not None:
            self._objects = objects_to_share(store, self._keys, self._source, receipt.rank, receipt.world)
        self._tried.append(receipt.set if self._source is None else self._source.set)


def _is_there(store: ObjectStore, key: str, size_bytes: int, crc32c: int) -> bool:
    """Whether the object is there, as far as one request tells: a set that refers to it must not share its loss."""
    try:
        meta = store.head(key)
    except NotFoundError:
        log.warning("%s is gone, although a committed set has it: its bytes are sent again", key)
        return False
    if meta.size_bytes != size_bytes or meta.crc32c not in (None, crc32c):
        log.warning("%s is not what was saved: its bytes are sent again", key)
        return False
    return True
