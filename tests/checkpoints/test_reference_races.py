"""Sets that refer to older ones, while these are pruned: whatever comes between two requests, what is committed is whole."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from checkpoint_sets import LaxStore, TimedStore, check_whole, make_requests_in_turn, steps_of
from checkpoint_sets.each_request import at_each_request, on_both_stores
from checkpoint_sets.sharing import SharingRank, commit_shared, save_shared
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.keep import Keep
from wherry.checkpoints.protocol.catalog import Catalog
from wherry.checkpoints.protocol.commit import commit
from wherry.checkpoints.protocol.deletion import InUseError, PruneDelays
from wherry.checkpoints.protocol.documents import put_small, read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.set_manifest import Manifest
from wherry.checkpoints.protocol.uncommitted import roll_forward
from wherry.checkpoints.prune import Pruner
from wherry.errors import NotFoundError
from wherry.store import ObjectStore
from wherry.testing import Fault
from wherry.uri import StoreURI

KEYS = RunKeys("run1/checkpoints")
NO_GRACE = PruneDelays(grace_s=0.0)
BASE = b"frozen layers"


@pytest.fixture(autouse=True)
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are made one after the other, so that the nth is the same each time; and no thread is started for each."""
    make_requests_in_turn(monkeypatch)


class KilledError(Exception):
    """The process ends at this request."""


def files(step: int) -> dict[str, bytes]:
    return {"base.bin": BASE, "more.bin": b"frozen, too", "adapter.bin": f"adapter {step}".encode()}


def prune(store: ObjectStore, last: int = 1) -> None:
    Pruner(store, KEYS, keep=Keep(last=last), delays=NO_GRACE).prune()


def world(lax: bool) -> TimedStore:
    """Sets 10 and 20, of which the latter refers to the former, and 30, which shares nothing with them."""
    inner = MemoryStore(StoreURI("memory", uuid.uuid4().hex), {})
    store = TimedStore(LaxStore(inner) if lax else inner)
    commit_shared(store, KEYS, 10, files(10))
    commit_shared(store, KEYS, 20, files(20))
    return store


def check_all(store: ObjectStore) -> list[int]:
    manifests = Catalog(store, KEYS).manifests()
    for one in manifests:
        check_whole(store, KEYS, one)
    return steps_of([one.set for one in manifests])


def write_30(store: ObjectStore) -> None:
    commit_shared(store, KEYS, 30, files(30))


def replace_all(store: ObjectStore) -> None:
    """A set that shares nothing, and all before it is deleted."""
    commit_shared(store, KEYS, 25, {"base.bin": b"another base"})
    prune(store)
    prune(store)


def delete_newest(store: ObjectStore) -> None:
    with suppress(NotFoundError, InUseError):
        Pruner(store, KEYS, delays=NO_GRACE).delete(SetName("000000001", 20))
    prune(store, last=9)


@on_both_stores
@pytest.mark.parametrize("interfere", [prune, replace_all, delete_newest])
def test_whatever_is_pruned_at_any_request_of_a_save_the_set_is_whole(
    lax: bool, most: int, interfere: Callable[[ObjectStore], None]
) -> None:
    outcomes = set()
    for timed, faulty, fault in at_each_request(partial(world, lax), write_30, most):
        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=lambda timed=timed: interfere(timed))]  # type: ignore[misc]
        write_30(faulty)
        manifest = Catalog(timed, KEYS).read(SetName("000000001", 30))
        assert isinstance(manifest, Manifest)
        outcomes.add(bool(manifest.references))
        prune(timed)
        prune(timed)
        assert [30] == check_all(timed), fault
    assert {True, False} == outcomes or interfere is prune or most == 3


@on_both_stores
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("interfere", [prune, replace_all, delete_newest])
def test_a_save_that_comes_at_any_request_of_a_deletion_is_whole(
    lax: bool, most: int, is_late: bool, interfere: Callable[[ObjectStore], None]
) -> None:
    """`is_late`: it has looked before the deletion began which set is the newest, and what that has."""
    for timed, faulty, fault in at_each_request(partial(world, lax), interfere, most):
        pointer = read_small(timed, KEYS.pointer)

        def save(timed: TimedStore = timed, pointer: bytes = pointer) -> None:
            if is_late:
                put_small(timed, KEYS.pointer, pointer, if_absent=False)
            write_30(timed)

        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=save)]
        interfere(faulty)
        assert 30 in check_all(timed), fault
        prune(timed)
        assert [30] == check_all(timed), fault


@on_both_stores
def test_a_save_in_two_steps_between_which_all_is_pruned_is_whole(lax: bool, most: int) -> None:
    """One rank's part waits for the other's, whose agent is stopped at each of its requests while sets come and go."""
    half = SharingRank(KEYS, SetName("000000001", 30), {"other.bin": BASE}, rank=1, world=2)

    def work(store: ObjectStore) -> None:
        save_shared(store, KEYS, 30, files(30), world=2)

    for timed, faulty, fault in at_each_request(partial(world, lax), work, most):
        faulty.plan = [Fault(fault.operation, nth=fault.nth, act=lambda timed=timed: replace_all(timed))]  # type: ignore[misc]
        work(faulty)
        prune(timed)
        SharingRank(KEYS, half.name, half.files, rank=1, world=2).save(timed)
        prune(timed)
        commit(timed, KEYS, half.name)
        assert [30] == [step for step in check_all(timed) if step > 25], fault


@on_both_stores
@pytest.mark.parametrize("after", [False, True])
def test_a_save_that_is_killed_at_any_request_goes_on_and_is_whole(lax: bool, most: int, after: bool) -> None:
    for timed, faulty, fault in at_each_request(partial(world, lax), write_30, most):
        rank = SharingRank(KEYS, SetName("000000001", 30), files(30))
        faulty.plan = [Fault(fault.operation, KilledError(), fault.nth, after=after)]
        with suppress(KilledError, NotFoundError):
            rank.save(faulty)
            commit(faulty, KEYS, rank.name)
        prune(timed)
        found = Catalog(timed, KEYS).newest()
        assert found is not None, fault
        check_whole(timed, KEYS, found)
        rank.save(timed)
        roll_forward(timed, KEYS, None)
        prune(timed)
        assert [30] == check_all(timed), fault


@on_both_stores
def test_a_deletion_that_is_killed_at_any_request_leaves_what_is_used(lax: bool, most: int) -> None:
    def work(store: ObjectStore) -> None:
        commit_shared(store, KEYS, 30, files(30))
        prune(store)

    for timed, faulty, fault in at_each_request(partial(world, lax), work, most):
        faulty.plan = [Fault(fault.operation, KilledError(), fault.nth)]
        with suppress(KilledError):
            work(faulty)
        check_all(timed)
        if Catalog(timed, KEYS).names()[-1].step < 30:
            SharingRank(KEYS, SetName("000000001", 30), files(30)).save(timed)
            roll_forward(timed, KEYS, None)
        prune(timed)
        assert [30] == check_all(timed), fault
