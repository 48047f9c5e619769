"""Pruning that is killed at each request, and in which others interfere at each request."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from checkpoint_sets import LaxStore, TimedStore, check_whole, make_requests_in_turn, save_set, steps_of, write_part
from checkpoint_sets.each_request import at_each_request, on_both_stores
from wherry.backends.local.store import LocalStore
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.choice import set_of
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.attempts import Attempt, claim, claim_number
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.deletion import InUseError, PruneDelays
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checkpoints.protocol.uncommitted import sets_with_data
from wherry.checkpoints.protocol.uses import announce_reader, check_there, pin
from wherry.checkpoints.prune import Pruner
from wherry.checkpoints.start import begin
from wherry.checkpoints.world import World
from wherry.errors import NotFoundError
from wherry.store import ObjectMeta, ObjectStore
from wherry.store.wrappers import WrappedStore
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

KEYS = RunKeys("run1/checkpoints")
NOW = PruneDelays(abandon_after_s=0.0, grace_s=0.0, forget_after_s=0.0)
FIRST = SetName("000000001", 10)


@pytest.fixture(autouse=True)
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are made one after the other, so that the nth is the same each time; and no thread is started for each."""
    make_requests_in_turn(monkeypatch)


class KilledError(Exception):
    """The process ends at this request."""


def there(store: ObjectStore) -> list[int]:
    return steps_of([one.set for one in Catalog(store, KEYS).manifests()])


def with_data(store: ObjectStore) -> list[int]:
    return steps_of(list(sets_with_data(store, KEYS)))


def new_store(lax: bool) -> TimedStore:
    inner = MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})
    return TimedStore(LaxStore(inner) if lax else inner)


@on_both_stores
def test_killed_at_any_request_a_whole_set_is_left_and_the_next_prune_ends_the_work(lax: bool, most: int) -> None:
    def world() -> TimedStore:
        store = new_store(lax)
        for step in (10, 20, 30):
            save_set(store, KEYS, step, world=2)
        write_part(store, KEYS, SetName("000000001", 25), world=2)  # abandoned
        for rank in range(2):
            write_part(store, KEYS, SetName("000000001", 40), rank=rank, world=2)  # committed
        claim_number(store, KEYS, 1, None)
        return store

    def work(store: ObjectStore) -> None:
        Pruner(store, KEYS, keep=Keep(last=2), delays=NOW).prune()

    for after in (False, True):
        for timed, faulty, fault in at_each_request(world, work, most):
            faulty.plan = [Fault(fault.operation, KilledError(), fault.nth, after=after)]
            with suppress(KilledError):  # where an object is not there, the answer comes before the fault behind it
                work(faulty)
            found = Catalog(timed, KEYS).newest()
            assert found is not None, fault
            assert found.step in (30, 40), fault
            check_whole(timed, KEYS, found)
            work(timed)
            assert [30, 40] == there(timed) == with_data(timed), fault
            for each in Catalog(timed, KEYS).manifests():
                check_whole(timed, KEYS, each)


@pytest.mark.parametrize("kind", ["memory", "lax", "local"])
def test_killed_at_any_request_of_a_deletion_a_whole_set_is_left(kind: str, tmp_path: Path) -> None:
    place = str(tmp_path).strip("/")
    keys = RunKeys(f"{place}/run1/checkpoints") if kind == "local" else KEYS

    def world() -> TimedStore:
        shutil.rmtree(tmp_path / "run1", ignore_errors=True)
        store = TimedStore(LocalStore(StoreURI("file", "", place), {})) if kind == "local" else new_store(lax=kind == "lax")
        for step in (10, 20, 30):
            save_set(store, keys, step)
        return store

    newest = SetName("000000001", 30)
    for timed, faulty, fault in at_each_request(world, lambda store: Pruner(store, keys).delete(newest)):
        faulty.plan = [Fault(fault.operation, KilledError(), fault.nth)]
        with pytest.raises(KilledError):
            Pruner(faulty, keys).delete(newest)
        found = Catalog(timed, keys).newest()
        assert found is not None, fault
        check_whole(timed, keys, found)
        Pruner(timed, keys).delete(newest)
        Pruner(timed, keys, delays=NOW).prune()
        found = Catalog(timed, keys).newest()
        assert found is not None, fault
        assert (20, [10, 20]) == (found.step, steps_of(list(sets_with_data(timed, keys)))), fault


def prune_all_but_the_last(store: ObjectStore) -> object:
    return Pruner(store, KEYS, keep=Keep(last=1), delays=NOW).prune()


def three_sets(lax: bool) -> TimedStore:
    store = new_store(lax)
    for step in (10, 20, 30):
        save_set(store, KEYS, step)
    write_part(store, KEYS, SetName("000000001", 25), world=2)  # nobody completes it
    return store


@on_both_stores
def test_a_pin_that_comes_at_any_request_holds_or_is_refused(lax: bool, most: int) -> None:
    outcomes = set()
    for timed, faulty, fault in at_each_request(lambda: three_sets(lax), prune_all_but_the_last, most):
        is_pinned: list[bool] = []

        def try_to_pin(timed: TimedStore = timed, is_pinned: list[bool] = is_pinned) -> None:
            try:
                pin(timed, KEYS, FIRST)
            except NotFoundError:
                is_pinned.append(False)
            else:
                is_pinned.append(True)

        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=try_to_pin)]
        prune_all_but_the_last(faulty)
        prune_all_but_the_last(timed)
        outcomes.add(is_pinned[0])
        assert ([10, 30] if is_pinned[0] else [30]) == there(timed) == with_data(timed), fault
        for one in Catalog(timed, KEYS).manifests():
            check_whole(timed, KEYS, one)
    assert {True, False} == outcomes


@on_both_stores
def test_a_reader_that_comes_at_any_request_reads_all_or_is_told(lax: bool, most: int) -> None:
    outcomes = set()
    for timed, faulty, fault in at_each_request(lambda: three_sets(lax), prune_all_but_the_last, most):
        manifest = Catalog(timed, KEYS).read(FIRST)
        assert isinstance(manifest, Manifest)
        is_reading: list[bool] = []

        def try_to_read(timed: TimedStore = timed, is_reading: list[bool] = is_reading) -> None:
            announce_reader(timed, KEYS, FIRST, "token")
            try:
                check_there(timed, KEYS, FIRST, "restore")
            except NotFoundError:
                is_reading.append(False)
            else:
                is_reading.append(True)

        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=try_to_read)]
        prune_all_but_the_last(faulty)
        prune_all_but_the_last(timed)
        outcomes.add(is_reading[0])
        if is_reading[0]:
            check_whole(timed, KEYS, manifest)
    assert {True, False} == outcomes


def starting(store: ObjectStore, first: SetName) -> Attempt:
    """A start of the job that has found the set `first` as the newest one, some time before."""
    found = iter([first])

    def newest() -> SetName | None:
        return next(found, None) or set_of(Catalog(store, KEYS).newest())

    return begin(store, KEYS, World(), None, newest)


@on_both_stores
def test_a_start_that_comes_at_any_request_goes_on_with_a_set_that_stays(lax: bool, most: int) -> None:
    outcomes = set()
    for timed, faulty, fault in at_each_request(lambda: three_sets(lax), prune_all_but_the_last, most):
        started: list[Attempt] = []
        act = partial(lambda timed, started: started.append(starting(timed, SetName("000000001", 20))), timed, started)
        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=act)]
        prune_all_but_the_last(faulty)
        assert started[0].resumed_from is not None, fault
        outcomes.add(started[0].resumed_from.step)
        check_there(timed, KEYS, started[0].resumed_from, "restore")
    assert {20, 30} == outcomes


@on_both_stores
def test_a_start_during_which_an_older_job_prunes_goes_on_with_a_set_that_stays(lax: bool, most: int) -> None:
    def prune(timed: TimedStore) -> None:
        prune_all_but_the_last(timed)

    outcomes = set()

    def start(store: ObjectStore) -> Attempt:
        return starting(store, SetName("000000001", 20))

    for timed, faulty, fault in at_each_request(lambda: three_sets(lax), start, most):
        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=partial(prune, timed))]
        started = start(faulty)
        prune_all_but_the_last(timed)
        assert started.resumed_from is not None, fault
        outcomes.add(started.resumed_from.step)
        check_there(timed, KEYS, started.resumed_from, "restore")
    assert {20, 30} == outcomes


def test_a_set_that_is_deleted_is_not_the_newest_while_the_pointer_still_names_it() -> None:
    store = new_store(lax=False)
    for step in (10, 20):
        save_set(store, KEYS, step)
    faulty = FaultyStore(store, [Fault("delete", KilledError(), key=KEYS.pointer)])
    with pytest.raises(KilledError):
        Pruner(faulty, KEYS).delete(SetName("000000001", 20))
    found = Catalog(store, KEYS).newest()
    assert found is not None and found.step == 10


@on_both_stores
@pytest.mark.parametrize("rival", ["prune", "save", "attempt", "delete"])
def test_whoever_interferes_at_any_request_the_newest_set_is_whole(lax: bool, most: int, rival: str) -> None:
    for timed, faulty, fault in at_each_request(lambda: three_sets(lax), prune_all_but_the_last, most):
        expected = {40} if rival == "save" else {30}

        def interfere(timed: TimedStore = timed) -> None:
            if rival == "prune":
                prune_all_but_the_last(timed)
            elif rival == "save":
                save_set(timed, KEYS, 40)
            elif rival == "attempt":
                claim(timed, KEYS, SetName("000000001", 30))
            else:
                Pruner(timed, KEYS).delete(SetName("000000001", 20))

        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=interfere)]
        prune_all_but_the_last(faulty)
        found = Catalog(timed, KEYS).newest()
        assert found is not None, fault
        assert {found.step} == expected, fault
        check_whole(timed, KEYS, found)
        prune_all_but_the_last(timed)
        assert expected == set(there(timed)) == set(with_data(timed)), fault


@on_both_stores
def test_of_two_prunes_at_once_none_takes_the_time_of_a_manifest_for_that_of_its_tombstone(lax: bool, most: int) -> None:
    def world() -> TimedStore:
        timed = three_sets(lax)
        timed.now_s += 7 * 3600.0
        return timed

    def prune(store: ObjectStore) -> None:
        Pruner(store, KEYS, keep=Keep(last=1)).prune()

    for timed, faulty, fault in at_each_request(world, prune, most):
        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=partial(prune, timed))]
        prune(faulty)
        assert [10, 20, 25, 30] == with_data(timed), fault
        timed.now_s += 7 * 3600.0
        prune(timed)
        assert [25, 30] == with_data(timed), fault


def test_of_two_who_delete_the_last_sets_at_once_one_is_refused() -> None:
    def world() -> TimedStore:
        store = new_store(lax=False)
        for step in (10, 20):
            save_set(store, KEYS, step)
        return store

    for timed, faulty, fault in at_each_request(world, lambda store: Pruner(store, KEYS).delete(SetName("000000001", 20))):

        def interfere(timed: TimedStore = timed) -> None:
            with suppress(InUseError):
                Pruner(timed, KEYS).delete(FIRST)

        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=interfere)]
        with suppress(InUseError):
            Pruner(faulty, KEYS).delete(SetName("000000001", 20))
        assert there(timed), fault


class HidingStore(WrappedStore):
    """Its listings of a set's data show nothing yet."""

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        return iter(()) if prefix.startswith(KEYS.all_data) and prefix != KEYS.all_data else super().list(prefix)


def test_a_set_whose_objects_no_listing_shows_yet_is_not_given_up() -> None:
    timed = new_store(lax=False)
    save_set(timed, KEYS, 10)
    write_part(timed, KEYS, SetName("000000001", 20), world=2)
    assert [20] == steps_of(Pruner(HidingStore(timed), KEYS, delays=NOW).prune().incomplete)


class CountingStore(WrappedStore):
    """Counts calls; a listing is one."""

    n_calls = 0

    def _call(self, operation: str, key: str, call: Callable[[], object]) -> object:  # type: ignore[override]
        self.n_calls += 1
        return call()

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        self.n_calls += 1
        return self.inner.list(prefix, start_after=start_after)


def test_a_prune_with_nothing_to_do_takes_few_requests_however_many_sets_there_are() -> None:
    store = CountingStore(new_store(lax=False))
    own = claim(store, KEYS, None)
    for step in range(100):
        save_set(store, KEYS, step, attempt=own.key)
    pruner = Pruner(store, KEYS, keep=Keep(last=3, every_steps=10), own=own)
    pruner.prune()
    store.n_calls = 0
    report = pruner.prune()
    assert (0, 87) == (len(report.pruned), len(report.waiting))
    assert store.n_calls <= 15 + 87, "what it has just written is read once"
    store.n_calls = 0
    pruner.prune()
    assert store.n_calls <= 15


def test_a_job_does_not_give_up_a_set_of_its_own_that_takes_days() -> None:
    store = new_store(lax=False)
    own = claim(store, KEYS, None)
    save_set(store, KEYS, 10, attempt=own.key)
    write_part(store, KEYS, SetName(own.key, 20), world=2)
    assert [20] == steps_of(Pruner(store, KEYS, delays=NOW, own=own).prune().incomplete)
    newer = claim(store, KEYS, None)
    assert [20] == steps_of(Pruner(store, KEYS, delays=NOW, own=newer).prune().abandoned)
