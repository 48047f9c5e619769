"""The tables and the texts of the page in a real browser: they are renewed, their ages go on, and the focus stays.

Needs Chromium, and uPlot from npm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, browser
from checkpoint_sets import save_set
from servers.web_page import RATES, log_of, log_steps, make_runs, page_of
from wherry.backends.local.store import LocalStore
from wherry.checkpoints.protocol.names import RunKeys
from wherry.uri import StoreURI

#: How many cards have a curve.
DRAWN = "document.querySelectorAll('.plot canvas').length"
pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as window:
        yield window


@pytest.fixture
def window(chromium: Browser) -> Browser:
    """Without the page of the test before, whose server has ended."""
    chromium.open("about:blank")
    chromium.console()
    return chromium


def test_ages_go_on_while_a_page_is_open(tmp_path: Path, window: Browser) -> None:
    with log_of(tmp_path / "run") as log:
        log_steps(log, RATES["amber"], 0, 3)
    with page_of(tmp_path) as page:
        for path, place in (("/", "#fresh .truth"), ("/run?id=run", "#head .truth")):
            window.open(page.root + path)
            window.run("document.getElementById('live').click()")  # nothing is fetched anew from here on
            window.run(f"window.age = document.querySelector('{place} [data-age]'); window.first = age.textContent")
            window.wait_for("age.textContent !== first", "the next second")
            assert True is window.run("return age.isConnected && / s$/.test(age.textContent)")
            window.run("age.dataset.age = String(Number(age.dataset.age) + 7200)")
            window.wait_for("age.textContent === '2 h'", "the same words as of the server")


def test_an_old_table_is_renewed_when_it_is_opened_again(tmp_path: Path, window: Browser) -> None:
    with log_of(tmp_path / "run") as log:
        log_steps(log, RATES["amber"], 0, 3)
    with page_of(tmp_path) as page:
        window.open(f"{page.root}/")
        window.wait_for("document.querySelector('#fresh .truth').textContent.includes('read ')", "the table")
        # As of a page that was made before the last reading, and listens only now.
        window.run("document.getElementById('live').click(); document.body.dataset.version = 0")
        window.run("document.querySelector('#fresh th a').focus(); document.querySelector('#fresh td').textContent = 'old'")
        window.run("document.getElementById('live').click(); document.querySelector('#fresh th a').focus()")
        window.wait_for("document.querySelector('#fresh td').textContent !== 'old'", "the table as it is now")
        assert ["A", True] == window.run("return [document.activeElement.tagName, document.body.dataset.version !== '0']")
        assert [] == window.console()


def test_a_narrow_screen_shows_all_of_a_checkpoint(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        log_steps(log, RATES["amber"], 0, 3)
    store = LocalStore(StoreURI("file", "", str(tmp_path).strip("/")), {})
    for step in (10, 20):
        keys = RunKeys(f"{str(tmp_path / 'run').strip('/')}/checkpoints")
        save_set(store, keys, step, world=2, metrics={"val/loss": 1 / step, "val/a-long-name-of-a-metric": 1.0})
    with page_of(tmp_path) as page, browser(width=400, height=800, is_phone=True) as phone:
        phone.open(f"{page.root}/run?id=run&tab=checkpoints&sort=-step")
        outside = (
            "return [...document.querySelectorAll('.stack th, .stack td, .stack code, .stack button')].filter((one) => "
            "one.checkVisibility() && (one.getBoundingClientRect().right > innerWidth || one.scrollWidth > one.clientWidth + 1 "
            "&& getComputedStyle(one).display !== 'inline')).map((one) => one.outerHTML)"
        )
        assert [] == phone.run(outside)
        assert '"val/loss "' == phone.run(
            "return getComputedStyle(document.querySelector('td[data-label=\"val/loss\"]'), '::before').content"
        )
        phone.run("document.querySelector('thead th a').click()")
        phone.wait_for("location.search.includes('sort=step')", "the other order")


def test_the_name_of_a_run_stays_while_its_numbers_scroll(tmp_path: Path) -> None:
    make_runs(tmp_path)
    with page_of(tmp_path) as page, browser(width=400, height=800, is_phone=True) as phone:
        for path in ("/", "/compare?id=amber&id=birch&id=cedar"):
            phone.open(page.root + path)
            phone.run("document.querySelector('.scroll').scrollLeft = 300")
            left = "return [...document.querySelectorAll('TABLE')].map((one) => Math.round(one.getBoundingClientRect().left))"
            places = phone.run(left.replace("TABLE", ".scroll, table.runs tbody th, table.runs thead th[aria-sort]"))
            assert isinstance(places, list)
            assert 1 == len(set(places)), path


ESCAPE = "\ue00c"


def test_keys_lead_to_what_they_name(tmp_path: Path, window: Browser) -> None:
    with page_of(make_runs(tmp_path)) as page:
        window.open(f"{page.root}/compare?id=amber&id=birch")
        for key, place in (("g", "group"), ("s", "smooth"), ("/", "keys")):
            window.wait_for("document.querySelector('#groups')", "the page")
            window.press(key)
            assert place == window.run("return document.activeElement.name"), key
            window.press("s")  # in a field a key is a letter
            assert place == window.run("return document.activeElement.name")
            window.press(ESCAPE)
            assert "BODY" == window.run("return document.activeElement.tagName")
        window.press("r")
        assert "false" == window.run("return document.getElementById('live').getAttribute('aria-pressed')")
        window.press("r")
        assert "true" == window.run("return document.getElementById('live').getAttribute('aria-pressed')")
        window.open(f"{page.root}/run?id=amber&tab=media&step=0")
        for key, step in (("]", "step=100"), ("[", "step=0")):
            window.press(key)
            window.wait_for(f"location.search.includes('{step}') && document.readyState === 'complete'", f"the step of {key}")
        assert [] == window.console()


def test_the_machine_is_folded_up_beside_the_training(tmp_path: Path, window: Browser) -> None:
    with log_of(tmp_path / "run") as log:
        for step in range(5):
            log.log_metrics({"loss": float(step), "system/cpu/percent": 1.0 * step, "rank1/system/cpu/percent": 2.0}, step)
    with page_of(tmp_path) as page:
        window.open(f"{page.root}/compare?id=run")
        window.wait_for(f"{DRAWN} === 1", "the curve of the training")
        assert [False, False] == window.run("return [...document.querySelectorAll('details.fold')].map((one) => one.open)")
        window.press("j", "j", "j")
        assert "loss" == window.run("return document.activeElement.dataset.key")
        window.run("document.querySelector('details.fold summary').click()")
        window.wait_for(f"{DRAWN} === 2", "the curve of the machine")
        window.wait_for("new URLSearchParams(location.search).get('open')", "the address of this view")
        window.run("location.reload()")
        window.wait_for(f"{DRAWN} === 2", "the same view")
        window.open(f"{page.root}/compare?id=run&keys=cpu")
        window.wait_for(f"{DRAWN} === 2", "what the filter finds")
        window.open(f"{page.root}/run?id=run&tab=system")
        window.wait_for(f"{DRAWN} === 2", "the page of the machine")
        assert [] == window.console()


def test_parallel_coordinates_go_on_with_the_table(tmp_path: Path, window: Browser) -> None:
    lines = "[...document.querySelectorAll('.parallel polyline')].map((one) => one.getAttribute('points')).join()"
    table = "document.getElementById('legend').textContent"
    with log_of(tmp_path / "a") as one, log_of(tmp_path / "b") as other, page_of(tmp_path) as page:
        for log, rate in ((one, 0.1), (other, 0.2)):
            log.log_hyperparameters({"lr": rate})
            log.log_metrics({"loss": rate}, 0)
        window.open(f"{page.root}/compare?id=a&id=b")
        window.wait_for(f"{lines}.length > 0", "the figure")
        window.run("document.querySelector('#figure details summary').click()")
        before = window.run(f"return {lines}")
        other.log_metrics({"loss": 0.01}, 1)
        window.wait_for(f"{table}.includes('0.01')", "the new number in the table")
        window.wait_for(f"{lines} !== {json.dumps(before)}", "the line of the new number")
        assert False is window.run("return document.querySelector('#figure details').open")
        assert [] == window.console()


def test_a_metric_that_is_new_gets_its_card_in_its_place(tmp_path: Path, window: Browser) -> None:
    keys = "[...document.querySelectorAll('article.card')].map((one) => one.dataset.key).join(' ')"
    with log_of(tmp_path / "run") as log, page_of(tmp_path) as page:
        log.log_hyperparameters({"lr": 1.0})
        window.open(f"{page.root}/run?id=run")
        window.wait_for("document.body.textContent.includes('no metrics yet')", "the empty page")
        log.log_metrics({"train/loss": 1.0, "z": 1.0}, 0)
        window.wait_for(f"{keys} === 'train/loss z'", "the first cards")
        window.wait_for("!document.body.textContent.includes('no metrics yet')", "the end of the emptiness")
        window.run("document.querySelector('article.card button.pin').click()")
        log.log_metrics({"train/acc": 1.0, "train/zeta": 1.0, "val/loss": 1.0, "a": 2.0, "z": 2.0}, 1)
        window.wait_for(f"{keys} === 'train/loss train/acc train/zeta val/loss a z'", "the new cards, behind the pinned one")
        window.wait_for("document.querySelector('article[data-key=\"train/acc\"] canvas')", "a new curve")
        window.wait_for("document.getElementById('n-metrics').textContent === '6 metrics'", "their number")
        window.run("document.querySelector('article.card button.pin').click()")
        window.wait_for(f"{keys} === 'train/acc train/loss train/zeta val/loss a z'", "the pinned card in its place")
        assert [] == window.console()
