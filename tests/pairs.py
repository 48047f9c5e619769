"""All-pairs testing: of a full product of parameters the fast run has every pair of values of every two parameters.

A test that is marked ``pairwise`` keeps the cases that cover the pairs; its other cases are marked ``slow``. Parameters of
fixtures count as those of `parametrize` do. A plugin of tests/conftest.py.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest


def covering(cases: Sequence[Sequence[Hashable]]) -> list[int]:
    """Return the indices of cases that have every pair of values of two parameters that any case has.

    Greedy: the next is always a case with the most pairs that are missing. The order is a random one, the same each time: in that
    of a product the first value of one parameter would almost always meet the first of another.
    """
    pairs = [set(combinations(enumerate(case), min(2, len(case)))) for case in cases]
    missing = set().union(*pairs)
    order = random.Random(1).sample(range(len(cases)), len(cases))
    chosen: list[int] = []
    for gain in range(max(map(len, pairs), default=0), 0, -1):
        for at in order:
            if len(pairs[at] & missing) >= gain:
                chosen.append(at)
                missing -= pairs[at]
    return sorted(chosen)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pairwise: the fast run has every pair of values of two parameters, slow the other cases")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow what adds no pair of values."""
    products: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("pairwise"):
            products[item.nodeid.partition("[")[0]].append(item)
    for cases in products.values():
        kept = set(covering([[_key(value) for value in case.callspec.params.values()] for case in cases]))
        for at, case in enumerate(cases):
            if at not in kept:
                case.add_marker("slow")


def _key(value: object) -> Hashable:
    return value if isinstance(value, Hashable) and _has_hash(value) else id(value)


def _has_hash(value: Hashable) -> bool:
    try:
        hash(value)
    except TypeError:  # a tuple that holds a list
        return False
    return True
