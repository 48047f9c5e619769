"""CallLimits: a destination that hangs does not stop the training."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gate import Gate, wait_until
from wherry.errors import ConfigError
from wherry.loggers import Event, Logger, LoggerDestination, LogLevel, State
from wherry.loggers.call_limits import CallLimits

SHORT = CallLimits(call_s=0.5, end_s=0.5)


class Hanging(LoggerDestination):
    """Hangs in each call until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.calls: list[str] = []

    def _hang(self, call: str) -> None:
        self.calls.append(call)
        self.may_go_on.wait(60.0)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._hang("log_metrics")

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        self._hang("upload_file")

    def batch_end(self, state: State, logger: Logger) -> None:
        self._hang("batch_end")

    def post_close(self) -> None:
        self._hang("post_close")


class Talkative(LoggerDestination):
    """Logs and uploads while it is called, as FileLogger does."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[Mapping[str, float]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.metrics.append(metrics)

    def batch_end(self, state: State, logger: Logger) -> None:
        logger.log_metrics({"own": 1.0})


@contextmanager
def hanging() -> Iterator[Hanging]:
    one = Hanging()
    try:
        yield one
    finally:
        one.may_go_on.set()


def test_a_call_that_hangs_is_left_alone_after_its_limit_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with hanging() as stuck:
        other = Talkative()
        logger = Logger(State("r"), [stuck, other], call_limits=SHORT)
        for batch in range(3):
            logger.log_metrics({"batch": batch})
            logger.run_event(Event.BATCH_END)
        logger.close()
        assert ["log_metrics"] == stuck.calls
    assert [0, 1, 2] == [metrics["batch"] for metrics in other.metrics if "batch" in metrics]
    (said,) = caplog.messages
    assert "Hanging.log_metrics failed: it has not returned within 0.5 s. The training goes on without Hanging" in said


def test_each_file_that_a_hanging_destination_does_not_get_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with hanging() as stuck:
        logger = Logger(State("r"), stuck, call_limits=SHORT)
        for name in ("a", "b"):
            logger.upload_file(name, __file__)
    assert 2 == len(caplog.messages)
    assert "Hanging does not get the file, as its upload_file() has not returned yet" in caplog.messages[1]


def test_a_destination_is_called_again_when_its_call_has_returned(caplog: pytest.LogCaptureFixture) -> None:
    with hanging() as stuck:
        logger = Logger(State("r"), stuck, call_limits=SHORT)
        logger.log_metrics({"loss": 1.0})
        stuck.may_go_on.set()

        def is_called_again() -> bool:
            logger.log_metrics({"loss": 1.0})
            return len(stuck.calls) > 1

        wait_until(is_called_again)
    assert "Hanging is called again from now on" in caplog.messages[-1]


def test_a_close_that_hangs_ends_with_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    with hanging() as stuck:
        with Logger(State("r"), stuck, call_limits=CallLimits(call_s=60.0, end_s=0.5)):
            pass
        assert ["post_close"] == stuck.calls
    assert "Hanging.post_close failed: it has not returned within 0.5 s" in caplog.messages[0]


def test_a_destination_may_log_while_it_is_called(caplog: pytest.LogCaptureFixture) -> None:
    one = Talkative()
    logger = Logger(State("r"), one, call_limits=CallLimits(call_s=5.0))
    logger.run_event(Event.BATCH_END)
    assert ([{"own": 1.0}], []) == (one.metrics, caplog.messages)


def test_a_forked_child_makes_its_calls_itself() -> None:
    one = Talkative()
    logger = Logger(State("r"), one, call_limits=CallLimits(call_s=30.0))
    logger.log_metrics({"loss": 1.0})
    child = os.fork()
    if not child:
        logger.log_metrics({"loss": 2.0})
        os._exit(0 if one.metrics[-1] == {"loss": 2.0} else 1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("wrong", [0, -1.0, True, "5"])
def test_limits_that_make_no_sense_are_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match=r"CallLimits.call_s is .*: it must be a number of seconds above 0"):
        CallLimits(call_s=wrong)


class HangsInQuestions(Hanging):
    """Hangs whenever it is asked something."""

    def can_upload_files(self) -> bool:
        self._hang("can_upload_files")
        return True

    def will_log(self, state: State, level: LogLevel) -> bool:
        self._hang("will_log")
        return True

    def log_metric(self, epoch: int, step: int, level: LogLevel, data: object) -> None:
        self._hang("log_metric")


@pytest.mark.parametrize("question", ["can_upload_files", "has_file_upload_destination", "will_log"])
def test_a_destination_that_hangs_when_it_is_asked_is_left_out(
    question: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = HangsInQuestions()
    logger = Logger(State("run"), hanging, call_limits=SHORT)
    try:
        for _ in range(2):
            if question == "can_upload_files":
                logger.upload_file("a", tmp_path / "a")
            elif question == "has_file_upload_destination":
                assert logger.has_file_upload_destination()
            else:
                logger.metric("batch", {"a": 1.0})
        assert 1 == len(hanging.calls)
        said = " ".join(caplog.messages)
        assert 1 == said.count("it has not returned within 0.5 s")
        assert (2 if question == "can_upload_files" else 0) == said.count("does not get the file")
    finally:
        hanging.may_go_on.set()


class UploadsFromAThread(LoggerDestination):
    """Its close waits for a thread that hands over a file, as those of FileLogger and RunFolderLogger do."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def close(self, state: State, logger: Logger) -> None:
        thread = threading.Thread(target=logger.upload_file, args=("a", self._path))
        thread.start()
        thread.join()


class Takes(LoggerDestination):
    """Notes which files it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def upload_file(self, state: State | None, remote_file_name: str, file_path: Path, *, overwrite: bool) -> None:
        self.names.append(remote_file_name)


def test_a_destination_may_wait_for_a_thread_that_uploads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    takes = Takes()
    Logger(State("run"), [UploadsFromAThread(tmp_path / "a"), takes], call_limits=CallLimits(call_s=20.0, end_s=20.0)).close()
    assert ["a"] == takes.names
    assert "has not returned" not in caplog.text


@pytest.mark.parametrize("handler", ["signal.default_int_handler", "lambda number, frame: sys.exit(128 + number)"])
def test_ctrl_c_ends_one_wait_for_uploads_and_then_the_next(handler: str, gate: Gate) -> None:
    """As without limits, where the thread that waits gets it by itself. The second handler is as Composer's."""
    script = f"""
    import signal, sys
    from wherry.loggers import Event, Logger, ObjectStoreLogger, State
    from wherry.loggers.call_limits import CallLimits

    signal.signal(signal.SIGINT, {handler})
    logger = Logger(State("run"), ObjectStoreLogger("gated://x"), call_limits=CallLimits())
    logger.run_event(Event.INIT)
    logger.upload_file("a", sys.argv[1])
    logger.run_event(Event.FIT_END)
    """
    with gate.script(script, __file__) as process:
        for _ in ("at the end of the fit", "at the close"):
            wait_for_line(process, "waiting for 1 upload")
            process.send_signal(signal.SIGINT)
        wait_for_line(process, "To wait: wherry drain")
        process.wait(60)
    gate.open()
    gate.drain()
    assert Path(__file__).read_bytes() == (gate.dest / "a").read_bytes()


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    """Read what it prints, up to a line with these words."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        if words in line:
            return
        seen.append(line)
    raise AssertionError(f"it ended without {words!r}: {''.join(seen)}")
