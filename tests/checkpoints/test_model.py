"""Histories of the protocol, thousands of them: no order of requests, and no kill, loses a set or restores a wrong one."""

from __future__ import annotations

import pytest

from checkpoint_sets.model import Model

CASES = [(True, "none"), (True, "data"), (True, "all"), (False, "none"), (False, "data"), (False, "all")]


def play(seed: int, *, has_conditions: bool, lagging: str, shares: bool = False) -> tuple[int, int]:
    """How many sets were restored, and how many objects were referred to and not sent."""
    model = Model(seed, has_conditions=has_conditions, lagging=lagging, shares=shares)
    try:
        model.play()
    except BaseException as error:
        error.add_note(f"seed {seed}\n" + "\n".join(model.history)) if hasattr(error, "add_note") else None
        raise
    return model.n_restored, model.n_shared


@pytest.mark.parametrize(("has_conditions", "lagging"), CASES)
def test_no_history_is_bad(has_conditions: bool, lagging: str) -> None:
    assert sum(play(seed, has_conditions=has_conditions, lagging=lagging)[0] for seed in range(40)) > 20


@pytest.mark.parametrize("has_conditions", [True, False])
def test_no_history_of_sets_that_refer_to_older_ones_is_bad(has_conditions: bool) -> None:
    played = [play(seed, has_conditions=has_conditions, lagging="none", shares=True) for seed in range(60)]
    assert sum(n_restored for n_restored, _ in played) > 20
    assert sum(n_shared for _, n_shared in played) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("has_conditions", "lagging"), CASES)
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_histories(has_conditions: bool, lagging: str, block: int) -> None:
    for seed in range(1000 * (block + 1), 1000 * (block + 1) + 400):
        play(seed, has_conditions=has_conditions, lagging=lagging)


@pytest.mark.slow
@pytest.mark.parametrize("has_conditions", [True, False])
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_histories_of_sets_that_refer_to_older_ones(has_conditions: bool, block: int) -> None:
    for seed in range(1000 * (block + 1), 1000 * (block + 1) + 400):
        play(seed, has_conditions=has_conditions, lagging="none", shares=True)
