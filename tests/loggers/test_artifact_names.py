"""The artifact names of Composer 0.6 to 0.10: called or overridden, they are upload_file, download_file and can_upload_files."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.errors import ConfigError
from wherry.loggers import Logger, LoggerDestination, ObjectStoreLogger, State, Timestamp
from wherry.loggers.level import LogLevel


class New(LoggerDestination):
    """Overrides today's names only."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        self.calls.append((state, remote_file_name, file_path, overwrite))
        return None

    def download_file(self, remote_file_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        self.calls.append((remote_file_name, destination, overwrite, progress_bar))

    def can_upload_files(self) -> bool:
        return True


class Old(LoggerDestination):
    """Overrides the old names only."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def log_file_artifact(
        self, state: State | None, log_level: str | int | LogLevel, artifact_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        self.calls.append((state, log_level, artifact_name, file_path, overwrite))

    def get_file_artifact(self, artifact_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        self.calls.append((artifact_name, destination, overwrite, progress_bar))


class OldThatSays(Old):
    """Says itself whether it takes files, as version 0.10 asked for."""

    says = True

    def can_log_file_artifacts(self) -> bool:
        return self.says


class Both(New, Old):
    """Overrides all names, and hands each on to the base class, as careful subclasses do."""

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        LoggerDestination.upload_file(self, state, remote_file_name, file_path, overwrite=overwrite)
        return super().upload_file(state, remote_file_name, file_path, overwrite=overwrite)

    def log_file_artifact(
        self, state: State | None, log_level: str | int | LogLevel, artifact_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        LoggerDestination.log_file_artifact(self, state, log_level, artifact_name, file_path, overwrite=overwrite)


@pytest.fixture
def state() -> State:
    return State("run", Timestamp(batch=7))


def test_old_names_lead_to_the_new_ones_and_say_so(state: State) -> None:
    new = New()
    with pytest.deprecated_call(match=r"log_file_artifact\(\) is the old name of upload_file\(\)"):
        new.log_file_artifact(state, LogLevel.FIT, "a", Path("b"), overwrite=True)
    with pytest.deprecated_call(match=r"get_file_artifact\(\) is the old name of download_file\(\)"):
        new.get_file_artifact("a", "b", progress_bar=False)
    with pytest.deprecated_call(match=r"can_log_file_artifacts\(\) is the old name of can_upload_files\(\)"):
        assert new.can_log_file_artifacts()
    assert new.calls == [(state, "a", Path("b"), True), ("a", "b", False, False)]


def test_new_names_lead_to_old_ones_that_are_overridden(state: State) -> None:
    old = Old()
    assert old.can_upload_files()
    old.upload_file(state, "a", Path("b"), overwrite=True)
    old.download_file("a", "b", True, False)
    assert old.calls == [(state, LogLevel.FIT, "a", Path("b"), True), ("a", "b", True, False)]


@pytest.mark.parametrize("says", [True, False])
def test_a_class_with_the_old_names_says_itself_whether_it_takes_files(says: bool) -> None:
    old = OldThatSays()
    old.says = says
    assert old.can_upload_files() is says


def test_where_no_name_is_overridden_none_leads_in_a_circle(state: State) -> None:
    nothing = LoggerDestination()
    nothing.upload_file(state, "a", Path("b"), overwrite=False)
    with pytest.deprecated_call():
        nothing.log_file_artifact(state, "fit", "a", Path("b"), overwrite=False)
    with pytest.raises(NotImplementedError, match="LoggerDestination cannot download files"):
        nothing.download_file("a", "b")
    with pytest.deprecated_call(), pytest.raises(NotImplementedError, match="LoggerDestination cannot download files"):
        nothing.get_file_artifact("a", "b")
    with pytest.deprecated_call():
        assert not nothing.can_log_file_artifacts()
    assert not nothing.can_upload_files()


def test_where_all_names_are_overridden_none_leads_in_a_circle(state: State) -> None:
    both = Both()
    with pytest.deprecated_call():
        both.log_file_artifact(state, "fit", "a", Path("b"), overwrite=False)
    both.upload_file(state, "c", Path("d"), overwrite=False)
    assert both.calls == [(state, "a", Path("b"), False), (state, "c", Path("d"), False)]


# the router


def test_the_router_knows_the_old_names(state: State) -> None:
    new, old = New(), Old()
    logger = Logger(state, [new, old])
    with pytest.deprecated_call(match=r"file_artifact\(\) is the old name of upload_file\(\)"):
        logger.file_artifact("epoch", "ba{batch}", "file{rank}", overwrite=True)
    with pytest.deprecated_call(match="has_file_artifact_destination"):
        assert logger.has_file_artifact_destination()
    assert new.calls == [(state, "ba7", Path("file0"), True)]
    assert old.calls == [(state, LogLevel.EPOCH, "ba7", Path("file0"), True)]


def test_the_router_hands_files_to_destinations_with_the_old_names(state: State, caplog: pytest.LogCaptureFixture) -> None:
    old = Old()
    logger = Logger(state, old)
    assert logger.has_file_upload_destination()
    logger.upload_file("a", "b")
    assert old.calls == [(state, LogLevel.FIT, "a", Path("b"), False)]
    assert caplog.messages == []


def test_an_unknown_level_of_an_artifact_is_an_error(state: State) -> None:
    with pytest.deprecated_call(), pytest.raises(ConfigError, match="no log level"):
        Logger(state, New()).file_artifact("never", "a", "b")


def test_the_object_store_logger_answers_to_the_old_names(tmp_path: Path, state: State) -> None:
    source, folder = tmp_path / "source", tmp_path / "bucket"
    source.write_text("weights")
    folder.mkdir()
    with ObjectStoreLogger(folder, spool=tmp_path / "spool") as store:
        with pytest.deprecated_call():
            assert store.can_log_file_artifacts()
        with pytest.deprecated_call():
            store.log_file_artifact(state, "fit", "ba{batch}.pt", source, overwrite=False)
        with pytest.deprecated_call():
            store.get_file_artifact("ba{batch}.pt", str(tmp_path / "back"), progress_bar=False)
    assert (folder / "ba7.pt").read_text() == (tmp_path / "back").read_text() == "weights"
