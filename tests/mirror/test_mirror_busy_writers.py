"""Writers that never pause, files that no rule names, and stores in which something is missing."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from mirrors import ONCE, Rig, lines
from wherry.mirror import MirrorConfig
from wherry.mirror.reader.seal_remote import Unsealed, seal
from wherry.mirror.writer.state_db import Record

QUICK = MirrorConfig(max_lag_s=10.0, segment_bytes=1000, settle_s=2.0, grace_s=20.0, retry=ONCE)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, QUICK)


def test_a_replaced_file_that_never_stands_still_is_sent_every_lag(rig: Rig) -> None:
    seen = set()
    for second in range(60):
        rig.write("progress.json", f'{{"step": {second}}}', mode="wb")
        rig.step(1.0)
        seen.add(rig.plain().get("progress.json"))
    assert 5 <= len(seen - {None}) <= 8


def test_a_growing_file_that_no_rule_names_is_sent_ever_more_seldom_and_that_is_said(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(200):
        rig.write("model.dump", b"x" * 1000)
        for _ in range(3):
            rig.step(1.0)
    with caplog.at_level(logging.WARNING):
        rig.close()
    assert rig.sent_bytes < 6 * 200_000
    assert rig.local()["model.dump"] == rig.plain()["model.dump"]
    assert rig.config.rules


def test_the_remedy_for_a_growing_file_is_said(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        rig.write("model.dump", b"x" * 1000)
        for _ in range(40):
            rig.step(1.0)
    said = [record.getMessage() for record in caplog.records if "model.dump" in record.getMessage()]
    assert 1 == len(said)
    assert "--rule '*.dump=append'" in said[0]


@pytest.mark.parametrize("name", ["slurm-1.out", "train.err"])
def test_what_clusters_call_their_logs_is_appended(rig: Rig, name: str) -> None:
    for _ in range(3):
        rig.write(name, "a line\n")
        rig.flush()
    assert 3 == len(rig.segments(name))


def test_a_file_that_grows_while_it_is_sealed_stays_in_segments_and_the_close_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.write("train.log", lines(3000))
    rig.flush()
    seal_it = rig.engine.sender.seal

    def seal_what_grows(record: Record, now_s: float, **options: object) -> bool:
        rig.write("train.log", "more\n")  # between the look at the folder and the seal
        return seal_it(record, now_s, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.engine.sender, "seal", seal_what_grows)
    rig.close()
    assert not rig.engine.is_complete
    assert any("grows while it is sealed" in text for text in rig.engine.report().trouble)
    assert rig.local()["train.log"].startswith(rig.read("train.log"))
    assert rig.sent_bytes < 2 * len(rig.local()["train.log"])
    rig.restart()
    rig.close()
    assert rig.local() == rig.plain()


def test_what_is_refused_is_not_complete(rig: Rig) -> None:
    rig.write("good.log", "a\n")
    (rig.folder / "bad\x01.log").write_text("b\n")
    rig.close()
    assert {"good.log": b"a\n"} == rig.plain()
    assert not rig.engine.report().is_complete


@pytest.mark.parametrize(("before", "after"), [(None, "gzip"), ("gzip", None), ("gzip", "zstd")])
def test_after_a_kill_between_put_and_note_another_compression_makes_no_second_segment(
    tmp_path: Path, before: str | None, after: str | None
) -> None:
    rig = Rig(tmp_path, replace(QUICK, compression=before))  # type: ignore[arg-type]
    rig.write("train.log", lines(500))
    rig.flush()
    noted = {path: path.read_bytes() for path in rig.spool.glob("ledger.db*")}
    rig.write("train.log", lines(500))
    rig.flush()
    rig.state_db.close()
    for path in rig.spool.glob("ledger.db*"):
        path.unlink()
    for path, content in noted.items():  # the second segment was put and is not noted
        path.write_bytes(content)
    rig.config = replace(rig.config, compression=after)  # type: ignore[arg-type]
    rig.start()
    rig.write("train.log", lines(500))
    rig.flush()
    offsets = [name.partition(".")[0] for name in rig.segments("train.log")]
    assert len(offsets) == len(set(offsets))
    assert rig.local()["train.log"].startswith(rig.read("train.log"))
    assert len(rig.read("train.log")) > 1000
    rig.close()
    assert rig.local() == rig.plain()


def test_sealing_from_the_store_deletes_nothing_where_a_segment_is_missing(rig: Rig, tmp_path: Path) -> None:
    for _ in range(3):
        rig.write("train.log", "a line\n")
        rig.flush()
    first, second, third = rig.segments("train.log")
    base = f"{rig.uri.prefix}/_mirror/{rig.writer}/segments/train.log"
    rig.seen.delete(f"{base}/{second}")
    (found,) = seal(rig.seen, rig.uri, rig.writer, tmp_path, even_if_open=True)
    assert isinstance(found, Unsealed)
    assert "join up to byte 7 only" in found.reason
    assert [first, third] == rig.segments("train.log")
    assert {} == rig.plain()
