"""The jobs of a checkpoint set whose objects the agent makes itself: a rank's receipt, and the manifest that commits the set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wherry.checkpoints.protocol.commit import IncompleteSetError, SetAbandonedError, SetFailedError, commit
from wherry.checkpoints.protocol.documents import MOST_BYTES, put_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject
from wherry.errors import AccessDeniedError, BucketNotFoundError, ClockSkewedError, NotFoundError, PermanentError
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.work import Requirement
from wherry.store import ObjectStore

#: Between two looks for missing receipts: a fifth of the time that the job has waited, within these limits.
_LEAST_WAIT_S = 0.5
_MOST_WAIT_S = 30.0


class RankFailedError(PermanentError):
    """An object of this rank could not be stored. Its failure is in the set, so that other ranks need not wait for it."""


class EarlierNodeError(IncompleteSetError):
    """The commit is left to the node before this one, for now."""


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

    @property
    def receipt_key(self) -> str:
        """The key that the job of the rank's receipt has; that of the receipt itself says more."""
        assert self.receipt is not None, "it names the rank"
        return f"{RunKeys(self.base).ranks(self.set)}{self.receipt.rank:05d}-of-{self.receipt.world:05d}"

    def to_bytes(self) -> bytes:
        """The plan as it is staged."""
        receipt = None if self.receipt is None else self.receipt.to_bytes().decode()
        return json.dumps(
            {"base": self.base, "set": str(self.set), "world": self.world, "delay_s": self.delay_s, "receipt": receipt}
        ).encode()

    @classmethod
    def read(cls, path: Path) -> SetPlan:
        """Read a staged plan."""
        return cls.from_bytes(path.read_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> SetPlan:
        """The plan that to_bytes() has written."""
        content: dict[str, Any] = json.loads(data)
        name = SetName.parse(content["set"])
        assert name is not None, "only a set's name is written there"
        text = content["receipt"]
        receipt = None if text is None else Receipt.from_bytes(text.encode(), "the plan", name)
        return cls(content["base"], name, content["world"], content["delay_s"], receipt)


def wait_before_next_look_s(passed_s: float) -> float:
    """How long to wait for missing receipts, `passed_s` after the set was handed over."""
    return min(_MOST_WAIT_S, max(_LEAST_WAIT_S, passed_s / 5))


def write_receipt(plan: SetPlan, required: Sequence[Requirement], store: ObjectStore) -> str | None:
    """Write down what has become of the rank's objects: the receipt's etag. RankFailedError when one of them is not stored.

    Of a part that was given up, who saves was told why by an exception: it is no failed upload as well.
    """
    assert plan.receipt is not None, "a plan of a receipt has one"
    keys = RunKeys(plan.base)
    receipt = plan.receipt
    try:
        receipt = replace(receipt, objects=(*_all_stored(required, keys.data(plan.set), store), *receipt.objects))
        data = receipt.to_bytes()
        if len(data) > MOST_BYTES:
            raise PermanentError(
                f"its receipt would have {len(data)} bytes for {len(receipt.objects)} files, at most {MOST_BYTES} are allowed",
                operation="receipt",
                uri=str(plan.set),
                hint="save fewer, larger files",
            )
    except (AccessDeniedError, ClockSkewedError):  # somebody may mend that: it is tried again
        raise
    except PermanentError as error:
        receipt = replace(receipt, objects=(), failed=str(error))
        data = receipt.to_bytes()
    meta = put_small(store, keys.ranks(plan.set) + receipt.name(data), data, if_absent=False)
    if receipt.failed is not None and plan.receipt.failed is None:
        raise RankFailedError(f"its rank could not store its part: {receipt.failed}", operation="receipt", uri=str(plan.set))
    return meta.etag


def _all_stored(required: Sequence[Requirement], prefix: str, store: ObjectStore) -> list[SetObject]:
    for one in required:
        if one.state in (JobState.FAILED, JobState.DISCARDED):
            raise PermanentError(f"{one.key[len(prefix) :]}: {one.error or 'it was discarded'}")
    return [_stored(one, prefix, store) for one in required]


def _stored(one: Requirement, prefix: str, store: ObjectStore) -> SetObject:
    size_bytes, crc = one.size_bytes, one.crc32c
    if size_bytes is None or crc is None:  # its job ended so long ago that the journal has forgotten it
        meta = store.head(one.key)
        size_bytes, crc = meta.size_bytes, meta.crc32c
    if crc is None:
        raise PermanentError("its checksum is not known any more", operation="receipt", uri=one.key, hint="save the step again")
    return SetObject(one.key[len(prefix) :], size_bytes, crc, one.sha256, SetName.parse(one.source) if one.source else None)


def commit_set(plan: SetPlan, passed_s: float, store: ObjectStore) -> str | None:
    """Commit the set, `passed_s` after it was handed over: what its user has to be told, if anything.

    IncompleteSetError: not yet.
    """
    keys = RunKeys(plan.base)
    if plan.delay_s:
        _commit_as_deputy(plan, passed_s, store)
        return None
    newer = commit(store, keys, plan.set, plan.world).newer_attempts
    if not newer:
        return None
    return (
        f"attempt {newer[-1]} of this run has begun, and this one is {plan.set.number}: the set is committed, but it is not the "
        "latest any more once the newer attempt has saved one (end one of the two jobs, or give each a run name of its own)"
    )


def _commit_as_deputy(plan: SetPlan, passed_s: float, store: ObjectStore) -> None:
    """Commit the set if those before this node have not done it in time. Until then each look is one request.

    Nobody waits for a deputy: that the set failed, or was abandoned, is reported elsewhere.
    """
    keys = RunKeys(plan.base)
    try:
        store.head(keys.manifest(plan.set))
        return
    except BucketNotFoundError:
        raise
    except NotFoundError:
        pass
    if passed_s < plan.delay_s:
        raise EarlierNodeError("the node before this one commits the set", operation="commit", uri=keys.manifest(plan.set))
    with suppress(SetFailedError, SetAbandonedError):
        commit(store, keys, plan.set, plan.world)
