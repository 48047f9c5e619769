"""Histories of the protocol: no order of requests, and no kill, breaks a sentence of it; and each fault in it is found."""

from __future__ import annotations

import pytest

from checkpoint_sets.model.copies import Fault, Protocol
from checkpoint_sets.model.faults import FAULTS
from checkpoint_sets.model.search import Bad, Case, Exhaustive, at_random, shortest

WIDE = [
    Case("wide", has_conditions, lagging, n_ranks=3, shares=shares)
    for has_conditions in (True, False)
    for lagging in ("none", "data", "all")
    for shares in (False, True)
]
SMALL = [
    Case(scene, has_conditions)
    for scene in ("small", "late", "pins", "reads", "deletes", "starts")
    for has_conditions in (True, False)
]
SMALL += [Case("shares", has_conditions, shares=True) for has_conditions in (True, False)]


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    return Protocol()


def check(bad: Bad | None, protocol: Protocol) -> None:
    assert bad is None, str(shortest(bad, protocol))


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_no_history_is_bad(protocol: Protocol, case: Case) -> None:
    check(at_random(case, protocol, range(3)), protocol)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_no_history_near_the_plain_one_is_bad(protocol: Protocol, case: Case) -> None:
    check(Exhaustive(case, protocol, 1).search(8), protocol)


@pytest.mark.parametrize(("fault", "case", "seed"), FAULTS, ids=[fault.name for fault, _, _ in FAULTS])
def test_each_fault_is_found(fault: Fault, case: Case, seed: int) -> None:
    """The seed that is known to show it comes first: a change of the protocol's requests may need another one."""
    bad = at_random(case, Protocol(fault), [seed, *range(500)])
    assert bad is not None, fault.name


@pytest.mark.slow
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_thousands_of_histories(protocol: Protocol, case: Case) -> None:
    check(at_random(case, protocol, range(1000, 3000)), protocol)


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_thousands_of_histories_near_the_plain_one(protocol: Protocol, case: Case) -> None:
    check(Exhaustive(case, protocol, 1).search(10_000), protocol)
    check(Exhaustive(case, protocol, 2).search(10_000), protocol)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "case"), [row[:2] for row in FAULTS], ids=[fault.name for fault, _, _ in FAULTS])
def test_of_each_fault_the_shortest_history_is_told(fault: Fault, case: Case) -> None:
    protocol = Protocol(fault)
    found = at_random(case, protocol, range(1000, 5000))
    assert found is not None, fault.name
    short = shortest(found, protocol)
    assert short.sentence == found.sentence
    assert len(short.deviations) <= len(found.deviations)
