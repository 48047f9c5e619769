"""The jobs of a checkpoint set whose objects the agent makes itself: a rank's receipt, and the manifest that commits the set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherry.checkpoints.protocol.commit import IncompleteSetError, commit
from wherry.checkpoints.protocol.documents import put_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject
from wherry.errors import NotFoundError, PermanentError
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.work import Requirement
from wherry.store import ObjectStore

#: Between two looks for missing receipts: a fifth of the time that the job has waited, within these limits.
_LEAST_WAIT_S = 0.5
_MOST_WAIT_S = 30.0


class RankFailedError(PermanentError):
    """An object of this rank could not be stored. Its failure is in the set, so that other ranks need not wait for it."""


@dataclass(frozen=True)
class SetPlan:
    """What the staged file of such a job says. `delay_s`: how long a deputy leaves the commit to those before it.

    `receipt`: that of the rank without its objects, which the journal knows when they are stored.
    """

    base: str
    set: SetName
    world: int
    delay_s: float = 0.0
    receipt: Receipt | None = None

    def to_bytes(self) -> bytes:
        """The plan as it is staged."""
        receipt = None if self.receipt is None else self.receipt.to_bytes().decode()
        return json.dumps(
            {"base": self.base, "set": str(self.set), "world": self.world, "delay_s": self.delay_s, "receipt": receipt}
        ).encode()

    @classmethod
    def read(cls, path: Path) -> SetPlan:
        """Read a staged plan."""
        content: dict[str, Any] = json.loads(path.read_bytes())
        name = SetName.parse(content["set"])
        assert name is not None, "only a set's name is written there"
        text = content["receipt"]
        receipt = None if text is None else Receipt.from_bytes(text.encode(), str(path), name)
        return cls(content["base"], name, content["world"], content["delay_s"], receipt)


def wait_before_next_look_s(passed_s: float) -> float:
    """How long to wait for missing receipts, `passed_s` after the set was handed over."""
    return min(_MOST_WAIT_S, max(_LEAST_WAIT_S, passed_s / 5))


def write_receipt(plan: SetPlan, required: Sequence[Requirement], store: ObjectStore) -> str | None:
    """Write down what has become of the rank's objects: the receipt's etag. RankFailedError when one of them is not stored."""
    assert plan.receipt is not None, "a plan of a receipt has one"
    prefix = RunKeys(plan.base).data(plan.set)
    failed = [one for one in required if one.state in (JobState.FAILED, JobState.DISCARDED)]
    objects = () if failed else tuple(_stored(one, prefix, store) for one in required)
    known = plan.receipt
    why = f"{failed[0].key[len(prefix) :]}: {failed[0].error or 'it was discarded'}" if failed else known.failed
    receipt = Receipt(
        known.set,
        known.rank,
        known.world,
        known.kind,
        (*objects, *known.objects),
        known.parent,
        known.metrics,
        known.metadata,
        why,
    )
    data = receipt.to_bytes()
    meta = put_small(store, RunKeys(plan.base).ranks(plan.set) + receipt.name(data), data, if_absent=False)
    if why is not None:
        raise RankFailedError(f"its rank could not store {why}", operation="receipt", uri=str(plan.set))
    return meta.etag


def _stored(one: Requirement, prefix: str, store: ObjectStore) -> SetObject:
    size_bytes, crc = one.size_bytes, one.crc32c
    if size_bytes is None or crc is None:  # its job ended so long ago that the journal has forgotten it
        meta = store.head(one.key)
        size_bytes, crc = meta.size_bytes, meta.crc32c
    if crc is None:
        raise PermanentError("its checksum is not known any more", operation="receipt", uri=one.key, hint="save the step again")
    return SetObject(one.key[len(prefix) :], size_bytes, crc)


def commit_set(plan: SetPlan, passed_s: float, store: ObjectStore) -> str | None:
    """Commit the set, `passed_s` after it was handed over: what its user has to be told, if anything.

    IncompleteSetError: not yet.
    """
    keys = RunKeys(plan.base)
    if passed_s < plan.delay_s:
        raise IncompleteSetError("the rank before this one commits the set", operation="commit", uri=keys.manifest(plan.set))
    if plan.delay_s:
        try:
            store.head(keys.manifest(plan.set))
        except NotFoundError:
            pass
        else:
            return None
    newer = commit(store, keys, plan.set, plan.world).newer_attempts
    if not newer:
        return None
    return (
        f"attempt {newer[-1]} of this run has begun, this one is {plan.set.number}: the set is committed, but the run is another "
        "job's now, which does not resume from it once it has saved a set of its own"
    )
