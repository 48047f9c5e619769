"""The requests of a piece of work at which a test makes trouble: all of them, or three of each kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from checkpoint_sets import TimedStore
from wherry.store import ObjectMeta, ObjectStore
from wherry.testing import Fault, FaultyStore

#: The store without conditions meets three requests of each kind in the fast run, all of them in the slow one.
on_both_stores = pytest.mark.parametrize(
    ("lax", "most"),
    [
        pytest.param(False, sys.maxsize, id="strict"),
        pytest.param(True, 3, id="lax-three"),
        pytest.param(True, sys.maxsize, id="lax-all", marks=pytest.mark.slow),
    ],
)


class PagingStore(FaultyStore):
    """Takes one request for a listing, as a server does for a page."""

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """As the inner store's."""
        yield from self._call("list", prefix, lambda: [*self.inner.list(prefix, start_after=start_after)])


def at_each_request(
    world: Callable[[], TimedStore], work: Callable[[ObjectStore], object], most: int = sys.maxsize
) -> Iterator[tuple[TimedStore, FaultyStore, Fault]]:
    """Yield a new world for each request of the work, and a fault before that request, which has neither error nor act yet.

    At most `most` requests of a kind. A world in memory is made once and copied, and its listings are one request each: they are
    a snapshot, so that what happens between two of their entries is seen by no request but the next one.
    """
    first = world()
    renewed, faulty = (first.copy_of_all, PagingStore) if first.is_in_memory else (world, FaultyStore)
    counting = faulty(renewed())
    work(counting)
    for operation, nth in chosen_requests(counting.calls, most):
        timed = renewed()
        yield timed, faulty(timed), Fault(operation, nth=nth)


def chosen_requests(calls: Mapping[str, int], most: int) -> Iterator[tuple[str, int]]:
    """Yield the operation and the number, from 1 on, of each request; of a kind with more than `most`, of three.

    They are the first, the middle and the last. `calls` counts the requests of each kind.
    """
    for operation, n_calls in sorted(calls.items()):
        for nth in range(1, n_calls + 1) if n_calls <= most else (1, (n_calls + 1) // 2, n_calls):
            yield operation, nth
