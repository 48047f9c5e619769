"""Destinations and limits that a Logger cannot use are refused when it is made, and calls of all kinds are isolated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support import caller
from wherry.errors import ConfigError
from wherry.loggers import Logger, LoggerDestination, ObjectStoreLogger, State


def test_a_destination_that_was_closed_is_refused(tmp_path: Path) -> None:
    store = ObjectStoreLogger(tmp_path / "bucket", spool=tmp_path / "spool", config=caller(), check=False)
    Logger(State("run"), store).close()
    with pytest.raises(ConfigError, match="is closed: make a new one"):
        Logger(State("again"), store)


def test_limits_are_an_object_of_limits() -> None:
    limits: Any = 5
    with pytest.raises(ConfigError, match="call_limits is 5: give CallLimits"):
        Logger(State("run"), LoggerDestination(), call_limits=limits)


class Asks(LoggerDestination):
    def can_upload_files(self) -> bool:
        raise ValueError("my bug")

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        raise AssertionError("it has not said that it can")


def test_a_destination_that_cannot_say_whether_it_uploads_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = Logger(State("run"), asks := Asks())
    assert logger.upload_file("x", tmp_path / "x") is None
    assert "Asks.can_upload_files failed: my bug" in caplog.text
    assert logger.attempt(asks, "state_dict", lambda: 1 / 0) is None
    assert 1 == sum("Asks.state_dict failed" in message for message in caplog.messages)
    assert 5 == logger.attempt(asks, "state_dict", lambda: 5)
