"""The runs at the left of the charts, and the numbers at the cursor, in a real browser.

Needs Chromium, and uPlot from npm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest

from browser import Browser, browser
from servers.web_page import RATES, Page, make_runs, page_of
from wherry.web import uplot

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

COMPARED = "/compare?id=amber&id=birch"
SHIFT, ENTER, DOWN, ESCAPE = "\ue008", "\ue007", "\ue015", "\ue00c"
#: The curves of a run are drawn when the texts below all charts in view say how many points they have.
DRAWN = "document.querySelectorAll('.plot canvas').length"
LISTED = "return [...document.querySelectorAll('#rail li')].map((row) => row.dataset.id)"
PLACE = "return document.activeElement.closest('[data-id]')?.dataset.id ?? document.activeElement.id"
READOUTS = "return [...document.querySelectorAll('.readout')].map((one) => one.innerText.replace(/\\s+/g, ' ').trim())"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert uplot.is_there(), uplot.MISSING
    with page_of(make_runs(tmp_path_factory.mktemp("runs"))) as page:
        page.get("/")  # reads the runs
        yield page


@pytest.fixture
def window() -> Iterator[Browser]:
    """A browser with an empty local storage."""
    with browser() as window:
        yield window


def open_charts(window: Browser, page: Page, path: str) -> None:
    window.open(page.root + path)
    window.wait_for(DRAWN, "curves")


def pressed(window: Browser, run: str, button: str) -> object:
    return window.run(f"return document.querySelector('#rail li[data-id={run}] .{button}').getAttribute('aria-pressed')")


def click(window: Browser, run: str, button: str) -> None:
    window.click(f"#rail li[data-id={run}] {button}")


def query(window: Browser) -> str:
    found = window.run("return decodeURIComponent(location.search)")
    assert isinstance(found, str)
    return found


def loss(run: str, step: int) -> float:
    return 1 + abs(math.log10(RATES[run]) + 2.5) + math.exp(-step / 50)


def test_runs_are_hidden_pinned_and_made_the_baseline_by_buttons(page: Page, window: Browser) -> None:
    open_charts(window, page, COMPARED)
    assert ["amber", "birch", "cedar"] == sorted(window.run(LISTED))  # type: ignore[call-overload]
    assert ["true", "true", "false"] == [pressed(window, run, "eye") for run in ("amber", "birch", "cedar")]
    click(window, "amber", ".eye")
    window.wait_for("[...document.querySelectorAll('.said')][1].textContent.startsWith('all 300 points')", "one run")
    click(window, "birch", ".pin")
    click(window, "birch", ".baseline")
    window.wait_for("document.querySelector('#legend tr.base')?.dataset.id === 'birch'", "the differences to the baseline")
    assert "birch" == window.run(LISTED)[0]  # type: ignore[index]
    assert '?id=amber&id=birch&hide=["amber"]&top=["birch"]&base=birch' == query(window)
    window.open(str(window.run("return location.href")))  # what is copied shows the same
    window.wait_for("document.querySelector('#legend tr.off')?.dataset.id === 'amber'", "the view of the address")
    buttons = (("amber", "eye"), ("birch", "pin"), ("birch", "baseline"))
    assert ["false", "true", "true"] == [pressed(window, *one) for one in buttons]
    assert [] == window.console()


def test_pins_of_runs_and_charts_are_there_at_the_next_visit(page: Page, window: Browser) -> None:
    open_charts(window, page, "/run?id=amber")
    click(window, "cedar", ".pin")
    window.run("document.querySelectorAll('article .pin')[1].click()")
    open_charts(window, page, "/run?id=birch")
    assert '?id=birch&pin=["val/loss"]&top=["cedar"]' == query(window)
    assert ["cedar", "val/loss"] == [
        window.run("return document.querySelector('#rail li').dataset.id"),
        window.run("return document.querySelector('#pinned article').dataset.key"),
    ]


def test_a_run_that_is_not_shown_joins_the_comparison_with_the_same_view(page: Page, window: Browser) -> None:
    open_charts(window, page, "/run?id=amber&smooth=20&log=1")
    click(window, "birch", ".eye")
    window.wait_for("location.pathname === '/compare' && document.querySelector('#rail li')", "the comparison")
    assert "?id=amber&id=birch&smooth=20&log=1" == query(window)
    click(window, "amber", "a")
    window.wait_for("location.pathname === '/run'", "the run")
    assert "?id=amber&smooth=20&log=1" == query(window)


def test_runs_are_found_by_their_names_and_the_search_is_in_the_address(page: Page, window: Browser) -> None:
    open_charts(window, page, "/run?id=amber")
    window.press("n", *"ceda")
    window.wait_for("document.querySelectorAll('#rail li').length === 2", "the run that is found, and the one that is shown")
    assert "?id=amber&find=ceda" == query(window)
    open_charts(window, page, "/run?id=amber&find=BIRCH")
    assert ["amber", "birch"] == sorted(window.run(LISTED))  # type: ignore[call-overload]
    assert "2 of 3 runs" in str(window.run("return document.querySelector('#rail-rows > p').textContent"))


def test_all_is_done_with_keys_alone(page: Page, window: Browser) -> None:
    open_charts(window, page, f"{COMPARED}&id=cedar")
    listed = window.run(LISTED)
    assert isinstance(listed, list)
    first, second = str(listed[0]), str(listed[1])
    window.press("n")
    assert "find" == window.run(PLACE)
    window.press(DOWN)
    assert first == window.run(PLACE)
    window.press("j")
    assert second == window.run(PLACE)
    window.press("k", "h")
    assert "false" == pressed(window, first, "eye")
    window.press("j", "p")
    assert "true" == pressed(window, second, "pin")
    assert second == window.run(PLACE)  # a row that moves keeps the focus
    open_charts(window, page, COMPARED)
    window.press("/")
    assert "filter" == window.run(PLACE)
    window.press(ESCAPE, "j")
    assert "train/loss" == window.run("return document.activeElement.dataset.key")
    window.press("j", "p")
    assert '"val/loss"' in query(window)
    window.press("l", "?")
    assert "&log=1" in query(window)
    assert True is window.run("return document.getElementById('keys').open")
    assert [] == window.console()


def test_the_tab_key_passes_the_buttons_of_one_row_only(page: Page, window: Browser) -> None:
    open_charts(window, page, COMPARED)
    window.run("document.querySelector('#rail li a').focus()")
    kinds = "return document.activeElement.className || document.activeElement.localName"
    on_the_way = []
    for _ in range(4):
        window.press("\ue004")
        on_the_way.append(window.run(kinds))
    assert on_the_way in (["eye", "pin", "baseline", "input"], ["eye", "pin", "input", "a"])
    width = window.run("return getComputedStyle(document.activeElement).outlineWidth")
    assert "2px" == width


def test_a_baseline_and_a_comparison_are_chosen_with_keys(page: Page, window: Browser) -> None:
    open_charts(window, page, "/run?id=amber")
    window.run("document.querySelector('#rail li[data-id=amber] a').focus()")
    window.press("b")
    assert "?id=amber&base=amber" == query(window)
    window.run("document.querySelector('#rail li[data-id=cedar] a').focus()")
    window.press("x", "c")
    window.wait_for("location.pathname === '/compare'", "the comparison")
    assert "?id=amber&id=cedar" == query(window)


def test_all_charts_show_the_numbers_of_all_runs_at_the_cursor(page: Page, window: Browser) -> None:
    open_charts(window, page, "/compare?id=amber&id=birch&id=cedar&keys=loss")
    window.wait_for(f"{DRAWN} === 2", "both charts")
    window.run("document.querySelector('article').scrollIntoView()")
    window.point(".u-over", 0.4)
    window.wait_for("[...document.querySelectorAll('.readout')].filter((one) => one.innerText).length === 2", "the readouts")
    shown = window.run(READOUTS)
    assert isinstance(shown, list)
    found = re.match(r"step (\d+)", str(shown[0]))
    assert found is not None
    step, order = int(found[1]), sorted(RATES, key=lambda run: -loss(run, 0))
    for more, text in zip((0.0, 0.1), shown, strict=False):
        assert " ".join([f"step {step}", *(f"{run} {loss(run, step) + more:.6g}" for run in order)]) == text


def test_the_run_at_the_cursor_stands_out_everywhere(page: Page, window: Browser) -> None:
    open_charts(window, page, "/compare?id=amber&id=birch&id=cedar&keys=train")
    window.run("document.querySelector('article:not([hidden])').scrollIntoView({ block: 'center' })")
    window.wait_for("document.querySelectorAll('.plot canvas').length === 1", "the curve")
    window.point(".u-over", 0.9, 0.97)  # the lowest curve
    window.wait_for("document.querySelector('#rail li.lit')?.dataset.id === 'birch'", "the run in the rail")
    lit = "[...document.querySelectorAll('.lit')].map((one) => one.dataset.id ?? one.dataset.name)"
    assert ["birch"] * 4 == window.run(f"return {lit}")  # rail, table, parallel coordinates, readout
    pixels = (
        "const c = document.querySelector('article:not([hidden]) canvas'); const d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; let n = 0;"
        "for (let at = 3; at < d.length; at += 4) if (d[at] > 200) n += 1; return n"
    )
    strong = window.run(pixels)
    window.point("#rail summary")
    window.wait_for("!document.querySelector('.lit')", "the end")
    assert window.run(pixels) > strong  # type: ignore[operator]
    window.point("#rail li[data-id=amber] a")
    window.wait_for("document.querySelector('#legend tr.lit')?.dataset.id === 'amber'", "the run of the row")


def test_shift_holds_the_numbers_and_a_click_shows_the_moment(page: Page, window: Browser) -> None:
    open_charts(window, page, "/run?id=amber&keys=train/loss")
    window.run("document.querySelector('article:not([hidden])').scrollIntoView({ block: 'center' })")
    window.point("article:not([hidden]) .u-over", 0.3)
    window.wait_for("document.querySelector('article:not([hidden]) .readout').innerText", "the readout")
    held = window.run(READOUTS)
    window.hold(SHIFT)
    window.point("article:not([hidden]) .u-over", 0.7)
    window.point("h1")
    assert held == window.run(READOUTS)
    window.release(SHIFT)
    window.point("article:not([hidden]) .u-over", 0.7)
    window.wait_for(f"(() => {{ {READOUTS} }})().join() !== '{','.join(map(str, held))}'", "the new place")  # type: ignore[call-overload]
    window.click("article:not([hidden]) .u-over", 0.5)
    window.wait_for("/step 1[45]\\d/.test(document.getElementById('moment').innerText)", "the moment")
    assert [] == window.console()
