"""A journal that is damaged under a living trainer and its agent: put aside, listed, nothing deleted, and uploads go on."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gate import Gate
from support import CALLER, caller, damage_journal, end_agent, file_of, run_script, wait_until
from wherry.config import RetryConfig
from wherry.errors import JournalError, UploadFailed
from wherry.spool.journal.jobs import JobState
from wherry.spool.presence import pid_of_agent
from wherry.spool.spool import Spool
from wherry.uploader import Uploader


def damage(spool: Path) -> None:
    """Overwrite every page, so that it is noticed by those who have the journal open as well."""
    damage_journal(spool / "journal.db")


def quarantined(spool: Path) -> list[Path]:
    return sorted((spool / "quarantine").iterdir())


def report_loss(uploader: Uploader) -> None:
    """Close an uploader whose journal was replaced: it says so, once."""
    with pytest.raises(UploadFailed, match="damaged and put aside: files that were not uploaded by then are kept and listed"):
        uploader.flush()
    uploader.close()


def test_an_uploader_whose_journal_is_damaged_puts_it_aside_and_goes_on(
    tmp_path: Path, spool_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = file_of(tmp_path / "source", 1000)
    uploader = Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER)
    uploader.put(source, "before")
    file_of(uploader.spool.path("1-left"), 10)
    damage(spool_folder)
    with caplog.at_level(logging.ERROR, logger="wherry"):
        handle = uploader.put(source, "after")
    assert 1000 == handle.result().size_bytes
    assert {"before", "after"} == {path.name for path in (tmp_path / "dest").iterdir()}
    (aside,) = quarantined(spool_folder)
    assert ["1-left"] == [path.name for path in (aside / "objects").iterdir()]
    assert str(aside / "objects" / "1-left") in caplog.text
    report_loss(uploader)


@pytest.mark.parametrize("first", ["put", "open", "flush", "get", "exists", "list", "delete", "check", "state"])
def test_whatever_call_meets_the_damage_first_goes_on(tmp_path: Path, spool_folder: Path, first: str) -> None:
    source = file_of(tmp_path / "source", 1000)
    uploader = Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER)
    handle = uploader.put(source, "before")
    damage(spool_folder)
    if first == "put":
        uploader.put(source, "x")
    elif first == "open":
        uploader.open("x").close()
    elif first == "get":
        uploader.get("before", tmp_path / "back")
    elif first == "exists":
        assert uploader.exists("before")
    elif first == "list":
        assert ["before"] == [meta.key for meta in uploader.list()]
    elif first == "delete":
        uploader.delete("x")
    elif first == "check":
        uploader.check()
    elif first == "state":
        assert JobState.FAILED is handle.state
    report_loss(uploader)
    assert 1 == len(quarantined(spool_folder))


def test_an_uploader_goes_on_when_another_has_put_the_journal_aside(tmp_path: Path, spool_folder: Path) -> None:
    source = file_of(tmp_path / "source", 1000)
    first = Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER)
    first.put(source, "a")
    damage(spool_folder)
    with Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER) as second:
        second.put(source, "b")
        assert 1000 == first.put(source, "c").result().size_bytes
        with first.open("d") as file:
            file.write(b"d")
    report_loss(first)
    assert {"a", "b", "c", "d"} == {path.name for path in (tmp_path / "dest").iterdir()}
    assert 1 == len(quarantined(spool_folder))


def test_a_file_that_was_being_accepted_is_not_left_behind(tmp_path: Path, spool_folder: Path) -> None:
    uploader = Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER)
    with uploader.open("a") as file:
        file.write(b"half ")
        damage(spool_folder)
        Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER).close()  # puts the file aside with all the others
        file.write(b"and half")
    assert b"half and half" == (tmp_path / "dest" / "a").read_bytes()
    uploader.close()  # nothing was lost


def test_every_store_gets_its_own_files_from_a_new_journal(tmp_path: Path, spool_folder: Path) -> None:
    source = file_of(tmp_path / "source", 1000)
    here = Uploader(tmp_path / "here", spool=spool_folder, config=caller(retry=RetryConfig(longest_wait_s=1.0)))
    there = Uploader(tmp_path / "there", spool=spool_folder, config=caller(retry=RetryConfig(longest_wait_s=2.0)))
    here.put(source, "1")
    damage(spool_folder)
    there.put(source, "2")
    here.put(source, "3")
    there.put(source, "4")
    assert {"1", "3"} == {path.name for path in (tmp_path / "here").iterdir()}
    assert {"2", "4"} == {path.name for path in (tmp_path / "there").iterdir()}
    report_loss(here)
    there.close()  # it had accepted nothing by then


def test_a_loss_is_said_in_the_log_at_the_next_call_and_raised_at_the_end(
    tmp_path: Path, spool_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = file_of(tmp_path / "source", 10)
    uploader = Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER)
    uploader.put(source, "a")
    damage(spool_folder)
    for name in "bcd":
        uploader.put(source, name)
    assert 1 == caplog.text.count(f"upload of {uploader.uri} failed: the journal was damaged")
    report_loss(uploader)


def test_a_loss_is_not_taken_for_said_when_the_call_that_was_to_say_it_fails(tmp_path: Path, spool_folder: Path) -> None:
    source = file_of(tmp_path / "source", 10)
    file_of(tmp_path / "dest" / "b", 1)
    uploader = Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER)
    uploader.put(source, "a")
    damage(spool_folder)
    uploader.put(source, "b", overwrite=False)
    uploader.config = caller(on_failure="raise")
    with closing(sqlite3.connect(spool_folder / "journal.db")) as db:
        db.execute("CREATE TRIGGER refused BEFORE UPDATE OF reported ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END")
        with pytest.raises(JournalError, match="no"):
            uploader.raise_failures()
        db.execute("DROP TRIGGER refused")
    with pytest.raises(UploadFailed, match="damaged and put aside") as raised:
        uploader.raise_failures()
    assert [str(uploader.uri), uploader.uri_for("b")] == [failure.uri for failure in raised.value.failures]
    uploader.close()


def test_a_lost_upload_is_never_reported_as_a_success(tmp_path: Path, spool_folder: Path) -> None:
    uploader = Uploader(tmp_path / "dest", spool=spool_folder, config=CALLER)
    handle = uploader.put(file_of(tmp_path / "a", 1), "a")
    damage(spool_folder)
    uploader.put(file_of(tmp_path / "b", 1), "b")
    assert JobState.FAILED is handle.state
    with pytest.raises(UploadFailed, match="put aside"):
        handle.result()
    report_loss(uploader)


def test_trainer_and_agent_go_on_after_the_journal_was_damaged_under_both(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    text = """
    import sys, time, wherry
    from pathlib import Path
    from support import damage_journal, file_of, wait_until

    folder = Path(sys.argv[1])
    uploader = wherry.Uploader("gated://x")
    source = file_of(folder / "source", 1000)
    uploader.put(source, "waits")
    wait_until(lambda: (folder / "puts").exists(), what="the worker to be in the middle of an upload")
    damage_journal(folder / "spool" / "journal.db")
    handle = uploader.put(source, "after")
    (folder / "is_open").touch()
    assert handle.result(60.0).size_bytes == 1000
    try:
        uploader.close()
    except wherry.UploadFailed as error:
        print(error)
    """
    with end_agent(gate.spool):
        said = run_script(text, tmp_path, env=gate.environment)
    assert "damaged and put aside" in said
    assert "after" in {path.name for path in gate.dest.iterdir()}
    (aside,) = quarantined(gate.spool)
    assert (aside / "journal.db").exists()
    assert "waits" in {path.name for path in gate.dest.iterdir()} or 1 == len(list((aside / "objects").iterdir()))


def test_an_agent_that_finds_the_journal_gone_removes_no_staged_file(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    gate.run("import os, wherry; uploader = wherry.Uploader('gated://x'); uploader.open('a').close(); os._exit(0)")
    with end_agent(gate.spool):
        wait_until(gate.puts, what="the agent to have a worker")
    (staged,) = [path.name for path in (gate.spool / "objects").iterdir()]
    for path in gate.spool.glob("journal.db*"):
        path.unlink()
    with end_agent(gate.spool):
        gate.open()
        gate.run("import wherry; wherry.Uploader('gated://x').close()")
    kept = [path.name for path in gate.spool.rglob("*") if path.name == staged]
    assert [staged] == kept
    assert pid_of_agent(Spool(gate.spool)) is None
