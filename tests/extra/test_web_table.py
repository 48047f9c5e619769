"""The tables and the texts of the page in a real browser: they are renewed, their ages go on, and the focus stays.

Needs Chromium, and uPlot from npm.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, browser
from servers.web_page import RATES, log_of, log_steps, page_of

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as window:
        yield window


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
