"""``make nightly``: what its table says of lanes that pass, fail, hang and are interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tooling import nightly
from tooling.nightly import Lane

ROOT = Path(__file__).resolve().parents[2]


def lane(name: str, code: str, limit_s: float = 60.0) -> Lane:
    return Lane(name, (sys.executable, "-c", code), limit_s)


def rows(text: str) -> dict[str, list[str]]:
    """Of the table that the text ends with."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    assert ["lane", "cases", "seconds", "result"] == cells[0]
    return {row[0]: row[1:] for row in cells[2:]}


def test_a_lane_that_fails_does_not_stop_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    lanes = (
        lane("red", "print('1 failed, 2 passed in 0.10s'); raise SystemExit(3)"),
        Lane("absent", ("make", "--silent", "no-such-target"), 60.0),
        lane("green", "print('5 passed, 9 deselected in 1.00s'); print('7 passed in 61.00s (0:01:01)')"),
    )
    assert 1 == nightly.main([], lanes)
    table = rows(capfd.readouterr().out)
    assert ["red", "absent", "green"] == list(table)
    assert ["3", "FAILED: exit status 3"] == [table["red"][0], table["red"][2]]
    assert ["", "FAILED: exit status 2"] == [table["absent"][0], table["absent"][2]]
    assert ["12", "passed"] == [table["green"][0], table["green"][2]]


def test_only_the_lanes_that_are_named_run(capfd: pytest.CaptureFixture[str]) -> None:
    lanes = (lane("red", "raise SystemExit(1)"), lane("green", ""))
    assert 0 == nightly.main(["green"], lanes)
    assert ["green"] == list(rows(capfd.readouterr().out))
    with pytest.raises(SystemExit):
        nightly.main(["gren"], lanes)
    assert "no such lane: gren; there are red, green" in capfd.readouterr().err


@pytest.mark.parametrize(
    "line, cases",
    [
        ("==== 3 failed, 120 passed, 2 xfailed, 7 deselected, 1 warning in 4.51s ====", 125),
        ("\x1b[32m\x1b[1m8 passed\x1b[0m\x1b[32m in 1.20s\x1b[0m", 8),
        ("2 errors in 0.50s", 2),
        ("Done 123456 runs in 601 second(s)", 123456),
        ("no tests ran in 0.01s", 0),
        ("wrote 3 passed to x in the log", 0),
    ],
)
def test_cases_are_those_of_the_closing_lines(line: str, cases: int) -> None:
    assert cases == nightly.cases_of(line)


def test_a_lane_that_does_not_end_is_killed_and_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "SAYING_S", 0.0)
    result = nightly.run(lane("stuck", "import time; time.sleep(600)", limit_s=0.2))
    assert "FAILED: not ended after 0 s" == result.result


INTERRUPTED = """
import sys
from tooling import nightly
from tooling.nightly import Lane
code = "import time; print('started', flush=True); time.sleep(600)"
lanes = (Lane("done", (sys.executable, "-c", "print('4 passed in 0.10s')"), 60.0),
         Lane("stopped", (sys.executable, "-c", code), 600.0), Lane("never", ("false",), 60.0))
sys.exit(nightly.main([], lanes))
"""


def test_ctrl_c_prints_the_table_so_far() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "started\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        table = rows(process.stdout.read())
    assert ["4", "passed"] == [table["done"][0], table["done"][2]]
    assert "interrupted" == table["stopped"][2]
    assert "never" not in table
    assert 1 == process.returncode


def test_every_lane_is_a_target_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for each in nightly.LANES:
        assert "make" == each.command[0]
        assert set(each.command[1:]) <= targets
