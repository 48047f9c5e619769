"""Two runs that overwrite one object below one URI are told so, once each."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import caller, file_of
from wherry.loggers import ObjectStoreLogger, State


def store(folder: Path, run: str, rank: int) -> ObjectStoreLogger:
    return ObjectStoreLogger(
        folder / "bucket", spool=folder / "spool", config=caller(), check=False, state=State(run, rank=rank, world_size=2)
    )


def overwrite(log: ObjectStoreLogger, folder: Path, name: str = "model.pt") -> None:
    log.upload_file(None, name, file_of(folder / "model.pt", 10), overwrite=True)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [message for message in caplog.messages if "overwrites" in message or "as well" in message]
    caplog.clear()
    return found


def test_a_run_is_told_once_that_it_overwrites_what_another_wrote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", rank=0) as one, store(tmp_path, "two", rank=0) as two:
        overwrite(one, tmp_path)
        assert [] == told(caplog)
        for _ in range(2):
            overwrite(two, tmp_path)
        (said,) = told(caplog)
        assert "run 'two' overwrites" in said
        assert "'one' has written" in said
        assert "put {run_name} into the name" in said
        for _ in range(2):
            overwrite(one, tmp_path)
        assert 1 == len(told(caplog))


def test_a_run_that_is_started_again_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with store(tmp_path, "one", rank=0) as log:
            overwrite(log, tmp_path)
    assert [] == told(caplog)


def test_two_living_processes_with_one_run_name_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", rank=0) as first, store(tmp_path, "one", rank=0) as second:
        overwrite(first, tmp_path, "{run_name}/a")
        overwrite(second, tmp_path, "{run_name}/b")
        (said,) = told(caplog)
        assert "another process uploads as run 'one', rank 0, as well" in said


def test_ranks_of_one_run_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", rank=0) as first, store(tmp_path, "one", rank=1) as second:
        for log in (first, second):
            overwrite(log, tmp_path)
            overwrite(log, tmp_path, "{run_name}/a")
    assert [] == told(caplog)


def test_a_run_name_that_nobody_gave_is_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with ObjectStoreLogger(tmp_path / "bucket", spool=tmp_path / "spool", config=caller(), check=False) as log:
            overwrite(log, tmp_path)
    assert [] == told(caplog)


def test_a_new_name_is_free_to_overwrite(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with store(tmp_path, "one", rank=0) as one, store(tmp_path, "two", rank=0) as two:
        overwrite(one, tmp_path, "a")
        overwrite(two, tmp_path, "b")
    assert [] == told(caplog)
