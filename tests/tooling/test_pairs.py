"""All-pairs testing leaves out no pair, and what it leaves out is slow."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from pairs import covering

FULL = list(product("abcdef", range(4), (False, True)))
#: Not every combination makes sense: e and f are for 0 only, a for False only.
PARTIAL = [case for case in FULL if (case[0] < "e" or case[1] == 0) and (case[0] != "a" or not case[2])]


@pytest.mark.parametrize("cases", [FULL, PARTIAL, [("only", "one")], []], ids=["full", "partial", "single", "empty"])
def test_every_pair_of_values_of_every_two_parameters_is_there(cases: list[tuple[object, ...]]) -> None:
    kept = [cases[at] for at in covering(cases)]
    for first, second in combinations(range(len(cases[0]) if cases else 0), 2):
        assert {(case[first], case[second]) for case in cases} == {(case[first], case[second]) for case in kept}


def test_a_full_product_is_cut_to_that_of_its_two_largest_parameters() -> None:
    assert 6 * 4 == len(covering(FULL))


def test_a_single_parameter_keeps_all_values() -> None:
    assert [0, 1, 2] == covering([("a",), ("b",), ("c",)])


MODULE = """
import pytest

@pytest.fixture(params=["A", "B"])
def store(request):
    return request.param

@pytest.mark.pairwise
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(("lost", "plan"), [(False, []), (True, [1])])
def test_product(store, nth, lost, plan):
    pass

def test_other(store):
    pass
"""


def test_a_marked_test_runs_its_pairs_and_the_others_are_slow(tmp_path: Path) -> None:
    """Parameters of fixtures count, and values without a hash."""
    (tmp_path / "test_it.py").write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", "-p", "pairs", "-p", "no:cacheprovider", "--collect-only", "-q", "-m", "slow"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    output = subprocess.run([*command, tmp_path], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    slow = set(re.findall(r"::(\S+)", output))
    product_of = {
        f"test_product[{store}-{plan}-{nth}]" for store, plan, nth in product("AB", ("False-plan0", "True-plan1"), "123")
    }
    assert slow < product_of
    assert 6 == len(slow)
