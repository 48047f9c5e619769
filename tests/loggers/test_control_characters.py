"""What is logged may be a model's output, or anybody's: a terminal shows it, and obeys nothing in it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from wherry.loggers import (
    ConsoleConfig,
    ConsoleLogger,
    FileConfig,
    FileLogger,
    Logger,
    LoggerDestination,
    ProgressBarConfig,
    ProgressBarLogger,
    RunFolderLogger,
    State,
)
from wherry.loggers.capture.terminal import printable
from wherry.loggers.run.timestamp import Timestamp

#: Sets the title; clears the screen; goes to the line's start; a C1 sequence; rings; turns the direction of writing.
HOSTILE = "\x1b]0;mine\x07\x1b[2J\rgone\x9b31m\x08\x7f\u202e"
SHOWN = "\\x1b]0;mine\\x07\\x1b[2J\\rgone\\x9b31m\\x08\\x7f\\u202e"


def log_hostile(to: LoggerDestination) -> None:
    to.log_text(f"before\tit\r\n{HOSTILE}", f"name {HOSTILE}", 0)
    to.log_hyperparameters({f"name {HOSTILE}": f"value {HOSTILE}"})
    to.log_table([f"column {HOSTILE}"], [[f"cell {HOSTILE}"]], f"table {HOSTILE}", 0)
    to.log_metrics({f"metric {HOSTILE}": 1.0, "text": f"figure {HOSTILE}"}, 0)  # type: ignore[dict-item]
    to.log_traces({f"trace {HOSTILE}": f"value {HOSTILE}"})


def obeyed(text: str) -> set[str]:
    """The characters in it that a terminal would obey."""
    return set(text) - {one for one in text if one.isprintable()} - set("\n\t")


def test_the_console_obeys_nothing_that_was_logged() -> None:
    stream = io.StringIO()
    with_all = ConsoleConfig(force=True, every_s=0, show_traces=True, max_value_chars=1000)
    console = ConsoleLogger(stream, config=with_all)
    log_hostile(console)
    console.close()
    written = stream.getvalue()
    assert set() == obeyed(written)
    parts = ("name", "value", "column", "cell", "table", "metric", "figure", "trace")
    assert [] == [part for part in parts if f"{part} {SHOWN}" not in written.replace("│ ", "").replace("\n", " ")]
    assert "it\n" in written  # the line's end is one


def test_the_text_log_of_a_rank_has_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    config = FileConfig(capture_stdout=False, capture_stderr=False)
    with FileLogger("log.txt", folder=tmp_path, config=config) as file:
        log_hostile(file)
    written = (tmp_path / "log.txt").read_text()
    assert set() == obeyed(written)
    assert f"name {SHOWN}: before\tit\n" in written


def test_a_bars_figures_are_only_shown() -> None:
    stream = io.StringIO()
    bars = ProgressBarLogger(stream, config=ProgressBarConfig(force=True))
    state = State("run", Timestamp(batch=1, batch_in_epoch=1))
    bars.epoch_start(state, None)  # type: ignore[arg-type]
    log_hostile(bars)
    bars.batch_end(state, None)  # type: ignore[arg-type]
    bars.close()
    assert {"\r"} == obeyed(stream.getvalue())  # the bar's own
    assert "metric \\x1b]0;mine\\x07\\x1b[2J\\rgone" in stream.getvalue()


def test_what_is_wrong_with_a_name_is_said_without_what_a_terminal_obeys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Logger(State("run"), RunFolderLogger(tmp_path)) as logger:
        logger.log_images([], f"name {HOSTILE}")  # fails in the call
        logger.log_video(np.zeros((1, 4, 4)), f"name {HOSTILE}", frames_per_s=5000)  # fails in the background
    assert 2 <= len(caplog.messages)
    assert [set()] * len(caplog.messages) == [obeyed(text) for text in caplog.messages]


@pytest.mark.parametrize("text", ["plain", "größe → 字 🙂", "tab\tand\nline", "e\u0301", ""])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert text == printable(text)
