"""Destinations as sinks of the typed API, and sinks as destinations."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from support import called_in
from typed_sinks import EVERY_STEP, Sink, clocked
from wherry.loggers.destination import LoggerDestination
from wherry.loggers.logger import Logger
from wherry.loggers.run.event import Event
from wherry.loggers.run.state import State
from wherry.loggers.typed.destination_sink import DestinationSink
from wherry.loggers.typed.multi import MultiLogger
from wherry.loggers.typed.sink import BaseLoggerConfig
from wherry.loggers.typed.sink_destination import SinkDestination
from wherry.loggers.typed.sinks import Sinks


class Destination(LoggerDestination):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def log_hyperparameters(self, *args: Any) -> None:
        self.calls.append(("hyperparameters", args))

    def log_metrics(self, *args: Any) -> None:
        self.calls.append(("metrics", args))

    def log_images(self, images: Any, name: str = "", channels_last: bool = False, step: int | None = None, *_: Any) -> None:
        self.calls.append(("images", (images.shape, name, step)))

    def log_text(self, *args: Any) -> None:
        self.calls.append(("text", args))

    def log_audio(self, audio: Any, name: str = "", sample_rate_hz: int = 0, step: int | None = None) -> None:
        self.calls.append(("audio", (audio.shape, name, sample_rate_hz, step)))

    def log_video(self, video: Any, name: str = "", frames_per_s: float = 0, step: int | None = None) -> None:
        self.calls.append(("video", (video.shape, name, frames_per_s, step)))

    def log_histogram(self, values: Any, name: str = "", step: int | None = None) -> None:
        self.calls.append(("histogram", (values.shape, name, step)))

    def log_point_cloud(self, points: Any, name: str = "", step: int | None = None) -> None:
        self.calls.append(("points", (points.shape, name, step)))


def log_all(log: MultiLogger) -> None:
    log.log_scalar("loss", 0.5)
    log.log_scalar("lr", 3e-6)
    log.log_string("note", "hello")
    log.log_image("image", np.zeros((4, 5)))
    log.log_audio("sound", np.zeros(100), sample_rate_hz=8000)
    log.log_video("video", np.zeros((2, 4, 5)))
    log.log_histogram("weights", np.zeros((2, 3)))
    log.log_point_cloud("points", np.zeros((7, 3)))


def expected_calls(prefix: str, step: int) -> list[tuple[str, tuple[Any, ...]]]:
    return [
        ("metrics", ({f"{prefix}loss": 0.5, f"{prefix}lr": 3e-6}, step)),
        ("text", ("hello", f"{prefix}note", step)),
        ("images", ((1, 4, 5), f"{prefix}image", step)),
        ("audio", ((100,), f"{prefix}sound", 8000, step)),
        ("video", ((2, 1, 4, 5), f"{prefix}video", 12.0, step)),
        ("histogram", ((2, 3), f"{prefix}weights", step)),
        ("points", ((1, 7, 3), f"{prefix}points", step)),
    ]


def test_a_destination_serves_as_a_sink() -> None:
    destination, log = Destination(), MultiLogger("task")
    sinks = Sinks([DestinationSink(destination, EVERY_STEP)])
    sinks.log_config({"lr": 1})
    log_all(log)
    sinks.step(clocked(batch=3), log)
    assert [("hyperparameters", ({"lr": 1},)), *expected_calls("task/", 3)] == destination.calls


def test_a_router_serves_as_a_sink_and_the_phase_is_in_the_name() -> None:
    destination, log = Destination(), MultiLogger("task")
    logger = Logger(State("run"), [destination])
    log_all(log)
    Sinks([DestinationSink(logger, EVERY_STEP)]).step(clocked(batch=3, phase="valid"), log)
    assert expected_calls("valid/task/", 3) == destination.calls


def test_a_sink_serves_as_a_destination_and_all_comes_back_through_both() -> None:
    destination = Destination()
    state = State("run")
    logger = Logger(state, [SinkDestination(DestinationSink(destination, EVERY_STEP))])
    logger.run_event(Event.INIT)
    logger.log_hyperparameters({"lr": 1})
    logger.log_metrics({"task/loss": 0.5, "task/lr": 3e-6})
    logger.log_text("hello", "task/note")
    logger.log_images(np.zeros((4, 5)), "task/image")
    logger.log_audio(np.zeros(100), "task/sound", 8000)
    logger.log_video(np.zeros((2, 4, 5)), "task/video")
    logger.log_histogram(np.zeros((2, 3)), "task/weights")
    logger.log_point_cloud(np.zeros((7, 3)), "task/points")
    state.timestamp = state.timestamp.to_next_batch()
    logger.run_event(Event.BATCH_END)
    assert [("hyperparameters", ({"lr": 1},)), *expected_calls("task/", 0)] == destination.calls


def test_a_sink_as_a_destination_writes_evaluations_as_valid_and_the_rest_at_the_end() -> None:
    sink = Sink(BaseLoggerConfig(write_every_n_seconds=100))
    state = State("run")
    logger = Logger(state, [SinkDestination(sink)])
    for event, loss in (
        (Event.BATCH_END, 1),
        (Event.BATCH_END, 2),
        (Event.EVAL_START, 3),
        (Event.EVAL_END, 4),
        (Event.FIT_END, 5),
    ):
        logger.log_metrics({"loss": loss, "images/n": loss})
        logger.run_event(event)
    logger.close()
    assert [1, 3, 4, 5] == sink.scalars()
    assert ["train", "train", "valid", "train"] == [phase for phase, _, _ in sink.written]
    assert [1, 3, 4, 5] == sink.scalars("images/n")
    assert sink.is_closed


def test_a_sink_as_a_destination_gets_media_that_are_brought_into_their_form_when_they_are_computed() -> None:
    sink = Sink()
    image, sound, video = np.full((2, 3, 4, 5), 0.5), np.full((2, 100), 0.5), np.full((6, 3, 4, 5), 0.5)

    def log() -> None:
        destination.log_images(image, "image")
        destination.log_audio(sound, "sound", 8000)
        destination.log_video(video, "video", 24)

    destination = SinkDestination(sink)
    assert set() == {"to_images", "to_audio", "to_video"} & called_in(log)
    for given in (image, sound, video):
        given[:] = 1.0
    assert {"to_images", "to_audio", "to_video"} <= called_in(destination.close)
    (_, _, found), = sink.written  # fmt: skip
    images = [found.images["value", f"image_{number}"] for number in range(2)]
    samples, rate = found.audios["value", "sound"]
    frames = found.videos["value", "video"]
    assert [(3, 4, 5), (3, 4, 5), (100,), (3, 3, 4, 5)] == [one.shape for one in (*images, samples, frames)]
    assert [{128}, {128}, {0.5}, {128}] == [set(one.reshape(-1).tolist()) for one in (*images, samples, frames)]
    assert 8000 == rate


@pytest.mark.parametrize("call", ["log_images", "log_audio", "log_video", "log_point_cloud"])
def test_a_sink_as_a_destination_refuses_a_wrong_shape_at_the_call(call: str) -> None:
    with pytest.raises(ValueError, match=r"^thing: .*\(2, 5, 2, 5, 2, 5\)"):
        getattr(SinkDestination(Sink()), call)(np.zeros((2, 5, 2, 5, 2, 5)), "thing")


def test_the_time_of_a_run_goes_on_over_restarts() -> None:
    clock = iter(range(0, 1000, 10))
    first = State("run", elapsed_before_s=100.0, now=lambda: next(clock))
    assert [110.0, 120.0] == [first.elapsed_s, first.elapsed_s]
    assert 130.0 == copy.copy(first).elapsed_s
    resumed = State("run", now=lambda: next(clock))
    resumed.elapsed_s = 130.0
    assert 140.0 == resumed.elapsed_s


def test_a_sink_as_a_destination_writes_each_step_that_is_given_without_any_event() -> None:
    sink = Sink()
    with Logger(State("run"), SinkDestination(sink)) as logger:
        for step in (5, 6, 6, 9):
            logger.log_metrics({f"loss{step}": step}, step=step)
    found = [(batch, set(found.scalars)) for _, batch, found in sink.written]
    assert [(5, {("value", "loss5")}), (6, {("value", "loss6")}), (9, {("value", "loss9")})] == found
