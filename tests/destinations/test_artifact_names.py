"""The artifact names of Composer 0.6 to 0.10: called or overridden, they are upload_file, download_file and can_upload_files."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.errors import ConfigError
from wherry.loggers import Logger, LoggerDestination, ObjectStoreLogger, State, Timestamp
from wherry.loggers.run.level import LogLevel, to_level


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


class OldInName(New):
    """Overrides an old name of a class that has the new one, and hands on to it by the same name."""

    def log_file_artifact(
        self, state: State | None, log_level: str | int | LogLevel, artifact_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        super().log_file_artifact(state, log_level, f"{to_level(log_level).name}-{artifact_name}", file_path, overwrite=overwrite)

    def get_file_artifact(self, artifact_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        super().get_file_artifact(f"old-{artifact_name}", destination, overwrite, progress_bar)

    def can_log_file_artifacts(self) -> bool:
        return super().can_log_file_artifacts() and self.wants

    wants = True


class OldThatCallsNew(New):
    """Overrides an old name of a class that has the new one, and calls that."""

    def log_file_artifact(
        self, state: State | None, log_level: str | int | LogLevel, artifact_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        self.upload_file(state, f"old-{artifact_name}", file_path, overwrite=overwrite)

    def get_file_artifact(self, artifact_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True) -> None:
        self.download_file(f"old-{artifact_name}", destination, overwrite, progress_bar)

    def can_log_file_artifacts(self) -> bool:
        return self.can_upload_files()


class NewAgain(OldThatCallsNew):
    """Overrides the new name again."""

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        return super().upload_file(state, f"new-{remote_file_name}", file_path, overwrite=overwrite)


class Mixin:
    """Has an old name, and is no destination."""

    calls: list[tuple[object, ...]]

    def log_file_artifact(
        self, state: State | None, log_level: str | int | LogLevel, artifact_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        self.calls.append(("mixin", artifact_name))


class Mixed(Mixin, New):
    """Gets the old name from elsewhere."""


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the overrides themselves call
def test_the_name_that_was_overridden_last_is_what_runs_by_either(state: State) -> None:
    calls_of = {
        OldInName: ("old-a", ["FIT-a", "EPOCH-a"]),
        OldThatCallsNew: ("old-a", ["old-a", "old-a"]),
        NewAgain: ("old-a", 2 * ["new-old-new-a"]),  # the old one calls it on self
    }
    for kind, (downloaded, uploaded) in calls_of.items():
        one = kind()
        one.upload_file(state, "a", Path("b"), overwrite=True)
        one.log_file_artifact(state, LogLevel.EPOCH, "a", Path("b"), overwrite=True)
        one.download_file("a", "c")
        one.get_file_artifact("a", "c")
        assert [(state, name, Path("b"), True) for name in uploaded] == one.calls[:2], kind
        assert 2 * [(downloaded, "c", False, True)] == one.calls[2:], kind
        assert one.can_upload_files() is one.can_log_file_artifacts() is True


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_old_answer_in_a_class_with_the_new_name_counts(state: State) -> None:
    one = OldInName()
    one.wants = False
    assert not Logger(state, one).has_file_upload_destination()
    assert not one.can_upload_files()


def test_an_old_name_of_a_mixin_counts(state: State) -> None:
    mixed = Mixed()
    mixed.upload_file(state, "a", Path("b"), overwrite=True)
    Logger(state, mixed).upload_file("c", "d")
    assert [("mixin", "a"), ("mixin", "c")] == mixed.calls


def test_an_override_that_raises_can_be_called_again(state: State) -> None:
    class Failing(New):
        def get_file_artifact(
            self, artifact_name: str, destination: str, overwrite: bool = False, progress_bar: bool = True
        ) -> None:
            raise LookupError(artifact_name)

    one = Failing()
    for _ in range(2):
        with pytest.raises(LookupError):
            one.download_file("a", "b")


# the router


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_object_store_logger_with_an_old_name_of_ones_own_is_called_by_it(tmp_path: Path, state: State) -> None:
    class Own(ObjectStoreLogger):
        def log_file_artifact(
            self, state: State | None, log_level: str | int | LogLevel, artifact_name: str, file_path: Path, *, overwrite: bool
        ) -> None:
            super().log_file_artifact(
                state, log_level, f"{to_level(log_level).name}/{artifact_name}", file_path, overwrite=overwrite
            )

    (tmp_path / "source").write_text("weights")
    with Logger(state, Own(tmp_path / "bucket", spool=tmp_path / "spool")) as logger:
        logger.upload_file("new", tmp_path / "source")
        logger.file_artifact("epoch", "old", tmp_path / "source")
    assert ["EPOCH/old", "FIT/new"] == sorted(f"{path.parent.name}/{path.name}" for path in (tmp_path / "bucket").glob("*/*"))


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
