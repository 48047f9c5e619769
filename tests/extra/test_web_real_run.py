"""The page over a run in a real bucket, with checkpoint sets, uploads that fail and two machines: what it says is what there is.

Needs Chromium, and uPlot from npm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from browser import Browser, browser
from servers.real import S3Server
from servers.real_run import RealRun, loss_of, real_run
from servers.web_page import Page, page_of
from wherry.web import uplot

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

#: The text of each cell of the table with this label, row by row.
TABLE = (
    "return [...document.querySelectorAll('[aria-label=\"LABEL\"] tbody tr')]"
    ".map((row) => [...row.cells].map((cell) => cell.innerText.replace(/\\s+/g, ' ').trim()))"
)


@dataclass(frozen=True)
class Real:
    """A real run, its page, and a browser."""

    run: RealRun
    page: Page
    window: Browser
    server: S3Server

    def table(self, tab: str, label: str) -> dict[str, list[str]]:
        """The rows of a table on a tab of the run, by their first cells."""
        self.window.open(f"{self.page.root}/run?id=train&tab={tab}")
        rows = self.window.run(TABLE.replace("LABEL", label))
        assert isinstance(rows, list)
        return {str(row[0]): row[1:] for row in rows}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, seaweedfs_server: S3Server) -> Iterator[Real]:
    assert uplot.is_there(), uplot.MISSING
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("WHERRY_SPOOL", str(folder / "spool"))
        with (
            real_run(seaweedfs_server, folder) as run,
            page_of(run.uri, options=seaweedfs_server.options) as page,
            browser() as window,
        ):
            yield Real(run, page, window, seaweedfs_server)


def restoring(real: Real) -> str:
    """The command that restores the verified set, with the options that are no secret."""
    options = "".join(f" --option={name}={real.server.options[name]}" for name in ("endpoint_url", "region"))
    return f"wherry checkpoints restore {real.run.uri}/train restored-60{options} --which {real.run.sets['verified']}"


def test_checkpoints_are_shown_as_they_are(real: Real) -> None:
    rows = real.table("checkpoints", "Table of checkpoints")
    assert ["step 70", "step 60 latest best", "step 40", "step 20"] == [name.rpartition(" ")[0] for name in rows]
    by_step = {int(name.split()[1]): [name, *row] for name, row in rows.items()}
    for what, step in (("pinned", 20), ("damaged", 40), ("verified", 60)):
        name, _, size, metrics, *_ = by_step[step]
        assert (real.run.sets[what], "10.0 KiB", f"{loss_of(1, step):.6g}") == (name.split()[-1], size, metrics)
    complete, verified, pinned, restore = 4, 5, 6, 7
    assert ("complete manifest and listing", "when stored", "pinned") == tuple(by_step[20][complete : pinned + 1])
    assert ("damaged", "") == (by_step[40][complete].split()[0], by_step[40][restore])
    assert re.fullmatch(r"bytes are wrong \d+ (s|min) ago", by_step[40][verified])
    assert re.fullmatch(r"all bytes right \d+ (s|min) ago", by_step[60][verified])
    assert f"{restoring(real)} copy" == by_step[60][restore]
    assert ["incomplete 1 of 2 receipts", "no", "", ""] == by_step[70][complete:]
    assert [] == real.window.console()


def test_uploads_are_shown_with_their_reasons(real: Real) -> None:
    rows = real.table("uploads", "Table of uploads")
    denied, stuck, commit = rows["denied.bin"], rows["stuck.bin"], rows["checkpoints/manifests/000000002_000000000070.json"]
    assert ["failed", "0 B of 195.3 KiB", "1"] == denied[:3]
    assert "AccessDenied: no rights to write here" in denied[3]
    assert "wherry retry" in denied[3]
    assert "SlowDown: please reduce your request rate" in stuck[3]
    assert int(stuck[2]) >= 1
    assert "rank 1" in commit[3]
    assert not [name for name in rows if "other" in name]
    said = real.window.run("return document.querySelector('#fresh p').innerText")
    assert re.match(r"Spool .*/spool: 2 queued, 1 failed, 586\.[0-9] KiB staged, .* free, .*/s; its agent runs\.", str(said))


def test_both_machines_of_the_run_are_shown_by_their_heartbeats(real: Real) -> None:
    rows = real.table("uploads", "Table of writers")
    assert {"node-a", "node-b"} == set(rows)
    assert {"alive"} == {row[0] for row in rows.values()}
    assert "1" == rows["node-b"][4]  # its log


def test_a_moment_is_of_the_start_that_the_point_is_of(real: Real) -> None:
    newer = real.page.get("/data/moment?id=train&key=train/loss&step=70").json
    older = real.page.get("/data/moment?id=train&key=train/loss&step=70&start=0").json
    for start, found in ((2, newer), (1, older)):
        assert (start, 2, loss_of(start, 70)) == (found["attempt"], found["n_attempts"], found["value"])
        assert [0, 1] == found["ranks"] == [log["rank"] for log in found["logs"]]
        assert f"a line of start {start} before step 70" in " ".join(found["logs"][0]["lines"])
        assert real.run.sets["verified"] == found["checkpoint"]["name"]
    assert real.run.sets["pinned"] == real.page.get("/data/moment?id=train&key=train/loss&step=50").json["checkpoint"]["name"]


def test_a_click_on_a_point_shows_its_moment(real: Real) -> None:
    window = real.window
    window.open(f"{real.page.root}/run?id=train&keys=train/loss")
    window.wait_for("document.querySelector('.plot canvas')", "the curve")
    said = "document.querySelector('article.card:not([hidden]) .said').textContent"
    window.wait_for(f"{said}.includes('overwritten')", "what is said of the curve")
    expected = "all 120 points · 1 restart (tick) · 3 checkpoints (◆) · 20 overwritten by a restart, pale"
    assert expected == window.run(f"return {said}")
    window.run("document.querySelector('.u-over').scrollIntoView({ block: 'center' })")
    window.click(".u-over", x=0.6, y=0.95)
    text = "document.getElementById('moment').innerText"
    window.wait_for(f"{text}.includes('Code')", "the moment")
    shown = str(window.run(f"return {text}"))
    assert "Logs of 2 ranks" in shown
    assert restoring(real) in shown
    assert "attempt 2 of 2" in shown
    assert [] == window.console()
