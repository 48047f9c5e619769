"""The file of `wherry report` in a real browser, opened from a disk: its curves are drawn, and it asks nobody.

Needs Chromium, and uPlot and axe-core from npm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, browser
from command_line import CommandLine
from servers.web_page import make_runs
from wherry.web import uplot

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
DRAWN = "document.querySelectorAll('.plot canvas').length"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as window:
        yield window


@pytest.fixture
def report(tmp_path: Path, line: CommandLine) -> Path:
    assert uplot.is_there(), uplot.MISSING
    runs = make_runs(tmp_path / "runs")
    (runs / "amber").rename(runs / "</script><img src=x onerror=alert(1)>".replace("/", ""))
    line.run("report", runs, "--smooth", "25", "--overwrite")
    return tmp_path / "report.html"


def test_it_is_drawn_from_a_disk_without_a_request_or_an_error(report: Path, window: Browser) -> None:
    window.open(f"file://{report}")
    window.wait_for(f"{DRAWN} === 3", "the curves")
    assert [] == window.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert [] == window.console()
    assert "all 897 points · 2 NaN · 1 +inf · 1 restart (tick) · 100 overwritten by a restart, pale" in str(
        window.run("return document.querySelector('[data-chart=\"1\"] .said').textContent")
    )


def test_it_has_no_barrier(report: Path, window: Browser) -> None:
    """axe-core itself runs by WebDriver, which the file's policy does not concern."""
    window.open(f"file://{report}")
    window.wait_for(f"{DRAWN} === 3", "the curves")
    window.run(AXE.read_text())
    window.run("window.found = null; axe.run().then((result) => { window.found = result.violations; })")
    window.wait_for("window.found", "axe-core")
    violations: Any = window.run("return window.found")
    faults = [(one["id"], one["nodes"][0]["html"]) for one in violations if one["impact"] in ("serious", "critical")]
    assert [] == faults


def test_a_run_is_hidden_in_all_charts(report: Path, window: Browser) -> None:
    window.open(f"file://{report}")
    window.wait_for(f"{DRAWN} === 3", "the curves")
    window.run("document.querySelector('#legend button').click()")
    assert "true" == window.run("return document.querySelector('#legend button').getAttribute('aria-pressed')")
    window.wait_for("document.querySelector('.said').textContent.startsWith('all 600 points')", "the others")
    assert [] == window.console()


def test_a_zoom_by_the_mouse_is_that_of_all_charts_until_it_is_undone(report: Path, window: Browser) -> None:
    window.open(f"file://{report}")
    window.wait_for(f"{DRAWN} === 3", "the curves")
    window.run("document.querySelector('article').scrollIntoView()")
    window.drag(".u-over", 0.25, 0.5)
    window.wait_for("!document.getElementById('zoom-out').hidden", "the part")
    window.point(".u-over", 0.01)
    first = "[...document.querySelectorAll('.readout')].map((one) => Number(/step (\\d+)/.exec(one.innerText)?.[1]))"
    window.wait_for(f"{first}.every((step) => Math.abs(step - 75) < 5)", "the first numbers of the part in all charts")
    window.run("document.getElementById('zoom-out').click()")
    window.point(".u-over", 0.01)
    window.wait_for(f"{first}.every((step) => step < 6)", "all of x")
    assert [] == window.console()


def test_the_numbers_of_all_runs_at_the_cursor_are_held_by_shift(report: Path, window: Browser) -> None:
    window.open(f"file://{report}")
    window.wait_for(f"{DRAWN} === 3", "the curves")
    window.run("document.querySelector('article').scrollIntoView()")
    window.point(".u-over", 0.5, 0.5)
    rows = "[...document.querySelectorAll('article .readout div[data-name]')].map((one) => one.dataset.name)"
    window.wait_for(f"{rows}.length === 9", "three runs in three charts")
    window.wait_for("document.querySelectorAll('.readout .lit').length === 3", "the run at the cursor, in all charts")
    text = "return document.querySelector('.readout').innerText"
    held = window.run(text)
    window.hold("\ue008")
    window.point(".u-over", 0.8)
    assert held == window.run(text)
    window.release("\ue008")
    window.point(".u-over", 0.7)
    assert held != window.run(text)


def test_a_phone_shows_it_without_scrolling_sideways(report: Path) -> None:
    with browser(width=400, height=800, is_phone=True) as phone:
        phone.open(f"file://{report}")
        phone.wait_for(f"{DRAWN} > 0", "the curves")
        width = phone.run("return document.documentElement.scrollWidth")
        assert isinstance(width, int)
        assert width <= 400
