"""Pruning: what is kept, what goes, in two steps; killed at every request, a whole set is left."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint_sets import DAY_S, LaxStore, TimedStore, check_whole, save_set, steps_of, write_part
from servers.real import S3Server
from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.backends.s3.store import S3Store
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.attempts import attempt_numbers, claim, take_place
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import SetAbandonedError, commit
from wherry.checkpoints.protocol.deletion import InUseError, PruneDelays
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import SetObject
from wherry.checkpoints.protocol.set_manifest import Manifest, Tombstone
from wherry.checkpoints.protocol.uncommitted import roll_forward, sets_with_data, uncommitted
from wherry.checkpoints.protocol.uses import announce_reader, pin, unpin
from wherry.checkpoints.prune import Pruner
from wherry.checksum import crc32c
from wherry.errors import ConfigError, NotFoundError
from wherry.store import ObjectStore
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

KEYS = RunKeys("run1/checkpoints")
NOW = PruneDelays(abandon_after_s=0.0, grace_s=0.0, reader_s=3600.0, forget_after_s=0.0)
LAST = Keep(last=1)
STORES = ["memory", "local", "S3", "lax"]
on_a_lax_server_too = pytest.mark.parametrize("store", [*STORES, "lax S3"], indirect=True)


class KilledError(Exception):
    """The process ends at this request."""


def memory() -> TimedStore:
    return TimedStore(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimedStore]:
    if request.param == "local":
        (tmp_path / "bucket").mkdir()
        inner: ObjectStore = LocalStore(StoreURI("file", "", str(tmp_path / "bucket").strip("/")), {})
    elif request.param == "S3":
        server: S3Server = request.getfixturevalue("seaweedfs_server")
        inner = S3Store(StoreURI("s3", server.bucket), server.options)
    elif request.param == "lax S3":
        server = request.getfixturevalue("juicefs_server")
        inner = S3Store(StoreURI("s3", server.bucket), server.options)
    else:
        inner = MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})
    with inner:
        yield TimedStore(LaxStore(inner) if request.param == "lax" else inner)


@pytest.fixture
def keys(store: TimedStore, tmp_path: Path) -> RunKeys:
    """A run of its own; on a local folder below the folder."""
    inner = store.inner
    prefix = str(tmp_path / "bucket").strip("/") + "/" if isinstance(inner, LocalStore) else ""
    return RunKeys(f"{prefix}{uuid.uuid4().hex}/checkpoints")


def there(store: ObjectStore, keys: RunKeys) -> list[int]:
    return steps_of([one.set for one in Catalog(store, keys).manifests()])


def with_data(store: ObjectStore, keys: RunKeys) -> list[int]:
    return steps_of(list(sets_with_data(store, keys)))


@on_a_lax_server_too
def test_a_set_is_deleted_in_two_steps(store: TimedStore, keys: RunKeys) -> None:
    for step in (10, 20, 30):
        save_set(store, keys, step, world=2)
    pruner = Pruner(store, keys, keep=Keep(last=2))
    report = pruner.prune()
    assert ([10], [20, 30]) == (steps_of(report.pruned), steps_of(list(report.kept)))
    assert ([20, 30], [10, 20, 30]) == (there(store, keys), with_data(store, keys))
    store.now_s += 5 * 3600
    assert [10] == steps_of(list(pruner.prune().waiting))
    store.now_s += 2 * 3600
    report = pruner.prune()
    assert ([10], [20, 30]) == (steps_of(report.removed), with_data(store, keys))
    assert report.freed_bytes > 0
    assert isinstance(Catalog(store, keys).read(SetName("000000001", 10)), Tombstone), "it stays, for committers that are late"
    store.now_s += 15 * DAY_S
    pruner.prune()
    assert [20, 30] == steps_of(Catalog(store, keys).names())


def test_the_rules_are_combined_by_union(store: TimedStore, keys: RunKeys) -> None:
    for step, loss in ((5, 0.1), (10, 0.9), (15, 0.5), (20, 0.2), (25, 0.6)):
        save_set(store, keys, step, metrics={"loss": loss})
        store.now_s += 100
    pin(store, keys, SetName("000000001", 15))
    keep = Keep(last=1, every_steps=10, best=1, metric="loss", younger_than_s=50.0)
    report = Pruner(store, keys, keep=keep).prune(dry_run=False)
    assert {5: "of the best 1 by loss", 10: "every 10 steps", 15: "pinned", 20: "every 10 steps", 25: "of the last 1"} == {
        name.step: why[0] for name, why in report.kept.items()
    }
    unpin(store, keys, SetName("000000001", 15))
    assert [15] == steps_of(Pruner(store, keys, keep=keep).prune().pruned)
    keep = Keep(best=2, metric="loss", mode="max", younger_than_s=150.0)
    assert [10, 25] == steps_of(list(Pruner(store, keys, keep=keep).prune().kept))


def test_a_dry_run_says_the_same_and_writes_nothing() -> None:
    store = FaultyStore(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))
    for step in (10, 20, 30):
        save_set(store, KEYS, step)
    write_part(store, KEYS, SetName("000000001", 40))
    store.calls.clear()
    dry = Pruner(store, KEYS, keep=LAST, delays=NOW).prune(dry_run=True)
    assert (0, 0, 0) == (store.calls["put"], store.calls["delete"], store.calls["delete_many"])
    assert ([10, 20], [40]) == (steps_of(dry.pruned), steps_of(dry.committed))
    wet = Pruner(store, KEYS, keep=Keep(last=2), delays=NOW).prune()
    assert ([10, 20], [30, 40]) == (steps_of(wet.removed), steps_of(list(wet.kept)))


def test_the_only_whole_set_stays(store: TimedStore, keys: RunKeys) -> None:
    """The newest has lost an object: the one before it is the only good copy."""
    for step in (10, 20):
        save_set(store, keys, step)
    newest = save_set(store, keys, 30)
    store.delete(keys.data(newest.set) + "rank0.bin")
    report = Pruner(store, keys, keep=LAST, delays=NOW).prune()
    assert ([20, 30], [10]) == (steps_of(list(report.kept)), steps_of(report.removed))
    found = Catalog(store, keys).newest()
    assert found is not None and found.step == 20
    check_whole(store, keys, found)


def test_nothing_is_deleted_where_no_set_is_whole(store: TimedStore, keys: RunKeys) -> None:
    write_part(store, keys, SetName("000000001", 10), world=2)
    manifest = save_set(store, keys, 20)
    store.delete(keys.data(manifest.set) + "rank0.bin")
    report = Pruner(store, keys, keep=LAST, delays=NOW).prune()
    assert report.stopped is not None
    assert [10, 20] == with_data(store, keys)


def test_whoever_prunes_commits_what_a_dead_node_has_left(store: TimedStore, keys: RunKeys) -> None:
    save_set(store, keys, 10)
    for rank in range(3):
        write_part(store, keys, SetName("000000001", 20), rank=rank, world=3)
    write_part(store, keys, SetName("000000001", 30), rank=1, world=2)
    report = Pruner(store, keys, keep=Keep(last=5)).prune()
    assert ([20], [30], [10, 20]) == (steps_of(report.committed), steps_of(report.incomplete), there(store, keys))


def test_rolling_forward_takes_one_request_where_nothing_is_newer() -> None:
    store = FaultyStore(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))
    newest = save_set(store, KEYS, 10)
    store.calls.clear()
    assert [] == roll_forward(store, KEYS, newest.set)
    assert {"list": 1} == dict(store.calls)
    write_part(store, KEYS, SetName("000000001", 20))
    assert [20] == [one.step for one in roll_forward(store, KEYS, newest.set)]


def test_sets_of_many_objects_are_jumped_over() -> None:
    store = FaultyStore(MemoryStore(StoreURI("memory", uuid.uuid4().hex), {}))
    for step in (1, 2):
        write_part(store, KEYS, SetName("000000001", step), files={f"part{i:05d}": b"x" for i in range(2500)})
    write_part(store, KEYS, SetName("000000001", 3))
    store.calls.clear()
    assert [1, 2, 3] == [name.step for name in sets_with_data(store, KEYS)]
    assert store.calls["list"] < 2200, "steps of the listings: about a thousand of each large set"


@on_a_lax_server_too
def test_a_set_that_no_rank_completes_is_abandoned_after_two_days(store: TimedStore, keys: RunKeys) -> None:
    late = SetName("000000001", 10)
    write_part(store, keys, late, rank=0, world=2)
    save_set(store, keys, 50)
    pruner = Pruner(store, keys)
    store.now_s += 1.5 * DAY_S
    put_late = SetName("000000001", 8)
    write_part(store, keys, put_late, rank=0, world=2)
    assert [8, 10] == steps_of(pruner.prune().incomplete)
    store.now_s += 1 * DAY_S
    report = pruner.prune()
    assert ([10], [8]) == (steps_of(report.abandoned), steps_of(report.incomplete))
    write_part(store, keys, late, rank=1, world=2)  # the other rank's agent comes back
    with pytest.raises(SetAbandonedError):
        commit(store, keys, late)
    store.now_s += 0.5 * DAY_S
    assert [10] == steps_of(pruner.prune().removed)
    assert [8, 50] == with_data(store, keys)


def test_a_committer_that_was_first_is_not_abandoned(store: TimedStore, keys: RunKeys) -> None:
    """The manifest comes between the look for it and the tombstone."""
    save_set(store, keys, 50)
    name = SetName("000000001", 10)
    write_part(store, keys, name, rank=0, world=2)

    def complete() -> None:
        write_part(store, keys, name, rank=1, world=2)
        commit(store, keys, name)

    faulty = FaultyStore(store, [Fault("put", key=keys.manifest(name), act=complete)])
    report = Pruner(faulty, keys, delays=NOW).prune()
    assert [] == report.abandoned
    found = Catalog(store, keys).read(name)
    assert isinstance(found, Manifest)
    check_whole(store, keys, found)


def test_a_store_without_times_loses_nothing_by_age(keys: RunKeys, store: TimedStore) -> None:
    for step in (10, 20):
        save_set(store, keys, step)
    write_part(store, keys, SetName("000000001", 5), world=2)
    pruner = Pruner(Untimed(store), keys, keep=Keep(younger_than_s=1.0))
    assert [10, 20] == steps_of(list(pruner.prune().kept))
    assert [5, 10, 20] == with_data(store, keys)


class Untimed(TimedStore):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.now_s = None  # type: ignore[assignment]


def test_a_pinned_set_stays_and_a_pin_of_a_deleted_one_is_refused(store: TimedStore, keys: RunKeys) -> None:
    for step in (10, 20, 30):
        save_set(store, keys, step)
    pin(store, keys, SetName("000000001", 10))
    pruner = Pruner(store, keys, keep=LAST, delays=PruneDelays(grace_s=100.0))
    assert ([20], [10, 30]) == (steps_of(pruner.prune().pruned), there(store, keys))
    with pytest.raises(NotFoundError, match="pruned"):
        pin(store, keys, SetName("000000001", 20))
    store.now_s += 101
    assert [20] == steps_of(pruner.prune().removed)


@pytest.mark.parametrize("use", ["pin", "reader"])
def test_a_use_that_comes_while_a_set_is_pruned_puts_it_back(store: TimedStore, keys: RunKeys, use: str) -> None:
    """It comes between the first look for users and the tombstone; whoever writes it still sees the manifest."""
    for step in (10, 20):
        save_set(store, keys, step)
    name = SetName("000000001", 10)

    def begin() -> None:
        if use == "pin":
            pin(store, keys, name)
        else:
            announce_reader(store, keys, name, "token")

    faulty = FaultyStore(store, [Fault("put", key=keys.manifest(name), act=begin)])
    report = Pruner(faulty, keys, keep=LAST, delays=NOW).prune()
    assert [10] == steps_of(report.put_back)
    found = Catalog(store, keys).read(name)
    assert isinstance(found, Manifest)
    check_whole(store, keys, found)


def test_a_pruner_that_was_killed_before_it_put_a_pinned_set_back(store: TimedStore, keys: RunKeys) -> None:
    for step in (10, 20):
        save_set(store, keys, step)
    name = SetName("000000001", 10)
    faulty = FaultyStore(
        store,
        [
            Fault("put", key=keys.manifest(name), act=lambda: pin(store, keys, name)),
            Fault("put", KilledError(), nth=2, key=keys.manifest(name)),
        ],
    )
    with pytest.raises(KilledError):
        Pruner(faulty, keys, keep=LAST, delays=NOW).prune()
    assert [20] == there(store, keys)
    assert [10] == steps_of(Pruner(store, keys, keep=LAST, delays=NOW).prune().put_back)
    assert [10, 20] == there(store, keys)


def test_a_reader_is_honoured_while_it_is_heard_of(store: TimedStore, keys: RunKeys) -> None:
    for step in (10, 20):
        save_set(store, keys, step)
    announce_reader(store, keys, SetName("000000001", 10), "token")
    pruner = Pruner(store, keys, keep=LAST)
    assert [] == pruner.prune().pruned
    store.now_s += 3601
    assert [10] == steps_of(pruner.prune().pruned)
    assert [] == list(store.list(keys.readers)), "a dead reader's object goes, too"


def test_what_an_attempt_was_resumed_from_stays(store: TimedStore, keys: RunKeys) -> None:
    for step in (10, 20, 30):
        save_set(store, keys, step)
    attempt = claim(store, keys, SetName("000000001", 20))
    assert [20, 30] == steps_of(list(Pruner(store, keys, keep=LAST, delays=NOW).prune().kept))
    with pytest.raises(InUseError, match="resumes from"):
        Pruner(store, keys).delete(SetName("000000001", 20))
    save_set(store, keys, 25, attempt=attempt.key, parent=SetName("000000001", 20))
    assert [20, 25] == steps_of(list(Pruner(store, keys, keep=LAST, delays=NOW).prune().kept))
    claim(store, keys, SetName(attempt.key, 25))
    save_set(store, keys, 26, attempt="000000003_0000", parent=SetName(attempt.key, 25))
    assert [25, 26] == steps_of(list(Pruner(store, keys, keep=LAST, delays=NOW).prune().kept))


def test_an_older_attempt_does_not_prune(store: TimedStore, keys: RunKeys) -> None:
    own = claim(store, keys, None)
    for step in (10, 20):
        save_set(store, keys, step, attempt=own.key)
    assert [] == Pruner(store, keys, keep=Keep(last=2), own=own).prune().pruned
    claim(store, keys, None)
    report = Pruner(store, keys, keep=LAST, own=own).prune()
    assert report.stopped is not None and "attempt 2" in report.stopped
    assert [10, 20] == there(store, keys)


def test_an_attempt_that_begins_while_an_older_one_prunes_stops_it(store: TimedStore, keys: RunKeys) -> None:
    own = claim(store, keys, None)
    for step in (10, 20, 30):
        save_set(store, keys, step, attempt=own.key)
    first = SetName(own.key, 10)

    def begin() -> None:
        claim(store, keys, None)

    faulty = FaultyStore(store, [Fault("put", key=keys.manifest(first), act=begin)])
    report = Pruner(faulty, keys, keep=LAST, own=own).prune()
    assert report.stopped is not None
    assert [10, 20, 30] == there(store, keys), "what was not proven behind its tombstone is put back"


def test_objects_that_newer_sets_use_stay(store: TimedStore, keys: RunKeys) -> None:
    first, second, third = (SetName("000000001", step) for step in (10, 20, 30))
    shared = b"frozen layers"
    write_part(store, keys, first, files={"shared.bin": shared, "own.bin": b"1"})
    commit(store, keys, first)
    use = SetObject("shared.bin", len(shared), crc32c(shared), "0" * 64, first)
    write_part(store, keys, second, files={"own.bin": b"2"}, references=[use])
    commit(store, keys, second)
    write_part(store, keys, third, rank=0, world=2, files={"own.bin": b"3"}, references=[use])  # it has no manifest yet
    pruner = Pruner(store, keys, keep=LAST, delays=PruneDelays(grace_s=0.0))
    assert ([10], []) == (steps_of(list(pruner.prune().waiting)), pruner.prune().removed)
    found = Catalog(store, keys).newest()
    assert found is not None and found.step == 20
    check_whole(store, keys, found)
    save_set(store, keys, 40)
    report = pruner.prune()
    assert ([20], [10]) == (steps_of(report.removed), steps_of(list(report.waiting))), "rank 0 of step 30 uses it"
    store.now_s += 3 * DAY_S
    pruner.prune()
    assert [40] == with_data(store, keys)


def test_one_set_is_deleted_and_the_pointer_forgets_it(store: TimedStore, keys: RunKeys) -> None:
    for step in (10, 20):
        save_set(store, keys, step)
    Pruner(store, keys).delete(SetName("000000001", 20))
    found = Catalog(store, keys).newest()
    assert found is not None and found.step == 10
    with pytest.raises(InUseError, match="only complete one"):
        Pruner(store, keys).delete(SetName("000000001", 10))
    save_set(store, keys, 30)
    pin(store, keys, SetName("000000001", 10))
    with pytest.raises(InUseError, match="is pinned: unpin it"):
        Pruner(store, keys).delete(SetName("000000001", 10))


def test_attempts_that_have_left_nothing_are_forgotten(store: TimedStore, keys: RunKeys) -> None:
    for start in range(5):
        attempt = claim(store, keys, None, f"start {start}")
        take_place(store, keys, attempt, 1)
    save_set(store, keys, 10, attempt="000000003_0000")
    store.now_s += 15 * DAY_S
    Pruner(store, keys).prune()
    assert [3, 4, 5] == list(attempt_numbers(store, keys))
    assert 2 * 3 == len(list(store.list(keys.starts)))


def test_of_an_old_start_whose_sets_stay_the_ranks_places_go(store: TimedStore, keys: RunKeys) -> None:
    attempts = [claim(store, keys, None, f"start {start}") for start in range(4)]
    for attempt in attempts:
        for rank in range(1, 4):
            take_place(store, keys, attempt, rank)
    for attempt in attempts[0], attempts[2]:
        save_set(store, keys, 10, attempt=attempt.key)
    store.delete(keys.attempt(2))  # its ranks have begun, and rank 0 has not recorded it
    Pruner(store, keys).prune()
    assert 4 * 4 == len(list(store.list(keys.starts)))
    store.now_s += 15 * DAY_S
    take_place(store, keys, attempts[1], 4)
    for n_left in (2 * 4 + 5, 2 * 4 + 1):  # a rank of the second start has just begun; what names it is left with its record
        Pruner(store, keys).prune()
        assert n_left == len(list(store.list(keys.starts)))
        store.now_s += 15 * DAY_S
    assert [1, 3, 4] == list(attempt_numbers(store, keys))
    assert [10, 10] == there(store, keys)


def test_hostile_names_are_passed_over(store: TimedStore, keys: RunKeys) -> None:
    for step in (10, 20):
        save_set(store, keys, step)
    for name in ("data/x/y", "data/z", "pins/x", "readers/x", "readers/-", "manifests/x.json", "attempts/x.json", "data/~/a"):
        write_part(store, RunKeys(f"{keys.base}/{name}"), SetName("000000001", 1))
    assert [10] == steps_of(Pruner(store, keys, keep=LAST, delays=NOW).prune().removed)
    assert [] == uncommitted(store, keys)


@pytest.mark.parametrize(
    "rules",
    [{}, {"last": 0}, {"last": True}, {"best": 1}, {"metric": "loss"}, {"every_steps": -1}, {"younger_than_s": 0.0}],
)
def test_a_bad_rule_is_refused(rules: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="keep"):
        Keep(**rules)  # type: ignore[arg-type]


def test_delays_are_checked() -> None:
    with pytest.raises(ConfigError, match="grace_s"):
        PruneDelays(grace_s=-1.0)
