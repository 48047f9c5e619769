"""The pieces of a mirror, each for itself."""

from __future__ import annotations

import gzip
import logging
import os
import random
import struct
import threading
from pathlib import Path

import pytest

from mirrors import ONCE, Rig, lines
from wherry.backends.memory import MemoryStore
from wherry.config import RetryConfig
from wherry.errors import ConfigError, IntegrityError, SpoolError, ThrottledError, TransientError
from wherry.mirror import DEFAULT_RULES, MirrorConfig, MirrorFencedError, Rule
from wherry.mirror.backoff_state import BackoffState
from wherry.mirror.budget import Budget, CountedStore
from wherry.mirror.format.fence import Fence
from wherry.mirror.format.layout import epoch_name, epoch_number, parse_segment, segment_name
from wherry.mirror.format.manifest import FileEntry, Manifest, parse_manifest
from wherry.mirror.format.record_boundaries import cut_events, cut_lines, masked_crc32c
from wherry.mirror.format.rules import Rules
from wherry.mirror.mirror_config import writer_name
from wherry.mirror.writer.scan import scan
from wherry.mirror.writer.segments import PrefixChanged, compressor, cut_segment
from wherry.mirror.writer.state_db import MirrorLock, Record, StateDb, state_folder
from wherry.mirror.writer.watcher import Watcher
from wherry.store import ObjectMeta
from wherry.testing import Fault, FaultyStore
from wherry.uri import StoreURI

# -- config, rules


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"segment_bytes": 0}, "segment_bytes is 0: it must be a whole number, at least 1"),
        ({"max_requests_per_hour": 1.5}, "max_requests_per_hour is 1.5"),
        ({"sends_in_flight": True}, "sends_in_flight is True"),
        ({"max_lag_s": -1}, "max_lag_s is -1: it must be a number of seconds, at least 0"),
        ({"grace_s": float("nan")}, "grace_s is nan"),
        ({"compression": "lz4"}, "compression is 'lz4': use None, 'gzip' or 'zstd'"),
        ({"rules": [Rule("*", "append")]}, "rules must be a tuple of Rule"),
        ({"retry": 3}, "retry is int: give a RetryConfig"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MirrorConfig(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("pattern", "kind"), [("*.log", "grow"), ("", "append"), ("/abs/*.log", "append")])
def test_a_wrong_rule_is_refused(pattern: str, kind: str) -> None:
    with pytest.raises(ConfigError, match="the rule"):
        Rule(pattern, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("train.log", "append"),
        ("logs/rank0.txt", "append"),
        ("metrics.jsonl", "append"),
        ("a.csv", "append"),
        ("tb/events.out.tfevents.1.host", "append"),
        ("wandb/offline-run-1/run-1.wandb", "append"),
        ("config.json", "replace"),
        ("sub/config.yaml", "replace"),
        ("model.pt", "once"),
        ("no_suffix", "once"),
        ("train.log.1", "once"),
        ("model.pt.tmp", "ignore"),
        (".hidden/train.log", "ignore"),
        ("sub/.hidden", "ignore"),
        (".lock", "ignore"),
        ("x.wherry-tmp-1", "ignore"),
        ("pkg/__pycache__/a.pyc", "ignore"),
    ],
)
def test_the_default_rules(path: str, kind: str) -> None:
    assert kind == Rules(DEFAULT_RULES).kind(path)


def test_a_writer_is_named_after_its_rank_or_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert os.uname().nodename == writer_name("")
    monkeypatch.setenv("SLURM_PROCID", "7")
    assert "rank7" == writer_name("")
    monkeypatch.setenv("RANK", "3")
    assert "rank3" == writer_name("")
    assert "me" == writer_name("me")
    with pytest.raises(ConfigError, match="holds a '/'"):
        writer_name("a/b")


# -- cutting


def opened(path: Path, data: bytes) -> int:
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY)


@pytest.mark.parametrize(
    ("data", "start", "max_bytes", "end"),
    [
        (b"", 0, 10, 0),
        (b"ab", 0, 10, 0),
        (b"ab\n", 0, 10, 3),
        (b"ab\ncd", 0, 10, 3),
        (b"ab\ncd\n", 3, 10, 6),
        (b"ab\ncd\n", 0, 5, 3),
        (b"abcdefgh", 0, 4, 4),
        (b"ab\rcd\ref", 0, 20, 6),
        (b"ab\ncd\ref", 0, 20, 3),
        (b"\n" * 200_000 + b"x" * 100_000, 0, 300_000, 200_000),
    ],
)
def test_lines_are_cut_after_the_last_whole_one(tmp_path: Path, data: bytes, start: int, max_bytes: int, end: int) -> None:
    file = opened(tmp_path / "f", data)
    assert end == cut_lines(file, start, len(data), max_bytes)
    os.close(file)


def event(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


def test_events_are_cut_where_one_ends(tmp_path: Path) -> None:
    rng = random.Random(1)
    events = [event(rng.randbytes(rng.choice((10, 100, 70_000)))) for _ in range(40)]
    ends = {0}
    for one in events:
        ends.add(max(ends) + len(one))
    whole = b"".join(events)
    file = opened(tmp_path / "f", whole)
    for _ in range(200):
        size = rng.randrange(len(whole) + 1)
        start = max(end for end in ends if end <= size)
        start = rng.choice([end for end in sorted(ends) if end <= start])
        cut, boundary = cut_events(file, start, start, size, 50_000)
        assert cut in ends
        assert start <= cut <= size
        assert boundary == cut
        assert cut > start or not [end for end in ends if start < end <= size]
    os.close(file)


def test_what_is_no_event_is_cut_as_it_comes(tmp_path: Path) -> None:
    file = opened(tmp_path / "f", b"x" * 1000)
    assert (300, 0) == cut_events(file, 0, 0, 1000, 300)
    assert (600, 0) == cut_events(file, 0, 300, 1000, 300)
    os.close(file)


def test_a_torn_copy_of_a_segment_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(lines(500))
    found = path.stat()
    record = Record("a.log", 1, "append", at="a.log", device=found.st_dev, inode=found.st_ino)
    cut = cut_segment(path, record, tmp_path / "out", max_bytes=200, compression="gzip", all_of_it=False)
    assert cut is not None
    assert path.read_bytes()[: cut.end] == gzip.decompress((tmp_path / "out").read_bytes())
    record.acked, record.tail = 1000, cut.tail
    with pytest.raises(PrefixChanged, match="it was truncated"):
        cut_segment(path, record, tmp_path / "out", max_bytes=200, compression=None, all_of_it=False)
    record.acked, record.inode = 0, 1
    with pytest.raises(PrefixChanged, match="another file has its name"):
        cut_segment(path, record, tmp_path / "out", max_bytes=200, compression=None, all_of_it=False)


def test_an_unknown_compression_is_none_of_ours() -> None:
    assert b"abc" == compressor(None).compress(b"abc")


# -- names


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
@pytest.mark.parametrize("path", ["a.log", "tb/rank0/events.out.tfevents.1", "odd/segments/0001-1/é.log"])
def test_a_segments_name_is_read_back(path: str, compression: str | None) -> None:
    name = segment_name("rank0", path, 12, 345, compression)
    found = parse_segment("runs/a", ObjectMeta(f"runs/a/{name}", 10))
    assert found is not None
    assert ("rank0", path, 12, 345, compression) == (found.writer, found.path, found.generation, found.start, found.compression)


@pytest.mark.parametrize(
    "key", ["runs/a/a.log", "runs/b/_mirror/w/segments/a/0001-00000000000000000000", "_mirror/w/manifest.json"]
)
def test_other_names_are_no_segments(key: str) -> None:
    assert None is parse_segment("runs/a", ObjectMeta(key, 1))


def test_an_epochs_name_is_read_back() -> None:
    assert 12 == epoch_number(f"runs/{epoch_name('w', 12)}")
    assert None is epoch_number("epoch-x")


# -- manifest


def test_a_manifest_is_read_back() -> None:
    entry = FileEntry("a.log", "a.log", "append", "live", 1, 10, "00000000")
    manifest = Manifest("rank0", 3, "open", 1.5, 60.0, 0.1, 5, 2, (entry,))
    text = manifest.to_json()
    assert manifest == parse_manifest(text)
    assert manifest == parse_manifest(text.replace('"writer"', '"of a later version": 1, "writer"'))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}', "null", '{"format": 1, "files": [1]}'])
def test_what_is_no_manifest_is_said_to_be_none(text: str) -> None:
    with pytest.raises(IntegrityError):
        parse_manifest(text)


# -- scan


def test_a_scan_finds_files_and_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "a").write_text("a")
    (tmp_path / "sub" / "deep" / "b").write_text("bb")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    found = scan(tmp_path)
    assert found is not None
    assert {"a": 1, "sub/deep/b": 2} == {path: one.size for path, one in found.files.items()}
    assert ["link", "loop"] == sorted(found.symlinks)
    assert {} == found.trouble


def test_a_folder_that_is_not_there_is_none_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    assert None is scan(tmp_path / "no")
    found = scan(tmp_path)
    assert found is not None
    assert {} == found.files


# -- budget, outage, fence, lock


def test_no_hour_sees_more_than_the_budget() -> None:
    now = [0.0]
    budget = Budget(100, lambda: now[0])
    times = []
    for second in range(4 * 3600):
        now[0] = float(second)
        while budget.left() >= 1:
            budget.spend()
            times.append(second)
    for start in range(0, 3 * 3600, 60):
        assert sum(start <= one < start + 3600 for one in times) <= 100
    assert len(times) > 350
    assert budget.left() < 1
    now[0] += 40.0
    assert budget.left() >= 1, "the next request has to wait for 40 s at most"


def test_every_call_counts_and_a_listing_by_its_pages(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    store = MemoryStore(StoreURI("memory", f"{tmp_path}"), {})
    budget = Budget(1000)
    counted = CountedStore(store, budget)
    for number in range(1500):
        store.put_file(f"{number}", tmp_path / "f")
    assert 1500 == len(list(counted.list()))
    assert 2 == budget.spent
    counted.put_file("x", tmp_path / "f")
    counted.head("x")
    counted.delete("x")
    assert 5 == budget.spent


def test_an_outage_waits_longer_each_time_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    backoff = BackoffState("it", RetryConfig(longest_wait_s=4.0), lambda: now[0], random.Random(1))
    longest = 0.0
    for _ in range(50):
        backoff.note(TransientError("reset"))
        longest = max(longest, backoff.wait_s())
        assert backoff.wait_s(2.0) <= 2.0
    assert 30 < longest <= 60
    assert 1 == len(caplog.records)
    now[0] += 100
    assert 100 == backoff.duration_s()
    backoff.clear()
    assert (0, 0, None) == (backoff.duration_s(), backoff.wait_s(), backoff.error)
    backoff.note(ThrottledError("slow down", retry_after_s=500.0))
    assert 500 <= backoff.wait_s()


def test_each_epoch_is_taken_once(tmp_path: Path) -> None:
    store = MemoryStore(StoreURI("memory", f"{tmp_path}"), {})
    fences = [Fence(store, "runs", "w", tmp_path) for _ in range(3)]
    for number, fence in enumerate(fences, 1):
        fence.take()
        fence.take()
        assert number == fence.epoch
        fence.check()
    for fence in fences[:-1]:
        with pytest.raises(MirrorFencedError, match="since \\(epoch"):
            fence.check()
    fences[-1].check()


def test_an_epoch_whose_answer_was_lost_is_ours(tmp_path: Path) -> None:
    inner = MemoryStore(StoreURI("memory", f"{tmp_path}"), {})
    store = FaultyStore(inner, [Fault("put", TransientError("cut"), after=True)])
    fence = Fence(store, "", "w", tmp_path)
    with pytest.raises(TransientError):
        fence.take()
    fence.take()
    fence.check()
    assert fence.epoch == len(list(inner.list("_mirror/w/epoch-")))


def test_a_place_is_locked_once_and_free_after_a_release(tmp_path: Path) -> None:
    place = state_folder(tmp_path, tmp_path / "run")
    lock = MirrorLock(place, tmp_path / "run")
    with pytest.raises(SpoolError, match=f"is being mirrored by process {os.getpid()}"):
        MirrorLock(place, tmp_path / "run")
    (lock.scratch / "left").write_text("x")
    lock.release()
    lock = MirrorLock(place, tmp_path / "run")
    assert [] == list(lock.scratch.iterdir())
    lock.release()


def test_a_ledger_gives_back_what_it_was_given(tmp_path: Path) -> None:
    state_db = StateDb(tmp_path / "a.db")
    records = [Record("a.log", n, "append", acked=n, has_segments=n == 1) for n in (1, 2)]
    state_db.save(records)
    state_db.note("epoch", "3")
    state_db.close()
    again = StateDb(tmp_path / "a.db")
    assert records == again.load()
    assert "3" == again.fact("epoch")
    assert None is again.fact("other")
    again.drop(records[:1])
    assert records[1:] == again.load()
    again.save(records[:1], anew=True)
    assert records[:1] == again.load()
    again.close()


def test_a_watcher_tells_once_of_changes_each_time_it_is_armed(tmp_path: Path) -> None:
    told = threading.Event()
    watcher = Watcher(tmp_path, told.set)
    for step in range(2):
        told.clear()
        assert watcher.arm()
        for number in range(100):  # the watch begins a moment later
            (tmp_path / f"{step}-{number}").write_text("x")
            if told.wait(0.2):
                break
        assert told.is_set()
    watcher.stop()
    assert logging.WARNING == logging.getLogger("watchfiles.main").level


# -- the engine's small print


def test_a_full_disk_for_the_scratch_is_a_trouble_of_the_file_and_passes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path, MirrorConfig(retry=ONCE))
    rig.write("a.log", "x\n")
    (rig.spool / "scratch").rmdir()
    (rig.spool / "scratch").write_text("no folder, so nothing can be written there")
    for _ in range(5):
        rig.step(40.0)
    assert b"" == rig.read("a.log")
    (rig.spool / "scratch").unlink()
    (rig.spool / "scratch").mkdir()
    for _ in range(10):
        rig.step(40.0)
    assert b"x\n" == rig.read("a.log")
    assert caplog.records


def test_names_that_differ_by_their_unicode_form_only_become_one_and_the_second_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MirrorConfig(retry=ONCE))
    rig.write("e\u0301.log", "decomposed\n")
    rig.write("\u00e9.log", "composed\n")
    rig.flush()
    rig.close()
    assert {"\u00e9.log"} == set(rig.plain())
    assert 1 == len(rig.engine.report().trouble)
