"""A command's own limit of bytes per second: paid for after the bytes have moved, in small pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support import file_of
from wherry.backends.memory import MemoryStore
from wherry.checksum import crc32c_of_file
from wherry.config import RetryConfig, TransferConfig
from wherry.store import ObjectMeta, Part, PutOptions
from wherry.store.governor import Governor
from wherry.store.node_table import NodeTable
from wherry.store.pacing import PacedStore, command_governor, paced
from wherry.transfer.download import download
from wherry.uri import StoreURI

MB = 1_000_000
MIB = 2**20


class Time:
    """A clock that only sleeping moves on."""

    now_s = 1000.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_each_call_ends_when_its_bytes_are_paid_for(tmp_path: Path) -> None:
    clock = Time()
    one = Governor(NodeTable(), "", 8, max_bytes_per_s=2 * MB, now=clock.now, sleep=clock.sleep)
    store = PacedStore(MemoryStore(StoreURI("memory", "paced"), {}), one)
    path = file_of(tmp_path / "file", 2 * MB)
    found = []
    store.put_file("whole", path)
    found.append(clock.now_s)
    upload_id = store.begin("parts", 2 * MB)
    part = store.put_part("parts", upload_id, path, Part(1, 0, 2 * MB, crc32c_of_file(path)))
    found.append(clock.now_s)
    store.complete("parts", upload_id, [part], PutOptions())
    store.get_file("whole", path)
    found.append(clock.now_s)
    store.get_file("whole", path, start=MB, end=2 * MB)
    found.append(clock.now_s)
    store.read("whole", lambda block, at: None)
    found.append(clock.now_s)
    store.read("whole", lambda block, at: None, end=MB)
    found.append(clock.now_s)
    assert [1001.0, 1002.0, 1003.0, 1003.5, 1004.5, 1005.0] == pytest.approx(found)


def test_each_of_many_puts_is_paid_for(tmp_path: Path) -> None:
    class ManyStore(MemoryStore):
        def put_many(self, puts: Sequence[tuple[str, Path, PutOptions]], most: int) -> Iterator[tuple[int, ObjectMeta]]:
            yield from enumerate(self.put_file(*put) for put in puts)

    clock = Time()
    one = Governor(NodeTable(), "", 8, max_bytes_per_s=2 * MB, now=clock.now, sleep=clock.sleep)
    store = PacedStore(ManyStore(StoreURI("memory", "paced"), {}), one)
    path = file_of(tmp_path / "file", MB)
    assert [1000.5, 1001.0] == [clock.now_s for _ in store.put_many([("a", path, PutOptions()), ("b", path, PutOptions())], 2)]


def test_time_in_which_nothing_moves_pays_for_nothing() -> None:
    clock = Time()
    one = Governor(NodeTable(), "", 8, max_bytes_per_s=MB, now=clock.now, sleep=clock.sleep)
    one.pay(MB)
    clock.sleep(60)
    one.pay(MB)
    assert 1062.0 == pytest.approx(clock.now_s)


def test_bytes_come_evenly_and_no_faster_than_the_limit(tmp_path: Path) -> None:
    limit = 20 * MIB
    inner, n_bytes = MemoryStore(StoreURI("memory", "even"), {}), 12 * MIB
    inner.put_file("object", file_of(tmp_path / "file", n_bytes))
    governor = command_governor(limit)
    steps: list[int] = []
    begun_s = time.monotonic()
    download(
        PacedStore(inner, governor),
        "object",
        tmp_path / "back",
        uri="memory://even/object",
        transfer=paced(TransferConfig(), governor),
        retry=RetryConfig(),
        advance=steps.append,
    )
    assert time.monotonic() - begun_s >= n_bytes / limit
    assert n_bytes == sum(steps)
    assert max(steps) <= limit / 4  # what a quarter of a second may move


def test_a_paced_transfer_has_small_pieces_and_few_at_once() -> None:
    slow, fast = (paced(TransferConfig(), command_governor(rate)) for rate in (MIB, 1000 * MIB))
    assert (MIB, MIB, 8 * MIB) == (slow.part_size_bytes, slow.range_size_bytes, slow.multipart_threshold_bytes)
    assert (2, 2) == (slow.parts_in_flight, slow.ranges_in_flight)
    assert TransferConfig().part_size_bytes == fast.part_size_bytes
    assert TransferConfig().range_size_bytes == fast.range_size_bytes
