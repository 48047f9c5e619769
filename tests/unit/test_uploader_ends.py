"""How an Uploader reports failures, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import CALLER, caller, file_of
from uploaders import block, queue, staged
from wherry.errors import UploadFailed
from wherry.spool.journal.jobs import JobState
from wherry.uploader import Uploader


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    """The store: a folder."""
    folder = tmp_path / "dest"
    folder.mkdir()
    return folder


@pytest.fixture
def uploader(dest: Path, spool_folder: Path) -> Iterator[Uploader]:
    """Closed after the test; what it did not get rid of is reported."""
    with Uploader(dest, spool=spool_folder, config=CALLER) as opened:
        yield opened


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return file_of(tmp_path / "source", 50_000)


# -- reports


def test_a_failure_is_raised_once_by_name_and_the_others_arrive(dest: Path, spool_folder: Path, source: Path) -> None:
    uploader = Uploader(dest, spool=spool_folder, config=CALLER)
    for name in ("a", block(dest), "b"):
        uploader.put(source, name)
    with pytest.raises(UploadFailed, match=r"1 upload failed:\n.*/dest/blocked/file \(job \d+, 1 attempt") as caught:
        uploader.flush()
    assert "wherry retry" in str(caught.value)
    assert f"--spool {spool_folder}" in str(caught.value)
    uploader.flush()
    uploader.close()
    assert [source.read_bytes()] * 2 == [(dest / name).read_bytes() for name in "ab"]
    assert 1 == len(staged(uploader))


def test_a_failure_is_raised_by_close_and_the_uploader_is_closed(dest: Path, spool_folder: Path, source: Path) -> None:
    uploader = Uploader(dest, spool=spool_folder, config=CALLER)
    uploader.put(source, block(dest))
    with pytest.raises(UploadFailed):
        uploader.close()
    uploader.close()
    assert [] == list(uploader.spool.clients.iterdir())


def test_a_with_block_raises_the_failures(dest: Path, spool_folder: Path, source: Path) -> None:
    with pytest.raises(UploadFailed), Uploader(dest, spool=spool_folder, config=CALLER) as uploader:
        uploader.put(source, block(dest))


def test_an_exception_in_a_with_block_is_not_hidden_by_failures(
    dest: Path, spool_folder: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError), Uploader(dest, spool=spool_folder, config=CALLER) as uploader:
        uploader.put(source, block(dest))
        raise ZeroDivisionError
    assert "blocked/file" in capsys.readouterr().err


def test_failures_are_warned_of_once_and_training_goes_on(
    dest: Path, spool_folder: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uploader = Uploader(dest, spool=spool_folder, config=caller(on_failure="warn"))
    with caplog.at_level(logging.WARNING, logger="wherry"):
        uploader.put(source, block(dest))
        uploader.put(source, "a")
        uploader.put(source, "b")
    warnings = [record for record in caplog.records if record.name == "wherry"]
    assert ["blocked/file" in record.getMessage() for record in warnings] == [True]
    with pytest.raises(UploadFailed):
        uploader.close()


def test_failures_are_raised_at_the_next_call_where_that_is_asked_for(dest: Path, spool_folder: Path, source: Path) -> None:
    uploader = Uploader(dest, spool=spool_folder, config=caller(on_failure="raise"))
    uploader.put(source, block(dest))
    with pytest.raises(UploadFailed, match="blocked/file"):
        uploader.put(source, "a")
    assert not (dest / "a").exists()
    uploader.put(source, "a")
    uploader.close()
    assert (dest / "a").exists()


def test_a_failure_that_a_handle_has_raised_is_not_raised_again(dest: Path, spool_folder: Path, source: Path) -> None:
    uploader = Uploader(dest, spool=spool_folder, config=CALLER)
    with pytest.raises(UploadFailed):
        uploader.put(source, block(dest)).result()
    uploader.close()


def test_failures_of_others_in_the_same_spool_are_theirs(dest: Path, spool_folder: Path, source: Path) -> None:
    one = Uploader(dest, spool=spool_folder, config=CALLER)
    with Uploader(dest, spool=spool_folder, config=CALLER) as other:
        one.put(source, block(dest))
        other.put(source, "a")
        other.flush()
        assert (0, 1) == (other.counts().failed, other.counts().done)
    with pytest.raises(UploadFailed):
        one.close()


# -- checks


def test_a_store_that_lets_us_in_passes_its_check(uploader: Uploader, dest: Path) -> None:
    uploader.check()
    uploader.start_check()
    uploader.flush()
    assert [] == list(dest.iterdir())


# -- the end


def test_closing_twice_is_fine(dest: Path, spool_folder: Path) -> None:
    uploader = Uploader(dest, spool=spool_folder, config=CALLER)
    uploader.close()
    uploader.close()
    assert [] == list(uploader.spool.clients.iterdir())


def test_a_closed_uploader_takes_nothing_more(dest: Path, spool_folder: Path, source: Path) -> None:
    uploader = Uploader(dest, spool=spool_folder, config=CALLER)
    uploader.close()
    with pytest.raises(ValueError, match="is closed"):
        uploader.put(source, "a")
    with pytest.raises(ValueError, match="is closed"):
        uploader.open("a")
    assert [] == staged(uploader)


def test_a_flush_that_takes_too_long_says_how_to_go_on(uploader: Uploader, spool_folder: Path) -> None:
    queue(uploader, "a", b"a")
    with pytest.raises(TimeoutError, match=rf"1 upload .*wherry drain --spool {spool_folder}"):
        uploader.flush(timeout_s=0.0)
    uploader.delete("a")


def test_a_handle_outlives_its_uploader(dest: Path, spool_folder: Path, source: Path) -> None:
    with Uploader(dest, spool=spool_folder, config=CALLER) as uploader:
        handle = uploader.put(source, "a")
    assert (JobState.DONE, 50_000) == (handle.state, handle.result().size_bytes)


def test_work_that_a_predecessor_left_is_done_as_well(dest: Path, spool_folder: Path, source: Path) -> None:
    first = Uploader(dest, spool=spool_folder, config=CALLER)
    queue(first, "left", b"left")
    first._sign_off()  # as if it had been killed
    with Uploader(dest, spool=spool_folder, config=CALLER) as second:
        second.put(source, "a")
    assert b"left" == (dest / "left").read_bytes()
