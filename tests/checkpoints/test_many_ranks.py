"""Ten thousand ranks on 1,250 nodes: what a set of theirs costs in requests, and how large its manifest is."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from wherry.agent.set_jobs import SetPlan, commit_set, wait_before_next_look_s, write_receipt
from wherry.backends.memory import MemoryStore
from wherry.checkpoints.protocol.commit import IncompleteSetError
from wherry.checkpoints.protocol.documents import read_small
from wherry.checkpoints.protocol.names import RunKeys, SetName
from wherry.checkpoints.protocol.receipt import Receipt, SetObject
from wherry.checkpoints.saving import DEPUTY_S, MOST_DEPUTIES
from wherry.checkpoints.world import World
from wherry.store import Capabilities, ObjectMeta, ObjectStore, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.testing import FaultyStore
from wherry.uri import StoreURI

KEYS = RunKeys("run1/checkpoints")
NAME = SetName("000000001_a3f9", 1000)
RANKS_OF_A_NODE = 8
#: How long the ranks need to send what they save, evenly; the agents look for receipts meanwhile.
SENDING_S = 600.0


class PagedStore(FaultyStore):
    """Counts a listing as a server does: one request for a thousand keys."""

    n_pages = 0

    def list(self, prefix: str = "", *, start_after: str = "") -> list[ObjectMeta]:  # type: ignore[override]
        """As the inner store's, whole."""
        found = list(self.inner.list(prefix, start_after=start_after))
        self.n_pages += max(1, -(-len(found) // 1000))
        return found

    @property
    def n_made(self) -> int:
        """All requests so far."""
        return self.n_pages + sum(self.calls.values())


class SummingStore(WrappedStore):
    """Compares no CRC32C, and answers with the MD5 of what came, as many servers of S3 do."""

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """The inner store's, but for that."""
        return replace(self.inner.capabilities, checks_crc32c=False)

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's."""
        md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        return replace(super().put_file(key, path, put), crc32c=None, digest=f"md5:{md5}")


def is_over(store: ObjectStore, n_ranks: int, delay_s: float, at_s: float) -> bool:
    """One look of an agent that commits: rank 0's, or a deputy's with its delay."""
    try:
        commit_set(SetPlan(KEYS.base, NAME, n_ranks, delay_s=delay_s), at_s, store)
    except IncompleteSetError:
        return False
    return True


@pytest.mark.parametrize(
    ("n_ranks", "most_requests", "checks_crc32c"),
    [
        (2000, 3000, True),  # two pages of a listing
        pytest.param(10_000, 12_000, True, marks=pytest.mark.slow),
        pytest.param(10_000, 12_000, False, marks=pytest.mark.slow),  # a server that sums up what it was sent in another way
    ],
)
def test_ranks_commit_in_few_more_requests_than_ranks(
    tmp_path: Path, n_ranks: int, most_requests: int, checks_crc32c: bool
) -> None:
    bare = MemoryStore(StoreURI("memory", f"{tmp_path}{checks_crc32c}"), {})
    store = PagedStore(bare if checks_crc32c else SummingStore(bare))
    worlds = [World(rank, n_ranks, rank % RANKS_OF_A_NODE, rank // RANKS_OF_A_NODE) for rank in range(n_ranks)]
    committers = {
        world.node_order: DEPUTY_S * world.node_order
        for world in worlds
        if world.local_rank == 0 and world.node_order <= MOST_DEPUTIES
    }
    due = dict.fromkeys(committers, 0.0)
    sent = 0
    while due:
        order = min(due, key=lambda one: due[one])
        at_s = due.pop(order)
        while sent < n_ranks and sent <= at_s / SENDING_S * n_ranks:
            rank = Receipt(NAME, sent, n_ranks, "state", (SetObject(f"rank-{sent:05d}.pt", 2**30, sent),))
            write_receipt(SetPlan(KEYS.base, NAME, n_ranks, receipt=rank), [], store)
            sent += 1
        if not is_over(store, n_ranks, committers[order], at_s):
            due[order] = at_s + wait_before_next_look_s(at_s)
    assert sent == n_ranks
    assert n_ranks < store.n_made <= most_requests, store.n_made
    assert len(read_small(bare, KEYS.manifest(NAME))) <= 1000 * n_ranks
