"""The router: every destination gets every call, and none can harm the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from wherry.errors import ConfigError, JobFailure, UploadFailed
from wherry.loggers import Callback, Event, Logger, LoggerDestination, State, Timestamp


class Recording(LoggerDestination):
    """Writes down its calls, into a list that several may share."""

    def __init__(self, calls: list[tuple[object, ...]] | None = None, name: str = "d") -> None:
        self.calls = [] if calls is None else calls
        self.name = name

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        self.calls.append((self.name, "hyperparameters", hyperparameters))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.calls.append((self.name, "metrics", metrics, step))

    def log_traces(self, traces: Mapping[str, object]) -> None:
        self.calls.append((self.name, "traces", traces))

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        self.calls.append((self.name, "upload", state, remote_file_name, file_path, overwrite))
        return None

    def can_upload_files(self) -> bool:
        return True

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        self.calls.append((self.name, event.value))

    def close(self, state: State, logger: Logger) -> None:
        self.calls.append((self.name, "close"))

    def post_close(self) -> None:
        self.calls.append((self.name, "post_close"))


class Broken(Recording):
    """Fails at everything."""

    error: Exception = ZeroDivisionError("broken")

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        raise self.error

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        raise self.error

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        raise self.error

    def close(self, state: State, logger: Logger) -> None:
        raise self.error


class Templating(Recording):
    """Fills names itself."""

    formats_names = True


class RecordingCallback(Callback):
    def __init__(self, calls: list[tuple[object, ...]]) -> None:
        self.calls = calls

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        self.calls.append(("callback", event.value))


@pytest.fixture
def state() -> State:
    return State("run", Timestamp(epoch=1, batch=7))


def test_every_destination_gets_every_call(state: State) -> None:
    one, other = Recording(), Recording()
    logger = Logger(state, [one, other])
    logger.log_hyperparameters({"lr": 0.1})
    logger.log_metrics({"loss": 1.0}, step=3)
    logger.log_traces({"a": object})
    expected = [("d", "hyperparameters", {"lr": 0.1}), ("d", "metrics", {"loss": 1.0}, 3), ("d", "traces", {"a": object})]
    assert expected == one.calls == other.calls


def test_a_destination_may_name_its_parameters_as_it_likes(state: State) -> None:
    seen: list[object] = []

    class Documented(LoggerDestination):
        def log_hyperparameters(self, data: Mapping[str, object]) -> None:  # as in the example of Composer's page
            seen.append(data)

    Logger(state, [Documented()]).log_hyperparameters({"lr": 0.1})
    assert seen == [{"lr": 0.1}]


def test_images_and_tables_arrive_with_all_arguments(state: State) -> None:
    seen: list[object] = []

    class Sink(LoggerDestination):
        def log_images(self, *arguments: object, **named: object) -> None:
            seen.append((arguments, named))

        def log_table(self, *arguments: object, **named: object) -> None:
            seen.append((arguments, named))

    logger = Logger(state, [Sink()])
    logger.log_images([1], "i", True, None, {"m": 2}, {0: "sky"}, False)
    logger.log_table(["a"], [[1]])
    assert seen == [(([1], "i", True, 7, {"m": 2}, {0: "sky"}, False), {}), ((["a"], [[1]], "Table", 7), {})]


def test_no_step_is_the_current_batch(state: State) -> None:
    destination = Recording()
    logger = Logger(state, [destination])
    logger.log_metrics({"loss": 1.0})
    state.timestamp = state.timestamp.to_next_batch()
    logger.log_metrics({"loss": 1.0})
    logger.log_metrics({"loss": 1.0}, step=0)
    assert [call[-1] for call in destination.calls] == [7, 8, 0]


def test_a_broken_destination_stops_neither_the_others_nor_the_training(state: State, caplog: pytest.LogCaptureFixture) -> None:
    healthy = Recording()
    logger = Logger(state, [Broken(), healthy])
    logger.log_metrics({"loss": 1.0})
    logger.run_event(Event.BATCH_END)
    logger.upload_file("a", "b")
    assert [call[1] for call in healthy.calls] == ["metrics", "batch_end", "upload"]
    assert "Broken.log_metrics failed: broken" in caplog.text
    logger.close()


def test_a_broken_destination_is_reported_once_for_each_kind_of_call(state: State, caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger(state, [Broken()])
    for _ in range(3):
        logger.log_metrics({"loss": 1.0})
        logger.run_event(Event.BATCH_END)
    assert caplog.messages == ["Broken.log_metrics failed: broken", "Broken.batch_end failed: broken"]
    logger.close()


def test_every_file_that_is_lost_is_reported(state: State, caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger(state, [Broken()])
    logger.upload_file("a", "b")
    logger.upload_file("a", "b")
    assert caplog.messages == ["Broken.upload_file failed: broken"] * 2
    logger.close()


class Failing(Recording):
    """Says that uploads failed."""

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        super().run_event(event, state, logger)
        raise UploadFailed([JobFailure(1, f"s3://bucket/{self.name}", 1, "403")], remedy="wherry retry")


def test_upload_failed_comes_through_when_all_had_their_turn(state: State) -> None:
    calls: list[tuple[object, ...]] = []
    logger = Logger(state, [Failing(calls, "one"), Recording(calls, "two"), Failing(calls, "three")])
    with pytest.raises(UploadFailed) as caught:
        logger.run_event(Event.FIT_END)
    assert [call[0] for call in calls] == ["one", "two", "three"]
    assert [failure.uri for failure in caught.value.failures] == ["s3://bucket/one", "s3://bucket/three"]
    assert str(caught.value).count("wherry retry") == 1


def test_loggers_are_told_first_of_the_start_and_last_of_all_else(state: State) -> None:
    calls: list[tuple[object, ...]] = []
    logger = Logger(state, [Recording(calls)], [RecordingCallback(calls)])
    logger.run_event(Event.INIT)
    logger.run_event(Event.BATCH_END)
    assert calls == [("d", "init"), ("callback", "init"), ("callback", "batch_end"), ("d", "batch_end")]


@pytest.mark.parametrize("event", list(Event))
def test_an_event_calls_the_method_of_its_name(state: State, event: Event) -> None:
    seen: list[object] = []

    destination = LoggerDestination()
    setattr(destination, event.value, lambda *arguments: seen.append(arguments))
    logger = Logger(state, [destination])
    logger.run_event(event)
    assert seen == [(state, logger)]


def test_a_callback_may_stop_the_training(state: State) -> None:
    class Stopping(Callback):
        def batch_end(self, state: State, logger: Logger) -> None:
            raise StopIteration("enough")

    with pytest.raises(StopIteration, match="enough"):
        Logger(state, callbacks=[Stopping()]).run_event(Event.BATCH_END)


# closing


def test_all_are_closed_before_any_is_post_closed(state: State) -> None:
    calls: list[tuple[object, ...]] = []
    logger = Logger(state, [Recording(calls, "one"), Recording(calls, "two")])
    logger.close()
    logger.close()
    assert calls == [("one", "close"), ("two", "close"), ("one", "post_close"), ("two", "post_close")]


def test_what_could_not_be_closed_is_not_post_closed(state: State, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[tuple[object, ...]] = []
    Logger(state, [Broken(calls, "broken"), Recording(calls, "two")]).close()
    assert calls == [("two", "close"), ("two", "post_close")]
    assert caplog.messages == ["Broken.close failed: broken"]


def test_upload_failed_at_the_close_comes_through_last(state: State) -> None:
    calls: list[tuple[object, ...]] = []

    class FailingLate(Recording):
        def post_close(self) -> None:
            raise UploadFailed([JobFailure(1, "s3://bucket/a", 1, "403")])

    with pytest.raises(UploadFailed):
        Logger(state, [FailingLate(calls, "one"), Recording(calls, "two")]).close()
    assert calls[-1] == ("two", "post_close")


# files


def test_names_and_paths_are_templates(state: State, tmp_path: Path) -> None:
    destination = Recording()
    Logger(state, [destination]).upload_file("{run_name}/ba{batch:04d}.pt", tmp_path / "{rank}.pt", overwrite=True)
    assert destination.calls == [("d", "upload", state, "run/ba0007.pt", tmp_path / "0.pt", True)]


def test_a_destination_that_fills_names_itself_gets_the_template(state: State) -> None:
    destination = Templating()
    Logger(state, [destination]).upload_file("{run_name}/{{brace}}", "file")
    assert destination.calls == [("d", "upload", state, "{run_name}/{{brace}}", Path("file"), False)]


def test_an_unknown_field_is_the_callers_error(state: State) -> None:
    with pytest.raises(ConfigError, match="unknown field"):
        Logger(state, [Recording()]).upload_file("{step}", "file")


def test_a_file_that_nobody_takes_is_said_once(state: State, caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger(state, [LoggerDestination()])
    assert not logger.has_file_upload_destination()
    with caplog.at_level(logging.WARNING):
        logger.upload_file("a", "b")
        logger.upload_file("a", "b")
    assert caplog.messages == ["upload_file() has no effect: no destination can take it (there are: LoggerDestination)"]


def test_has_file_upload_destination_asks_the_destinations(state: State) -> None:
    assert Logger(state, [LoggerDestination(), Recording()]).has_file_upload_destination()


def test_a_destination_without_files_cannot_download() -> None:
    with pytest.raises(NotImplementedError, match="LoggerDestination cannot download"):
        LoggerDestination().download_file("a", "b")
