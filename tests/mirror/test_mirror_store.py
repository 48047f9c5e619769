"""A mirror and its store: outages, lost answers, lost ledgers, budgets, and other writers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mirrors import ONCE, Clock, Rig, lines
from wherry.backends.memory import MemoryStore
from wherry.errors import AccessDeniedError, BucketNotFoundError, StoreError, ThrottledError, TransientError
from wherry.mirror import MirrorConfig, MirrorFencedError
from wherry.mirror.format.layout import segment_name
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

QUICK = MirrorConfig(max_lag_s=10.0, segment_bytes=1000, settle_s=2.0, grace_s=20.0, retry=ONCE)
MUTATIONS = ("put", "head", "list", "delete", "get")


def faulty(tmp_path: Path, *plan: Fault) -> FaultyStore:
    return FaultyStore(MemoryStore(StoreURI("memory", f"{tmp_path}"), {}), plan)


def down(error: StoreError | None = None) -> list[Fault]:
    return [Fault(operation, error or TransientError("no route to host"), times=10**9) for operation in MUTATIONS]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, QUICK, store=faulty(tmp_path))


def store_of(rig: Rig) -> FaultyStore:
    assert isinstance(rig.bare, FaultyStore)
    return rig.bare


@pytest.mark.parametrize(
    "error",
    [
        TransientError("reset"),
        ThrottledError("slow down", retry_after_s=20.0),
        AccessDeniedError("forbidden"),
        BucketNotFoundError("no such bucket"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_store_that_is_down_for_an_hour_loses_nothing(rig: Rig, error: StoreError, caplog: pytest.LogCaptureFixture) -> None:
    rig.write("a.log", lines(2500, 0))
    rig.flush()
    store_of(rig).plan[:] = down(error)
    for minute in range(60):
        rig.write("a.log", lines(200, minute))
        rig.write("config.json", f"{minute}", mode="wb")
        for _ in range(60):
            rig.step(1.0)
    assert rig.n_requests < 500  # it is left alone most of the time
    assert 1 == len(caplog.records)  # said once
    assert rig.engine.report().lag_s > 3000
    assert list(rig.spool.glob("scratch/*")) == []
    store_of(rig).plan.clear()
    for _ in range(90):
        rig.step(1.0)
    assert rig.local() == rig.read_all()
    assert rig.engine.report().lag_s < 30
    rig.close()
    assert rig.local() == rig.plain()


def test_one_object_that_is_refused_does_not_hold_up_the_others(rig: Rig) -> None:
    store_of(rig).plan.append(Fault("put", AccessDeniedError("retention"), key="/bad.json", times=10**9))
    rig.write("bad.json", "{}")
    for number in range(100):
        rig.write("good.log", lines(500, number))
        rig.step(10.0)
    assert rig.engine.report().lag_s > 900
    assert len(rig.local()["good.log"]) - len(rig.read("good.log")) < 15_000
    assert any("retention" in text for text in rig.engine.report().trouble)
    for _ in range(100):
        rig.step(1.0, final=True)
    assert rig.engine.is_finished
    assert not rig.engine.report().is_complete
    assert {"good.log": rig.local()["good.log"]} == rig.plain()


def test_a_file_that_cannot_be_read_is_not_waited_for_at_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.write("good.log", "x\n")
    rig.write("bad.log", "x\n")
    rig.step()
    (rig.folder / "bad.log").unlink()
    (rig.folder / "bad.log").symlink_to("/etc/hostname")
    rig.step(1.0)
    rig.close()
    assert {"good.log": b"x\n"} == rig.plain()


def test_a_mirror_that_begins_while_the_store_is_down_begins_later(tmp_path: Path) -> None:
    rig = Rig(tmp_path, QUICK, store=faulty(tmp_path, *down()))
    rig.write("a.log", lines(2500))
    for _ in range(600):
        rig.step(1.0)
    store_of(rig).plan.clear()
    for _ in range(90):
        rig.step(1.0)
    assert rig.local() == rig.read_all()


@pytest.mark.pairwise
@pytest.mark.parametrize("operation", ["put", "head", "list", "delete"])
@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["goes-on", "restarts"])
def test_any_call_may_fail_or_lose_its_answer(tmp_path: Path, operation: str, nth: int, after: bool, is_killed: bool) -> None:
    plan = Fault(operation, TransientError("cut"), nth=nth, after=after)
    rig = Rig(tmp_path, QUICK, store=faulty(tmp_path, plan))
    rig.write("config.json", "{}")
    for number in range(5):
        rig.write("a.log", lines(700, number))
        if number == 3:
            (rig.folder / "a.log").rename(rig.folder / "a.log.1")
        for _ in range(12):
            rig.step(1.0)
        found = rig.read("a.log")
        assert found == b"" or rig.local().get("a.log", rig.local().get("a.log.1", b"")).startswith(found) or number >= 3
        if is_killed:
            rig.restart()
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_lost_ledger_is_made_again_from_a_listing(tmp_path: Path, compression: str | None, is_closed: bool) -> None:
    config = MirrorConfig(segment_bytes=1000, compression=compression, retry=ONCE)  # type: ignore[arg-type]
    rig = Rig(tmp_path, config)
    rig.write("a.log", lines(3500))
    rig.write("b.jsonl", lines(3500, 2))
    rig.write("gone.log", lines(500))
    rig.write("image.png", random.Random(1).randbytes(5000))
    rig.flush()
    (rig.folder / "gone.log").unlink()
    if is_closed:
        rig.close()
    before = rig.names()
    rig.restart(lose_state_db=True)
    sent = rig.sent_bytes
    rig.flush()
    assert set(before) <= set(rig.names())
    assert rig.sent_bytes - sent < 1000  # the manifest and the epoch
    rig.write("a.log", lines(1500, 3))
    rig.flush()
    assert rig.local() == {path: data for path, data in rig.read_all().items() if path != "gone.log"}
    rig.close()
    assert rig.local() == {path: data for path, data in rig.plain().items() if path != "gone.log"}


def test_with_a_lost_ledger_a_file_that_is_another_by_now_begins_anew(rig: Rig) -> None:
    rig.write("a.log", lines(3500))
    rig.flush()
    rig.write("a.log", lines(4000, 2), mode="wb")
    rig.restart(lose_state_db=True)
    rig.flush()
    assert rig.local()["a.log"] == rig.read("a.log")
    rig.close()
    assert rig.local() == rig.plain()


def test_a_damaged_ledger_is_as_good_as_a_lost_one(rig: Rig) -> None:
    rig.write("a.log", lines(3500))
    rig.flush()
    rig.state_db.close()
    for path in rig.spool.glob("ledger.db*"):
        path.unlink()
    (rig.spool / "ledger.db").write_bytes(b"\xff" * 10_000)
    rig.start()
    rig.write("a.log", "more\n")
    rig.flush()
    assert rig.local() == rig.read_all()
    assert 5 == len(rig.segments())


def test_an_old_ledger_is_not_trusted_when_another_process_wrote_since(tmp_path: Path) -> None:
    """The job was moved to another machine and back: the ledger here is a stage behind."""
    store = MemoryStore(StoreURI("memory", f"{tmp_path}"), {})
    here = Rig(tmp_path, QUICK, store=store)
    here.write("a.log", lines(2500, 1))
    here.flush()
    there = Rig(tmp_path, QUICK, store=store, uri=here.uri, name="there")
    there.write("a.log", here.local()["a.log"] + lines(2500, 2))
    there.close()
    here.write("a.log", lines(2500, 2) + b"and here again\n")
    here.restart()
    here.flush()
    assert here.local() == here.read_all()
    assert 1 == len(here.segments())


def test_of_two_writers_of_one_name_the_later_one_goes_on(tmp_path: Path) -> None:
    store, clock = MemoryStore(StoreURI("memory", f"{tmp_path}"), {}), Clock()
    first = Rig(tmp_path, QUICK, store=store, clock=clock)
    first.write("a.log", lines(2500, 1))
    first.flush()
    second = Rig(tmp_path, QUICK, store=store, clock=clock, uri=first.uri, name="other")
    second.write("b.log", lines(2500, 2))
    second.flush()
    first.write("a.log", lines(2500, 3))
    with pytest.raises(MirrorFencedError, match="another process mirrors as 'rank0' since"):
        first.flush()
    before = first.names()
    with pytest.raises(MirrorFencedError):
        first.step(100.0, final=True)
    assert before == first.names()
    second.write("b.log", "more\n")
    second.flush()
    assert second.local()["b.log"] == second.read("b.log")


def test_an_old_process_that_wakes_up_changes_nothing(tmp_path: Path) -> None:
    """It was stopped (SIGSTOP, a frozen machine) and its successor has sealed the run."""
    store, clock = MemoryStore(StoreURI("memory", f"{tmp_path}"), {}), Clock()
    old = Rig(tmp_path, QUICK, store=store, clock=clock)
    old.write("a.log", lines(2500, 1))
    old.write("config.json", "old")
    old.flush()
    new = Rig(tmp_path, QUICK, store=store, clock=clock, uri=old.uri, name="new")
    new.write("a.log", old.local()["a.log"] + b"the end\n")
    new.write("config.json", "new")
    new.close()
    sealed = {name: new.get(name) for name in new.names()}
    old.write("a.log", "something else\n")
    old.write("config.json", "old again", mode="wb")
    clock.s += 3600.0
    with pytest.raises(MirrorFencedError):
        old.step(force=True)
    assert sealed == {name: new.get(name) for name in new.names()}


def test_writers_of_different_names_share_a_prefix(tmp_path: Path) -> None:
    store = MemoryStore(StoreURI("memory", f"{tmp_path}"), {})
    rigs = [
        Rig(tmp_path, QUICK, store=store, writer=f"rank{n}", uri=StoreURI("memory", f"{tmp_path}", "r"), name=f"f{n}")
        for n in (0, 1)
    ]
    for n, rig in enumerate(rigs):
        rig.write(f"rank{n}.log", lines(2500, n))
        rig.flush()
    assert {**rigs[0].local(), **rigs[1].local()} == rigs[0].read_all()
    for rig in rigs:
        rig.close()
    assert {**rigs[0].local(), **rigs[1].local()} == rigs[0].plain()


def test_a_file_of_which_one_segment_arrives_at_a_time_is_not_stuck(rig: Rig) -> None:
    """Every other put fails, so it takes a try for each: a close that waits as long as it gets on waits for all of them."""
    store_of(rig).plan[:] = [Fault("put", TransientError("reset"), nth=nth) for nth in range(2, 200, 2)]
    rig.write("a.log", lines(40_000))
    stuck_s = []
    while not rig.engine.is_finished:
        rig.step(1.0, final=True)
        stuck_s.append(rig.engine.stuck_s())
        assert len(stuck_s) < 500
    assert rig.engine.is_complete
    assert len(stuck_s) > 40  # seconds
    assert max(stuck_s) < 10


def test_a_segment_that_is_there_already_with_our_bytes_is_ours(rig: Rig, tmp_path: Path) -> None:
    """Sent, and then killed before it was noted."""
    data = lines(600)
    rig.write("a.log", data + b"more\n")
    rig.step()
    sent = tmp_path / "sent"
    sent.write_bytes(data)
    rig.bare.put_file(rig.uri.key_for(segment_name("rank0", "a.log", 1, 0)), sent)
    rig.flush()
    assert rig.local()["a.log"] == rig.read("a.log")
    assert 2 == len(rig.segments())


def test_a_segment_with_other_bytes_is_left_and_the_file_goes_on_as_the_next_generation(rig: Rig, tmp_path: Path) -> None:
    rig.write("a.log", lines(600))
    rig.step()
    other = tmp_path / "other"
    other.write_bytes(lines(600, 9))
    rig.bare.put_file(rig.uri.key_for(segment_name("rank0", "a.log", 1, 0)), other)
    rig.flush()
    assert rig.local()["a.log"] == rig.read("a.log")
    assert rig.segments()[0].startswith("a.log/0001-")


def sealed_and_not_cleaned(rig: Rig, data: bytes) -> None:
    """A process that was killed after it had sealed, and before it took the segments away."""
    rig.write("a.log", data)
    rig.flush()
    while "a.log" not in rig.plain():
        rig.step(1.0, final=True)
    assert rig.segments()
    rig.restart()


@pytest.mark.parametrize("n_bytes", [200, 5000], ids=["clean-first", "send-first"])
def test_what_was_written_after_a_seal_is_kept_when_the_segments_before_it_go(rig: Rig, n_bytes: int) -> None:
    """Both are due in one turn; what is not sealed is nowhere else in the store."""
    sealed_and_not_cleaned(rig, lines(2500))
    rig.write("a.log", lines(n_bytes, 1))
    rig.step()
    rig.step(60.0)
    for _ in range(30):
        assert rig.read("a.log") in (rig.local()["a.log"], lines(2500))
        rig.step(1.0)
    assert rig.local()["a.log"] == rig.read("a.log")
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()


def test_a_segment_that_was_sent_after_a_seal_and_not_noted_is_kept(rig: Rig, tmp_path: Path) -> None:
    """Sent, and then killed before it was noted: it is taken for ours, and not for a leftover of the seal."""
    sealed_and_not_cleaned(rig, lines(2500))
    rig.write("a.log", lines(200, 1))
    sent = tmp_path / "sent"
    sent.write_bytes(lines(200, 1))
    at = len(lines(2500))
    rig.bare.put_file(rig.uri.key_for(segment_name("rank0", "a.log", 1, at)), sent)
    record = rig.state_db.load()[0]
    record.in_doubt = True  # as it is written down before each put
    rig.engine.sender.clean([(record, ())])
    assert [segment_name("rank0", "a.log", 1, at).rpartition("/")[2]] == [name.rpartition("/")[2] for name in rig.segments()]
    assert rig.local()["a.log"] == rig.read("a.log")


@pytest.mark.parametrize("hours", [2, pytest.param(24, marks=pytest.mark.slow)])
def test_a_day_of_scalars_stays_within_the_budget_and_sends_hardly_more_than_is_written(tmp_path: Path, hours: int) -> None:
    """2.3 kB/s in flushes of 10 s."""
    rig = Rig(tmp_path, MirrorConfig(retry=ONCE))
    rng = random.Random(1)
    hourly: list[int] = []
    before = 0
    for tick in range(360 * hours):
        rig.write("tb/metrics.jsonl", rng.randbytes(11_500).hex() + "\n")
        for _ in range(2):
            rig.step(5.0)
        if tick % 360 == 359:
            hourly.append(rig.n_requests - before)
            before = rig.n_requests
    written = len(rig.local()["tb/metrics.jsonl"])
    assert rig.sent_bytes <= 1.1 * written
    assert max(hourly) <= 3600
    assert rig.engine.report().lag_s <= 45
    rig.flush()
    assert rig.local() == rig.read_all()


def test_a_short_budget_is_kept_and_the_quiet_files_wait_longest(tmp_path: Path) -> None:
    config = MirrorConfig(max_lag_s=10.0, max_requests_per_hour=120, retry=ONCE)
    rig = Rig(tmp_path, config)
    spent: list[int] = []
    for second in range(0, 7200, 2):
        rig.write("busy.log", lines(4000, second))
        if second % 60 == 0:
            for n in range(20):
                rig.write(f"quiet{n}.log", f"{second}\n")
        rig.step(2.0)
        spent.append(rig.n_requests)
    for start in range(0, 1800, 30):
        assert spent[start + 1799] - spent[start] <= 120 + 4  # what is begun is finished
    behind = len(rig.local()["busy.log"]) - len(rig.read("busy.log"))
    assert behind < 2000 * 600
    assert all(rig.read(f"quiet{n}.log") for n in range(20))


def test_a_flush_and_the_end_do_not_wait_for_the_budget(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MirrorConfig(max_requests_per_hour=10, retry=ONCE))
    for n in range(100):
        rig.write(f"{n}.log", "x\n")
    rig.flush()
    assert rig.local() == rig.read_all()
    rig.close()
    assert rig.local() == rig.plain()


def test_the_manifest_says_who_how_late_and_what(rig: Rig) -> None:
    rig.write("a.log", lines(2500))
    rig.flush()
    rig.step(700.0)
    manifest = rig.manifest()
    assert ("rank0", 1, "open", 1) == (manifest.writer, manifest.epoch, manifest.state, manifest.n_files)
    (entry,) = manifest.files
    assert ("a.log", "live", 1, len(rig.local()["a.log"])) == (entry.path, entry.state, entry.generation, entry.acked_bytes)
    assert "open" == manifest.state_at(rig.clock.wall())
    assert "lost" == manifest.state_at(rig.clock.wall() + 4 * manifest.interval_s)


def test_a_quiet_mirror_sends_a_heartbeat_now_and_then(rig: Rig) -> None:
    rig.write("a.log", lines(500))
    rig.flush()
    before = rig.n_requests
    for _ in range(1200):
        rig.step(3.0)
        assert "open" == rig.manifest().state_at(rig.clock.wall())
    assert rig.n_requests - before < 400
