"""What an Uploader reads by name: objects that are stored, and uploads that are still queued."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import CALLER, file_of, wait_until
from uploaders import block, queue, staged
from wherry.errors import NotFoundError, UploadFailed
from wherry.spool.journal.jobs import JobState
from wherry.spool.presence import register
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


# -- reading


def test_what_was_uploaded_can_be_fetched_by_its_name(uploader: Uploader, source: Path, tmp_path: Path) -> None:
    uploader.put(source, "a")
    meta = uploader.get("a", tmp_path / "new" / "back")
    assert source.read_bytes() == (tmp_path / "new" / "back").read_bytes()
    assert 50_000 == meta.size_bytes


def test_what_is_still_queued_can_be_fetched_by_its_name(uploader: Uploader, tmp_path: Path) -> None:
    queue(uploader, "a", b"old")
    queue(uploader, "a", b"newest")
    meta = uploader.get("a", tmp_path / "back")
    assert (b"newest", 6) == ((tmp_path / "back").read_bytes(), meta.size_bytes)
    assert (True, 6) == (uploader.exists("a"), uploader.head("a").size_bytes)
    uploader.delete("a")


def test_a_queued_file_that_is_gone_from_the_spool_is_an_error_and_no_endless_wait(uploader: Uploader, tmp_path: Path) -> None:
    queue(uploader, "a", b"queued")
    for path in staged(uploader):
        path.unlink()
    with pytest.raises(NotFoundError, match="is gone from the spool"):
        uploader.get("a", tmp_path / "back")
    uploader.journal.uploads.discard(None)


def test_a_file_that_was_fetched_from_the_spool_is_its_own(uploader: Uploader, tmp_path: Path) -> None:
    queue(uploader, "a", b"queued")
    uploader.get("a", tmp_path / "back")
    (tmp_path / "back").write_bytes(b"changed")
    uploader.get("a", tmp_path / "again")
    assert b"queued" == (tmp_path / "again").read_bytes()
    uploader.delete("a")


@pytest.mark.parametrize("is_queued", [True, False])
def test_an_existing_destination_is_kept_unless_overwriting_is_asked_for(
    uploader: Uploader, source: Path, tmp_path: Path, is_queued: bool
) -> None:
    if is_queued:
        queue(uploader, "a", source.read_bytes())
    else:
        uploader.put(source, "a")
    back = file_of(tmp_path / "back", 3, seed=9)
    before = back.read_bytes()
    with pytest.raises(FileExistsError, match="back"):
        uploader.get("a", back)
    assert before == back.read_bytes()
    uploader.get("a", back, overwrite=True)
    assert source.read_bytes() == back.read_bytes()
    uploader.delete("a")


def test_a_missing_object_leaves_no_file(uploader: Uploader, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        uploader.get("missing", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert not uploader.exists("missing")
    with pytest.raises(FileNotFoundError):
        uploader.head("missing")


def test_the_object_of_a_failed_upload_is_missing_with_the_reason(
    uploader: Uploader, dest: Path, source: Path, tmp_path: Path
) -> None:
    name = block(dest)
    uploader.put(source, name)
    with pytest.raises(NotFoundError, match=r"its upload failed: .*the file is kept"):
        uploader.get(name, tmp_path / "back")
    uploader.journal.uploads.discard(None)


def test_a_list_shows_what_is_stored_and_what_is_on_its_way(uploader: Uploader, source: Path) -> None:
    for name in ("b", "run/2", "run-other"):
        uploader.put(source, name)
    queue(uploader, "run/1", b"1")
    queue(uploader, "run/2", b"22")
    assert [("b", 50_000), ("run-other", 50_000), ("run/1", 1), ("run/2", 2)] == [
        (meta.key, meta.size_bytes) for meta in uploader.list()
    ]
    assert ["run/1", "run/2"] == [meta.key for meta in uploader.list("run/")]
    assert ["run-other", "run/1", "run/2"] == [meta.key for meta in uploader.list("run")]
    assert ["run/2"] == [meta.key for meta in uploader.list("run", start_after="run/1")]
    assert ["run-other", "run/1", "run/2"] == [meta.key for meta in uploader.list(start_after="b")]
    assert [] == list(uploader.list("run/", start_after="run0"))
    for name in ("run/1", "run/2"):
        uploader.delete(name)


def test_a_list_shows_names_that_are_no_utf_8(uploader: Uploader, dest: Path, source: Path) -> None:
    uploader.put(source, "a")
    (dest / os.fsdecode(b"caf\xe9")).touch()
    assert {"a", os.fsdecode(b"caf\xe9")} == {meta.key for meta in uploader.list()}


def test_deleting_takes_back_what_is_queued_and_removes_what_is_stored(uploader: Uploader, dest: Path, source: Path) -> None:
    uploader.put(source, "a")
    job_id = queue(uploader, "a", b"newer")
    uploader.delete("a")
    uploader.delete("a")
    assert not (dest / "a").exists()
    assert [] == staged(uploader)
    job = uploader.journal.queries.job(job_id)
    assert job is not None
    assert JobState.DISCARDED is job.state
    assert not uploader.exists("a")


# -- order


def test_what_is_required_is_there_first(uploader: Uploader, dest: Path, source: Path) -> None:
    uploader.put(source, "data")
    uploader.put(source, "marker", requires=["data"]).result()
    assert (dest / "marker").exists()


def test_a_marker_never_names_data_that_failed(uploader: Uploader, dest: Path, source: Path) -> None:
    name = block(dest)
    uploader.put(source, name)
    with pytest.raises(UploadFailed, match="which it requires, was not uploaded"):
        uploader.put(source, "marker", requires=[name]).result()
    assert not (dest / "marker").exists()
    uploader.journal.uploads.discard(None)


@pytest.mark.parametrize("has_later", [False, True])
def test_a_deletion_takes_back_an_upload_that_comes_back_to_the_queue(uploader: Uploader, has_later: bool) -> None:
    """A worker had it when delete() was called, and gave it back. What is accepted after that call is sent."""
    first = queue(uploader, "a", b"queued")
    journal = uploader.journal
    registration = register(uploader.spool, "other")  # else its lease would be taken from it
    assert journal.work.lease("caller:other", 3600.0) is not None
    deletion = threading.Thread(target=uploader.delete, args=("a",), daemon=True)
    deletion.start()
    wait_until(lambda: any(uploader.spool.inside("clients").glob("*.bell")), what="the deletion to wait for the other session")
    later = queue(uploader, "a", b"accepted meanwhile") if has_later else first
    journal.work.requeue(first, "caller:other", wait_s=3600.0, error="what it requires is not there")
    deletion.join(60.0)
    os.close(registration)
    has_ended, state = not deletion.is_alive(), journal.queries.jobs(ids=[later])[0].state
    uploader.spool.free(journal.uploads.cancel(uploader.uri_for("a"), ""))  # a failure must not wait for them
    assert has_ended
    assert has_later != (state is JobState.DISCARDED)
    assert [] == staged(uploader)
