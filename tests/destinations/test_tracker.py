"""What all destinations in front of a tracker's package keep, shown on a package that is always there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest

from wherry.errors import ConfigError, MissingExtraError, SpoolError, StoreError, UploadFailed
from wherry.loggers import Logger, State
from wherry.loggers.destinations.tracker import TrackerConfig, TrackerLogger, as_ours
from wherry.loggers.route import OnError
from wherry.loggers.values.kinds import Value


class Run:
    """What the package was told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.figures: list[tuple[int, dict[str, float]]] = []
        self.texts: list[str] = []
        self.files: dict[str, bytes] = {}
        self.ends: list[bool] = []


class Trouble(Exception):
    """The package's own."""


class Tracker(TrackerLogger[Run]):
    """In front of a "package" that keeps all in memory, and does nothing before `go` is set."""

    package = "json"

    def __init__(self, config: TrackerConfig, state: State | None = None) -> None:
        super().__init__(config, state)
        self.begun: list[Run] = []
        self.refuses = False
        self.go = threading.Event()
        self.go.set()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        figures = dict(metrics)

        def send(run: Run) -> None:
            self.go.wait(60)
            if "bad" in figures:
                raise Trouble("no such figure")
            run.figures.append((step or 0, figures))

        self._later("log_metrics", send)

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        def send(run: Run) -> None:
            self.go.wait(60)
            if not text:
                raise TypeError("no text")
            run.texts.append(text)

        self._later("log_text", send, key=name)

    def write(self, value: Value, step: int) -> None:
        """Of values, it takes texts only."""

    def _begin(self, state: State, name: str) -> Run:
        self.begun.append(Run(name))
        if self.refuses:
            raise Trouble("not today")
        return self.begun[-1]

    def _end(self, run: Run, *, failed: bool) -> None:
        run.ends.append(failed)

    def _store(self, run: Run, remote_file_name: str, path: Path, *, overwrite: bool) -> None:
        self.go.wait(60)
        if not overwrite and remote_file_name in run.files:
            raise Trouble("taken")
        run.files[remote_file_name] = path.read_bytes()

    def _fetch(self, remote_file_name: str, folder: Path, *, progress_bar: bool) -> Path:
        assert self._run is not None
        (folder / "found").write_bytes(self._run.files[remote_file_name])
        return folder / "found"

    def _translated(self, error: Exception, operation: str, uri: str) -> Exception:
        return as_ours(error, operation, uri)


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def tracker(staging: Path) -> Tracker:
    state = State("run", rank=0, local_rank=0, world_size=1, local_world_size=1, node_rank=0)
    return Tracker(TrackerConfig(staging_folder=str(staging)), state)


def test_log_calls_and_uploads_wait_for_no_sending(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    tracker.go.clear()
    tracker.log_metrics({"loss": 1.0}, 1)
    tracker.upload_file(None, "a/file", tmp_path / "file")
    assert ([], {}) == (tracker.begun[0].figures, tracker.begun[0].files)
    tracker.go.set()
    tracker.close()
    assert ([(1, {"loss": 1.0})], {"a/file": b"x"}) == (tracker.begun[0].figures, tracker.begun[0].files)


def test_a_large_upload_holds_no_figures_up(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    tracker.go.clear()
    tracker.upload_file(None, "file", tmp_path / "file")
    sent = threading.Event()
    tracker._later("log_text", lambda run: sent.set())
    assert sent.wait(60)
    tracker.go.set()
    tracker.close()


def test_what_is_uploaded_is_what_it_was_at_the_call(tracker: Tracker, staging: Path, tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_text("before")
    tracker.go.clear()
    tracker.upload_file(None, "file", source)
    source.unlink()
    tracker.go.set()
    tracker.flush()
    assert {"file": b"before"} == tracker.begun[0].files
    assert [] == list(staging.iterdir())
    tracker.close()


def test_an_error_of_a_log_call_is_said_under_its_name_and_no_other_call_raises_it(
    tracker: Tracker, caplog: pytest.LogCaptureFixture
) -> None:
    with Logger(State("run", rank=0, world_size=1), tracker) as logger:
        logger.log_metrics({"bad": 1.0}, 1)
        tracker._calls.flush()
        logger.log_text("fine", "notes")
        logger.log_metrics({"loss": 2.0}, 2)
        assert ["Tracker.log_metrics failed: no such figure"] == caplog.messages
        with pytest.raises(StoreError, match="log_metrics <Tracker>: Trouble: no such figure"):
            tracker.flush()
        tracker.flush()
    assert ([(2, {"loss": 2.0})], ["fine"]) == (tracker.begun[0].figures, tracker.begun[0].texts)


def test_an_error_of_python_names_its_call_too(tracker: Tracker, caplog: pytest.LogCaptureFixture) -> None:
    tracker.log_text("", "notes")
    with pytest.raises(StoreError, match=r"^log_text notes: TypeError: no text$"):
        tracker.close()
    assert ["Tracker.log_text failed: notes is not logged: no text"] == caplog.messages


def test_an_error_that_comes_again_is_said_once_and_others_not_without_end(
    tracker: Tracker, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("notes", "notes", *(f"notes-{letter}" for letter in ascii_letters)):
        tracker.log_text("", name)
    with pytest.raises(StoreError, match="log_text notes:"):
        tracker.flush()
    assert 10 == len(caplog.messages)
    assert caplog.messages[-1].endswith("(further ones of this call are not reported)")
    assert 1 == caplog.text.count("Traceback")
    tracker.close()


@pytest.mark.parametrize("policy", ["raise", "disable"])
def test_where_the_router_must_learn_of_it_the_next_call_raises_the_error_of_the_one_before(
    tracker: Tracker, policy: OnError
) -> None:
    tracker.on_error = policy
    tracker.go.clear()  # else it may fail before its own call has returned, which raises the error then
    tracker.log_text("", "notes")
    tracker.go.set()
    tracker._calls.flush()
    with pytest.raises(StoreError, match="log_text notes: TypeError: no text"):
        tracker.log_metrics({"loss": 2.0}, 2)
    tracker.log_metrics({"loss": 3.0}, 3)
    tracker.close()
    assert [2, 3] == [step for step, _ in tracker.begun[0].figures]


def test_failed_uploads_are_said_at_once_and_raised_as_one(
    tracker: Tracker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("a", "a", "b", "b"):
        tracker.upload_file(None, name, tmp_path / "file")
    with pytest.raises(UploadFailed) as caught:
        tracker.flush()
    assert ["a", "b"] == [failure.uri for failure in caught.value.failures]
    assert 2 == sum("an upload failed" in line for line in caplog.messages)
    tracker.close()


def test_a_run_that_cannot_begin_is_asked_for_once(tracker: Tracker) -> None:
    tracker.refuses = True
    for _ in range(3):
        with pytest.raises(StoreError, match="Trouble: not today"):
            tracker.log_metrics({"loss": 1.0})
    assert 1 == len(tracker.begun)
    tracker.close()


def test_under_a_logger_the_run_begins_with_init_and_ends_after_all_others(tracker: Tracker) -> None:
    with Logger(State("named", rank=0, world_size=1), tracker) as logger:
        assert ["named"] == [run.name for run in tracker.begun]
        logger.log_metrics({"loss": 1.0}, 4)
    assert ([(4, {"loss": 1.0})], [False]) == (tracker.begun[0].figures, tracker.begun[0].ends)


@pytest.mark.parametrize("under_logger", [True, False])
def test_an_exception_makes_the_run_a_failed_one(tracker: Tracker, under_logger: bool) -> None:
    target: Any = Logger(State("run", rank=0, world_size=1), tracker) if under_logger else tracker
    with pytest.raises(KeyError), target:
        tracker.log_metrics({"loss": 1.0})
        raise KeyError("x")
    assert [True] == tracker.begun[0].ends


def test_a_copy_that_cannot_be_made_says_where_and_which_setting(tmp_path: Path) -> None:
    (tmp_path / "staging").write_text("not a folder")
    (tmp_path / "file").write_text("x")
    tracker = Tracker(TrackerConfig(staging_folder=str(tmp_path / "staging")), State("run", rank=0, world_size=1))
    with pytest.raises(SpoolError, match=r"staging for its upload: .*TrackerConfig.staging_folder"):
        tracker.upload_file(None, "file", tmp_path / "file")
    tracker.close()


def test_names_are_checked_as_everywhere(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("/a", "a//b", "../a", ""):
        with pytest.raises(ConfigError):
            tracker.upload_file(None, name, tmp_path / "file")
        with pytest.raises(ConfigError):
            tracker.download_file(name, str(tmp_path / "back"))
    tracker.close()


def test_a_missing_package_is_named_when_the_destination_is_made() -> None:
    class Missing(Tracker):
        package = "nosuchpackage"

    with pytest.raises(MissingExtraError, match=r"pip install 'wherry\[nosuchpackage\]'"):
        Missing(TrackerConfig())
