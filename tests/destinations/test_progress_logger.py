"""ProgressBarLogger: tqdm's bars for training, evaluation and prediction."""

from __future__ import annotations

import io
import os
import pty
import threading
from typing import TextIO

import numpy as np
import pytest
from tqdm import tqdm

from large import of_torch
from support import run_script
from wherry.errors import ConfigError
from wherry.loggers import Event, Logger, State, Timestamp
from wherry.loggers.destinations.progress_bar import ProgressBarConfig, ProgressBarLogger


class Page(io.StringIO):
    """What is drawn, as a terminal shows it: the last state of each line."""

    def lines(self) -> list[str]:
        return [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in self.getvalue().split("\n")]


@pytest.fixture(autouse=True)
def every_update_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    monkeypatch.setattr(tqdm, "monitor_interval", 0)


@pytest.fixture
def page() -> Page:
    return Page()


def logger_on(page: TextIO, **options: object) -> Logger:
    config = ProgressBarConfig(**{"force": True, **options})  # type: ignore[arg-type]
    return Logger(State("run"), ProgressBarLogger(page, config=config))


def train(logger: Logger, n_batches: int, *, end: bool = True) -> None:
    logger.run_event(Event.EPOCH_START)
    for i in range(n_batches):
        logger.log_metrics({"loss": 1 / (i + 1)})
        logger.state.timestamp = logger.state.timestamp.to_next_batch()
        logger.run_event(Event.BATCH_END)
    if end:
        logger.state.timestamp = logger.state.timestamp.to_next_epoch()
        logger.run_event(Event.EPOCH_END)


def evaluate(logger: Logger, n_batches: int) -> None:
    logger.run_event(Event.EVAL_START)
    for i in range(n_batches):
        logger.log_metrics({"accuracy": i / n_batches})
        logger.run_event(Event.EVAL_BATCH_END)
    logger.run_event(Event.EVAL_END)


def test_an_epoch_is_a_bar_with_its_figures(page: Page) -> None:
    with logger_on(page, batches_per_epoch=4) as logger:
        train(logger, 4)
    (line,) = filter(None, page.lines())
    assert line.startswith("epoch 0: 100%|")
    assert "4/4" in line
    assert "loss=0.25" in line


def test_the_number_of_batches_is_learned_from_the_epoch_before(page: Page) -> None:
    with logger_on(page) as logger:
        train(logger, 3)
        train(logger, 3)
    first, second = filter(None, page.lines())
    assert first.startswith("epoch 0: 3batch [")
    assert second.startswith("epoch 1: 100%|")
    assert "3/3" in second


def test_the_number_of_batches_that_the_loop_tells_is_the_total(page: Page) -> None:
    with logger_on(page, eval_batches=9) as logger:
        logger.state.n_batches = 4
        train(logger, 2)
        evaluate(logger, 2)
    epoch, evaluation = filter(None, page.lines())
    assert epoch.startswith("epoch 0:  50%|")
    assert "2/4" in epoch
    assert "2/9" in evaluation  # as it is configured


def test_evaluation_and_prediction_have_bars(page: Page) -> None:
    with logger_on(page, eval_batches=2) as logger:
        evaluate(logger, 2)
        logger.run_event(Event.PREDICT_START)
        logger.run_event(Event.PREDICT_BATCH_END)
        logger.run_event(Event.PREDICT_END)
    evaluation, prediction = filter(None, page.lines())
    assert evaluation.startswith("eval: 100%|")
    assert "accuracy=0.5" in evaluation
    assert prediction.startswith("predict: 1batch")


def test_an_evaluation_in_an_epoch_goes_away_and_the_epoch_goes_on(page: Page) -> None:
    with logger_on(page, batches_per_epoch=4) as logger:
        train(logger, 2, end=False)
        evaluate(logger, 3)
        logger.log_metrics({"loss": 0.125})
        logger.state.timestamp = logger.state.timestamp.to_next_batch()
        logger.run_event(Event.BATCH_END)
    drawn = page.getvalue()
    assert "eval: 3batch" in drawn
    assert "epoch 0:  75%" in drawn[drawn.rindex("eval") :]
    assert "loss=0.125" in drawn


def test_an_epoch_that_was_resumed_goes_on_where_it_was(page: Page) -> None:
    with logger_on(page, batches_per_epoch=10) as logger:
        logger.state.timestamp = Timestamp(epoch=3, batch=37, batch_in_epoch=7)
        train(logger, 1, end=False)
    assert "epoch 3:  80%|" in page.getvalue()


def test_a_step_that_goes_back_takes_the_bar_back(page: Page) -> None:
    with logger_on(page, batches_per_epoch=10) as logger:
        train(logger, 5, end=False)
        logger.state.timestamp = Timestamp(batch=2, batch_in_epoch=2)
        logger.run_event(Event.BATCH_END)
    assert "epoch 0:  20%|" in page.lines()[0]


def test_a_loop_without_epochs_and_counts_has_a_bar_too(page: Page) -> None:
    with logger_on(page) as logger:
        for _ in range(3):
            logger.run_event(Event.BATCH_END)
    assert "epoch 0: 3batch" in page.lines()[0]


def test_figures_are_chosen_or_the_first_few(page: Page) -> None:
    for options, expected, left_out in (({"metrics": ("b",)}, "b=2", "a=1"), ({"max_metrics": 2}, "a=1, b=2", "c=3")):
        with logger_on(page, **options) as logger:
            logger.run_event(Event.EPOCH_START)
            logger.log_metrics({"a": 1, "b": 2, "c": 3})
            logger.run_event(Event.BATCH_END)
        assert expected in page.getvalue()
        assert left_out not in page.lines()[-2]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (np.float32(0.5), "0.5"),
        (np.array(3), "3"),
        of_torch(lambda torch: torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), "0.5"),
        ("text", "text"),
        (None, "None"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("key", ["a b", "a/b", "ключ", 5, "{x}"])
def test_any_key_and_value_is_shown(page: Page, key: object, value: float, text: str) -> None:
    with logger_on(page) as logger:
        logger.run_event(Event.EPOCH_START)
        logger.log_metrics({})
        logger.log_metrics({key: value})  # type: ignore[dict-item]
        logger.run_event(Event.BATCH_END)
    assert f"{key}={text}" in page.getvalue()


def test_nothing_is_drawn_and_tqdm_not_imported_where_nobody_watches() -> None:
    said = run_script(
        """
        import sys
        from wherry.loggers import Event, Logger, State
        from wherry.loggers.destinations.progress_bar import ProgressBarLogger
        with Logger(State("run"), ProgressBarLogger()) as logger:
            logger.run_event(Event.EPOCH_START)
            logger.log_metrics({"a": 1})
            logger.run_event(Event.BATCH_END)
        print([name for name in ("tqdm", "numpy", "torch", "IPython", "ipywidgets") if name in sys.modules])
        """
    )
    assert "[]\n" == said


def test_a_terminal_is_watched() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream, Logger(State("run"), ProgressBarLogger(stream)) as logger:
        train(logger, 1)
    assert b"epoch 0" in os.read(master, 65536)
    os.close(master)


def test_an_exception_ends_the_bars_before_its_traceback() -> None:
    said = run_script(
        """
        from wherry.loggers import Event, Logger, State
        from wherry.loggers.destinations.progress_bar import ProgressBarLogger, ProgressBarConfig
        logger = Logger(State("run"), ProgressBarLogger(config=ProgressBarConfig(force=True)))
        logger.run_event(Event.EPOCH_START)
        logger.run_event(Event.EVAL_START)
        raise ValueError("no")
        """,
        expected=1,
    )
    assert "\nTraceback (most recent call last):" in said


def test_a_stream_that_is_closed_stops_nothing(page: Page) -> None:
    with logger_on(page) as logger:
        train(logger, 1, end=False)
        page.close()
        train(logger, 2)


@pytest.mark.large
def test_a_notebook_is_watched() -> None:
    """With ipywidgets bars are widgets, which are found by their type; without, they are text."""
    import nbclient
    import nbformat

    source = (
        "from wherry.loggers import Event, Logger, State\n"
        "from wherry.loggers.destinations.progress_bar import ProgressBarLogger\n"
        "from wherry.loggers.destinations.console import ConsoleLogger\n"
        "with Logger(State('run'), [ProgressBarLogger(), ConsoleLogger()]) as logger:\n"
        "    logger.run_event(Event.EVAL_START)\n"
        "    logger.run_event(Event.EVAL_BATCH_END)\n"
        "    logger.log_metrics({'loss': 0.5})\n"
        "import sys\n"
        "'ipywidgets' in sys.modules\n"
    )
    cell: dict[str, object] = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "id": "cell"}
    notebook = nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{**cell, "source": source}]})  # type: ignore[no-untyped-call]
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    has_widgets = any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in outputs)
    text = "".join(output.get("text", "") for output in outputs)
    assert "step 0  loss 0.5" in text
    assert has_widgets == (outputs[-1]["data"]["text/plain"] == "True")
    assert has_widgets or "eval" in text


def test_updates_of_several_threads_are_all_counted(page: Page) -> None:
    logger = logger_on(page)
    logger.run_event(Event.EVAL_START)

    def work() -> None:
        for _ in range(50):
            logger.log_metrics({"a": 1})
            logger.run_event(Event.EVAL_BATCH_END)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.close()
    assert "eval: 200batch" in page.lines()[0]


def test_a_closed_logger_says_so(page: Page) -> None:
    bars = ProgressBarLogger(page, config=ProgressBarConfig(force=True))
    bars.close()
    bars.close()
    assert bars.is_quiet()
    with pytest.raises(RuntimeError, match="this ProgressBarLogger is closed: make a new one"):
        bars.log_metrics({"a": 1})


@pytest.mark.parametrize(
    "options", [{"batches_per_epoch": -1}, {"eval_batches": -1}, {"predict_batches": -2}, {"max_metrics": -1}]
)
def test_a_senseless_option_is_an_error_that_names_it(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        ProgressBarConfig(**options)  # type: ignore[arg-type]
