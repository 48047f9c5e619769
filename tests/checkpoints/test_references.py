"""References to objects of earlier sets: which may be made, what is refused, and what they cost."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping

import pytest

from checkpoint_sets import DAY_S, CallCounter, TimedStore, check_whole, save_set, steps_of
from checkpoint_sets.sharing import commit_shared, save_shared
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.candidates import MOST_SETS
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import commit, list_receipts, read_receipt
from wherry.checkpoints.protocol.deletion import PruneDelays
from wherry.checkpoints.protocol.documents import DamagedDocumentError, put_small, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.checkpoints.protocol.uncommitted import sets_with_data
from wherry.checkpoints.protocol.uses import pin
from wherry.checkpoints.prune import Pruner, PruneReport
from wherry.checkpoints.survey import survey, verify_bytes
from wherry.checksum import crc32c
from wherry.store import ObjectStore
from wherry.uri import StoreURI

KEYS = RunKeys("run1/checkpoints")
BASE = b"frozen layers" * 100
NO_GRACE = PruneDelays(grace_s=0.0)


@pytest.fixture
def store() -> Iterator[TimedStore]:
    with MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}) as inner:
        yield TimedStore(inner)


def files(step: int, base: bytes = BASE) -> Mapping[str, bytes]:
    return {"base.bin": base, "adapter.bin": f"adapter {step}".encode()}


def name(step: int, attempt: str = "000000001") -> SetName:
    return SetName(attempt, step)


def sources(manifest: Manifest) -> list[int]:
    return steps_of([one.set for one in manifest.references])


def with_data(store: ObjectStore) -> list[int]:
    return steps_of(list(sets_with_data(store, KEYS)))


def prune(store: ObjectStore, last: int = 1) -> PruneReport:
    return Pruner(store, KEYS, keep=Keep(last=last), delays=NO_GRACE).prune()


def test_a_reference_names_the_set_that_has_the_bytes_and_none_between(store: TimedStore) -> None:
    for step in (10, 20, 30):
        manifest = commit_shared(store, KEYS, step, files(step))
        assert ([] if step == 10 else [10]) == sources(manifest)
        assert (2, sum(map(len, files(step).values()))) == (manifest.n_objects, manifest.size_bytes)
        assert (0 if step == 10 else len(BASE)) == manifest.shared_bytes
        check_whole(store, KEYS, manifest)
    assert 1 == sum(meta.key.endswith("base.bin") for meta in store.list(KEYS.all_data))
    found = Catalog(store, KEYS).newest()
    assert found is not None and found.step == 30


def with_equal_crc32c(data: bytes) -> bytes:
    """Other bytes of the same size and CRC32C: the polynomial itself is added, bit by bit as a CRC takes them."""
    changed = bytearray(data)
    for at in range(33):
        changed[at // 8] ^= (0x11EDC6F41 >> (32 - at) & 1) << at % 8
    return bytes(changed)


def test_equal_size_and_crc32c_are_not_enough(store: TimedStore) -> None:
    other = with_equal_crc32c(BASE)
    assert (crc32c(BASE), len(BASE)) == (crc32c(other), len(other)) and other != BASE
    commit_shared(store, KEYS, 10, files(10))
    second = commit_shared(store, KEYS, 20, files(20, other))
    assert [] == sources(second)
    check_whole(store, KEYS, second)


def test_what_was_saved_without_a_sha256_is_sent_again_once(store: TimedStore) -> None:
    save_set(store, KEYS, 10)
    assert [] == sources(commit_shared(store, KEYS, 20, {"rank0.bin": f"{name(10)} 0".encode()}))
    assert [20] == sources(commit_shared(store, KEYS, 30, {"rank0.bin": f"{name(10)} 0".encode()}))


def test_another_name_is_another_object(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, {"a.bin": BASE})
    assert [] == sources(commit_shared(store, KEYS, 20, {"b.bin": BASE}))


def test_a_set_of_references_alone_is_whole(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, files(0))
    second = commit_shared(store, KEYS, 20, files(0))
    assert (2, 0) == (second.n_objects, second.own.n_objects)
    check_whole(store, KEYS, second)
    assert [] == Catalog(store, KEYS).missing(second)
    assert [] == verify_bytes(store, KEYS, second)


def test_an_object_that_was_lost_or_changed_in_the_store_is_sent_again(store: TimedStore) -> None:
    key = KEYS.data(name(10)) + "base.bin"
    commit_shared(store, KEYS, 10, files(10))
    put_small(store, key, b"x" * len(BASE), if_absent=False)
    second = commit_shared(store, KEYS, 20, files(20))
    assert [] == sources(second)
    third = commit_shared(store, KEYS, 30, files(30))
    assert [20] == sources(third)
    store.delete(KEYS.data(name(20)) + "base.bin")
    fourth = commit_shared(store, KEYS, 40, files(40))
    assert [] == sources(fourth)
    assert [KEYS.data(name(20)) + "base.bin"] == [one.key for one in Catalog(store, KEYS).missing(third)]
    found = Catalog(store, KEYS).newest()
    assert found is not None and found.step == 40
    check_whole(store, KEYS, found)


def test_the_owner_may_be_pruned_while_a_newer_set_uses_it(store: TimedStore) -> None:
    for step in (10, 20, 30, 40, 50):
        manifest = commit_shared(store, KEYS, step, files(step))
        prune(store, last=2)
        check_whole(store, KEYS, manifest)
    assert [10] == sources(manifest), "the bytes were sent once"
    assert isinstance(Catalog(store, KEYS).read(name(10)), Tombstone)
    assert [10, 40, 50] == with_data(store)
    commit_shared(store, KEYS, 60, files(60, b"thawed" * 200))
    commit_shared(store, KEYS, 70, files(70, b"thawed" * 200))
    prune(store, last=2)
    assert [60, 70] == with_data(store), "nobody uses it any more"


def test_a_resumed_attempt_refers_to_the_set_before_it(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, files(10))
    resumed = save_shared(store, KEYS, 5, files(5), attempt="000000002")
    assert [10] == sources(commit(store, KEYS, resumed.name).manifest)


def test_a_newer_attempt_of_another_job_is_not_referred_to(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, files(10, b"old" * 500))
    newer = save_shared(store, KEYS, 5, files(5), attempt="000000002")
    commit(store, KEYS, newer.name)
    assert [] == sources(commit_shared(store, KEYS, 20, files(20)))
    assert [20] == sources(commit_shared(store, KEYS, 30, files(30))), "its own newest set, found by a listing"


@pytest.mark.parametrize("pointer", [None, b"", b"{}", b'{"format":"wherry-checkpoint","version":9}'])
def test_without_a_pointer_the_newest_set_is_found_by_a_listing(store: TimedStore, pointer: bytes | None) -> None:
    commit_shared(store, KEYS, 10, files(10))
    store.delete(KEYS.pointer)
    if pointer is not None:
        put_small(store, KEYS.pointer, pointer, if_absent=False)
    assert [10] == sources(commit_shared(store, KEYS, 20, files(20)))


@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2), (2, 1), (1, 4)])
def test_another_number_of_ranks_finds_the_files_of_any_rank(store: TimedStore, before: int, now: int) -> None:
    def save(step: int, world: int) -> Manifest:
        for rank in range(world):
            mine = {f"shard{at}.bin": f"shard {at}".encode() * 50 for at in range(12) if at % world == rank}
            save_shared(store, KEYS, step, mine, rank=rank, world=world)
        return commit(store, KEYS, name(step)).manifest

    save(10, before)
    second = save(20, now)
    assert (12, 0) == (second.n_objects, second.own.n_objects)
    check_whole(store, KEYS, second)


def test_one_receipt_refers_to_a_few_sets_at_most(store: TimedStore) -> None:
    data = {f"{at:02}.bin": bytes([at]) * (100 + at) for at in range(MOST_SETS + 5)}
    for step in range(MOST_SETS + 5):  # at each step one more file stays as it is
        manifest = commit_shared(
            store, KEYS, step, {key: one + (b"" if at <= step else bytes([step])) for at, (key, one) in enumerate(data.items())}
        )
        assert len(manifest.references) <= MOST_SETS
        check_whole(store, KEYS, manifest)


def hostile_object(**fields: object) -> Mapping[str, object]:
    said: dict[str, object] = {"name": "base.bin", "size_bytes": len(BASE), "crc32c": f"{crc32c(BASE):08x}"}
    return {**said, "sha256": hashlib.sha256(BASE).hexdigest(), **fields}


@pytest.mark.parametrize(
    "entry",
    [
        hostile_object(set="../x"),
        hostile_object(set="../../run2/checkpoints/data/000000001_000000000010"),
        hostile_object(set=str(name(10))),  # itself
        hostile_object(set=str(name(99))),
        hostile_object(set=str(SetName("000000007", 1))),
        hostile_object(set=7),
        hostile_object(name="../base.bin"),
        hostile_object(sha256="../../x"),
        hostile_object(sha256=["0" * 64]),
        hostile_object(size_bytes=-1),
        hostile_object(size_bytes=True),
    ],
)
def test_a_hostile_receipt_is_refused_and_leads_nowhere(store: TimedStore, entry: Mapping[str, object]) -> None:
    receipt = json.loads(Receipt(name(10), 0, 1, "folder", (SetObject("base.bin", len(BASE), crc32c(BASE)),)).to_bytes())
    data = json.dumps({**receipt, "objects": [entry]}).encode()
    text = f"00000-of-00001-{crc32c(data):08x}-0-0-0000000000000000-refs.json"
    put_small(store, KEYS.ranks(name(10)) + text, data, if_absent=False)
    with pytest.raises(DamagedDocumentError):
        commit(store, KEYS, name(10))
    forged = Manifest(name(10), "folder", (list_receipts(store, KEYS, name(10)).by_rank[0],))
    for key in (KEYS.manifest(name(10)), KEYS.pointer):
        put_small(store, key, forged.to_bytes(), if_absent=False)
    second = commit_shared(store, KEYS, 20, files(20))
    assert [] == sources(second)
    check_whole(store, KEYS, second)


def test_a_receipt_that_refers_to_what_is_not_there_is_no_complete_set(store: TimedStore) -> None:
    save_set(store, KEYS, 5)
    commit_shared(store, KEYS, 10, files(10))
    manifest = commit_shared(store, KEYS, 20, files(20))
    store.delete(KEYS.data(name(10)) + "base.bin")
    assert [KEYS.data(name(10)) + "base.bin"] == [one.key for one in Catalog(store, KEYS).missing(manifest)]
    found = Catalog(store, KEYS).newest()
    assert found is not None and found.step == 5


def test_the_newest_set_is_proven_with_one_more_listing_for_each_set_that_it_refers_to(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, files(10))
    for rank in range(4):
        save_shared(store, KEYS, 20, {f"{rank}/{at}.bin": f"{rank} {at}".encode() for at in range(5)}, rank=rank, world=4)
    commit(store, KEYS, name(20))
    for rank in range(4):
        mine = {f"{rank}/{at}.bin": f"{rank} {at}".encode() for at in range(5)}
        save_shared(store, KEYS, 30, {**mine, f"{rank}/new": b"n"}, rank=rank, world=4)
    commit(store, KEYS, name(30))
    counter = CallCounter(store)
    found = Catalog(counter, KEYS).newest()
    assert found is not None and (30, [20]) == (found.step, sources(found))
    assert {"get": 1, "list": 3} == counter.calls


def test_a_save_with_references_takes_few_requests(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, files(10))
    counter = CallCounter(store)
    save_shared(counter, KEYS, 20, files(20))
    # The pointer, the receipt, the manifest again; the announcement, the adapter, the receipt; the base.
    assert {"get": 3, "put": 3, "head": 1} == counter.calls
    commit(store, KEYS, name(20))
    counter.calls.clear()
    save_shared(counter, KEYS, 30, files(30, b"all is new"))
    assert {"get": 2, "put": 3} == counter.calls, "nothing is announced where nothing is equal"


def test_what_a_set_being_saved_uses_stays_until_it_is_given_up(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, files(10))
    commit_shared(store, KEYS, 20, files(20))
    saving = save_shared(store, KEYS, 30, files(30), world=2)  # the other rank is late
    assert {name(20)} == list_receipts(store, KEYS, name(30)).uses
    save_set(store, KEYS, 40)
    report = Pruner(store, KEYS, keep=Keep(last=1), delays=NO_GRACE).prune()
    assert [10, 20] == steps_of(list(report.waiting))
    assert "being saved" in report.waiting[name(20)]
    save_shared(store, KEYS, 30, {"rank1.bin": b"1"}, rank=1, world=2)
    assert saving.decided["base.bin"] == name(10)
    check_whole(store, KEYS, commit(store, KEYS, name(30)).manifest)
    save_shared(store, KEYS, 50, files(50), world=2)
    store.now_s += 3 * DAY_S
    save_set(store, KEYS, 60)
    prune(store)
    assert [60] == with_data(store)


def test_a_set_that_is_put_back_keeps_what_it_refers_to(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, files(10))
    second = commit_shared(store, KEYS, 20, files(20))
    save_set(store, KEYS, 30)
    patient = Pruner(store, KEYS, keep=Keep(last=1))
    patient.prune()
    assert isinstance(Catalog(store, KEYS).read(name(20)), Tombstone)
    put_small(store, KEYS.pin(name(20)), b"{}", if_absent=False)  # it came between two looks of a pruner that is gone
    assert [20] == steps_of(prune(store).put_back)
    check_whole(store, KEYS, second)
    assert [10, 20, 30] == with_data(store)


def test_a_pin_keeps_the_sets_that_it_refers_to(store: TimedStore) -> None:
    for step in (10, 20, 30):
        commit_shared(store, KEYS, step, files(step, BASE if step < 30 else b"new"))
        if step == 20:
            pin(store, KEYS, name(20))
    prune(store)
    assert [10, 20, 30] == with_data(store)
    for manifest in Catalog(store, KEYS).manifests():
        check_whole(store, KEYS, manifest)


def test_a_prune_of_sets_that_are_used_takes_few_requests(store: TimedStore) -> None:
    pruner = Pruner(counter := CallCounter(store), KEYS, keep=Keep(last=2), delays=NO_GRACE)
    for step in range(0, 100, 10):
        commit_shared(store, KEYS, step, files(step))
        pruner.prune()
    counter.calls.clear()
    assert [0] == steps_of(list(pruner.prune().waiting))
    assert counter.calls.total() <= 20


def test_the_survey_says_what_is_shared(store: TimedStore) -> None:
    for step in (10, 20):
        commit_shared(store, KEYS, step, files(step))
    first, second = survey(store, KEYS)
    assert (0, len(BASE)) == (first.shared_bytes, second.shared_bytes)
    assert len(BASE) == second.as_json()["shared_bytes"]
    assert second.size_bytes == len(BASE) + len(b"adapter 20")


def test_a_receipt_with_references_is_read_as_it_was_written(store: TimedStore) -> None:
    commit_shared(store, KEYS, 10, files(10))
    commit_shared(store, KEYS, 20, files(20))
    receipt = read_receipt(store, KEYS, name(20), list_receipts(store, KEYS, name(20)).by_rank[0])
    assert [("adapter.bin", None), ("base.bin", name(10))] == [(one.name, one.set) for one in receipt.objects]
    assert all(one.sha256 for one in receipt.objects)
    manifest = Catalog(store, KEYS).read(name(20))
    assert isinstance(manifest, Manifest)
    assert manifest.to_bytes() == read_small(store, KEYS.manifest(name(20)))
