"""What the router adds to handing calls on: policies for errors, calls that nobody takes, threads, and attaching in one line."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from wherry.errors import ConfigError, JobFailure, MissingExtraError, UploadFailed
from wherry.loggers import Callback, Event, Logger, LoggerDestination, State, Timestamp

OnError = Literal["warn", "raise", "disable"]


class Sink(LoggerDestination):
    """Takes metrics and texts."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.calls.append("metrics")

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        self.calls.append("text")

    def init(self, state: State, logger: Logger) -> None:
        self.calls.append("init")

    def batch_end(self, state: State, logger: Logger) -> None:
        self.calls.append("batch_end")

    def close(self, state: State, logger: Logger) -> None:
        self.calls.append("close")

    def post_close(self) -> None:
        self.calls.append("post_close")


class Failing(Sink):
    """Fails at metrics and batch_end."""

    def __init__(self, on_error: OnError) -> None:
        super().__init__()
        self.on_error = on_error

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics(metrics, step)
        raise ZeroDivisionError(f"broken, {self.on_error}")

    def batch_end(self, state: State, logger: Logger) -> None:
        super().batch_end(state, logger)
        raise ZeroDivisionError(f"broken, {self.on_error}")


@pytest.fixture
def state() -> State:
    return State("run", Timestamp(epoch=1, batch=7))


# policies


def use(logger: Logger) -> None:
    logger.log_metrics({"loss": 1.0})
    logger.log_text("a")
    logger.run_event(Event.BATCH_END)
    logger.log_metrics({"loss": 1.0})


def test_by_default_errors_are_said_once_and_calls_go_on(state: State, caplog: pytest.LogCaptureFixture) -> None:
    one, other = Failing("warn"), Sink()
    use(Logger(state, [one, other]))
    assert one.calls == other.calls == ["metrics", "text", "batch_end", "metrics"]
    assert caplog.messages == ["Failing.log_metrics failed: broken, warn", "Failing.batch_end failed: broken, warn"]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert LoggerDestination.on_error == "warn"


class Counting(LoggerDestination):
    """Fails at each batch, with other numbers each time, and now and then for another reason."""

    n_batches = 0

    def batch_end(self, state: State, logger: Logger) -> None:
        self.n_batches += 1
        raise ValueError(f"batch {self.n_batches}: loss {1.5 / self.n_batches} of {object()}{' is odd' * (self.n_batches % 2)}")


def test_errors_that_differ_in_numbers_only_are_one_and_the_first_has_its_traceback(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    with Logger(state, Counting()) as logger:
        for _ in range(30):
            logger.run_event(Event.BATCH_END)
    first, second = caplog.messages
    assert first.startswith("Counting.batch_end failed: batch 1: loss 1.5 of ")
    assert second.startswith("Counting.batch_end failed: batch 2: loss 0.75 of ")
    assert 1 == caplog.text.count("Traceback")


def test_a_destination_that_is_to_be_disabled_gets_no_more_until_the_close(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Failing("disable"), Sink()
    logger = Logger(state, [one, other])
    use(logger)
    logger.metric_fit({"a": 1})
    logger.close()
    assert one.calls == ["metrics", "close", "post_close"]
    assert other.calls == ["metrics", "text", "batch_end", "metrics", "metrics", "close", "post_close"]
    assert caplog.messages == [
        "Failing.log_metrics failed: broken, disable (it is not called any more, as its on_error is 'disable')"
    ]


def test_an_error_that_is_to_be_raised_comes_through_when_all_had_their_turn(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, third = Failing("raise"), Sink(), Failing("raise")
    logger = Logger(state, [one, other, third])
    with pytest.raises(ZeroDivisionError, match="broken, raise"):
        logger.log_metrics({"loss": 1.0})
    with pytest.raises(ZeroDivisionError, match="broken, raise"):
        logger.run_event(Event.BATCH_END)
    assert one.calls == other.calls == third.calls == ["metrics", "batch_end"]
    assert caplog.messages == ["ZeroDivisionError: broken, raise"] * 2  # the other destination's


def test_uploads_that_failed_go_before_other_errors(state: State, caplog: pytest.LogCaptureFixture) -> None:
    class Uploading(Sink):
        def batch_end(self, state: State, logger: Logger) -> None:
            raise UploadFailed([JobFailure(1, "s3://bucket/a", 1, "403")])

    with pytest.raises(UploadFailed):
        Logger(state, [Failing("raise"), Uploading()]).run_event(Event.BATCH_END)
    assert caplog.messages == ["ZeroDivisionError: broken, raise"]


def test_an_unknown_policy_is_found_at_the_start(state: State) -> None:
    with pytest.raises(ConfigError, match=r"Failing\.on_error is 'ignore'.*'warn', 'raise', 'disable'"):
        Logger(state, [Failing("ignore")])  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [Sink, [Sink], [Callback()], 3, ["wandb"]])
def test_what_is_no_destination_is_refused(state: State, wrong: object) -> None:
    with pytest.raises(ConfigError, match="is no LoggerDestination"):
        Logger(state, wrong)  # type: ignore[arg-type]


def test_a_single_destination_needs_no_list(state: State) -> None:
    one = Sink()
    assert Logger(state, one).destinations == (one,)


# calls that nobody takes


def test_a_call_that_no_destination_can_serve_is_said_once(state: State, caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger(state, [Sink(), Sink()])
    for _ in range(3):
        logger.log_metrics({"loss": 1.0})
        logger.log_audio([0.0])
        logger.log_table(["a"], [[1]])
    assert caplog.messages == [
        "log_audio() has no effect: no destination can take it (there are: Sink)",
        "log_table() has no effect: no destination can take it (there are: Sink)",
    ]


def test_levelled_figures_that_no_destination_can_serve_are_said_once_and_not_computed(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    class Images(LoggerDestination):
        def log_images(self, *args: object, **kwargs: object) -> None: ...

    computed: list[int] = []
    logger = Logger(state, [Images()])
    for _ in range(3):
        logger.metric_fit(lambda: computed.append(1) or {})  # type: ignore[func-returns-value]
    assert computed == []
    assert caplog.messages == ["metric() has no effect: no destination can take it (there are: Images)"]


def test_a_logger_without_destinations_says_so_once(state: State, caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger(state)
    logger.log_metrics({})
    logger.log_text("a")
    logger.metric_fit({})
    assert caplog.messages == ["log_metrics() has no effect: this Logger has no destinations"]


@pytest.mark.parametrize(
    ("call", "arguments", "passed"),
    [
        ("log_text", ("a",), ("a", "Text", 7)),
        ("log_histogram", ([1],), ([1], "Histogram", 7)),
        ("log_audio", ([0.0],), ([0.0], "Audio", 44_100, 7)),
        ("log_video", ([0],), ([0], "Video", 12.0, 7)),
        ("log_point_cloud", ([0],), ([0], "PointCloud", 7)),
    ],
)
def test_typed_calls_arrive_with_all_arguments(
    state: State, call: str, arguments: Sequence[object], passed: Sequence[object]
) -> None:
    seen: list[object] = []
    kind = type("Taking", (LoggerDestination,), {call: lambda self, *given: seen.append(given)})
    getattr(Logger(state, kind()), call)(*arguments)
    assert seen == [passed]


# threads


def test_calls_from_several_threads_all_arrive_in_each_threads_order(state: State) -> None:
    seen: list[tuple[int, int]] = []

    class Ordered(LoggerDestination):
        ready = False

        def is_ready(self, state: State) -> bool:
            return self.ready

        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            ((thread, number),) = metrics.items()
            seen.append((int(thread), int(number)))

        def fit_start(self, state: State, logger: Logger) -> None:
            self.ready = True

    logger = Logger(state, Ordered())
    started = threading.Barrier(5)

    def log_all(thread: int) -> None:
        for number in range(1000):
            if number == 300:  # it gets ready while all are at it
                started.wait(60)
            logger.log_metrics({str(thread): number})

    threads = [threading.Thread(target=log_all, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    started.wait(60)
    logger.run_event(Event.FIT_START)
    for thread in threads:
        thread.join(60)
    for thread_number in range(4):
        assert [number for thread, number in seen if thread == thread_number] == list(range(1000))


def test_of_several_threads_one_reports(state: State, caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger(state, Failing("warn"))
    started = threading.Barrier(8)

    def log_one() -> None:
        started.wait(60)
        logger.log_metrics({"a": 1.0})

    threads = [threading.Thread(target=log_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert caplog.messages == ["Failing.log_metrics failed: broken, warn"]


# attaching


def test_one_line_attaches_and_closes(state: State) -> None:
    one = Sink()
    with Logger(state, one) as logger:
        logger.log_metrics({"loss": 1.0})
    assert one.calls == ["init", "metrics", "close", "post_close"]
    assert logger.error is None


def test_a_run_that_has_begun_does_not_begin_again(state: State) -> None:
    one = Sink()
    logger = Logger(state, one)
    logger.run_event(Event.INIT)
    with logger:
        logger.run_event(Event.BATCH_END)
    assert one.calls == ["init", "batch_end", "close", "post_close"]


class FailsAtTheClose(Sink):
    def __init__(self) -> None:
        super().__init__()
        self.seen: BaseException | None = None

    def close(self, state: State, logger: Logger) -> None:
        self.seen = logger.error

    def post_close(self) -> None:
        raise UploadFailed([JobFailure(1, "s3://bucket/a", 1, "403")])


def test_an_exception_of_the_run_comes_before_those_of_the_close(state: State, caplog: pytest.LogCaptureFixture) -> None:
    one = FailsAtTheClose()
    with pytest.raises(ZeroDivisionError) as caught, Logger(state, one):
        raise ZeroDivisionError("the run's own")
    assert one.seen is caught.value
    (message,) = caplog.messages
    assert message.startswith("after ZeroDivisionError, at the close: ")
    assert "s3://bucket/a" in message


def test_without_an_exception_of_the_run_the_close_raises(state: State) -> None:
    with pytest.raises(UploadFailed), Logger(state, FailsAtTheClose()):
        pass


def test_a_run_that_cannot_begin_is_closed(state: State) -> None:
    class Refusing(Callback):
        def init(self, state: State, logger: Logger) -> None:
            raise RuntimeError("no GPU")

    one = Sink()
    with pytest.raises(RuntimeError, match="no GPU"), Logger(state, one, Refusing()):
        raise AssertionError("unreachable")
    assert one.calls == ["init", "close", "post_close"]


def test_control_c_at_the_close_of_one_still_closes_the_others(state: State, caplog: pytest.LogCaptureFixture) -> None:
    class Interrupted(Sink):
        def post_close(self) -> None:
            raise KeyboardInterrupt

    one = Sink()
    with pytest.raises(KeyboardInterrupt):
        Logger(state, [FailsAtTheClose(), Interrupted(), one]).close()
    assert one.calls == ["close", "post_close"]
    assert "s3://bucket/a" in caplog.text


def test_a_missing_library_is_one_line_without_a_traceback(state: State, caplog: pytest.LogCaptureFixture) -> None:
    class NeedsPillow(LoggerDestination):
        def log_images(self, *arguments: object) -> None:
            raise MissingExtraError("this needs Pillow, which is not installed: pip install 'wherry[media]'")

        def log_text(self, *arguments: object) -> None:
            raise OSError("another trouble")

    logger = Logger(state, NeedsPillow())
    logger.log_images([[0]])
    logger.log_images([[0]])
    logger.log_text("a")
    lines = caplog.text.splitlines()
    assert [1, 1] == [sum(word in line for line in lines) for word in ("NeedsPillow.log_images failed", "this needs Pillow")]
    assert 1 == caplog.text.count("Traceback")  # of the other


# events


def test_an_event_by_its_name_is_that_event(state: State) -> None:
    one = Sink()
    Logger(state, one).run_event("batch_end")
    assert one.calls == ["batch_end"]


def test_only_those_who_act_at_an_event_are_called(state: State) -> None:
    events: list[Event] = []

    class Silent(LoggerDestination):
        pass

    class All(LoggerDestination):
        def run_event(self, event: Event, state: State, logger: Logger) -> None:
            events.append(event)

    one = Sink()
    logger = Logger(state, [Silent(), one, All()])
    for event in Event:
        logger.run_event(event)
    assert one.calls == ["init", "batch_end"]
    assert events == list(Event)
