"""What programs written for Composer, or for its older versions, hand to a Logger."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from wherry.errors import AlreadyExistsError, ConfigError, JobFailure, UploadFailed, upload_failed
from wherry.loggers import Callback, Event, InMemoryLogger, Logger, LoggerDestination, ObjectStoreLogger, State
from wherry.loggers.run.timestamp import Timestamp


class TheirEvent(Enum):
    """As Composer's, which is no enum of texts."""

    EPOCH_END = "epoch_end"
    HALF_TIME = "half_time"


class OnlyUploads(LoggerDestination):
    """Overrides upload_file() and nothing else, as Composer's own examples do."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        self.files.append(remote_file_name)


class SaysNo(OnlyUploads):
    def can_upload_files(self) -> bool:
        return False


class Heard(Callback):
    def __init__(self) -> None:
        self.events: list[str] = []

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        self.events.append(event.value)


def test_a_destination_that_only_overrides_upload_file_gets_files_and_nobody_says_no(caplog: pytest.LogCaptureFixture) -> None:
    one = OnlyUploads()
    logger = Logger(State("r"), one)
    logger.upload_file("a", "file")
    assert (["a"], True, []) == (one.files, logger.has_file_upload_destination(), caplog.messages)


def test_a_destination_that_says_no_gets_no_file_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    no, yes = SaysNo(), OnlyUploads()
    logger = Logger(State("r"), [no, yes])
    for _ in range(2):
        logger.upload_file("a", "file")
    assert ([], ["a", "a"]) == (no.files, yes.files)
    assert ["SaysNo says that it takes no files here (can_upload_files() is False): file is not handed to it"] == caplog.messages


@pytest.mark.parametrize("event", [TheirEvent.EPOCH_END, "epoch_end", "EPOCH_END", Event.EPOCH_END])
def test_events_of_another_librarys_enum_are_ours(event: Event) -> None:
    heard = Heard()
    Logger(State("r"), callbacks=heard).run_event(event)
    assert ["epoch_end"] == heard.events
    told: list[str] = []

    class Listening(Callback):
        def epoch_end(self, state: State, logger: Logger) -> None:
            told.append("told")

    Listening().run_event(event, State("r"), Logger(State("r")))
    assert ["told"] == told


@pytest.mark.parametrize("event", [TheirEvent.HALF_TIME, "half_time", 3, None])
def test_an_unknown_event_is_an_error_that_lists_the_known_ones(event: Event) -> None:
    with pytest.raises(ConfigError, match=r"is no event: use one of init, .*predict_end"):
        Logger(State("r")).run_event(event)


def test_none_is_no_destination_and_no_callback() -> None:
    logger = Logger(State("r"), destinations=None, callbacks=None, backends=None)
    assert ((), ()) == (logger.destinations, logger.callbacks)


def test_the_destinations_are_the_backends_of_version_0_3() -> None:
    one, other = LoggerDestination(), LoggerDestination()
    logger = Logger(State("r"), [one], backends=[other])
    assert (one, other) == logger.backends


def test_hyperparameters_are_the_parameters_of_composers_logger() -> None:
    memory = InMemoryLogger()
    logger = Logger(State("r"), memory)
    logger.log_hyperparameters(parameters={"lr": 0.1})
    logger.log_hyperparameters(hyperparameters={"depth": 3})
    assert {"lr": 0.1, "depth": 3} == memory.hyperparameters
    with pytest.raises(TypeError, match="two names of the same"):
        logger.log_hyperparameters({"lr": 0.1}, parameters={"lr": 0.1})
    with pytest.raises(TypeError, match="None"):
        logger.log_hyperparameters()


# of several ranks


def test_a_rank_that_loses_a_name_is_told_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "model.pt").write_text("weights")
    ranks = [
        Logger(State("r", rank=rank, world_size=2), ObjectStoreLogger(tmp_path / "store", spool=tmp_path / f"spool{rank}"))
        for rank in range(2)
    ]
    for logger in ranks:
        logger.run_event(Event.INIT)
        logger.upload_file("{run_name}/model.pt", tmp_path / "model.pt")
        logger.upload_file("{run_name}/rng-{rank}.pt", tmp_path / "model.pt")
        logger.run_event(Event.FIT_END)  # waits for the uploads
    for logger in ranks:
        logger.close()
    assert {"model.pt", "rng-0.pt", "rng-1.pt"} == {path.name for path in (tmp_path / "store/r").iterdir()}
    (said,) = (text for text in caplog.messages if "rank 1" in text)
    assert "model.pt, which another rank or run has. The run goes on. Upload it on one rank, or put {rank} into the name" in said


def test_a_rank_that_loses_a_name_in_the_call_goes_on_and_other_failures_come_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken = JobFailure(1, "s3://b/model.pt", 1, "is there", "AlreadyExistsError")
    denied = JobFailure(2, "s3://b/rng.pt", 1, "403", "AccessDeniedError")

    class Fails(OnlyUploads):
        def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
            raise AlreadyExistsError("is there", operation="put", uri="s3://b/early.pt")

        def fit_end(self, state: State, logger: Logger) -> None:
            raise upload_failed([taken, denied], remedy="look")

    logger = Logger(State("r", rank=3, world_size=4), Fails())
    logger.upload_file("early.pt", "file")
    with pytest.raises(UploadFailed, match="403") as caught:
        logger.run_event(Event.FIT_END)
    assert ((denied,), "look") == (caught.value.failures, caught.value.remedy)
    assert ["s3://b/early.pt", "s3://b/model.pt"] == [text.split(" as ")[1].split(",")[0] for text in caplog.messages]


def test_a_single_process_that_loses_a_name_is_stopped_as_before() -> None:
    class Fails(LoggerDestination):
        def fit_end(self, state: State, logger: Logger) -> None:
            raise upload_failed([JobFailure(1, "s3://b/model.pt", 1, "is there", "AlreadyExistsError")])

    with pytest.raises(AlreadyExistsError):
        Logger(State("r"), Fails()).run_event(Event.FIT_END)


# notebooks


def test_a_notebook_shows_the_run_and_escapes_its_names() -> None:
    class Odd(LoggerDestination):
        def __repr__(self) -> str:
            return "<Odd & 'bad'>"

    state = State("<script>alert(1)</script>", Timestamp(epoch=3), rank=1, world_size=2)
    logger = Logger(state, [Odd(), InMemoryLogger()])
    assert "<Logger of '<script>alert(1)</script>' to Odd, InMemoryLogger>" == repr(logger)
    page = logger._repr_html_()
    assert "<script>" not in page
    for part in ("&lt;script&gt;alert(1)&lt;/script&gt;", "1 of 2", "epoch 3", "not begun", "&lt;Odd &amp; &#x27;bad&#x27;&gt;"):
        assert part in page
    logger.close()
    assert "closed" in logger._repr_html_()
