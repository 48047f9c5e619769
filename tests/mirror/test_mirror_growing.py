"""A mirror of files that grow, turn by turn: what is sent when, and what a reader finds."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
import zstandard

from mirrors import ONCE, Rig, lines
from tfevents import read_events
from wherry.backends.local.store import LocalStore
from wherry.mirror import MirrorConfig, Rule
from wherry.mirror.format.rules import DEFAULT_RULES
from wherry.uri import parse_uri

QUICK = MirrorConfig(max_lag_s=10.0, segment_bytes=1000, settle_s=2.0, grace_s=20.0, retry=ONCE)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, QUICK)


def test_quiet_bytes_go_after_max_lag_and_not_before(rig: Rig) -> None:
    rig.step()
    rig.write("train.log", "one\n")
    for _ in range(8):
        rig.step(1.0)
        assert [] == rig.segments()
    rig.step(1.0)
    rig.step(1.0)
    assert b"one\n" == rig.read("train.log")


def test_a_full_segment_goes_at_once(rig: Rig) -> None:
    rig.step()
    rig.write("train.log", lines(1500))
    rig.step(0.1)
    assert 900 < len(rig.read("train.log")) <= 1000


def test_only_whole_lines_go_while_it_grows_and_the_rest_at_the_close(rig: Rig) -> None:
    rig.write("train.log", "whole\nhal")
    rig.flush()
    assert b"whole\n" == rig.read("train.log")
    rig.close()
    assert {"train.log": b"whole\nhal"} == rig.plain()


def test_a_segments_name_says_generation_and_offset(rig: Rig) -> None:
    for _ in range(3):
        rig.write("logs/train.log", "12345\n")
        rig.flush()
    expected = ["0001-00000000000000000000", "0001-00000000000000000006", "0001-00000000000000000012"]
    assert expected == rig.segments("logs/train.log")


def test_closed_the_bucket_is_the_folder(rig: Rig) -> None:
    rig.write("train.log", lines(5000))
    rig.write("metrics.jsonl", '{"a": 1}\n{"b"')
    rig.write("config.json", "{}")
    rig.write("media/images/1.png", random.Random(1).randbytes(5000))
    rig.write("empty.log", "")
    rig.step()
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()
    assert "sealed" == rig.manifest().state
    assert rig.engine.report().is_complete


def test_without_sealing_every_byte_is_there_as_segments(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MirrorConfig(segment_bytes=100, seal_on_close=False, retry=ONCE))
    rig.write("train.log", lines(1000) + b"no newline")
    rig.close()
    assert {} == rig.plain()
    assert rig.local() == rig.read_all()
    assert rig.sent_bytes < 1.1 * 1010 + 1000  # the manifest and the epoch besides


def test_a_line_longer_than_a_segment_is_cut_and_holds_nothing_up(rig: Rig) -> None:
    rig.write("train.log", b"x" * 3500 + b"\nnext\n")
    rig.flush()
    assert rig.local()["train.log"] == rig.read("train.log")
    assert 4 == len(rig.segments())


def test_a_progress_bar_without_line_feeds_is_sent(rig: Rig) -> None:
    rig.write("train.log", "10%\r20%\r30")
    rig.flush()
    assert b"10%\r20%\r" == rig.read("train.log")


def test_nothing_that_is_acknowledged_is_sent_again(rig: Rig) -> None:
    for number in range(50):
        rig.write("train.log", lines(100, number))
        rig.flush()
        if number % 10 == 9:
            rig.restart()
    written = len(rig.local()["train.log"])
    segments = sum(meta.size_bytes for meta in rig.bare.list("") if "/segments/" in meta.key)
    assert written == segments
    assert rig.local()["train.log"] == rig.read("train.log")


@pytest.mark.parametrize(("compression", "suffix"), [("gzip", ".gz"), ("zstd", ".zst")])
def test_compressed_segments_are_members_that_stock_tools_join(tmp_path: Path, compression: str, suffix: str) -> None:
    rig = Rig(tmp_path, MirrorConfig(segment_bytes=1000, compression=compression, retry=ONCE))  # type: ignore[arg-type]
    for number in range(5):
        rig.write("train.log", b"the same line again and again\n" * 60 + lines(100, number))
        rig.flush()
    names = rig.segments("train.log")
    assert all(name.endswith(suffix) for name in names)
    joined = b"".join(rig.get(f"_mirror/rank0/segments/train.log/{name}") for name in names)
    if compression == "gzip":
        data = gzip.decompress(joined)
    else:
        data = zstandard.ZstdDecompressor().stream_reader(joined, read_across_frames=True).read()
    assert rig.local()["train.log"] == data == rig.read("train.log")
    rig.restart(lose_state_db=True)
    rig.write("train.log", "more\n")
    rig.flush()
    assert rig.local()["train.log"] == rig.read("train.log")
    rig.close()
    assert rig.local() == rig.plain()


def test_event_files_are_cut_between_events(tmp_path: Path) -> None:
    from wherry.loggers import TensorBoardLogger

    rig = Rig(tmp_path, MirrorConfig(segment_bytes=200, retry=ONCE))
    log = TensorBoardLogger(rig.folder)
    for step in range(40):
        log.log_metrics({"loss": 1.0 / (step + 1)}, step)
    log.post_close()
    (path,) = rig.local()
    whole = rig.local()[path]
    (rig.folder / path).write_bytes(whole[:-7])  # an event that is being written
    rig.flush()
    found = rig.read(path)
    assert whole.startswith(found)
    assert len(rig.segments()) > 3
    copy, parts = tmp_path / "copy", [rig.get(f"_mirror/rank0/segments/{path}/{name}") for name in rig.segments(path)]
    for n_parts in range(1, len(parts) + 1):  # up to each segment's end it is a whole number of events
        copy.write_bytes(b"".join(parts[:n_parts]))
        assert n_parts == 1 or read_events(copy)
    rig.write(path, whole[-7:])
    rig.close()
    assert {path: whole} == rig.plain()


def test_small_files_that_are_rewritten_are_there_in_their_last_version(rig: Rig) -> None:
    rig.write("config.json", '{"lr": 1}')
    rig.step()
    rig.step(3.0)
    assert {"config.json": b'{"lr": 1}'} == rig.plain()
    for number in range(20):
        rig.write("config.json", f'{{"lr": {number}}}', mode="wb")
        rig.step(1.0)
    puts = rig.n_requests
    rig.step(3.0)
    rig.step(10.0)
    assert {"config.json": b'{"lr": 19}'} == rig.plain()
    assert rig.n_requests - puts < 6


def test_a_file_that_is_sent_whole_goes_when_it_has_come_to_rest(rig: Rig) -> None:
    rig.step()
    for _ in range(5):
        rig.write("model.pt", b"x" * 100)
        rig.step(1.0)
        assert {} == rig.plain()
    rig.step(1.0)
    rig.step(1.0)
    assert {"model.pt": b"x" * 500} == rig.plain()
    sent = rig.sent_bytes
    rig.step(100.0)
    assert sent + 2000 > rig.sent_bytes  # the manifest, perhaps


def test_temporary_names_are_not_sent(rig: Rig) -> None:
    for name in ("a.tmp", "b.log.swp", ".hidden", "c.part", ".git/config", "x.lock", "run.db-wal", "notes.txt~"):
        rig.write(name, "x\n")
    rig.close()
    assert {} == rig.plain()


def test_own_rules_come_first(tmp_path: Path) -> None:
    rules = (Rule("*.out", "append"), Rule("secret/*", "ignore"), *DEFAULT_RULES)
    rig = Rig(tmp_path, MirrorConfig(rules=rules, retry=ONCE))
    rig.write("a.out", "1\n")
    rig.write("secret/a.log", "1\n")
    rig.flush()
    assert ["a.out/0001-00000000000000000000"] == rig.segments()


def test_a_rule_that_matches_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(tmp_path, MirrorConfig(rules=(Rule("*.loog", "append"), *DEFAULT_RULES), retry=ONCE))
    rig.write("a.log", "1\n")
    rig.step()
    rig.step(400.0)
    rig.step(400.0)
    assert ["the rule '*.loog' (append) has matched no file so far"] == [one.message for one in caplog.records]


def test_names_that_the_key_rules_refuse_are_reported_and_the_others_go(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.write("bad\x07name.log", "x\n")
    rig.write("n" * 245 + "/" + "o" * 245 + "/" + "p" * 245 + "/" + "q" * 240 + ".log", "x\n")
    rig.write("_mirror/own.log", "x\n")
    rig.write("good.log", "x\n")
    rig.close()
    assert {"good.log": b"x\n"} == rig.plain()
    assert 3 == len(rig.engine.report().trouble) == len(caplog.records)


def test_a_file_that_cannot_be_read_is_reported_and_the_others_go(rig: Rig) -> None:
    rig.write("good.log", "x\n")
    rig.write("bad.log", "x\n")
    (rig.folder / "bad.log").unlink()
    (rig.folder / "bad.log").mkdir()
    (rig.folder / "pipe.log").symlink_to("nowhere")
    rig.close()
    assert {"good.log": b"x\n"} == rig.plain()


def test_a_symbolic_link_out_of_the_folder_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.log").write_text("secret\n")
    rig.write("good.log", "x\n")
    (rig.folder / "linked.log").symlink_to(outside / "secret.log")
    (rig.folder / "linked").symlink_to(outside)
    rig.close()
    assert {"good.log": b"x\n"} == rig.plain()


def test_a_link_that_takes_a_files_place_is_not_followed_either(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n" * 10)
    path = rig.write("a.log", "mine\n")
    rig.flush()
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    rig.close()
    assert b"mine\n" == rig.read("a.log")


def write_many(rig: Rig, n: int) -> None:
    for number in range(n):
        (rig.folder / f"{number // 100:02}").mkdir(exist_ok=True)
        (rig.folder / f"{number // 100:02}" / f"{number}.txt").write_bytes(b"%d\n" % number)


@pytest.mark.parametrize("n", [1500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_files(tmp_path: Path, n: int) -> None:
    rig = Rig(tmp_path, MirrorConfig(retry=ONCE, max_requests_per_hour=1_000_000))
    write_many(rig, n)
    rig.flush()
    assert n == len(rig.segments())
    before = rig.n_requests
    rig.step(1.0)
    assert before == rig.n_requests


@pytest.mark.slow
def test_ten_thousand_files_are_sealed(tmp_path: Path) -> None:
    uri = parse_uri(tmp_path / "bucket")  # the memory store sorts all its keys for each listing
    config = MirrorConfig(retry=ONCE, max_requests_per_hour=1_000_000)
    rig = Rig(tmp_path, config, store=LocalStore(uri, {}), uri=uri)
    write_many(rig, 10_000)
    rig.flush()
    rig.close()
    assert rig.local() == rig.plain()
    assert [] == rig.segments()
