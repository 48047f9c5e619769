"""The requests of a piece of work at which a test makes trouble: all of them, or three of each kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import pytest

#: The store without conditions meets three requests of each kind in the fast run, all of them in the slow one.
on_both_stores = pytest.mark.parametrize(
    ("lax", "most"),
    [
        pytest.param(False, sys.maxsize, id="strict"),
        pytest.param(True, 3, id="lax-three"),
        pytest.param(True, sys.maxsize, id="lax-all", marks=pytest.mark.slow),
    ],
)


def chosen_requests(calls: Mapping[str, int], most: int) -> Iterator[tuple[str, int]]:
    """Yield the operation and the number, from 1 on, of each request; of a kind with more than `most`, of three.

    They are the first, the middle and the last. `calls` counts the requests of each kind.
    """
    for operation, n_calls in sorted(calls.items()):
        for nth in range(1, n_calls + 1) if n_calls <= most else (1, (n_calls + 1) // 2, n_calls):
            yield operation, nth
