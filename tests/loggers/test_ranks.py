"""Who logs on which rank, and what becomes of calls that come before a destination is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from wherry.errors import ConfigError, JobFailure, UploadFailed
from wherry.loggers import (
    Event,
    FileConfig,
    FileLogger,
    Logger,
    LoggerDestination,
    MirrorLogger,
    ObjectStoreLogger,
    RunFolderConfig,
    RunFolderLogger,
    State,
    TensorBoardLogger,
    Timestamp,
)
from wherry.loggers.route import MANY_KEPT_CALLS
from wherry.loggers.run.level import LogLevel


class Recording(LoggerDestination):
    """Writes down its calls; ready from the event `ready_at` on."""

    def __init__(self, ready_at: Event | None = None) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.ready_at = ready_at
        self.n_asked = 0

    def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
        self.calls.append(("hyperparameters", hyperparameters))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.calls.append(("metrics", metrics, step))

    def log_histogram(self, values: object, name: str = "Histogram", step: int | None = None) -> None:
        self.calls.append(("histogram", values, name, step))

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        self.calls.append(("text", text))

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> object:
        self.calls.append(("upload", remote_file_name))
        return None

    def can_upload_files(self) -> bool:
        return True

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        self.calls.append((event.value,))
        if event is self.ready_at:
            self.ready_at = None

    def close(self, state: State, logger: Logger) -> None:
        self.calls.append(("close",))


class Late(Recording):
    def is_ready(self, state: State) -> bool:
        self.n_asked += 1
        return self.ready_at is None


class PerRank(Recording):
    rank_zero_only = False


def state_of(rank: int) -> State:
    return State("run", Timestamp(batch=7), rank=rank, world_size=8)


def log_all(logger: Logger) -> None:
    logger.log_metrics({"loss": 1.0})
    logger.metric_fit({"a": 1})
    logger.log_text("a")
    logger.upload_file("file", "file")
    logger.run_event(Event.BATCH_END)
    logger.close()


# ranks


def test_what_is_logged_comes_from_rank_zero_and_files_from_all() -> None:
    first, last, per_rank = Recording(), Recording(), PerRank()
    log_all(Logger(state_of(0), first))
    log_all(Logger(state_of(7), [last, per_rank]))
    logged = [("metrics", {"loss": 1.0}, 7), ("metrics", {"a": 1}, 7), ("text", "a")]
    assert first.calls == per_rank.calls == [*logged, ("upload", "file"), ("batch_end",), ("close",)]
    assert last.calls == [("upload", "file"), ("batch_end",), ("close",)]


def test_on_other_ranks_nobody_is_asked_and_nothing_is_computed(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[LogLevel] = []

    class Asked(Recording):
        def will_log(self, state: State, level: LogLevel) -> bool:
            asked.append(level)
            return True

    computed: list[int] = []
    Logger(state_of(1), Asked()).metric("fit", lambda: computed.append(1) or {})  # type: ignore[func-returns-value]
    assert asked == computed == []
    assert caplog.messages == []  # that another rank logs it is no reason for a warning


def test_a_destination_may_choose_for_itself_whether_it_logs_on_every_rank() -> None:
    one = Recording()
    one.rank_zero_only = False
    Logger(state_of(3), one).log_metrics({"a": 1.0})
    assert one.calls == [("metrics", {"a": 1.0}, 7)]


# a run without a name


@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_without_a_name_that_somebody_needs_ends_when_it_begins(tmp_path: Path, rank: int) -> None:
    state = State("run", rank=rank, world_size=2)
    state.run_name = ""
    config = FileConfig(capture_stdout=False, capture_stderr=False)
    needing: list[Callable[[], LoggerDestination]] = [
        RunFolderLogger,
        TensorBoardLogger,
        partial(FileLogger, config=config),
        partial(ObjectStoreLogger, tmp_path / "bucket", spool=tmp_path / "spool", name_format="{run_name}/{remote_file_name}"),
        partial(MirrorLogger, tmp_path / "runs", str(tmp_path / "mirror" / "{run_name:.9}")),
    ]
    for make in needing:
        told = Recording()
        with pytest.raises(ConfigError, match=r"needs a run name.*RUN_NAME"), Logger(state, [told, make()]):
            raise AssertionError("it must not begin")
        assert [("close",)] == told.calls
        logger = Logger(state, make())
        with pytest.raises(ConfigError, match="needs a run name"):
            logger.run_event(Event.INIT)
        logger.close()


def test_a_run_without_a_name_that_nobody_needs_goes_on(tmp_path: Path) -> None:
    state = State("run", rank=0, world_size=2)
    state.run_name = ""
    config = RunFolderConfig(upload=False)
    with Logger(state, [RunFolderLogger(tmp_path / "fixed", config=config), Recording()]) as logger:
        logger.log_metrics({"a": 1.0})
    assert (tmp_path / "fixed/metrics.jsonl").exists()


def test_a_destination_may_say_itself_which_names_it_fills() -> None:
    class Titled(Recording):
        def __init__(self) -> None:
            super().__init__()
            self.title = "{run_name}"

    class Saying(Titled):
        def name_templates(self) -> list[str]:
            return ["{rank}"]

    state = State("run", rank=0, world_size=2)
    state.run_name = ""
    with pytest.raises(ConfigError, match="needs a run name"):
        Logger(state, Titled()).run_event(Event.INIT)
    with Logger(state, Saying()):
        pass


# calls before a destination is ready


def test_early_calls_are_kept_and_replayed_in_order() -> None:
    late = Late(Event.FIT_START)
    state = state_of(0)
    logger = Logger(state, late)
    logger.log_hyperparameters({"lr": 0.1})
    logger.run_event(Event.INIT)
    logger.log_metrics({"a": 1.0})
    state.timestamp = state.timestamp.to_next_batch()
    logger.log_metrics({"a": 2.0})
    logger.metric("epoch", {"b": "text"})
    assert late.calls == [("init",)]
    logger.run_event(Event.FIT_START)
    logger.log_metrics({"a": 3.0})
    assert late.calls == [
        ("init",),
        ("fit_start",),
        ("hyperparameters", {"lr": 0.1}),
        ("metrics", {"a": 1.0}, 7),
        ("metrics", {"a": 2.0}, 8),
        ("text", "text"),
        ("metrics", {"a": 3.0}, 8),
    ]


def test_what_is_kept_is_what_was_given_at_the_call() -> None:
    late = Late(Event.INIT)
    logger = Logger(state_of(0), late)
    values, metrics = np.zeros(2), {"a": 1.0}
    logger.log_histogram(values)
    logger.log_metrics(metrics)
    values += 1
    metrics["a"] = 2.0
    logger.run_event(Event.INIT)
    assert late.calls[0] == ("init",)
    assert late.calls[1][1].tolist() == [0.0, 0.0]  # type: ignore[attr-defined]
    assert late.calls[2] == ("metrics", {"a": 1.0}, 7)


def test_a_destination_that_got_ready_by_itself_gets_the_old_calls_before_the_new_one() -> None:
    late = Late(Event.FIT_START)
    logger = Logger(state_of(0), late)
    logger.log_metrics({"a": 1.0})
    late.ready_at = None
    logger.log_metrics({"a": 2.0})
    assert late.calls == [("metrics", {"a": 1.0}, 7), ("metrics", {"a": 2.0}, 7)]


def test_a_destination_that_got_ready_by_itself_gets_the_old_calls_before_an_event() -> None:
    late = Late(Event.FIT_START)
    logger = Logger(state_of(0), late)
    logger.log_metrics({"a": 1.0})
    late.ready_at = None
    logger.run_event(Event.BATCH_END)
    assert late.calls == [("metrics", {"a": 1.0}, 7), ("batch_end",)]


def test_who_was_ready_once_is_not_asked_again() -> None:
    late = Late()
    logger = Logger(state_of(0), late)
    for _ in range(5):
        logger.log_metrics({})
    assert late.n_asked == 1


def test_files_are_never_kept_back() -> None:
    late = Late(Event.FIT_START)
    logger = Logger(state_of(0), late)
    logger.log_metrics({"a": 1.0})
    logger.upload_file("file", "file")
    assert late.calls == [("upload", "file")]


def test_what_is_still_kept_at_the_close_is_replayed_before_it() -> None:
    late = Late(Event.FIT_START)
    logger = Logger(state_of(0), late)
    logger.log_metrics({"a": 1.0})
    logger.close()
    assert late.calls == [("metrics", {"a": 1.0}, 7), ("close",)]


def test_nothing_is_kept_on_ranks_that_do_not_log() -> None:
    late = Late(Event.FIT_START)
    logger = Logger(state_of(1), late)
    logger.log_metrics({"a": 1.0})
    logger.close()
    assert late.calls == [("close",)]


def test_one_that_is_not_ready_does_not_delay_the_others() -> None:
    late, early = Late(Event.FIT_START), Recording()
    Logger(state_of(0), [late, early]).log_metrics({"a": 1.0})
    assert early.calls == [("metrics", {"a": 1.0}, 7)]


def test_many_kept_calls_are_said_once_and_none_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    late = Late(Event.FIT_START)
    logger = Logger(state_of(0), late)
    n = MANY_KEPT_CALLS + 5
    for step in range(n):
        logger.log_metrics({}, step)
    (message,) = caplog.messages
    assert message.startswith("Late is not ready, and 10000 log calls are kept for it in memory")
    logger.run_event(Event.FIT_START)
    assert [call[-1] for call in late.calls[1:]] == list(range(n))


def test_a_replayed_call_that_fails_is_reported_and_the_others_arrive(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(Late):
        def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
            raise ValueError("no texts")

    late = Picky(Event.INIT)
    logger = Logger(state_of(0), late)
    logger.log_text("a")
    logger.log_metrics({"a": 1.0})
    logger.run_event(Event.INIT)
    assert late.calls == [("init",), ("metrics", {"a": 1.0}, 7)]
    assert caplog.messages == ["Picky.log_text failed: no texts"]


def test_a_replayed_call_that_says_uploads_failed_comes_through() -> None:
    class Uploading(Late):
        def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
            raise UploadFailed([JobFailure(1, "s3://bucket/a", 1, "403")])

    logger = Logger(state_of(0), Uploading(Event.INIT))
    logger.log_text("a")
    with pytest.raises(UploadFailed):
        logger.run_event(Event.INIT)


def test_a_destination_that_logs_while_it_gets_its_calls_is_heard_in_turn() -> None:
    class Chatty(Late):
        def log_hyperparameters(self, hyperparameters: Mapping[str, object]) -> None:
            super().log_hyperparameters(hyperparameters)
            logger.log_metrics({"of": 1.0})

    late = Chatty(Event.INIT)
    logger = Logger(state_of(0), late)
    logger.log_hyperparameters({"lr": 0.1})
    logger.log_text("a")
    logger.run_event(Event.INIT)
    assert [call[0] for call in late.calls] == ["init", "hyperparameters", "text", "metrics"]


def test_one_that_cannot_say_whether_it_is_ready_is_not(caplog: pytest.LogCaptureFixture) -> None:
    class Confused(Recording):
        def is_ready(self, state: State) -> bool:
            raise LookupError("who knows")

    one = Confused()
    logger = Logger(state_of(0), one)
    logger.log_metrics({"a": 1.0})
    logger.log_metrics({"a": 2.0})
    logger.close()
    assert [call[0] for call in one.calls] == ["metrics", "metrics", "close"]
    assert caplog.messages == ["Confused.is_ready failed: who knows"]
