"""The page of `wherry ui` in a real browser, over a live run that is mirrored to S3: what is drawn is what was logged.

Needs Chromium, and uPlot and axe-core from npm.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, browser
from servers.real import S3Server
from servers.web_page import RATES, Page, log_of, log_steps, make_runs, page_of
from support import wait_until
from wherry.loggers.destinations.run_folder import RunFolderLogger
from wherry.mirror import Mirror, MirrorConfig
from wherry.web import uplot

pytestmark = [pytest.mark.extra, pytest.mark.ci, pytest.mark.timeout(300)]

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
LIVELY = MirrorConfig(max_lag_s=1.0, settle_s=0.5, max_requests_per_hour=10_000_000, exit_on_sigterm=False)
PAGES = (
    "/",
    "/?group=lr",
    *(f"/run?id=birch{more}" for more in ("", "&smooth=30&log=1", "&x=time", "&tab=media", "&tab=log", "&tab=system")),
    *("/run?id=birch&tab=checkpoints", "/run?id=birch&tab=uploads"),
    *("/compare?id=amber&id=birch&id=cedar", "/compare?id=amber&id=birch&id=cedar&group=optimizer"),
)
#: How many cards have a curve; the cards that are out of view have none.
DRAWN = "document.querySelectorAll('.plot canvas').length"


@dataclass(frozen=True)
class Live:
    """A run that is being written, mirrored to S3, beside its page."""

    log: RunFolderLogger
    page: Page


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert uplot.is_there(), uplot.MISSING
    with page_of(make_runs(tmp_path_factory.mktemp("runs"))) as page:
        yield page


@pytest.fixture
def live(tmp_path: Path, seaweedfs_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    assert uplot.is_there(), uplot.MISSING
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    uri = f"s3://{seaweedfs_server.bucket}/{tmp_path.name}/live"
    with log_of(tmp_path / "live") as log:
        log_steps(log, RATES["amber"], 0, 10)
        options = seaweedfs_server.options
        with (
            Mirror(log.folder, uri, storage_options=options, config=LIVELY, spool=tmp_path / "spool"),
            page_of(uri.removesuffix("/live"), options=options) as page,
        ):
            yield Live(log, page)


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as window:
        yield window


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_no_page_has_an_error_a_foreign_host_or_a_barrier(finished: Page, width: int, is_dark: bool) -> None:
    faults: list[object] = []
    with browser(width, is_phone=width < 500) as window:
        window.look(is_dark=is_dark)
        for path in PAGES:
            window.open(finished.root + path)
            if re.match(r"/(run\?id=birch(&smooth.*|&x.*)?$|compare)", path):
                window.run("document.querySelector('.plot').scrollIntoView()")
                window.wait_for(f"{DRAWN} > 0", f"curves on {path}")
            if rail := window.run("return Boolean(document.getElementById('rail'))"):
                window.run("document.getElementById('rail').open = true")
            window.run(AXE.read_text())
            window.run("window.found = null; axe.run().then((result) => { window.found = result.violations; })")
            window.wait_for("window.found", "axe-core")
            violations: Any = window.run("return window.found")
            faults += [
                (path, one["id"], one["nodes"][0]["html"]) for one in violations if one["impact"] in ("serious", "critical")
            ]
            hosts: Any = window.run("return performance.getEntriesByType('resource').map((one) => new URL(one.name).origin)")
            faults += [(path, host) for host in set(hosts) - {finished.root}]
            faults += [(path, line) for line in window.console()]
            assert rail or path.startswith("/?") or path == "/"
    assert [] == faults


def test_a_live_run_is_drawn_while_it_grows(live: Live, window: Browser) -> None:
    wait_until(
        lambda: "run?id=live" in live.page.get("/").text, 60.0, "the mirror's first segment, and the next look at the table"
    )
    window.open(f"{live.page.root}/run?id=live")
    window.wait_for(f"{DRAWN} >= 2", "the curves")
    log_steps(live.log, RATES["amber"], 10, 40)
    window.wait_for(
        "[...document.querySelectorAll('.said')].some((one) => one.textContent === 'all 40 points')", "the new points"
    )
    window.wait_for(
        "document.getElementById('numbers:train/loss').textContent.includes(' at 39; min ')", "the newest number in words"
    )
    assert "complete to step 39" in live.page.get("/run?id=live").text
    best = 1 + abs(math.log10(RATES["amber"]) + 2.5)
    assert [best + math.exp(-step / 50) for step in range(40)] == live.page.points("live", "train/loss")["lines"][0]["y"]
    assert [] == window.console()


def test_a_curve_is_read_with_the_keyboard_to_its_moment(finished: Page, window: Browser) -> None:
    window.open(f"{finished.root}/run?id=amber&keys=train/loss")
    window.wait_for(f"{DRAWN} === 1", "the curve")
    press = "const card = document.querySelector('article.card:not([hidden])'); card.focus();" + (
        "for (const key of KEYS) card.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));"
    )
    window.run(press.replace("KEYS", json.dumps(["ArrowRight"] * 21)))
    window.wait_for("document.querySelector('.readout').textContent.startsWith('step 20 2.69')", "the value at step 20")
    window.run(press.replace("KEYS", '["Enter"]'))
    window.wait_for("document.querySelector('#moment mark')?.textContent.includes('[step=20]')", "the log of that moment")


def test_the_view_is_in_the_address_and_comes_back_from_it(finished: Page, window: Browser) -> None:
    window.open(f"{finished.root}/run?id=birch&log=1&smooth=25&low=50&high=150")
    window.wait_for(f"{DRAWN} > 0", "the curves")
    assert ["25", True, "50"] == window.run("const f = document.forms.view; return [f.smooth.value, f.log.checked, f.low.value]")
    window.run("document.querySelector('input[name=log]').click(); document.getElementById('zoom-out').click()")
    assert "?id=birch&smooth=25" == window.run("return location.search")


def test_the_command_of_a_view_is_copied(finished: Page, window: Browser) -> None:
    window.open(f"{finished.root}/run?id=birch&keys=loss&log=1")
    window.run("window.copied = []; navigator.clipboard.writeText = async (text) => { window.copied.push(text); }")
    for verb in ("plot", "report"):
        window.run(f"document.querySelector('button.command[data-verb={verb}]').click()")
        window.wait_for(f"window.copied.some((one) => one.startsWith('wherry {verb} --runs=birch'))", f"the command {verb}")
    assert [] == window.console()


def test_a_class_of_a_mask_is_taken_away(finished: Page, window: Browser) -> None:
    window.open(f"{finished.root}/run?id=amber&tab=media&step=100")
    window.wait_for("document.querySelector('fieldset input')", "the mask's classes")
    count = (
        "const c = document.querySelector('canvas.mask'); return c.getContext('2d').getImageData(0, 0, c.width, c.height)"
        ".data.filter((value, at) => at % 4 === 3 && value > 0).length"
    )
    assert 9 == window.run(count)
    window.run("document.querySelector('fieldset input').click()")
    assert 0 == window.run(count)


def test_five_hundred_charts_are_drawn_as_they_come_into_view(tmp_path: Path, window: Browser) -> None:
    with log_of(tmp_path / "run") as log:
        for step in range(3):
            log.log_metrics({f"group{number % 20}/metric{number}": float(step) for number in range(500)}, step)
    with page_of(tmp_path) as page:
        window.open(f"{page.root}/run?id=run")
        window.wait_for(f"{DRAWN} > 3", "the first curves")
        assert 500 == window.run("return document.querySelectorAll('article.card').length")
        window.run("document.querySelector('section.group:last-of-type').scrollIntoView()")
        window.wait_for("document.querySelector('section.group:last-of-type .plot canvas')", "the last curves")
        n_drawn = window.run(f"return {DRAWN}")
        assert isinstance(n_drawn, int)
        assert n_drawn < 60
        assert [] == window.console()


def test_a_phone_shows_all_pages_without_scrolling_sideways(finished: Page) -> None:
    with browser(width=400, height=800, is_phone=True) as phone:
        for path in PAGES:
            phone.open(finished.root + path)
            width = phone.run("return document.documentElement.scrollWidth")
            assert (path, True) == (path, isinstance(width, int) and width <= 400)
