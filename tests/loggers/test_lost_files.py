"""A file that a destination refuses at the call is named again at the end, or raised."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import caller, file_of
from wherry.config import SpoolConfig
from wherry.errors import SpoolError, UploadFailed
from wherry.loggers import Event, Logger, LoggerDestination, ObjectStoreLogger, State


def store(folder: Path, on_failure: str = "warn") -> ObjectStoreLogger:
    return ObjectStoreLogger(folder / "bucket", spool=folder / "spool", config=caller(on_failure=on_failure), check=False)


def test_what_the_log_alone_has_said_is_named_once_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger(State("run"), store(tmp_path))
    logger.run_event(Event.INIT)
    assert logger.upload_file("ep1.pt", tmp_path / "missing.pt") is None
    assert "ObjectStoreLogger.upload_file failed" in caplog.text
    with pytest.raises(UploadFailed, match=r"bucket/ep1\.pt \(no job\): .*missing\.pt does not exist") as raised:
        logger.run_event(Event.FIT_END)
    assert "upload it again" in str(raised.value)
    logger.close()


def test_what_was_refused_after_the_last_event_is_named_at_the_close(tmp_path: Path) -> None:
    logger = Logger(State("run"), store(tmp_path))
    logger.run_event(Event.FIT_END)
    logger.upload_file("{run_name}/" + "x" * 1500, file_of(tmp_path / "x", 1))
    with pytest.raises(UploadFailed, match=r"bucket/run/xxx"):
        logger.close()


def test_uploads_that_failed_and_files_that_were_refused_are_one_error(tmp_path: Path) -> None:
    file_of(tmp_path / "bucket/taken.pt", 1)
    logger = Logger(State("run"), store(tmp_path))
    logger.upload_file("taken.pt", file_of(tmp_path / "x", 1))
    logger.upload_file("missing.pt", tmp_path / "missing.pt")
    with pytest.raises(UploadFailed) as raised:
        logger.close()
    assert ["taken.pt", "missing.pt"] == [one.uri.rpartition("/")[2] for one in raised.value.failures]


def test_the_exception_of_the_run_comes_first_and_stderr_has_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), Logger(State("run"), store(tmp_path)) as logger:
        logger.upload_file("ep1.pt", tmp_path / "missing.pt")
        raise ZeroDivisionError
    assert "missing.pt does not exist" in capsys.readouterr().err


class Other(LoggerDestination):
    def __init__(self) -> None:
        self.got: list[str] = []

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        self.got.append(remote_file_name)


def test_who_asks_for_errors_gets_them_at_the_call_after_all_had_their_turn(tmp_path: Path) -> None:
    other = Other()
    missing = pytest.raises(FileNotFoundError, match=r"missing\.pt does not exist")
    with Logger(State("run"), [store(tmp_path, "raise"), other]) as logger, missing:
        logger.upload_file("ep1.pt", tmp_path / "missing.pt")
    assert ["ep1.pt"] == other.got


def test_a_spool_without_room_is_raised_to_who_asks(tmp_path: Path) -> None:
    config = caller(SpoolConfig(max_spool_bytes=5, when_full="raise"), on_failure="raise")
    log = ObjectStoreLogger(tmp_path / "bucket", spool=tmp_path / "spool", config=config, check=False)
    with Logger(State("run"), log) as logger, pytest.raises(SpoolError, match="max_spool_bytes"):
        logger.upload_file("ep1.pt", file_of(tmp_path / "x", 10))
