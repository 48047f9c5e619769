"""Sinks of the typed API: what they are called with, when they write, and that only values that are written are computed."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from typed_sinks import EVERY_STEP, Sink, clocked
from wherry.errors import ConfigError
from wherry.loggers.destinations.in_memory import InMemoryLogger
from wherry.loggers.logger import Logger
from wherry.loggers.run.settings import config_as_dict
from wherry.loggers.run.state import State
from wherry.loggers.run.timestamp import Timestamp
from wherry.loggers.typed.destination_sink import DestinationSink
from wherry.loggers.typed.multi import MOST_REPLACED, MultiLogger, namespace_context
from wherry.loggers.typed.sink import BaseLogger, BaseLoggerConfig, CollectingLogger
from wherry.loggers.typed.sinks import Sinks

#: The seed's calls: name -> parameters.
SEED = {
    "log_scalar": ["key", "value", "state", "namespace"],
    "log_string": ["key", "value", "state", "namespace"],
    "log_image": ["key", "value", "state", "namespace"],
    "log_audio": ["key", "value", "state", "namespace"],
    "log_video": ["key", "value", "state", "namespace"],
    "log_histogram": ["key", "value", "state", "namespace"],
    "log_point_cloud": ["key", "value", "state", "namespace"],
    "log_config": ["config"],
    "should_write": ["state"],
    "write": ["state"],
}


@pytest.mark.parametrize("call", SEED)
def test_the_calls_are_those_of_the_seed(call: str) -> None:
    assert ["self", *SEED[call]] == list(inspect.signature(getattr(BaseLogger, call)).parameters)


def test_the_configuration_is_that_of_the_seed() -> None:
    given = [(field.name, field.default) for field in BaseLoggerConfig.__dataclass_fields__.values() if not field.kw_only]
    every = [(f"write_{what}every_n_seconds", None) for what in ("", "train_", "val_")]
    assert [("name", "???"), *every] == given


def test_write_must_be_overridden_and_nothing_else() -> None:
    with pytest.raises(TypeError, match="write"):
        BaseLogger(EVERY_STEP)  # type: ignore[abstract]
    assert {"write"} == BaseLogger.__abstractmethods__


@pytest.mark.parametrize("value", [-1, float("nan"), "1", True])
def test_an_interval_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="write_val_every_n_seconds"):
        BaseLoggerConfig(write_val_every_n_seconds=value)


@pytest.mark.parametrize(
    ("config", "phase", "interval_s"),
    [
        (BaseLoggerConfig(), "train", 1.0),
        (BaseLoggerConfig(write_every_n_seconds=5), "train", 5),
        (BaseLoggerConfig(write_every_n_seconds=5), "valid", 5),
        (BaseLoggerConfig(write_every_n_seconds=5, write_train_every_n_seconds=7), "train", 7),
        (BaseLoggerConfig(write_every_n_seconds=5, write_train_every_n_seconds=7), "valid", 5),
        (BaseLoggerConfig(write_every_n_seconds=5, write_val_every_n_seconds=9), "valid", 9),
        (BaseLoggerConfig(write_every_n_seconds=5, write_val_every_n_seconds=9), "test", 9),
        (BaseLoggerConfig(write_every_n_seconds=5, write_val_every_n_seconds=9), "train", 5),
    ],
)
def test_the_first_write_is_at_once_and_the_next_after_the_interval_of_the_phase(
    config: BaseLoggerConfig, phase: str, interval_s: float
) -> None:
    sink = Sink(config)
    times = [100.0, 100.0 + interval_s - 0.01, 100.0 + interval_s, 100.0 + 2 * interval_s - 0.01]
    assert [True, False, True, False] == [sink.should_write(clocked(now_s, phase)) for now_s in times]


def test_each_phase_has_a_time_of_its_own() -> None:
    sink = Sink(BaseLoggerConfig(write_every_n_seconds=10))
    asked = [("train", 0.0), ("valid", 1.0), ("train", 2.0), ("test", 3.0), ("valid", 12.0)]
    assert [True, True, False, True, True] == [sink.should_write(clocked(now_s, phase)) for phase, now_s in asked]


def test_an_interval_of_zero_is_every_step_and_a_clock_that_goes_back_is_due() -> None:
    assert [True, True] == [Sink().should_write(clocked(5.0)) for _ in range(2)]
    sink = Sink(BaseLoggerConfig(write_every_n_seconds=10))
    assert [True, True] == [sink.should_write(clocked(now_s)) for now_s in (100.0, 1.0)]


def test_long_and_large_runs_are_written_less_often_by_default() -> None:
    sink = Sink(BaseLoggerConfig())
    found = [
        sink.default_write_every_n_seconds(clocked(batch=batch, world_size=size)) for batch, size in ((0, 1), (5000, 1), (0, 8))
    ]
    assert [1.0, 10.0, 10.0] == found


def test_a_function_is_called_once_for_all_sinks_and_never_when_none_writes() -> None:
    calls: list[int] = []
    rare = Sink(BaseLoggerConfig(write_every_n_seconds=100))
    sinks, log = Sinks([rare, Sink(BaseLoggerConfig(write_every_n_seconds=100))]), MultiLogger()

    def value(now_s: float) -> float:
        calls.append(int(now_s))
        return now_s

    for now_s in (0.0, 1.0, 2.0):
        log.log_scalar("loss", functools.partial(value, now_s))
        sinks.step(clocked(now_s), log)
    assert [0] == calls
    sinks.close()
    assert [0, 2] == calls  # the last of the phase; the one between was replaced
    assert [0.0, 2.0] == rare.scalars()


@pytest.mark.large
def test_a_value_that_is_changed_later_is_logged_as_it_was() -> None:
    import torch

    sink, log = Sink(), MultiLogger()
    array, tensor = np.zeros(3), torch.ones(1, requires_grad=True)
    log.log_histogram("array", array)
    log.log_scalar("tensor", tensor)
    array[:] = 7
    with torch.no_grad():
        tensor += 1
    Sinks([sink]).step(clocked(), log)
    (_, _, found), = sink.written  # fmt: skip
    assert [0.0, 0.0, 0.0] == list(found.histograms["value", "array"])
    assert 1.0 == found.scalars["value", "tensor"]


@pytest.mark.large
def test_every_kind_reaches_the_sink_in_its_form() -> None:
    import torch

    sink, log = Sink(), MultiLogger("task")
    log.log_scalar("scalar", np.float32(0.5))
    log.log_string("string", 12)
    log.log_image("image", np.zeros((6, 5, 3)))
    log.log_audio("audio", np.zeros((2, 100)), sample_rate_hz=8000)
    log.log_video("video", np.zeros((24, 4, 5), np.uint8), frames_per_s=24)
    log.log_histogram("histogram", torch.zeros(2, 3, dtype=torch.bfloat16))
    log.log_point_cloud("points", np.zeros((3, 50)), max_points=10)
    Sinks([sink]).step(clocked(batch=9), log)
    (phase, batch, found), = sink.written  # fmt: skip
    assert ("train", 9) == (phase, batch)
    assert (0.5, "12") == (found.scalars["task", "scalar"], found.strings["task", "string"])
    audio, sample_rate = found.audios["task", "audio"]
    shapes = [found.images["task", "image"].shape, audio.shape, found.videos["task", "video"].shape]
    assert [(3, 6, 5), (100,), (12, 1, 4, 5)] == shapes
    assert 8000 == sample_rate
    assert ((2, 3), (1, 10, 3)) == (found.histograms["task", "histogram"].shape, found.point_clouds["task", "points"].shape)


def test_a_value_that_raises_is_reported_once_and_the_rest_is_written(caplog: pytest.LogCaptureFixture) -> None:
    sink, log = Sink(), MultiLogger()
    sinks = Sinks([sink, Sink()])

    def broken() -> float:
        raise ZeroDivisionError("no samples")

    for step in range(3):
        log.log_scalar("broken", broken)
        log.log_image("image", np.zeros((2, 3, 4, 5, 6)))
        log.log_scalar("loss", step)
        sinks.step(clocked(step), log)
    assert [0.0, 1.0, 2.0] == sink.scalars()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert 2 == len(said)  # however many sinks meet it, and however often
    assert 1 == sum("value/broken is not logged: ZeroDivisionError: no samples" in text for text in said)
    assert 1 == sum("value/image" in text and "(2, 3, 4, 5, 6)" in text for text in said)


@pytest.mark.parametrize(("aggregate", "expected"), [("last", 6.0), ("mean", 3.0), ("min", 1.0), ("max", 6.0)])
def test_scalars_between_two_writes_are_aggregated_as_configured(aggregate: Any, expected: float) -> None:
    sink, log = Sink(BaseLoggerConfig(write_every_n_seconds=100, aggregate=aggregate)), MultiLogger()
    sinks = Sinks([sink])
    sinks.step(clocked(0.0), log)  # the first write of the phase, of nothing
    for value in (1, 2, 6):
        log.log_scalar("loss", value)
        sinks.step(clocked(1.0), log)
    sinks.close()
    assert [expected] == sink.scalars()


class Calls:
    """A function that counts how often it is called."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.n = 0

    def __call__(self) -> float:
        self.n += 1
        return self.value


@pytest.mark.parametrize(("aggregate", "expected"), [("last", 3.0), ("mean", 1.5), ("min", 0.0), ("max", 3.0)])
def test_scalars_that_are_logged_several_times_in_a_step_are_aggregated_as_configured(aggregate: Any, expected: float) -> None:
    memory, log = InMemoryLogger(), MultiLogger()
    sinks = Sinks([DestinationSink(memory, BaseLoggerConfig(aggregate=aggregate))])
    for value in (3.0, 0.0, 1.0, 2.0) if aggregate != "last" else (0.0, 1.0, 2.0, 3.0):
        log.log_scalar("a", value)
    sinks.step(State("run"), log)
    sinks.close()
    assert [expected] == memory.series("value/a").values.tolist()


def test_a_replaced_function_is_called_only_for_a_sink_that_aggregates_and_once_for_all_of_them() -> None:
    last, log = Sink(), MultiLogger()
    replaced, newest = Calls(1.0), Calls(2.0)
    log.log_scalar("loss", replaced)
    log.log_scalar("loss", newest)
    Sinks([last]).step(clocked(), log)
    assert ([2.0], 0, 1) == (last.scalars(), replaced.n, newest.n)

    means = [Sink(BaseLoggerConfig(write_every_n_seconds=0, aggregate="mean")) for _ in range(2)]
    log.log_scalar("loss", replaced)
    log.log_scalar("loss", newest)
    Sinks([last, *means]).step(clocked(), log)
    assert ([2.0, 2.0], [1.5], [1.5], 1, 2) == (last.scalars(), means[0].scalars(), means[1].scalars(), replaced.n, newest.n)


def test_what_was_replaced_is_let_go_at_a_write_and_what_is_no_scalar_at_once() -> None:
    log = MultiLogger()
    scalar, picture = Calls(1.0), Calls(2.0)
    gone = [weakref.ref(scalar), weakref.ref(picture)]
    log.log_scalar("loss", scalar)
    log.log_image("picture", picture)
    log.log_scalar("loss", 2.0)
    log.log_image("picture", np.zeros((4, 5)))
    del scalar, picture
    gc.collect()
    assert [True, False] == [one() is not None for one in gone]
    Sinks([Sink()]).step(clocked(), log)
    gc.collect()
    assert [None, None] == [one() for one in gone]


def test_of_a_scalar_that_is_never_written_the_newest_values_are_kept_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    sink, log = Sink(BaseLoggerConfig(aggregate="min")), MultiLogger()
    for value in range(MOST_REPLACED + 3):
        log.log_scalar("loss", value)
    assert "" == caplog.text
    Sinks([sink]).step(clocked(), log)
    assert [2.0] == sink.scalars()
    assert "value/loss was logged more than 10000 times before a step" in caplog.text


def test_namespaces_are_joined_and_can_be_cleared_within_a_block() -> None:
    log = MultiLogger("model")
    found = [log.namespace(), log.namespace("own")]
    with namespace_context("a"):
        found.append(log.namespace())
        with namespace_context("b"):
            found.append(log.namespace("own"))
            with namespace_context(None):
                found.append(log.namespace())
            found.append(log.namespace())
    found.append(log.namespace())
    assert ["model", "own", "model_a", "own_a_b", "model", "model_a_b", "model"] == found


def test_a_namespace_of_one_thread_is_not_seen_by_another() -> None:
    log, found = MultiLogger("model"), []
    with namespace_context("here"):
        thread = threading.Thread(target=lambda: found.append(log.namespace()))
        thread.start()
        thread.join()
    assert ["model"] == found


def test_a_timer_logs_seconds_also_when_its_block_raises() -> None:
    sink, log = Sink(), MultiLogger()
    with pytest.raises(KeyError), log.timer("step"):
        raise KeyError
    Sinks([sink]).step(clocked(), log)
    (seconds,) = sink.scalars("timers/step")
    assert 0 <= seconds < 10


def test_the_last_values_of_a_phase_are_written_when_it_ends() -> None:
    sink, log = Sink(BaseLoggerConfig(write_every_n_seconds=100)), MultiLogger()
    sinks = Sinks([sink])
    for now_s, phase in ((0, "train"), (1, "train"), (2, "valid"), (3, "valid"), (4, "train"), (5, "train")):
        log.log_scalar("loss", now_s)
        sinks.step(clocked(now_s, phase, batch=now_s), log)
    sinks.end_phase(clocked(5, "train", batch=5))
    assert [("train", 0), ("train", 1), ("valid", 2), ("valid", 3), ("train", 5)] == [entry[:2] for entry in sink.written]
    assert [0, 1, 2, 3, 5] == sink.scalars()


def test_the_end_of_a_phase_takes_what_its_loggers_have_logged_since_the_step() -> None:
    memory, log = InMemoryLogger(), MultiLogger()
    sinks, state = Sinks([DestinationSink(memory, BaseLoggerConfig(write_every_n_seconds=1000))]), State("run", phase="valid")
    log.log_scalar("loss", 1.0)
    sinks.step(state, log)
    log.log_scalar("acc", 0.9)
    sinks.end_phase(state)
    assert [0.9] == memory.series("valid/value/acc").values.tolist()
    state.phase = "train"
    log.log_scalar("loss", 2.0)
    sinks.step(state, log)
    assert ["valid/value/loss", "valid/value/acc", "value/loss"] == memory.keys()


def test_the_end_of_a_phase_is_the_end_of_the_one_before_too() -> None:
    sink, log = Sink(BaseLoggerConfig(write_every_n_seconds=100)), MultiLogger()
    sinks = Sinks([sink])
    for now_s in (0, 1):
        log.log_scalar("loss", now_s)
        sinks.step(clocked(now_s, batch=now_s), log)
    log.log_scalar("loss", 7)
    sinks.end_phase(clocked(2, "valid", batch=2))
    assert [("train", 0), ("train", 1), ("valid", 2)] == [entry[:2] for entry in sink.written]


def test_the_close_of_a_sink_writes_what_it_holds_of_each_phase() -> None:
    memory, log, state = InMemoryLogger(), MultiLogger(), State("run")
    sink = DestinationSink(memory, BaseLoggerConfig(write_every_n_seconds=1000))
    for phase in ("train", "valid"):
        state.phase = phase
        for batch in range(10):
            state.timestamp = Timestamp(batch=batch if phase == "train" else 100 + batch)
            log.log_scalar("loss", float(batch))
            log.write([sink], state)
            if sink.should_write(state):
                sink.write(state)
    sink.close()
    sink.close()
    assert [0, 9] == memory.series("value/loss").steps.tolist()
    assert [100, 109] == memory.series("valid/value/loss").steps.tolist()
    assert [0.0, 9.0] == memory.series("valid/value/loss").values.tolist()


def test_the_close_of_a_sink_of_a_logger_writes_what_it_holds_and_leaves_the_logger_open() -> None:
    memory, log, state = InMemoryLogger(), MultiLogger(), State("run", Timestamp(batch=4))
    with Logger(state, memory) as logger:
        sink = DestinationSink(logger, BaseLoggerConfig(aggregate="mean"))
        for value in (1.0, 2.0):
            log.log_scalar("loss", value)
        log.write([sink], state)
        sink.close()
        logger.log_metrics({"after": 1.0})
    assert ([4], [1.5]) == (memory.series("value/loss").steps.tolist(), memory.series("value/loss").values.tolist())
    assert [1.0] == memory.series("after").values.tolist()


def test_a_sink_whose_last_write_fails_is_closed_and_all_phases_had_their_turn() -> None:
    class Broken(Sink):
        phases: list[str] = []  # noqa: RUF012  of this one test

        def write(self, state: State) -> None:
            self.phases.append(state.phase)
            raise OSError(f"no {state.phase}")

        def close(self) -> None:
            CollectingLogger.close(self)

    sink = Broken()
    for phase in ("train", "valid"):
        sink.log_scalar("loss", lambda: 1.0, clocked(phase=phase), "value")
    with pytest.raises(OSError, match="no train"):
        sink.close()
    assert ["train", "valid"] == sink.phases


def test_a_close_writes_what_the_sinks_hold_though_no_step_was_made() -> None:
    memory, log = InMemoryLogger(), MultiLogger()
    with Sinks([DestinationSink(memory)]) as sinks:
        log.log_scalar("loss", 1.0)
        log.write(sinks.sinks, State("run", Timestamp(batch=3)))
    assert [3] == memory.series("value/loss").steps.tolist()


def test_a_close_says_what_was_logged_and_never_handed_over(caplog: pytest.LogCaptureFixture) -> None:
    sink, log, other, empty = Sink(), MultiLogger(), MultiLogger("task"), MultiLogger()
    sinks = Sinks([sink])
    gc.collect()  # loggers of other tests
    log.log_scalar("loss", 1.0)
    log.log_scalar("acc", 1.0)
    sinks.close()
    assert "value/loss, value/acc" in caplog.text
    assert "step(state, logger)" in caplog.text
    caplog.clear()
    with Sinks([sink]) as sinks:
        other.log_scalar("loss", 1.0)
        sinks.step(clocked(), log, other)
    assert ("", False) == (caplog.text, empty.has_values())


def test_a_sink_that_raises_stops_neither_the_others_nor_the_training(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sink):
        def write(self, state: State) -> None:
            raise OSError("disk full")

        def log_scalar(self, key: str, value: Callable[[], Any], state: State, namespace: str) -> None:
            raise OSError("disk full")

    sink, log = Sink(), MultiLogger()
    sinks = Sinks([Broken(), sink])
    for step in range(3):
        log.log_scalar("loss", step)
        sinks.step(clocked(step), log)
    sinks.close()
    assert [0.0, 1.0, 2.0] == sink.scalars()
    assert sink.is_closed
    assert 2 == len([record for record in caplog.records if "disk full" in record.getMessage()])


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(ConfigError, match="'eval': use one of train, valid, test"):
        clocked(phase="eval")
    state = clocked()
    with pytest.raises(ConfigError, match="'eval': use one of train, valid, test"):
        state.phase = "eval"


def test_log_calls_from_several_threads_are_all_taken() -> None:
    sink, log = Sink(), MultiLogger()

    def work(number: int) -> None:
        for key in range(200):
            log.log_scalar(f"{number}-{key}", key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Sinks([sink]).step(clocked(), log)
    assert 800 == len(sink.written[0][2].scalars)


@dataclass
class Settings:
    lr: float = 0.1


def test_settings_are_taken_from_mappings_dataclasses_and_omegaconf() -> None:
    from omegaconf import OmegaConf

    nested = OmegaConf.create({"lr": 0.1, "model": {"width": "${lr}"}})
    sink = Sink()
    for config in ({"lr": 0.1}, Settings(), nested):
        Sinks([sink]).log_config(config)
    assert [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.1, "model": {"width": 0.1}}] == sink.configs
    with pytest.raises(TypeError, match="not list"):
        config_as_dict([1])
