"""What Logger.upload_file gives back."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import caller, file_of
from wherry.errors import UploadFailed
from wherry.loggers import InMemoryLogger, Logger, ObjectStoreLogger, State
from wherry.loggers.handles import UploadHandles
from wherry.spool.handle import UploadHandle
from wherry.spool.journal.jobs import JobState


def store(folder: Path, name: str) -> ObjectStoreLogger:
    return ObjectStoreLogger(folder / name, spool=folder / "spool", config=caller(), check=False)


def test_the_handle_is_that_of_the_destination(tmp_path: Path) -> None:
    with Logger(State("r"), [store(tmp_path, "one"), InMemoryLogger()]) as logger:
        handle = logger.upload_file("a", file_of(tmp_path / "a", 3))
        assert isinstance(handle, UploadHandle)
        assert handle.wait(60.0)
        assert 3 == handle.result().size_bytes


def test_several_destinations_have_one_handle(tmp_path: Path) -> None:
    with Logger(State("r"), [store(tmp_path, "one"), store(tmp_path, "two")]) as logger:
        handle = logger.upload_file("a", file_of(tmp_path / "a", 3))
        assert isinstance(handle, UploadHandles)
        assert handle.wait(60.0)
        assert ([3, 3], JobState.DONE) == ([one.size_bytes for one in handle.results(60.0)], handle.state)
        assert tuple(f"file://{tmp_path}/{name}/a" for name in ("one", "two")) == handle.uris


def test_a_handle_of_several_raises_for_the_one_that_failed(tmp_path: Path) -> None:
    file_of(tmp_path / "two" / "a", 5)
    with Logger(State("r"), [store(tmp_path, "one"), store(tmp_path, "two")]) as logger:
        handle = logger.upload_file("a", file_of(tmp_path / "a", 3))
        assert handle is not None
        with pytest.raises(UploadFailed, match="two/a"):
            handle.wait(60.0)


def test_without_a_destination_that_takes_files_there_is_no_handle(tmp_path: Path) -> None:
    assert Logger(State("r"), InMemoryLogger()).upload_file("a", file_of(tmp_path / "a", 3)) is None
