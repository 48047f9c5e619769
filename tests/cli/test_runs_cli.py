"""``wherry runs`` as a script and as a person use it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command_line import CommandLine, Terminal
from wherry.loggers.destinations.run_folder import RunFolderLogger
from wherry.loggers.run.state import State


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """Five runs, the third of which is the best."""
    for number in range(5):
        with RunFolderLogger(tmp_path / f"runs/r{number}", state=State(run_name=f"job{number}")) as log:
            log.log_hyperparameters({"lr": 10.0**-number, "model": {"depth": number}, "seed": 1})
            for step in range(20):
                log.log_metrics({"train/loss": 1 / (step + 1), "val/loss": abs(number - 2) + 1 / (step + 1)}, step)
    return tmp_path / "runs"


def test_the_best_run_and_its_learning_rate_are_found(five: Path, line: CommandLine) -> None:
    out, err = line.run("runs", five, "--sort", "val/loss.min")
    head, first, *_ = out.splitlines()
    assert head.split()[:4] == ["RUN", "STATE", "AGE", "SIZE"]
    assert dict(zip(*(re.split(r"\s{2,}", one.strip()) for one in (head, first)), strict=True))["lr"] == "0.01"
    assert first.startswith("r2 ")
    assert "seed" not in head, "it is the same in all"
    assert err == ""


def test_filters_and_json_are_for_scripts(five: Path, line: CommandLine) -> None:
    out, _ = line.run("runs", five, "--where", "lr<1e-1 and val/loss.min<1.5", "--sort", "-lr", "--json")
    rows = [json.loads(one) for one in out.splitlines()]
    assert [row["id"] for row in rows] == ["r2", "r3"]
    assert rows[0]["metrics"]["val/loss"]["min_step"] == 19
    out, _ = line.run("runs", five / "r1", "--json")
    assert json.loads(out)["name"] == "job1"
    out, err = line.run("runs", five, "--where", "lr>7")
    assert (out, "none of 5 runs" in err) == ("", True)
    out, _ = line.run("runs", five, "--show", "seed", "--show", "cost_per_day_usd")
    assert {"seed", "USD/DAY"} <= set(out.splitlines()[0].split())


def test_what_cannot_be_is_refused_in_words(five: Path, line: CommandLine) -> None:
    assert "lr<<1" in line.refuse("runs", five, "--where", "lr<<1", expected=2)
    assert "there is no such folder" in line.refuse("runs", line.folder / "spool-of-nothing", expected=3)
    (line.folder / "empty").mkdir()
    assert "metrics.jsonl" in line.refuse("runs", line.folder / "empty", expected=3)


def test_a_narrow_terminal_gets_the_columns_that_fit(five: Path, line: CommandLine) -> None:
    terminal = Terminal(line, "runs", five, "--sort", "val/loss.min")
    assert terminal.end() == 0
    shown = terminal.seen.splitlines()
    assert all(len(one) <= 80 for one in shown if not one.startswith("wherry:"))
    assert "val/loss.min" in shown[0]
    assert "not shown, as the terminal is too narrow" in terminal.seen


def test_names_in_a_bucket_do_not_control_the_terminal(tmp_path: Path, line: CommandLine) -> None:
    folder = tmp_path / "runs/r\x1b[31m"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"t": 1.0, "step": 1, "lo\\u001b[2Jss": 1}\n')
    (folder / "hparams.json").write_text('{"a": "\\u001b]0;x\\u0007"}')
    out, err = line.run("runs", tmp_path / "runs", "--show", "a")
    assert "\x1b" not in out + err
    assert "\\x1b[31m" in out
