"""``wherry plot`` in a pipe, on a terminal, and beside a run that grows."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from command_line import CommandLine, Terminal
from servers.web_page import log_of, make_runs, page_of
from wherry.cli.run_verbs.terminal_chart import Axes, Screen, chart_lines
from wherry.runs import Runs
from wherry.web.drawing.chart_data import chart_data
from wherry.web.drawing.chosen_runs import choose
from wherry.web.drawing.colours import RGB
from wherry.web.drawing.curves import Wanted

STYLE = Path(__file__).parent.parent.parent / "src/wherry/web/static/style.css"
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("plotted") / "runs")


def test_a_pipe_gets_letters_counts_and_how_true_it_is(three: Path, line: CommandLine) -> None:
    out, err = line.run("plot", three, "train/loss")
    title, top, *rest = out.splitlines()
    assert ("train/loss", True, "") == (title, top.lstrip().startswith("┌"), err)
    assert "\x1b" not in out
    assert all(len(one) <= 80 for one in rest if "complete to step" not in one)
    assert {"aa amber  2.02541", "bb birch  1.02541", "cc cedar  1.50253"} < set(rest)
    assert "all 897 points · 2 NaN · 1 +inf · 1 restart · 100 overwritten by a restart, pale" in rest
    assert rest[-2].startswith("birch: complete to step 299 · newest point ")
    assert "writer finished" in rest[-2]


def test_patterns_choose_runs_and_metrics(three: Path, line: CommandLine) -> None:
    out, _ = line.run("plot", three, "*/LOSS", "--runs", "[ab]*", "--runs", "cedar", "--height", "12")
    assert ["train/loss", "val/loss"] == [one for one in out.splitlines() if one.endswith("/loss")]
    out, _ = line.run(
        "plot", three / "birch", "val/loss", "--width", "60", "--x", "epoch", "--from", "1", "--to", "2", "--smooth", "9"
    )
    assert ("⡀" in out, "of this part; 300 in all" in out, max(map(len, out.splitlines()[:18])) <= 60) == (True, True, True)
    out, _ = line.run("plot", three, "val/loss", "--group", "optimizer", "--x", "wall", "--clip")
    assert "adamw: 3 of 3 runs" in out
    out, _ = line.run("plot", three, "val/loss", "--x", "relative", "--log-x", env={"PYTHONIOENCODING": "ascii"})
    assert out.isascii()
    assert "3 at x not above 0, not drawn" in out


def test_what_cannot_be_drawn_is_counted_or_refused(tmp_path: Path, line: CommandLine) -> None:
    with log_of(tmp_path / "run") as log:
        for step in range(5000):
            log.log_metrics({"signed": math.sin(step / 10), "spiky": 99.0 if step == 3333 else 1.0}, step)
        log.log_metrics({"broken": math.nan}, 5000)
    n_below = sum(math.sin(step / 10) <= 0 for step in range(5000))
    assert f"{n_below:,} not above 0, not drawn" in line.run("plot", tmp_path / "run", "signed", "--log")[0]
    out, _ = line.run("plot", tmp_path / "run", "spiky")
    assert "320 of 5,000, spikes kept" in out
    assert re.search(r"^ *100┤.*|[⡀-⣿]", out)
    out, err = line.run("plot", tmp_path / "run", "broken", expected=3)
    assert "there is no finite point to draw (all 0 points; 1 NaN)" in err


def test_sizes_and_rates_have_units(tmp_path: Path, line: CommandLine) -> None:
    with log_of(tmp_path / "run") as log:
        for step in range(9):
            log.log_metrics({"memory_bytes": 2.0**30 * (1 + step), "read_bytes_per_s": 2.0**20 * step}, step)
    out, _ = line.run("plot", tmp_path, "memory_bytes", "*_per_s", "--width", "70", "--height", "12")
    marks = [text.split("┤")[0].strip() for text in out.splitlines() if "┤" in text]
    assert ["8 GiB", "6 GiB", "4 GiB", "2 GiB", "8 MiB/s", "6 MiB/s", "4 MiB/s", "2 MiB/s", "0 MiB/s"] == marks


def test_a_wrong_name_is_answered_with_the_nearest(three: Path, line: CommandLine) -> None:
    assert "no metric is called 'train/los' (the nearest: train/loss, val/loss)" in line.refuse(
        "plot", three, "train/los", expected=3
    )
    assert "no run is called 'cedr' (the nearest: cedar" in line.refuse("plot", three, "epoch", "--runs", "cedr", expected=3)
    assert "name a metric, or a pattern such as 'train/*': epoch, train/loss, val/loss" in line.refuse("plot", three, expected=2)
    assert "there are no runs here" in line.refuse("plot", line.folder, "loss", expected=3)
    assert "--from 5 must be less than --to 5" in line.refuse("plot", three, "epoch", "--from", "5", "--to", "5", expected=2)


def test_a_terminal_gets_colours_and_no_line_too_wide(three: Path, line: CommandLine) -> None:
    terminal = Terminal(line, "plot", three, "train/loss")
    assert 0 == terminal.end()
    assert "\x1b[38;5;" in terminal.seen
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen).splitlines()
    assert all(len(one) <= 80 for one in plain if "complete to step" not in one)
    assert any("━━ birch  1.02541" in one for one in plain)


def test_a_run_that_grows_is_drawn_until_it_has_finished(tmp_path: Path, line: CommandLine) -> None:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"loss": 3.0}, 0)
        log.log_metrics({"loss": 2.0}, 1)
        log.flush()
        terminal = Terminal(line, "plot", tmp_path / "run", "loss", "--follow")
        terminal.read_until("all 2 points")
        log.log_metrics({"loss": 1.0}, 2)
        log.flush()
        terminal.read_until("all 3 points")
    terminal.read_until("writer finished")
    assert 0 == terminal.end()
    assert "\x1b[2J\x1b[H" in terminal.seen


def test_control_c_ends_it(tmp_path: Path, line: CommandLine) -> None:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"loss": 3.0}, 0)
        log.flush()
        terminal = Terminal(line, "plot", tmp_path / "run", "loss", "--follow")
        terminal.read_until("complete to step 0")
        terminal.type("\x03")
        assert 0 == terminal.end()
    assert "Traceback" not in terminal.seen


def test_lines_that_cannot_be_read_are_said_everywhere(tmp_path: Path, line: CommandLine) -> None:
    folder = tmp_path / "runs/r"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n{"step": 2, "lo\n{"step": 3, "loss": 2}\n{"step": 4, "lo')
    said = "metrics.jsonl: 1 line could not be read"
    out, _ = line.run("plot", tmp_path / "runs", "*")
    assert f" · {said}\n" in out
    line.run("report", tmp_path / "runs", "-o", tmp_path / "report.html")
    with page_of(tmp_path / "runs") as page:
        shown = (tmp_path / "report.html").read_text(), page.get("/run?id=r").text, page.get("/compare?id=r").text
    assert [1, 1, 1] == [one.count(f'bad">{said}<') for one in shown]


def test_names_in_a_bucket_do_not_control_the_terminal(tmp_path: Path, line: CommandLine) -> None:
    folder = tmp_path / "runs/r\x1b[31m"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"t": 1.0, "step": 1, "lo\\u001b[2Jss": 1}\n')
    out, err = line.run("plot", tmp_path / "runs", "*")
    assert "\x1b" not in out + err
    assert "lo\\x1b[2Jss" in out


@settings(deadline=None)
@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=30), st.booleans())
def test_numbers_of_any_size_have_a_chart(points: list[tuple[float, float]], is_log: bool) -> None:
    kept = sorted(one for one in points if not is_log or min(one) > 0) or [(1.0, 1.0)]
    lines = [{"kind": "raw", "x": [x for x, _ in kept], "y": [y for _, y in kept], "n": len(kept), "n_of": len(kept)}]
    one = {"id": "a", "colour": 0, "dash": 0, "lines": lines, "n_total": 1, "n_here": 1, "tail_only": False, "marks": {}}
    counts = dict.fromkeys(("n_not_positive", "n_clipped", "n_restarts", "n_checkpoints"), 0)
    data = {"key": "k", "runs": [{**one, **counts}], "bands": []}
    shown = chart_lines(data, Axes(log_x=is_log, log_y=is_log), Screen(60, 12))
    assert any(set(line) & set(map(chr, range(0x2801, 0x2900))) for line in shown)
    assert max(map(len, shown)) <= 60


def test_the_same_points_are_drawn_as_on_the_page(three: Path) -> None:
    with Runs(three) as reader:
        chosen = choose(reader, ["b*"], ["val/loss"])
        runs: Any = chart_data(chosen, chosen.ids, "val/loss", Wanted(n_points=100))["runs"]
    (one,) = runs
    assert ("birch", 300, 100) == (one["id"], one["lines"][0]["n_of"], len(one["lines"][0]["x"]))


def test_colours_are_those_of_the_page() -> None:
    style = STYLE.read_text()
    assert [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in RGB] == re.findall(r"--c\d: (#[0-9a-f]{6})", style)


def test_a_missing_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['plotext'] = None; from wherry.cli import main; sys.argv = ['wherry', 'plot', '.', 'x']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (2, True) == (done.returncode, "plotext, which is not installed: pip install 'wherry[ui]'" in done.stderr)
