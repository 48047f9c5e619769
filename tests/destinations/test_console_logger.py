"""ConsoleLogger: what is shown, when, and where nothing is."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from large import of_torch
from programs import Program
from support import run_script
from wherry.errors import ConfigError
from wherry.loggers import Event, Logger, State
from wherry.loggers.destinations.console import ConsoleConfig, ConsoleLogger
from wherry.loggers.run.level import LogLevel

EVERYTHING = ConsoleConfig(force=True, every_s=0.0)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def page() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    """What is shown on a terminal, to read; and the terminal."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        yield master, stream
    os.close(master)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_figures_are_a_line_of_their_step(page: io.StringIO) -> None:
    ConsoleLogger(page, config=EVERYTHING).log_metrics({"loss": 0.25, "lr": 3e-6, "n": 12}, 7)
    assert "step 7  loss 0.25  lr 3e-06  n 12\n" == page.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (np.float64(0.123456789), "0.12346"),
        (np.array(3), "3"),
        of_torch(lambda torch: torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), "0.5"),
        (True, "true"),
        (None, "null"),
        ("[red]text[/red]", "[red]text[/red]"),
        ([1, 2], "[1, 2]"),
    ],
    ids=repr,
)
def test_any_value_is_shown(page: io.StringIO, value: float, text: str) -> None:
    ConsoleLogger(page, config=EVERYTHING).log_metrics({"a": value}, 1)
    assert f"step 1  a {text}\n" == page.getvalue()


@pytest.mark.parametrize("key", ["a b", "a/b", "ключ", "k" * 300, 5, None, "[bold]key[/bold]", "\ud800", ""])
def test_any_key_is_shown(page: io.StringIO, key: object) -> None:
    console = ConsoleLogger(page, config=EVERYTHING)
    console.log_metrics({key: 1.5}, 1)  # type: ignore[dict-item]
    console.log_hyperparameters({key: 1.5})  # type: ignore[dict-item]
    assert 2 == page.getvalue().count("1.5")


def test_settings_and_tables_are_tables(page: io.StringIO) -> None:
    console = ConsoleLogger(page, config=EVERYTHING)
    console.log_hyperparameters({"lr": 0.1, "model": {"layers": 2}})
    console.log_table(["a", "b"], [[1, "x"], [Path("p"), None]], "Samples", 3)
    shown = page.getvalue()
    for part in ("hyperparameters", "lr", "0.1", '{"layers": 2}', "Samples, step 3", "null", "x"):
        assert part in shown


def test_of_a_long_table_the_rest_is_counted(page: io.StringIO) -> None:
    config = ConsoleConfig(force=True, max_table_rows=2)
    ConsoleLogger(page, config=config).log_table(["n"], [[f"row {i}"] for i in range(10)])
    assert "row 1" in page.getvalue()
    assert "row 2" not in page.getvalue()
    assert "... 8 more rows" in page.getvalue()


def test_long_values_are_cut(page: io.StringIO) -> None:
    config = ConsoleConfig(force=True, max_value_chars=5)
    ConsoleLogger(page, config=config).log_text("x" * 100)
    assert "xxxxx... (100 characters)" in page.getvalue()


def test_traces_are_shown_when_asked_for(page: io.StringIO) -> None:
    ConsoleLogger(page, config=EVERYTHING).log_traces({"grad": 1})
    assert "" == page.getvalue()
    ConsoleLogger(page, config=ConsoleConfig(force=True, show_traces=True)).log_traces({"grad": 1})
    assert "trace  grad 1\n" == page.getvalue()


def test_a_ragged_table_is_an_error(page: io.StringIO) -> None:
    with pytest.raises(ValueError, match="table 'Table': row 0 has 1 values"):
        ConsoleLogger(page).log_table(["a", "b"], [[1]])


def test_not_more_than_a_line_in_an_interval_and_the_newest_values_at_the_end_of_an_epoch(page: io.StringIO) -> None:
    clock = Clock()
    console = ConsoleLogger(page, config=ConsoleConfig(force=True), clock=clock)
    logger = Logger(State("run"), console)
    for step in range(10):
        clock.now_s = step / 4
        logger.log_metrics({"loss": step}, step)
        logger.log_metrics({"accuracy": step}, step)
    logger.run_event(Event.EPOCH_END)
    logger.run_event(Event.EPOCH_END)
    lines = page.getvalue().splitlines()
    shown = ["step 0  loss 0", "step 0  accuracy 0", "step 3  accuracy 3", "step 4  loss 4", "step 4  accuracy 4"]
    assert [*shown, "step 7  accuracy 7", "step 8  loss 8", "step 8  accuracy 8", "step 9  loss 9  accuracy 9"] == lines


def test_figures_come_in_the_steps_of_the_interval_and_at_the_close(page: io.StringIO) -> None:
    console = ConsoleLogger(page, config=ConsoleConfig(force=True, every_s=0.0, every_n_batches=10))
    for step in range(1, 26):
        console.log_metrics({"loss": step}, step)
    console.close()
    assert ["step 10  loss 10", "step 20  loss 20", "step 25  loss 25"] == page.getvalue().splitlines()


def test_a_step_may_go_back(page: io.StringIO) -> None:
    console = ConsoleLogger(page, config=EVERYTHING)
    console.log_metrics({"a": 1}, 10)
    console.log_metrics({"a": 2}, 5)
    assert ["step 10  a 1", "step 5  a 2"] == page.getvalue().splitlines()


def test_without_a_step_calls_are_counted(page: io.StringIO) -> None:
    console = ConsoleLogger(page, config=EVERYTHING)
    for _ in range(2):
        console.log_metrics({"a": 1})
    assert ["step 0  a 1", "step 1  a 1"] == page.getvalue().splitlines()


def test_nothing_is_shown_and_nothing_computed_where_nobody_watches(page: io.StringIO) -> None:
    console = ConsoleLogger(page)
    with Logger(State("run"), console) as logger:
        logger.log_metrics({"a": 1})
        logger.log_hyperparameters({"a": 1})
        logger.log_table(["a"], [[1]])
        logger.log_text("a")
        logger.metric(LogLevel.FIT, lambda: pytest.fail("nobody watches"))
    assert console.is_quiet()
    assert "" == page.getvalue()


def test_rich_is_not_imported_where_nobody_watches() -> None:
    said = run_script(
        """
        import sys
        from wherry.loggers.destinations.console import ConsoleLogger
        console = ConsoleLogger()
        console.log_metrics({"a": 1})
        console.log_table(["a"], [[1]])
        console.close()
        print([name for name in ("rich", "tqdm", "numpy", "torch") if name in sys.modules])
        """
    )
    assert "[]\n" == said


def test_a_terminal_is_watched_and_gets_colours(terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    master, stream = terminal
    console = ConsoleLogger(stream)
    assert console.will_log(State("run"), LogLevel.BATCH)
    assert not console.will_log(State("run"), LogLevel.MICROBATCH)
    console.log_metrics({"loss": 0.5}, 1)
    shown = os.read(master, 65536).decode()
    assert "step 1  loss 0.5\r\n" == plain(shown)
    assert "\x1b[" in shown


def test_a_stream_that_is_closed_makes_it_quiet_and_is_said_once(page: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    console = ConsoleLogger(page, config=EVERYTHING)
    page.close()
    for step in range(3):
        console.log_metrics({"a": 1}, step)
    console.close()
    assert 1 == len(caplog.records)
    assert "ConsoleLogger: nothing more is printed" in caplog.text


def test_no_stream_at_all_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    console = ConsoleLogger(config=EVERYTHING)
    console.log_metrics({"a": 1}, 1)
    console.close()


def test_a_pipe_whose_reader_is_gone_does_not_end_the_run() -> None:
    """Rich itself raises SystemExit then."""
    script = (
        "import os, sys\n"
        "from wherry.loggers.destinations.console import ConsoleLogger, ConsoleConfig\n"
        "console = ConsoleLogger(config=ConsoleConfig(force=True, every_s=0.0))\n"
        "sys.stdin.read()\n"
        "for step in range(100): console.log_metrics({'a': 1}, step)\n"
        "console.close()\n"
        "os._exit(7)\n"
    )
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    with Program(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stdin is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        said = process.stderr.read()
        assert 7 == process.wait(timeout=60)
    assert 1 == said.count("nothing more is printed")


def test_a_console_that_knows_ascii_only_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = ConsoleLogger(stream, config=EVERYTHING)
    console.log_metrics({"ä": 1}, 1)
    console.log_table(["a"], [["ü"]])
    assert b"step 1  \\xe4 1\n" in raw.getvalue()
    assert b"\\u2" not in raw.getvalue()
    stream.close()


def test_bars_of_tqdm_are_moved_aside() -> None:
    from tqdm import tqdm

    page = io.StringIO()
    with tqdm(total=10, file=page, ncols=40, mininterval=0, leave=False) as bar:
        bar.update(1)
        ConsoleLogger(page, config=EVERYTHING).log_metrics({"a": 1}, 1)
        bar.update(1)
    before, after = page.getvalue().split("step 1  a 1\n")
    assert "" == before.split("\r")[-1].strip()
    assert "10%" in after


def test_lines_of_several_threads_are_whole(page: io.StringIO) -> None:
    console = ConsoleLogger(page, config=EVERYTHING)

    def log(n: int) -> None:
        for i in range(20):
            console.log_metrics({f"{n}-{i}": i}, n * 100 + i)

    threads = [threading.Thread(target=log, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"step {n * 100 + i}  {n}-{i} {i}" for n in range(4) for i in range(20)} == set(page.getvalue().splitlines())


def test_a_closed_console_says_so(page: io.StringIO) -> None:
    console = ConsoleLogger(page, config=EVERYTHING)
    console.close()
    console.close()
    with pytest.raises(RuntimeError, match="this ConsoleLogger is closed: make a new one"):
        console.log_metrics({"a": 1})


@pytest.mark.parametrize("options", [{"every_n_batches": 0}, {"every_s": -1.0}, {"every_s": float("nan")}, {"max_table_rows": 0}])
def test_a_senseless_option_is_an_error_that_names_it(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        ConsoleConfig(**options)  # type: ignore[arg-type]
