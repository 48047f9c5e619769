"""Receipts and manifests: what commits a set, what does not, whatever is lost, damaged or said twice."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from wherry.agent.set_jobs import RankFailedError, SetPlan, commit_set, write_receipt
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.plain_values import checked_metadata, checked_metrics
from wherry.checkpoints.protocol.attempts import claim_number
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import (
    IncompleteSetError,
    SetAbandonedError,
    SetFailedError,
    commit,
    failure_of,
    list_receipts,
    missing_ranks,
)
from wherry.checkpoints.protocol.documents import DamagedDocumentError, NewerFormatError, dump, put_small, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject, failed_name
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.checksum import crc32c
from wherry.config import RetryConfig
from wherry.errors import AccessDeniedError, ConfigError, IntegrityError, NotFoundError, StoreError, TransientError
from wherry.spool.journal.jobs import JobState
from wherry.spool.journal.work import Requirement
from wherry.store import Capabilities, ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import RetryStore, WrappedStore
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

KEYS = RunKeys("run1/checkpoints")
NAME = SetName("000000001", 10)
ONCE_MORE = RetryConfig(first_wait_s=0.0, longest_wait_s=0.0)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return MemoryStore(StoreURI("memory", str(tmp_path)), {})


def requirement(key: str, data: bytes, *, known: bool = True) -> Requirement:
    return Requirement(key, JobState.DONE, crc32c(data), len(data)) if known else Requirement(key, None, None, None)


def save(
    store: ObjectStore,
    rank: int,
    world: int,
    *,
    name: SetName = NAME,
    metrics: Mapping[str, float] | None = None,
    failed: bool = False,
    known: bool = True,
) -> None:
    """What one rank's agent does: an object, then the receipt."""
    key, data = f"{KEYS.data(name)}part-{rank}", f"{name} {rank}".encode()
    put_small(store, key, data, if_absent=False)
    plan = SetPlan(KEYS.base, name, world, receipt=Receipt(name, rank, world, "folder", metrics=metrics or {}))
    required = (
        [Requirement(key, JobState.FAILED, None, len(data), "no room")] if failed else [requirement(key, data, known=known)]
    )
    write_receipt(plan, required, store)


def test_a_receipt_is_written_twice_with_the_same_bytes(store: ObjectStore) -> None:
    save(store, 0, 1)
    before = [meta.key for meta in store.list(KEYS.base)]
    save(store, 0, 1, known=False)  # again, after a kill; the journal has forgotten the uploads by now
    assert [meta.key for meta in store.list(KEYS.base)] == before
    assert commit(store, KEYS, NAME).manifest.n_objects == 1


def test_a_rank_that_failed_and_is_tried_again_by_hand_completes_the_set(store: ObjectStore) -> None:
    save(store, 0, 2)
    with pytest.raises(RankFailedError, match="no room"):
        save(store, 1, 2, failed=True)
    with pytest.raises(SetFailedError, match=r"rank 1 could not store its part: .*no room"):
        commit(store, KEYS, NAME)
    assert "no room" in (failure_of(store, KEYS, NAME) or "")
    save(store, 1, 2)
    assert failure_of(store, KEYS, NAME) is None
    assert commit(store, KEYS, NAME).manifest.world == 2


def test_an_object_that_is_gone_fails_the_rank_and_tells_the_others(store: ObjectStore) -> None:
    plan = SetPlan(KEYS.base, NAME, 1, receipt=Receipt(NAME, 0, 1, "folder"))
    with pytest.raises(RankFailedError):
        write_receipt(plan, [requirement(f"{KEYS.data(NAME)}lost", b"", known=False)], store)
    with pytest.raises(SetFailedError):
        commit(store, KEYS, NAME)


def test_keys_that_have_expired_fail_no_rank(store: ObjectStore) -> None:
    refused = FaultyStore(store, [Fault("head", AccessDeniedError("expired"))])
    plan = SetPlan(KEYS.base, NAME, 1, receipt=Receipt(NAME, 0, 1, "folder"))
    with pytest.raises(AccessDeniedError):
        write_receipt(plan, [requirement(f"{KEYS.data(NAME)}a", b"", known=False)], refused)
    assert list(store.list(KEYS.base)) == []


def test_missing_ranks_are_named(store: ObjectStore) -> None:
    for rank in (0, 2, 3):
        save(store, rank, 5)
    with pytest.raises(IncompleteSetError, match="2 of 5 receipts are missing: rank 1, 4"):
        commit(store, KEYS, NAME, 5)
    assert missing_ranks(store, KEYS, NAME, 5) == "2 of 5 receipts are missing: rank 1, 4"


def test_ranks_that_disagree_about_the_world_never_commit(store: ObjectStore) -> None:
    save(store, 0, 1)
    save(store, 1, 2)
    for world in (None, 1, 2):
        with pytest.raises(IncompleteSetError, match="do not agree"):
            commit(store, KEYS, NAME, world)


def test_a_rank_that_has_said_the_same_in_two_receipts_is_one_rank(store: ObjectStore) -> None:
    save(store, 1, 2)
    for loss in (1.0, 2.0):  # as another version of wherry would, between which its agent was killed
        save(store, 0, 2, metrics={"loss": loss})
        save(store, 1, 2, metrics={"loss": loss})
    found = list_receipts(store, KEYS, NAME)
    assert (found.are_complete, len(found.doubled)) == (True, 3)
    manifest = commit(store, KEYS, NAME).manifest
    assert manifest.receipts == (found.by_rank[0], found.by_rank[1])
    assert Catalog(store, KEYS).missing(manifest) == []
    assert commit(store, KEYS, NAME).manifest == manifest


def test_a_committer_that_has_not_seen_one_of_two_receipts_agrees_with_one_that_has(store: ObjectStore) -> None:
    save(store, 0, 1, metrics={"loss": 1.0})
    first = commit(store, KEYS, NAME).manifest
    save(store, 0, 1, metrics={"loss": 2.0})
    for _ in range(2):  # its name may come before that of the first, or behind it
        assert commit(store, KEYS, NAME).manifest == first
        save(store, 0, 1, metrics={"loss": 3.0})


def test_two_receipts_of_different_bytes_commit_nothing(store: ObjectStore) -> None:
    save(store, 0, 1)
    put_small(store, f"{KEYS.data(NAME)}part-0", b"of another job", if_absent=False)
    plan = SetPlan(KEYS.base, NAME, 1, receipt=Receipt(NAME, 0, 1, "folder"))
    write_receipt(plan, [requirement(f"{KEYS.data(NAME)}part-0", b"of another job")], store)
    with pytest.raises(DamagedDocumentError, match="two receipts of different objects"):
        commit(store, KEYS, NAME)


@pytest.mark.parametrize("world", [1, 3])
def test_any_answer_of_a_commit_may_be_lost(tmp_path: Path, world: int) -> None:
    """Each request of it in turn fails before or after it was made: with a retry the set is committed, with equal bytes."""
    manifests = set()
    for operation, after in itertools.product(("list", "get", "put", "head"), (False, True)):
        for nth in itertools.count(1):
            store = MemoryStore(StoreURI("memory", f"{tmp_path} {operation} {nth} {after}"), {})
            for rank in range(world):
                save(store, rank, world)
            faulty = FaultyStore(store, [Fault(operation, TransientError("lost"), nth=nth, after=after)])
            commit(RetryStore(faulty, ONCE_MORE), KEYS, NAME)
            manifests.add(read_small(store, KEYS.manifest(NAME)))
            assert Catalog(store, KEYS).newest() is not None
            if faulty.calls[operation] < nth:
                break
    assert len(manifests) == 1


def test_a_commit_that_is_cut_off_is_done_by_the_next(store: ObjectStore) -> None:
    for rank in range(2):
        save(store, rank, 2)
    for nth in (1, 2):
        with pytest.raises(TransientError):
            commit(FaultyStore(store, [Fault("put", TransientError("killed"), nth=nth)]), KEYS, NAME)
    assert commit(store, KEYS, NAME).manifest == Catalog(store, KEYS).newest()


def test_a_pointer_that_cannot_be_written_does_not_undo_a_commit(store: ObjectStore) -> None:
    save(store, 0, 1)
    commit(FaultyStore(store, [Fault("put", AccessDeniedError("locked"), key="latest.json")]), KEYS, NAME)
    found = Catalog(store, KEYS).newest()
    assert found is not None and found.set == NAME


def test_a_set_that_was_abandoned_is_not_committed_any_more(store: ObjectStore) -> None:
    save(store, 0, 1)
    put_small(store, KEYS.manifest(NAME), Tombstone(NAME, "abandoned").to_bytes(), if_absent=True)
    with pytest.raises(SetAbandonedError, match="abandoned"):
        commit(store, KEYS, NAME)


def test_a_newer_attempt_is_told(store: ObjectStore) -> None:
    save(store, 0, 1)
    claim_number(store, KEYS, 2, None)
    assert commit(store, KEYS, NAME).newer_attempts == (2,)


# -- deputies


def test_a_deputy_looks_at_one_object_and_leaves_the_commit_to_others(store: ObjectStore) -> None:
    save(store, 0, 1)
    plan = SetPlan(KEYS.base, NAME, 1, delay_s=60.0)
    counted = FaultyStore(store)
    with pytest.raises(IncompleteSetError, match="the node before"):
        commit_set(plan, 59.0, counted)
    assert sum(counted.calls.values()) == 1
    commit(store, KEYS, NAME)
    assert commit_set(plan, 1.0, counted) is None
    assert sum(counted.calls.values()) == 2


def test_a_deputy_commits_when_rank_0_is_gone(store: ObjectStore) -> None:
    save(store, 0, 1)
    commit_set(SetPlan(KEYS.base, NAME, 1, delay_s=60.0), 60.0, store)
    assert Catalog(store, KEYS).newest() is not None


def test_a_deputy_reports_no_failure_of_another_rank(store: ObjectStore) -> None:
    with pytest.raises(RankFailedError):
        save(store, 0, 1, failed=True)
    assert commit_set(SetPlan(KEYS.base, NAME, 1, delay_s=60.0), 60.0, store) is None
    assert Catalog(store, KEYS).newest() is None


# -- what is read from a bucket that anybody may have written to


def committed(store: ObjectStore) -> str:
    """Two sets; the key of the newer one's only receipt."""
    save(store, 0, 1, name=SetName("000000001", 5))
    commit(store, KEYS, SetName("000000001", 5))
    save(store, 0, 1)
    commit(store, KEYS, NAME)
    (receipt,) = store.list(KEYS.ranks(NAME))
    return receipt.key


def without_pointer(store: ObjectStore) -> Catalog:
    store.delete(KEYS.pointer)
    return Catalog(store, KEYS)


def test_a_set_whose_receipts_or_objects_are_gone_is_passed_over(store: ObjectStore) -> None:
    receipt = committed(store)
    store.delete(receipt)
    catalog = Catalog(store, KEYS)
    (missing,) = catalog.missing(Manifest.from_bytes(read_small(store, KEYS.manifest(NAME)), "", NAME))
    assert missing.key.endswith(receipt)
    found = catalog.newest()
    assert found is not None and found.step == 5


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format":"wherry-checkpoint-receipt","version":2}', b"\xff" * 9])
def test_a_set_with_a_damaged_receipt_is_passed_over_when_it_is_needed(store: ObjectStore, damage: bytes) -> None:
    receipt = committed(store)
    put_small(store, receipt, damage, if_absent=False)
    store.delete(f"{KEYS.data(NAME)}part-0")  # the listing does not prove it, so the receipt is read
    found = Catalog(store, KEYS).newest()
    assert found is not None and found.step == 5


def manifest_with(**fields: object) -> bytes:
    name = Receipt(NAME, 0, 1, "folder").name(Receipt(NAME, 0, 1, "folder").to_bytes())
    said: dict[str, object] = {
        "set": str(NAME), "attempt": NAME.attempt, "step": NAME.step, "kind": "folder", "world": 1, "n_objects": 0,
        "size_bytes": 0, "parent": None, "metrics": {}, "metadata": {}, "receipts": [name], "references": [],
    }  # fmt: skip
    return json.dumps({"format": "wherry-checkpoint", "version": 1, **said, **fields}).encode()


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


BAD_MANIFESTS: Mapping[str, Callable[[], bytes]] = {
    "a metric that is no number": lambda: manifest_with(metrics={"loss": "1"}),
    "a metric that is true": lambda: manifest_with(metrics={"loss": True}),
    "a metric that is NaN": lambda: manifest_with(metrics={"loss": float("nan")}),
    "a metric that is infinite": lambda: manifest_with().replace(b'"metrics": {}', b'"metrics": {"loss": 1e999}'),
    "a metric that no float holds": lambda: manifest_with(metrics={"loss": 10**400}),
    "metadata that is infinite": lambda: manifest_with().replace(b'"metadata": {}', b'"metadata": {"a": [1e999]}'),
    "metadata that is deep": lambda: manifest_with(metadata={"a": nested(200)}),
    "JSON that is deep": lambda: b"[" * 200_000,
    "half a character": lambda: manifest_with(metadata={"a": "\ud800"}),
    "another set": lambda: manifest_with(set="000000001_000000000011"),
    "a set that is none": lambda: manifest_with(set="../x"),
    "no receipts": lambda: manifest_with(receipts=[]),
    "a receipt elsewhere": lambda: manifest_with(receipts=["../../x.json"]),
    "receipts of another type": lambda: manifest_with(receipts={"a": 1}),
    "a parent that is none": lambda: manifest_with(parent="../x"),
    "a reference elsewhere": lambda: manifest_with(
        references=[{"set": "../x", "names_sum": "0", "n_objects": 1, "size_bytes": 1}]
    ),
    "a version that is no number": lambda: manifest_with(version="1"),
    "more than any document has": lambda: manifest_with(metadata={"a": "x" * 64 * 2**20}),
}


@pytest.mark.parametrize("what", BAD_MANIFESTS)
def test_a_manifest_that_cannot_be_right_is_passed_over(store: ObjectStore, what: str) -> None:
    committed(store)
    put_small(store, KEYS.manifest(NAME), BAD_MANIFESTS[what](), if_absent=False)
    with pytest.raises(DamagedDocumentError):
        Catalog(store, KEYS).read(NAME)
    found = without_pointer(store).newest()
    assert found is not None and found.step == 5


def test_a_good_manifest_is_read(store: ObjectStore) -> None:
    put_small(store, KEYS.manifest(NAME), manifest_with(metadata={"a": nested(40)}), if_absent=False)
    assert isinstance(Catalog(store, KEYS).read(NAME), Manifest)


def test_a_newer_manifest_is_named_as_such(store: ObjectStore) -> None:
    put_small(store, KEYS.manifest(NAME), manifest_with(version=2), if_absent=False)
    with pytest.raises(NewerFormatError, match="version 2"):
        Catalog(store, KEYS).read(NAME)


def test_a_failure_without_a_readable_reason_is_a_failure(store: ObjectStore) -> None:
    save(store, 0, 2)
    put_small(store, KEYS.ranks(NAME) + failed_name(1, 2), b"{", if_absent=False)
    with pytest.raises(SetFailedError, match=r"rank 1.*cannot be read"):
        commit(store, KEYS, NAME)


def test_two_ranks_that_name_one_object_are_refused(store: ObjectStore) -> None:
    for rank in (0, 1):
        receipt = Receipt(NAME, rank, 2, "folder", (SetObject("same", 1, 0),))
        data = receipt.to_bytes()
        put_small(store, KEYS.ranks(NAME) + receipt.name(data), data, if_absent=False)
    manifest = commit(store, KEYS, NAME).manifest
    with pytest.raises(DamagedDocumentError, match="two ranks name"):
        Catalog(store, KEYS).objects(manifest)
    assert Catalog(store, KEYS).newest() is None


# -- what save() refuses


@pytest.mark.parametrize(
    "metadata",
    [{"a": object()}, {"a": float("nan")}, {"a": nested(60)}, {"a": nested(100_000)}, {"a": "\ud800"}, {"a": "x" * 2**20}],
)
def test_metadata_that_a_receipt_cannot_hold_is_refused(metadata: Mapping[str, object]) -> None:
    with pytest.raises(ConfigError, match="metadata"):
        checked_metadata(metadata)


def test_metadata_is_what_json_gives_back() -> None:
    assert checked_metadata({1: (2, 3), "a": {"b": None}}) == {"1": [2, 3], "a": {"b": None}}  # type: ignore[dict-item]
    assert json.loads(dump("a", 1, {"metadata": checked_metadata({1: 2, "1x": 3})}))  # type: ignore[dict-item]


@pytest.mark.parametrize("value", ["x", None, float("inf"), float("nan"), 10**400])
def test_metrics_are_finite_numbers(value: float) -> None:
    with pytest.raises(ConfigError, match="metric"):
        checked_metrics({"loss": value})


class OtherBytesStore(WrappedStore):
    """Keeps other bytes than it was sent, of which it tells the MD5, and compares no checksum."""

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return replace(self.inner.capabilities, checks_crc32c=False)

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        path.write_bytes(path.read_bytes().replace(b"right", b"wrong"))
        md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        return replace(super().put_file(key, path, replace(put, crc32c=None)), digest=f"md5:{md5}")


def test_a_store_that_has_got_other_bytes_is_found_out(store: ObjectStore) -> None:
    with pytest.raises(IntegrityError, match="other bytes"):
        put_small(OtherBytesStore(store), "key", b"right", if_absent=False)


def test_store_errors_are_not_swallowed(store: ObjectStore) -> None:
    with pytest.raises(StoreError):
        commit(FaultyStore(store, [Fault("list", AccessDeniedError("no"))]), KEYS, NAME)


def test_a_set_that_was_committed_and_pruned_is_no_failure_of_a_late_committer(store: ObjectStore) -> None:
    save(store, 0, 1)
    manifest = commit(store, KEYS, NAME).manifest
    put_small(store, KEYS.manifest(NAME), Tombstone(NAME, "pruned", manifest.to_bytes()).to_bytes(), if_absent=False)
    store.delete(KEYS.pointer)
    assert commit(store, KEYS, NAME).manifest == manifest
    assert Catalog(store, KEYS).newest() is None


def test_a_commit_meets_the_deletion_of_its_set(store: ObjectStore) -> None:
    save(store, 0, 1)
    with pytest.raises(SetAbandonedError, match="being deleted"):
        commit(FaultyStore(store, [Fault("get", NotFoundError("gone"), key="_ranks")]), KEYS, NAME)


def test_a_set_that_is_replaced_while_it_is_looked_at_is_not_the_last_word(store: ObjectStore) -> None:
    """After the listing a newer set is committed, and this one deleted, before its objects are listed."""
    save(store, 0, 1, name=SetName("000000001", 5))
    commit(store, KEYS, SetName("000000001", 5))
    save(store, 0, 1)

    def replace_it() -> None:
        commit(store, KEYS, NAME)
        store.delete_many([meta.key for meta in store.list(KEYS.data(SetName("000000001", 5)))])

    found = Catalog(FaultyStore(store, [Fault("list", act=replace_it, key=KEYS.all_data)]), KEYS).newest()
    assert found is not None and found.set == NAME


def test_the_newest_set_is_found_in_three_requests_behind_a_thousand(store: ObjectStore) -> None:
    for step in range(1000):
        name = SetName("000000001", step)
        key, data = f"{KEYS.data(name)}a", b"a"
        put_small(store, key, data, if_absent=False)
        receipt = Receipt(name, 0, 1, "folder", (SetObject("a", 1, crc32c(data)),)).to_bytes()
        put_small(store, KEYS.ranks(name) + Receipt.from_bytes(receipt, "", name).name(receipt), receipt, if_absent=False)
        commit(store, KEYS, name)
    counted = FaultyStore(store)
    found = Catalog(counted, KEYS).newest()
    assert found is not None and found.step == 999
    assert counted.calls["get"] == 1
    n_entries = 2 + 2 + 1  # the pointer's own page is empty; of the set its object and its receipt, and each listing's end
    assert counted.calls["list"] <= n_entries
    assert set(counted.calls) == {"get", "list"}
