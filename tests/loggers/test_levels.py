"""Levelled logging: who wants a figure is asked first, and only then is it computed; each gets a copy of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest

from wherry.errors import ConfigError
from wherry.loggers import Logger, LoggerDestination, State, Timestamp
from wherry.loggers.run.level import LogLevel, to_level

Call = tuple[int, int, LogLevel, Mapping[str, object]]


class Backend(LoggerDestination):
    """A destination of the first generation: it knows log_metric() and will_log()."""

    def __init__(self, threshold: LogLevel = LogLevel.VERBOSE, asked: list[str] | None = None, name: str = "") -> None:
        self.threshold = threshold
        self.calls: list[Call] = []
        self.asked = [] if asked is None else asked
        self.name = name

    def will_log(self, state: State, level: LogLevel) -> bool:
        self.asked.append(self.name)
        return level <= self.threshold

    def log_metric(self, epoch: int, step: int, log_level: LogLevel, data: Mapping[str, object]) -> None:
        self.calls.append((epoch, step, log_level, data))


class Today(LoggerDestination):
    """A destination of today, that knows nothing of levels."""

    def __init__(self) -> None:
        self.metrics: list[tuple[Mapping[str, float], int | None]] = []
        self.traces: list[Mapping[str, object]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.metrics.append((metrics, step))

    def log_traces(self, traces: Mapping[str, object]) -> None:
        self.traces.append(traces)


class TodayWithText(Today):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, str, int | None]] = []

    def log_text(self, text: str, name: str = "Text", step: int | None = None) -> None:
        self.texts.append((text, name, step))


class Figures:
    """A function that counts its calls."""

    def __init__(self, data: Mapping[str, object]) -> None:
        self.data = data
        self.n_calls = 0

    def __call__(self) -> Mapping[str, object]:
        self.n_calls += 1
        return self.data


@pytest.fixture
def state() -> State:
    return State("run", Timestamp(epoch=2, batch=7))


# levels


@pytest.mark.parametrize("spelling", [LogLevel.EPOCH, "EPOCH", "epoch", "Epoch", 2])
def test_a_level_is_an_enum_a_name_in_any_case_or_a_number(state: State, spelling: str | int) -> None:
    backend = Backend()
    Logger(state, backends=[backend]).metric(spelling, {"a": 1})
    assert to_level(spelling) is LogLevel(spelling) is LogLevel.EPOCH  # type: ignore[arg-type]
    assert backend.calls == [(2, 7, LogLevel.EPOCH, {"a": 1})]


@pytest.mark.parametrize("spelling", ["epochs", "", 0, 6, True, False])
@pytest.mark.parametrize("convert", [to_level, LogLevel])
def test_an_unknown_level_is_an_error_that_lists_the_known_ones(convert: Callable[[object], object], spelling: object) -> None:
    with pytest.raises(ConfigError, match=r"no log level: use one of FIT \(1\), .* VERBOSE \(5\)"):
        convert(spelling)


@pytest.mark.parametrize("level", LogLevel)
def test_each_level_has_its_own_call(state: State, level: LogLevel) -> None:
    backend = Backend()
    getattr(Logger(state, [backend]), f"metric_{level.name.lower()}")({"a": 1})
    assert backend.calls == [(2, 7, level, {"a": 1})]


@pytest.mark.parametrize("threshold", LogLevel)
@pytest.mark.parametrize("level", LogLevel)
def test_a_threshold_keeps_the_levels_up_to_it(state: State, threshold: LogLevel, level: LogLevel) -> None:
    backend = Backend(threshold)
    Logger(state, [backend]).metric(level, {"a": 1})
    assert bool(backend.calls) == (level.value <= threshold.value)


# functions that make figures


def test_figures_that_nobody_wants_are_not_computed(state: State) -> None:
    figures = Figures({"a": 1})
    Logger(state, [Backend(LogLevel.FIT), Backend(LogLevel.EPOCH)]).metric(LogLevel.BATCH, figures)
    assert figures.n_calls == 0


def test_figures_that_several_want_are_computed_once(state: State) -> None:
    figures, backends = Figures({"a": 1}), [Backend(), Backend(LogLevel.FIT), Backend()]
    Logger(state, backends).metric(LogLevel.BATCH, figures)
    assert figures.n_calls == 1
    assert [len(backend.calls) for backend in backends] == [1, 0, 1]


def test_each_is_asked_once_in_order(state: State) -> None:
    asked: list[str] = []
    Logger(state, [Backend(asked=asked, name="one"), Backend(LogLevel.FIT, asked, "two")]).metric("batch", lambda: {"a": 1})
    assert asked == ["one", "two"]


def test_figures_that_fail_are_said_once_a_place_and_the_rest_is_written(state: State, caplog: pytest.LogCaptureFixture) -> None:
    backend = Backend()
    logger = Logger(state, [backend])
    for step in range(3):
        logger.metric_batch(lambda: {"a": 1 / 0})
        logger.metric_batch(partial(divide, 0))
        logger.metric_batch({"step": step})
    assert [call[3] for call in backend.calls] == [{"step": 0}, {"step": 1}, {"step": 2}]
    one, other = caplog.messages
    assert "metrics of level BATCH are missing" in one
    assert "<lambda> (test_levels.py:" in one
    assert "divide (test_levels.py:" in other
    assert "ZeroDivisionError" in one


def divide(by: float) -> Mapping[str, object]:
    return {"a": 1 / by}


@pytest.mark.parametrize("data", [[1, 2], 3.0, lambda: ["a"], None])
def test_figures_that_are_no_mapping_are_a_clear_error(state: State, data: object) -> None:
    with pytest.raises(TypeError, match="metrics are a mapping of names to values, or a function that returns one, and not"):
        Logger(state, [Backend()]).metric_fit(data)  # type: ignore[arg-type]


def test_one_that_fails_when_it_is_asked_takes_nothing_from_the_others(state: State, caplog: pytest.LogCaptureFixture) -> None:
    class Confused(Backend):
        def will_log(self, state: State, level: LogLevel) -> bool:
            raise LookupError("no such level")

    backend = Backend()
    logger = Logger(state, [Confused(), backend])
    logger.metric_fit({"a": 1})
    logger.metric_fit({"a": 1})
    assert len(backend.calls) == 2
    assert caplog.messages == ["Confused.will_log failed: no such level"]


# copies


@pytest.mark.large
def test_each_destination_gets_its_own_copy_as_of_the_call(state: State) -> None:
    import torch

    data = {"nested": {"list": [1, 2]}, "array": np.zeros(2), "tensor": torch.zeros(2)}
    backends = [Backend(), Backend()]
    Logger(state, backends).metric_fit(data)
    (one,), (other,) = backends[0].calls, backends[1].calls
    one[3]["nested"]["list"].append(3)  # type: ignore[index]
    one[3]["array"][0] = one[3]["tensor"][0] = 1.0  # type: ignore[index]
    data["nested"]["list"].append(4)  # type: ignore[index]
    assert other[3]["nested"] == {"list": [1, 2]}
    assert other[3]["array"].tolist() == other[3]["tensor"].tolist() == [0.0, 0.0]  # type: ignore[attr-defined]


@pytest.mark.large
def test_a_copied_tensor_keeps_no_graph_alive(state: State) -> None:
    import torch

    backend = Backend()
    weights = torch.ones(2, requires_grad=True)
    Logger(state, [backend]).metric_fit({"loss": (weights * 2).sum(), "half": weights.to(torch.bfloat16)})
    loss, half = backend.calls[0][3].values()
    assert isinstance(loss, torch.Tensor)
    assert isinstance(half, torch.Tensor)
    assert (loss.grad_fn, half.grad_fn, loss.requires_grad, half.dtype) == (None, None, False, torch.bfloat16)
    assert loss.item() == 4.0


def test_what_cannot_be_copied_is_handed_on_as_it_is(state: State) -> None:
    lock = threading.Lock()
    backend = Backend()
    data = {"lock": lock, "list": [1]}
    Logger(state, [backend]).metric_fit(data)
    got = backend.calls[0][3]
    assert got["lock"] is lock
    assert got["list"] == [1]
    assert got["list"] is not data["list"]


def test_data_that_holds_itself_can_be_copied(state: State) -> None:
    backend = Backend()
    data: dict[str, object] = {"a": 1}
    data["self"] = [data]
    Logger(state, [backend]).metric_fit(data)
    got = backend.calls[0][3]
    assert got["self"][0] is got  # type: ignore[index]
    assert got is not data


# generations


@pytest.mark.large
def test_a_destination_of_today_gets_numbers_texts_and_the_rest_by_its_own_calls(state: State) -> None:
    import torch

    one, other = TodayWithText(), Today()
    array = np.zeros((2, 3))
    data = {
        "loss": {"train": torch.tensor([[0.5]], requires_grad=True), "eval": np.float32(0.25)},
        "lr": [3e-6, 1],
        3: np.array(2),
        "note": "so \u00fc",
        "array": array,
        "none": None,
    }
    Logger(state, [one, other]).metric("epoch", data)  # type: ignore[arg-type]
    assert one.metrics == other.metrics == [({"loss/train": 0.5, "loss/eval": 0.25, "lr/0": 3e-6, "lr/1": 1, "3": 2}, 7)]
    assert one.texts == [("so \u00fc", "note", 7)]
    assert list(one.traces[0]) == ["array", "none"]
    assert list(other.traces[0]) == ["array", "none", "note"]  # it knows no log_text()


def test_a_call_without_numbers_logs_no_empty_metrics(state: State) -> None:
    destination = Today()
    logger = Logger(state, [destination])
    logger.metric_fit({})
    logger.metric_fit({"a": "text"})
    assert destination.metrics == []
    assert destination.traces == [{"a": "text"}]


def test_a_destination_of_the_first_generation_gets_metrics_of_today(state: State, caplog: pytest.LogCaptureFixture) -> None:
    wanting, declining, today = Backend(), Backend(LogLevel.EPOCH), Today()
    Logger(state, [wanting, declining]).log_metrics({"loss": 0.5}, step=9)
    Logger(state, [wanting, declining, today]).log_metrics({"loss": 0.5})
    assert wanting.calls == [(2, 9, LogLevel.BATCH, {"loss": 0.5}), (2, 7, LogLevel.BATCH, {"loss": 0.5})]
    assert declining.calls == []
    assert today.metrics == [({"loss": 0.5}, 7)]
    assert caplog.messages == []
