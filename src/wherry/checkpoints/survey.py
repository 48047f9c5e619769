"""What is there of a run: every set with its state and the proof of it, complete or not; for people and scripts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from wherry.checkpoints.protocol.catalog import Catalog, Missing
from wherry.checkpoints.protocol.commit import Receipts
from wherry.checkpoints.protocol.documents import DamagedDocumentError, NewerFormatError
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import SetObject, Total, failed_rank
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.checkpoints.protocol.uncommitted import receipts_or_none, uncommitted
from wherry.checkpoints.protocol.uses import pinned
from wherry.checkpoints.protocol.verified import LastVerified, note_verified, read_verified, when_verified
from wherry.checksum import crc32c, format_crc32c
from wherry.errors import IntegrityError, NotFoundError, StoreError
from wherry.posix.thread_pool import each_at_once
from wherry.store import ObjectStore

log = logging.getLogger("wherry.checkpoints")

#: Runs that are named, and keys that are read past, in search of them.
_MOST_RUNS = 50
_MOST_KEYS = 20_000
_PARTS = ("manifests", "data", "attempts")


@dataclass(frozen=True)
class SetState:
    """One set as the store shows it.

    `state`: ``complete`` (proven by what `proof` says), ``damaged`` (committed, and objects are missing), ``incomplete`` (no
    manifest yet, receipts are missing), ``ready`` (all receipts are there; whoever resumes the run commits it), ``failed`` (a
    rank could not store its part), ``abandoned`` or ``pruned`` (its objects go, or are gone), ``unreadable``.

    `modified_s`: when its manifest was written; without one, its newest object. `n_ranks` is 0 where nothing says it.
    `size_bytes` is what a restore takes; `shared_bytes` of them lie in older sets. `verified`: what came of reading every byte of
    it, if somebody did.
    """

    name: SetName
    state: str
    proof: str
    modified_s: float | None = None
    n_ranks: int = 0
    n_objects: int = 0
    size_bytes: int = 0
    shared_bytes: int = 0
    missing_ranks: Sequence[int] = ()
    failed_ranks: Sequence[int] = ()
    missing_keys: Sequence[str] = ()
    verified: LastVerified | None = None
    is_pinned: bool = False
    is_latest: bool = False
    parent: SetName | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """The same in plain values, by names that stay. `verified`: ``when stored``, or, since, ``right`` or ``wrong``."""
        verified = "when stored" if self.state == "complete" else None
        return {
            "set": str(self.name),
            **{name: value for name, value in vars(self).items() if name != "name" and not name.startswith("is_")},
            "step": self.name.step,
            "attempt": self.name.attempt,
            "verified": verified if self.verified is None else "right" if self.verified.is_right else "wrong",
            "verified_s": None if self.verified is None else self.verified.at_s,
            "pinned": self.is_pinned,
            "latest": self.is_latest,
            "parent": None if self.parent is None else str(self.parent),
        }


def survey(store: ObjectStore, keys: RunKeys) -> list[SetState]:
    """All sets of a run, from the oldest to the newest.

    Two requests for each committed set of up to a thousand objects, one more if it was verified, about two for each other one.
    Nothing is written.
    """
    catalog = Catalog(store, keys)
    times = {}
    for meta in store.list(keys.manifests):
        if (name := keys.set_of_manifest(meta.key)) is not None:
            times[name] = meta.modified_s
    pins = pinned(store, keys)
    committed = each_at_once(lambda name: _committed(catalog, name, times[name], name in pins), sorted(times))
    begun = each_at_once(partial(_uncommitted, store, keys), uncommitted(store, keys, known=set(times)))
    found = sorted((one for one in (*committed, *begun) if one is not None), key=lambda one: one.name)
    latest = max((one.name for one in found if one.state == "complete"), default=None)
    whole = [one.name for one in found if one.state in ("complete", "damaged")]
    noted = [(name, at_s) for name, at_s in when_verified(store, keys).items() if name in whole]
    read = each_at_once(lambda each: read_verified(store, keys, *each), noted)
    verified = {name: one for (name, _), one in zip(noted, read, strict=True)}
    return [replace(one, is_latest=one.name == latest, verified=verified.get(one.name)) for one in found]


def _committed(catalog: Catalog, name: SetName, modified_s: float | None, is_pinned: bool) -> SetState | None:
    try:
        there = catalog.read(name)
    except NotFoundError:  # deleted since it was listed
        return None
    except (DamagedDocumentError, NewerFormatError) as error:
        return SetState(name, "unreadable", f"manifest: {error.message}", modified_s, is_pinned=is_pinned)
    if isinstance(there, Tombstone):
        return SetState(name, there.reason if there.reason in ("abandoned", "pruned") else "unreadable", "tombstone", modified_s)
    missing_keys: list[str] = []
    try:
        missing = catalog.missing(there)
        missing_keys = [one.key for one in missing]
        state, proof = ("damaged", _damage(missing, there.n_objects)) if missing else ("complete", "manifest and listing")
    except (DamagedDocumentError, NewerFormatError, NotFoundError) as error:
        state, proof = "damaged", f"receipts: {error.message}"
    return SetState(
        name,
        state,
        proof,
        modified_s,
        there.world,
        there.n_objects,
        there.size_bytes,
        there.shared_bytes,
        missing_keys=tuple(missing_keys),
        is_pinned=is_pinned,
        parent=there.parent,
        metrics=dict(there.metrics),
    )


def _damage(missing: Sequence[Missing], n_objects: int) -> str:
    n_other = sum(one.found_bytes is not None for one in missing)
    counted = ((len(missing) - n_other, "missing"), (n_other, "of another size"))
    return ", ".join(f"{n} of {n_objects} objects {what}" for n, what in counted if n)


def _uncommitted(store: ObjectStore, keys: RunKeys, name: SetName) -> SetState:
    own, newest_s = Total(), None
    for meta in store.list(keys.data(name)):
        if meta.modified_s is not None:
            newest_s = max(newest_s or 0.0, meta.modified_s)
        if not meta.key.startswith(keys.ranks(name)):
            own += Total(1, max(0, meta.size_bytes))
    receipts = receipts_or_none(store, keys, name)
    if receipts is None:
        return SetState(name, "unreadable", "receipts are damaged", newest_s, 0, own.n_objects, own.size_bytes)
    n_ranks = max(receipts.worlds, default=0)
    failed = [rank for text in receipts.failed if (rank := failed_rank(text)) is not None]
    state, proof = _progress(receipts, n_ranks)
    return SetState(
        *(name, state, proof, newest_s, n_ranks, own.n_objects, own.size_bytes),
        missing_ranks=tuple(receipts.missing),
        failed_ranks=tuple(sorted(failed)),
    )


def _progress(receipts: Receipts, n_ranks: int) -> tuple[str, str]:
    if receipts.failed:
        return "failed", f"{len(receipts.failed)} ranks have failed"
    if len(receipts.worlds) > 1:
        return "incomplete", f"ranks disagree about their number: {', '.join(map(str, sorted(receipts.worlds)))}"
    if receipts.are_complete:
        return "ready", f"{n_ranks} of {n_ranks} receipts, no manifest yet"
    return "incomplete", f"{len(receipts.by_rank)} of {n_ranks or '?'} receipts"


@dataclass(frozen=True)
class Damage:
    """An object whose bytes are not those of its receipt."""

    name: str
    key: str
    text: str


@dataclass(frozen=True)
class Verified:
    """A set of which every byte was compared with the receipts. No `damage`: all are right."""

    name: SetName
    size_bytes: int = 0
    n_objects: int = 0
    damage: Sequence[Damage] = ()

    def as_json(self) -> dict[str, object]:
        """The same in plain values, by names that stay."""
        wrong = [{"name": one.name, "text": one.text} for one in self.damage]
        counts = {"size_bytes": self.size_bytes, "n_objects": self.n_objects}
        return {"set": str(self.name), "right": not self.damage, **counts, "wrong": wrong}


def verify_set(catalog: Catalog, name: SetName) -> Verified | None:
    """Read every byte of a committed set, and compare it with the receipts; None if the set is deleted.

    A manifest or a receipt that cannot be read is damage, too: then nothing proves the bytes. What is found is written down
    beside the set, where this process may write.
    """
    verified = _verified(catalog, name)
    if verified is not None:
        try:
            note_verified(catalog.store, catalog.keys, name, is_right=not verified.damage)
        except (StoreError, OSError) as error:
            log.info("it is not written down that the set %s was verified: %s", name, error)
    return verified


def _verified(catalog: Catalog, name: SetName) -> Verified | None:
    try:
        there = catalog.read(name)
    except NotFoundError:
        return None
    except (DamagedDocumentError, NewerFormatError) as error:
        return Verified(name, damage=[Damage("manifest", error.uri, error.message)])
    if isinstance(there, Tombstone):
        return None
    try:
        damage = verify_bytes(catalog.store, catalog.keys, there)
    except (IntegrityError, NewerFormatError, NotFoundError) as error:
        damage = [Damage("_ranks", error.uri, error.message)]
    return Verified(name, there.size_bytes, there.n_objects, damage)


def verify_bytes(store: ObjectStore, keys: RunKeys, manifest: Manifest) -> list[Damage]:
    """Read every byte of a set, and compare it with the receipts: what is damaged, by name; none: every byte is right.

    DamagedDocumentError, NotFoundError if a receipt itself is damaged or missing.
    """
    found = each_at_once(partial(_verify, store), Catalog(store, keys).objects(manifest))
    return [one for one in found if one is not None]


def _verify(store: ObjectStore, keyed: tuple[str, SetObject]) -> Damage | None:
    key, expected = keyed
    size_bytes = crc = 0

    def take(block: bytes | memoryview, at: int) -> None:
        nonlocal size_bytes, crc
        if at == 0:  # a read that was made again begins anew
            size_bytes = crc = 0
        size_bytes, crc = size_bytes + len(block), crc32c(block, crc)

    try:
        store.read(key, take)
    except NotFoundError:
        return Damage(expected.name, key, "it is not there")
    if (size_bytes, crc) == (expected.size_bytes, expected.crc32c):
        return None
    saved = f"saved were {expected.size_bytes} with {format_crc32c(expected.crc32c)}"
    return Damage(expected.name, key, f"it has {size_bytes} bytes with CRC32C {format_crc32c(crc)}, {saved}")


def runs_below(store: ObjectStore, prefix: str) -> list[str]:
    """The names of runs with checkpoint sets, relative to `prefix`, which is empty or ends in a slash; the first 50 that are
    found.

    Bounded: it reads past 20,000 other keys at most.
    """
    return list(_runs_below(store, prefix))


def _runs_below(store: ObjectStore, prefix: str) -> Iterator[str]:
    start_after = ""
    n_keys = n_runs = 0
    while n_runs < _MOST_RUNS:
        for meta in store.list(prefix, start_after=start_after):
            n_keys += 1
            if n_keys > _MOST_KEYS:
                return
            run, mark, rest = meta.key[len(prefix) :].partition("/checkpoints/")
            if mark and rest.partition("/")[0] in _PARTS:
                n_runs += 1
                yield run
                start_after = f"{prefix}{run}/checkpoints0"  # behind all of the run's sets
                break
        else:
            return
