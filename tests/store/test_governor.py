"""The node's governor: rates and throttling, shared by all processes that map one file. Time is the test's own."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from servers.proxy import When, fault_proxy, s3_error
from servers.real import S3Server
from support import file_of, own_mounts, run_script
from wherry.backends.memory import MemoryStore
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c_of_file
from wherry.config import RetryConfig, TransferConfig
from wherry.errors import ConfigError
from wherry.store import Part, PutOptions
from wherry.store.governor import Governor, PresentLimit, node_governor, present_limits
from wherry.store.node_table import NodeTable
from wherry.store.wrappers import LimitStore, RetryStore
from wherry.uri import StoreURI

MB = 1_000_000
STORE = "s3://bucket"


class Time:
    """A clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def governor(
    table: NodeTable,
    time: Time,
    *,
    process: int = 1,
    most: int = 32,
    store: str = STORE,
    max_bytes_per_s: float | None = None,
    max_requests_per_s: float | None = None,
) -> Governor:
    return Governor(
        table,
        store,
        most,
        max_bytes_per_s=max_bytes_per_s,
        max_requests_per_s=max_requests_per_s,
        now=time.now,
        sleep=time.sleep,
        process=process,
    )


def test_large_transfers_keep_to_the_rate() -> None:
    time = Time()
    one = governor(NodeTable(), time, max_bytes_per_s=10 * MB)
    for _ in range(11):
        one.wait_for_bytes(8 * MB)
    assert pytest.approx(1000.0 + 10 * 0.8) == time.now_s


def test_two_processes_share_one_rate(tmp_path: Path) -> None:
    time = Time()
    both = [governor(NodeTable(tmp_path / "node"), time, process=n, max_bytes_per_s=10 * MB) for n in (1, 2)]
    for _ in range(5):
        for each in both:
            each.wait_for_bytes(8 * MB)
    assert pytest.approx(1000.0 + 9 * 0.8) == time.now_s


def test_all_stores_of_a_node_share_the_rate_of_bytes_and_none_that_of_requests() -> None:
    time, table = Time(), NodeTable()
    one, other = (
        governor(table, time, store=name, max_bytes_per_s=10 * MB, max_requests_per_s=1) for name in ("s3://a", "s3://b")
    )
    one.wait_for_bytes(20 * MB)
    other.wait_for_bytes(20 * MB)
    assert pytest.approx(1002.0) == time.now_s
    one.wait_for_request()
    other.wait_for_request()
    assert pytest.approx(1002.0) == time.now_s


def test_a_small_transfer_does_not_wait_for_a_large_one() -> None:
    time = Time()
    one = governor(NodeTable(), time, max_bytes_per_s=1 * MB)
    one.wait_for_bytes(500 * MB)
    one.wait_for_bytes(1000)
    assert time.now_s == 1000.0


def test_small_transfers_leave_a_fifth_of_the_rate_to_large_ones() -> None:
    time = Time()
    one = governor(NodeTable(), time, max_bytes_per_s=1 * MB)
    one.wait_for_bytes(2 * MB)
    for _ in range(10):
        one.wait_for_bytes(800_000)
    assert 1009.0 <= time.now_s  # a second each
    one.wait_for_bytes(2 * MB)
    assert time.now_s <= 1011.0  # what was sent by then, at the whole rate


def test_requests_keep_to_their_rate_and_may_catch_up_a_little() -> None:
    time = Time()
    one = governor(NodeTable(), time, max_requests_per_s=100)
    for _ in range(106):
        one.wait_for_request()
    assert pytest.approx(1001.0) == time.now_s


def test_throttling_in_one_process_halves_what_all_processes_may_have_in_flight(tmp_path: Path) -> None:
    time = Time()
    one, other = (governor(NodeTable(tmp_path / "node"), time, process=n) for n in (1, 2))
    assert (32, 32) == (one.places(), other.places())
    one.note_throttled(one.wait_for_request())
    assert 16 == other.places()
    other.wait_for_request()  # from now on they are two that share
    assert (8, 8) == (one.places(), other.places())
    time.sleep(11)
    one.wait_for_request()
    assert 16 == one.places()  # the other has made no request for ten seconds


def test_calls_that_were_under_way_together_cut_once_for_all_processes(tmp_path: Path) -> None:
    time = Time()
    both = [governor(NodeTable(tmp_path / "node"), time, process=n) for n in (1, 2)]
    begun = [each.wait_for_request() for each in both]
    time.sleep(1)
    for each, begun_s in zip(both, begun, strict=True):
        each.note_throttled(begun_s)
    both[0].wait_for_request()
    assert 16 == both[0].places()


def test_successes_add_one_a_round_until_the_limit_is_gone() -> None:
    time = Time()
    one = governor(NodeTable(), time, most=8)
    one.note_throttled(one.wait_for_request())
    found = [one.places()]
    for _ in range(5):
        for _ in range(one.places()):
            one.note_success()
        found.append(one.places())
    assert [4, 4, 5, 6, 7, 8][:1] == found[:1]
    assert sorted(found) == found
    assert 8 == found[-1]


def test_one_request_at_a_time_is_always_let_through() -> None:
    time, table = Time(), NodeTable()
    many = [governor(table, time, process=n) for n in range(1, 10)]
    for _ in range(20):
        for each in many:
            each.note_throttled(each.wait_for_request())
    assert {1} == {each.places() for each in many}


def test_throttling_of_one_store_is_nothing_to_another() -> None:
    time, table = Time(), NodeTable()
    one, other = (governor(table, time, store=name) for name in ("s3://a", "s3://b"))
    one.note_throttled(one.wait_for_request())
    assert (16, 32) == (one.places(), other.places())


def test_a_store_that_has_not_throttled_for_ten_minutes_is_trusted() -> None:
    time = Time()
    one = governor(NodeTable(), time)
    one.note_throttled(one.wait_for_request())
    time.sleep(601)
    one.note_success()
    assert 32 == one.places()


def test_how_fast_parts_go_is_a_mean_that_all_processes_know(tmp_path: Path) -> None:
    time = Time()
    one, other = (governor(NodeTable(tmp_path / "node"), time, process=n) for n in (1, 2))
    assert one.part_bytes_per_s() is None
    one.note_part(8 * MB, 0.5)
    assert 16 * MB == other.part_bytes_per_s()
    other.note_part(8 * MB, 0.25)
    assert pytest.approx(17.6 * MB) == one.part_bytes_per_s()


def test_the_present_limits_say_why(tmp_path: Path) -> None:
    time, path = Time(), tmp_path / "node"
    assert [] == present_limits(path, time.now_s)
    assert not path.exists()
    one = governor(NodeTable(path), time, max_bytes_per_s=50 * MB, max_requests_per_s=200)
    assert [] == present_limits(path, time.now_s)
    one.wait_for_bytes(10)
    one.note_throttled(one.wait_for_request())
    time.sleep(3)
    expected = [
        PresentLimit("", "47.7 MiB/s", "max_bytes_per_s"),
        PresentLimit(STORE, "200 requests/s", "max_requests_per_s"),
        PresentLimit(STORE, "16 requests at once", "it has throttled 1 time, the last one 3 s ago"),
    ]
    assert expected == present_limits(path, time.now_s)
    assert [] == present_limits(path, time.now_s + 3600)


def make_link(path: Path) -> None:
    path.symlink_to(path.with_name("other"))


def make_open_to_all(path: Path) -> None:
    path.touch()
    path.chmod(0o666)


def make_second_name(path: Path) -> None:
    path.touch(0o600)
    os.link(path, path.with_name("second"))


@pytest.mark.parametrize("make", [make_link, make_open_to_all, make_second_name, Path.mkdir])
def test_a_file_that_is_not_ours_alone_is_not_shared(
    make: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "node")
    table = NodeTable(tmp_path / "node")
    assert not table.is_shared
    assert "each process alone" in caplog.text
    time = Time()
    one = governor(table, time)
    one.note_throttled(one.wait_for_request())
    assert 16 == one.places()


FULL = """
import subprocess, sys
from pathlib import Path
from wherry.store.node_table import NodeTable

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", sys.argv[1]], check=True)
table = NodeTable(Path(sys.argv[1]) / "governor")
with table.locked():
    table.row("a").put(limit=2.0)
print(table.is_shared, table.row("a").get("limit"))
"""


def test_where_memory_has_no_room_for_the_file_each_process_counts_alone(tmp_path: Path) -> None:
    """Data loaders fill /dev/shm; a page of a mapped file that cannot be had kills who writes to it (SIGBUS)."""
    assert run_script(FULL, tmp_path, prefix=own_mounts()).endswith("False 2.0\n")


def test_whatever_is_in_the_file_nobody_waits_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "node"
    NodeTable(path)
    head, size = path.read_bytes()[:512], path.stat().st_size
    for byte in (b"\xff", b"\x7f", b"\x41"):
        path.write_bytes(head.ljust(size, byte))
        time = Time()
        one = governor(NodeTable(path), time, max_bytes_per_s=1 * MB, max_requests_per_s=10)
        one.wait_for_bytes(2 * MB)
        one.wait_for_bytes(10)
        one.note_throttled(one.wait_for_request())
        one.note_success()
        assert one.places() >= 1
        assert time.now_s < 1100
        present_limits(path, time.now_s)


def test_more_stores_than_rows_take_the_place_of_the_oldest() -> None:
    time, table = Time(), NodeTable()
    first = governor(table, time, store="s3://0")
    first.note_throttled(first.wait_for_request())
    for n in range(1, 200):
        time.sleep(1)
        governor(table, time, store=f"s3://{n}")
    assert 32 == first.places()
    first.note_throttled(first.wait_for_request())
    assert 16 == first.places()


def _take(path: Path, n_parts: int) -> None:
    one = Governor(NodeTable(path), STORE, 8, max_bytes_per_s=200 * MB)
    for _ in range(n_parts):
        one.wait_for_bytes(2 * MB)


def test_processes_keep_to_one_rate_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started_s = time.monotonic()
    processes = [context.Process(target=_take, args=(tmp_path / "node", 5)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [0, 0, 0] == [process.exitcode for process in processes]
    assert time.monotonic() - started_s >= 14 * 0.01


def test_a_limited_store_waits_for_the_bytes_of_each_call(tmp_path: Path) -> None:
    time = Time()
    store = LimitStore(MemoryStore(StoreURI("memory", "governed"), {}), 8, governor(NodeTable(), time, max_bytes_per_s=2 * MB))
    path = file_of(tmp_path / "file", 2 * MB)
    store.put_file("whole", path)  # one may begin while the clock is behind
    assert time.now_s == 1000.0
    upload_id = store.begin("parts", 2 * MB)
    part = store.put_part("parts", upload_id, path, Part(1, 0, 2 * MB, crc32c_of_file(path)))
    assert pytest.approx(1001.0) == time.now_s
    store.complete("parts", upload_id, [part], PutOptions())
    store.get_file("whole", path, start=0, end=2 * MB)
    assert pytest.approx(1002.0) == time.now_s
    store.read("whole", lambda block, at: None, start=0, end=2 * MB)
    assert pytest.approx(1003.0) == time.now_s
    store.read("whole", lambda block, at: None)
    assert 1004.0 <= time.now_s


def test_a_listing_waits_once_a_page_not_once_an_object(tmp_path: Path) -> None:
    time = Time()
    inner = MemoryStore(StoreURI("memory", "listed"), {})
    for n in range(2500):
        inner.put_file(f"{n:04d}", file_of(tmp_path / "file", 1))
    store = LimitStore(inner, 8, governor(NodeTable(), time, max_requests_per_s=1))
    assert 2500 == len(list(store.list()))
    assert 1000.0 <= time.now_s <= 1003.0


@pytest.mark.parametrize("field", ["max_bytes_per_s", "max_requests_per_s"])
def test_a_rate_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        TransferConfig(**{field: 0})


def test_the_configuration_reaches_the_governor_of_the_node() -> None:
    one = node_governor(StoreURI("s3", "bucket"), {}, {}, TransferConfig(max_bytes_per_s=5e6))
    one.wait_for_bytes(0)
    assert 32 == one.places()


def test_a_server_that_throttles_one_process_is_spared_by_the_others(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    plan = [When("PUT", "/slow", s3_error(503, "SlowDown"), times=2)]
    path = file_of(tmp_path / "file", 1000)
    quick = RetryConfig(first_wait_s=0.001, longest_wait_s=0.01)
    with fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy:
        uri = StoreURI("s3", seaweedfs_server.bucket)
        backends = [S3Store(uri, {**seaweedfs_server.options, "endpoint_url": proxy.url}) for _ in range(2)]
        governors = [Governor(NodeTable(tmp_path / "node"), STORE, 32, process=n) for n in (1, 2)]
        one, other = (LimitStore(each, 32, own) for each, own in zip(backends, governors, strict=True))
        RetryStore(one, quick).put_file("slow", path)
        assert [] == proxy.unfired
        assert 8 <= one.limit < 10
        assert one.limit == other.limit
        other.put_file("other", path)
        assert other.limit <= 5
        for store in (one, other):
            store.head("slow")
            store.close()
