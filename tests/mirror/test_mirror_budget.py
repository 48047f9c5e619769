"""How many requests a mirror makes, how late its files are by that, and who waits for whom."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from gate import wait_until
from mirrors import ONCE, Rig, lines
from servers.features import tell_spool
from servers.proxy import fault_proxy
from servers.real import S3Server
from wherry import Mirror, MirrorConfig
from wherry.backends.memory import MemoryStore
from wherry.store import ObjectMeta, PutOptions
from wherry.store.wrappers import WrappedStore
from wherry.uri import StoreURI

_T = TypeVar("_T")


class Costly(WrappedStore):
    """Takes three requests for each call, and says so, as a server does that checks nothing by itself."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.sent = 0

    @property
    def n_requests(self) -> int | None:
        """All so far."""
        return self.sent

    def _call(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        self.sent += 3 if operation != "list" else 0
        return call()

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectMeta]:
        """One request."""
        self.sent += 1
        return super().list(prefix, start_after=start_after)


def grow(rig: Rig, n_files: int, seconds: int, look: Callable[[int], None], *, every_s: int = 1) -> None:
    """Have files grow by a line a second each, and the mirror take a turn a second, or both less often."""
    for second in range(0, seconds, every_s):
        for number in range(n_files):
            rig.write(f"rank{number}.log", "".join(f"{second + n:09}\n" for n in range(every_s)))
        rig.step(float(every_s))
        look(second)


def lags_s(rig: Rig, n_files: int) -> list[float]:
    """How old the oldest line is of each file that is not in the store, where each line is a second."""
    behind = {one.record.path: (one.found.size - one.record.acked) / 10 for one in rig.engine.tracker.active if one.found}
    return [behind.get(f"rank{number}.log", 0.0) for number in range(n_files)]


def test_sixty_four_busy_files_are_not_later_than_max_lag(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MirrorConfig(retry=ONCE))
    found: list[float] = []

    def look(second: int) -> None:
        if second > 120:
            found.extend(lags_s(rig, 64))

    grow(rig, 64, 360, look, every_s=2)
    assert max(found) <= rig.config.max_lag_s + 5
    assert statistics.median(found) <= rig.config.max_lag_s / 2 + 2
    assert rig.engine.budget.per_hour < 12_000


def test_the_budget_follows_the_files_and_has_a_limit(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MirrorConfig(retry=ONCE))
    assert 3600 == rig.engine.budget.per_hour
    grow(rig, 64, 90, lambda _: None, every_s=5)
    assert 9_000 <= rig.engine.budget.per_hour <= 12_000
    grow(rig, 300, 60, lambda _: None, every_s=5)
    assert 36_000 == rig.engine.budget.per_hour
    for _ in range(90):
        rig.step(1.0)
    assert 3600 == rig.engine.budget.per_hour


@pytest.mark.parametrize("per_hour", [60, 600])
def test_no_hour_has_more_requests_than_the_budget_whatever_a_send_costs(tmp_path: Path, per_hour: int) -> None:
    uri = StoreURI("memory", f"{tmp_path}", "runs/a")
    store = Costly(MemoryStore(uri, {}))
    rig = Rig(tmp_path, MirrorConfig(retry=ONCE, max_requests_per_hour=per_hour), store=store, uri=uri)
    spent: list[int] = []
    grow(rig, 16, 7300, lambda _: spent.append(store.sent), every_s=20)
    assert store.sent == rig.n_requests
    assert max(spent[start + 180] - spent[start] for start in range(0, 180, 2)) <= per_hour
    assert spent[360] - spent[180] >= per_hour / 2


def test_every_request_is_counted(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    """Also those for which one call of a store makes several: a trial of the server, a look for an object that is not there."""
    (tmp_path / "run").mkdir()
    with fault_proxy("127.0.0.1", seaweedfs_server.port, []) as proxy:
        options: Mapping[str, object] = {**seaweedfs_server.options, "endpoint_url": proxy.url}
        uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}"
        config = MirrorConfig(max_lag_s=0.1, settle_s=0.1)
        with Mirror(tmp_path / "run", uri, storage_options=options, spool=tmp_path / "spool", config=config) as mirror:
            for number in range(20):
                (tmp_path / "run" / f"{number}.log").write_text("x\n")
                mirror.flush(60.0)
        assert len(proxy.log) == mirror.report.n_requests


class Gated(WrappedStore):
    """In which large objects wait until the gate is open."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.n_waiting = 0

    def put_file(self, key: str, path: Path, put: PutOptions = PutOptions()) -> ObjectMeta:
        """As the inner store's, later."""
        if path.stat().st_size > 100_000:
            self.n_waiting += 1
            assert self.gate.wait(60.0)
        return super().put_file(key, path, put)


def test_a_new_small_log_goes_while_large_ones_keep_all_other_senders(tmp_path: Path) -> None:
    uri = StoreURI("memory", f"{tmp_path}", "runs/a")
    store = Gated(MemoryStore(uri, {}))
    config = MirrorConfig(retry=ONCE, max_lag_s=1.0, segment_bytes=2**20)
    rig = Rig(tmp_path, config, store=store, uri=uri)
    with ThreadPoolExecutor(config.sends_in_flight) as pool:
        rig.engine.runner.executor = pool
        for number in range(8):
            rig.write(f"old{number}.log", lines(3 * 2**20, number))

        def turn_until(condition: Callable[[], object], what: str) -> None:
            def look() -> object:
                rig.step(0.1)
                return condition()

            wait_until(look, 60.0, what)

        turn_until(lambda: store.n_waiting >= 3, "the large ones")
        rig.write("new.log", "hello\n")
        turn_until(lambda: rig.segments("new.log"), "the small log")
        assert not any(rig.segments(f"old{number}.log") for number in range(8))
        store.gate.set()
        turn_until(lambda: not rig.engine.tracker.active, "the large ones' end")


def test_a_short_budget_is_not_all_spent_on_large_files(tmp_path: Path) -> None:
    """Gigabytes of old logs, and small ones that go on: of five requests four are for these."""
    rig = Rig(tmp_path, MirrorConfig(retry=ONCE, max_lag_s=10.0, segment_bytes=20_000, max_requests_per_hour=720))
    old = lines(500_000) * 40
    for number in range(4):
        rig.write(f"old{number}.log", old)
    worst = 0.0

    def look(second: int) -> None:
        nonlocal worst
        if second > 60:
            worst = max(worst, *lags_s(rig, 1))

    grow(rig, 1, 600, look)
    assert worst <= 20
    assert any(rig.segments(f"old{number}.log") for number in range(4))


def test_segments_are_deleted_a_thousand_at_a_time(tmp_path: Path, seaweedfs_server: S3Server) -> None:
    (tmp_path / "run").mkdir()
    with fault_proxy("127.0.0.1", seaweedfs_server.port, []) as proxy:
        options: Mapping[str, object] = {**seaweedfs_server.options, "endpoint_url": proxy.url}
        uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}"
        tell_spool(tmp_path / "spool", seaweedfs_server, proxy.url)
        with Mirror(tmp_path / "run", uri, storage_options=options, spool=tmp_path / "spool") as mirror:
            for _ in range(3):
                for number in range(50):
                    with open(tmp_path / "run" / f"{number}.log", "a") as file:
                        file.write("x\n")
                mirror.flush(60.0)
            before = len(proxy.log)
        assert mirror.report.is_complete
        deletes = [one for one in proxy.log[before:] if one.method == "DELETE" or one.target.endswith("?delete")]
        assert 4 >= len(deletes)
        assert 1 + 50 >= len([one for one in proxy.log[before:] if "list-type" in one.target])
