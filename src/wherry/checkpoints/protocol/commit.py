"""Committing a set: when the receipts of all ranks are there, the manifest is written, once, and the set exists for readers.

Whoever commits does the same thing and writes the same bytes: the agent of rank 0, a deputy on another node when that is gone, or
whoever resumes or prunes the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from wherry.checkpoints.protocol.attempts import attempt_numbers
from wherry.checkpoints.protocol.documents import MOST_BYTES, DamagedDocumentError, NewerFormatError, put_small, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt, ReceiptName, failed_rank, used_set
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone, manifest_of, manifest_or_tombstone
from wherry.errors import AlreadyExistsError, IntegrityError, NotFoundError, PermanentError, TransientError
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectStore

#: An error names so many ranks at most.
_NAMED_RANKS = 20


class IncompleteSetError(TransientError):
    """Receipts are missing yet. Waiting for them is no failed attempt."""


class SetFailedError(PermanentError):
    """A rank could not store one of its objects, so the set will never be complete. Says which rank, and why."""


class SetAbandonedError(PermanentError):
    """The set was given up, or deleted, by a newer attempt or by prune, before it was committed."""


@dataclass(frozen=True)
class Committed:
    """A set that is committed.

    `newer_attempts`: numbers of attempts that have begun since its own: another job has the run now.
    """

    manifest: Manifest
    newer_attempts: tuple[int, ...] = ()


@dataclass
class Receipts:
    """The names below a set's ``_ranks/``, as one listing shows them. `doubled`: further receipts of ranks in `by_rank`.

    `uses`: the older sets that ranks have announced to use.
    """

    by_rank: dict[int, ReceiptName] = field(default_factory=dict)
    doubled: list[ReceiptName] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    uses: set[SetName] = field(default_factory=set)
    worlds: dict[int, list[int]] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """The ranks that have written none, of the largest world that any of them names."""
        return self.missing_of(max(self.worlds, default=0))

    def missing_of(self, world: int) -> list[int]:
        """The ranks of a world of this size that have written none."""
        return [rank for rank in range(world) if rank not in self.by_rank]

    @property
    def are_complete(self) -> bool:
        """Whether all ranks of one world have written one, and none has failed."""
        return len(self.worlds) == 1 and not self.missing and not self.failed


def list_receipts(store: ObjectStore, keys: RunKeys, name: SetName) -> Receipts:
    """What the ranks have written so far, in one request for a thousand ranks.

    A rank has two receipts if its agent was killed after it had written one, and another version of wherry wrote the next one
    in other words. Then the first by name counts, and commit() asks whether they say the same.
    """
    found = Receipts()
    prefix = keys.ranks(name)
    for meta in store.list(prefix):
        text = meta.key[len(prefix) :]
        if failed_rank(text) is not None:
            found.failed.append(text)
        elif (used := used_set(text)) is not None:
            found.uses.add(used)
        elif (receipt := ReceiptName.parse(text)) is not None:
            found.worlds.setdefault(receipt.world, []).append(receipt.rank)
            known = found.by_rank.setdefault(receipt.rank, receipt)
            if known.text != receipt.text:
                found.by_rank[receipt.rank], other = sorted((known, receipt), key=lambda one: one.text)
                found.doubled.append(other)
    # A rank's receipt proves its objects: it was written when an upload that had failed was tried again, by hand.
    found.failed = [text for text in found.failed if failed_rank(text) not in found.by_rank]
    return found


def read_receipt(store: ObjectStore, keys: RunKeys, name: SetName, receipt: ReceiptName) -> Receipt:
    """The receipt of this name. DamagedDocumentError if its bytes or its content are not what the name says."""
    key = keys.ranks(name) + receipt.text
    data = read_small(store, key)
    content = Receipt.from_bytes(data, key, name)
    if content.name(data) != receipt.text:
        raise DamagedDocumentError("its content is not what its name says", operation="read", uri=key)
    return content


def commit(store: ObjectStore, keys: RunKeys, name: SetName, world: int | None = None) -> Committed:
    """Write the set's manifest, if all receipts are there. It may be called again, and by several at once.

    `world`: how many ranks the caller knows of; None: as many as the receipts say. Raises IncompleteSetError with the ranks that
    are missing, SetFailedError, SetAbandonedError, DamagedDocumentError.
    """
    key = keys.manifest(name)
    found = list_receipts(store, keys, name)
    if found.failed:
        raise SetFailedError(_why_failed(store, keys, name, found.failed), operation="commit", uri=key)
    worlds = found.worlds if world is None else {world: [], **found.worlds}
    if len(worlds) > 1:
        said = ", ".join(f"{each} (rank {some_ranks(ranks)})" for each, ranks in sorted(found.worlds.items()))
        expected = "" if world is None else f", and {world} were expected"
        raise IncompleteSetError(f"the ranks do not agree about how many they are: {said}{expected}", operation="commit", uri=key)
    n_ranks = max(worlds, default=1)
    if missing := found.missing_of(n_ranks):
        raise IncompleteSetError(_are_missing(missing, n_ranks), operation="commit", uri=key)
    newer = tuple(attempt_numbers(store, keys, after=name.number))
    try:
        for one in found.doubled:
            _require_same(store, keys, name, found.by_rank[one.rank], one)
        first = read_receipt(store, keys, name, found.by_rank[0])
        referring = each_at_once(
            partial(read_receipt, store, keys, name), [one for one in found.by_rank.values() if one.has_references]
        )
    except NotFoundError as error:
        raise SetAbandonedError(
            "a receipt that was there is gone: the set is being deleted", operation="commit", uri=key
        ) from error
    manifest = manifest_of(name, list(found.by_rank.values()), first, referring)
    there = _put_once(store, keys, manifest)
    if there is not None:
        _point_at(store, keys, there)
    return Committed(there or manifest, newer)


def _require_same(store: ObjectStore, keys: RunKeys, name: SetName, one: ReceiptName, other: ReceiptName) -> None:
    """DamagedDocumentError unless two receipts of a rank speak of the same bytes: then each of them is as true."""
    said = [
        {(each.name, each.size_bytes, each.crc32c) for each in read_receipt(store, keys, name, it).objects} for it in (one, other)
    ]
    if said[0] != said[1]:
        raise DamagedDocumentError(
            f"rank {one.rank} has written two receipts of different objects, {one.text} and {other.text}",
            operation="commit",
            uri=keys.ranks(name),
            hint="two jobs may have had this attempt: give each start of the job a new number, and save the step again",
        )


def _put_once(store: ObjectStore, keys: RunKeys, manifest: Manifest) -> Manifest | None:
    """Write the manifest, if nothing is there: what is there now. None: another committer did, and the set was pruned since."""
    key, data = keys.manifest(manifest.set), manifest.to_bytes()
    if len(data) > MOST_BYTES:
        raise PermanentError(
            f"its manifest would have {len(data)} bytes for {manifest.n_objects} objects, at most {MOST_BYTES} are allowed",
            operation="commit",
            uri=key,
            hint="save fewer, larger files, or without dedupe",
        )
    with suppress(AlreadyExistsError):  # another committer was first, or our answer was lost
        put_small(store, key, data, if_absent=True)
    there = manifest_or_tombstone(read_small(store, key), key, manifest.set)
    if isinstance(there, Tombstone) and there.manifest == data:
        return None
    if isinstance(there, Tombstone):
        raise SetAbandonedError(
            f"the set was {there.reason} before it was committed",
            operation="commit",
            uri=key,
            hint="a newer attempt of this run, or wherry prune, gave it up: its objects are being deleted",
        )
    if there.to_bytes() != data:
        _require_as_true(store, keys, manifest, there)
    return there


def _require_as_true(store: ObjectStore, keys: RunKeys, manifest: Manifest, there: Manifest) -> None:
    """IntegrityError unless the manifest that is there names other receipts of the same ranks, for the same bytes."""
    others = [(one, other) for one, other in zip(manifest.receipts, there.receipts, strict=False) if one != other]
    if not others or there.world != manifest.world:
        raise IntegrityError(
            "the manifest that is there says something else than the receipts",
            operation="commit",
            uri=keys.manifest(manifest.set),
        )
    for one, other in others:
        _require_same(store, keys, manifest.set, one, other)


def _point_at(store: ObjectStore, keys: RunKeys, manifest: Manifest) -> None:
    """Have ``latest.json`` hold the newest manifest. Two committers may cross here: readers list what is newer than it says.

    A store that refuses to replace it, or shows another committer's by now, does not undo the commit.
    """
    try:
        current = Manifest.from_bytes(read_small(store, keys.pointer), keys.pointer)
        if current.set >= manifest.set:
            return
    except PermanentError:  # there is none yet, or none that can be read: write one
        pass
    with suppress(PermanentError):
        put_small(store, keys.pointer, manifest.to_bytes(), if_absent=False)


def failure_of(store: ObjectStore, keys: RunKeys, name: SetName) -> str | None:
    """Why the set will not be complete, as a rank has written it down; None: none has. One request when none has."""
    if next(iter(store.list(f"{keys.ranks(name)}failed-")), None) is None:
        return None
    failed = list_receipts(store, keys, name).failed
    return _why_failed(store, keys, name, failed) if failed else None


def missing_ranks(store: ObjectStore, keys: RunKeys, name: SetName, world: int) -> str:
    """Which ranks have written no receipt, in words, for an error."""
    if missing := list_receipts(store, keys, name).missing_of(world):
        return _are_missing(missing, world)
    return "the receipts of all ranks are there, but no agent has committed the set"


def _are_missing(missing: Sequence[int], world: int) -> str:
    return f"{len(missing)} of {world} receipts are missing: rank {some_ranks(missing)}"


def _why_failed(store: ObjectStore, keys: RunKeys, name: SetName, failed: Sequence[str]) -> str:
    key = keys.ranks(name) + failed[0]
    try:
        why = Receipt.from_bytes(read_small(store, key), key, name).failed or "no reason is given"
    except (NotFoundError, DamagedDocumentError, NewerFormatError) as error:
        why = f"the reason cannot be read ({error})"
    ranks = [rank for text in failed if (rank := failed_rank(text)) is not None]
    return f"rank {some_ranks(ranks)} could not store its part: {why}"


def some_ranks(ranks: Sequence[int], most: int = _NAMED_RANKS) -> str:
    """The first of these ranks, and how many more there are."""
    shown = ", ".join(str(rank) for rank in ranks[:most])
    return shown if len(ranks) <= most else f"{shown} and {len(ranks) - most} more"
