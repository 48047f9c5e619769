"""The x axes, zoom and files of charts in a real browser: what is drawn and saved is what was logged.

Needs Chromium, and uPlot from npm.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from xml.etree import ElementTree as ET

import pytest

from browser import Browser, browser
from servers.web_page import N_STEPS, Page, log_of, make_runs, page_of
from support import wait_until
from wherry.web import uplot

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

SVG = "{http://www.w3.org/2000/svg}"
ONE = "&keys=train/loss"
CARD = "article.card:not([hidden])"
READOUT = f"document.querySelector('{CARD} .readout').innerText"

#: Keys, by the numbers of https://www.w3.org/TR/webdriver2/#keyboard-actions.
RIGHT, ENTER, ESCAPE = "\ue014", "\ue007", "\ue00c"
#: Draws the charts again; into `window.labels` the left end of each label of the y axis, and its text.
LABELS = """
window.labels = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  if (this.textAlign === 'right') window.labels.push([x - this.measureText(text).width, text]);
  return draw.call(this, text, x, y);
};
document.dispatchEvent(new CustomEvent('news'));
"""
#: Counts the columns of a picture that have a colour; into `window.n`.
COLUMNS = """
window.n = null;
const bytes = Uint8Array.from(atob('BITS'), (one) => one.charCodeAt(0));
createImageBitmap(new Blob([bytes])).then((image) => {
  const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const found = new Set();
  const hex = (at) => '#' + [0, 1, 2].map((more) => data[at + more].toString(16).padStart(2, '0')).join('');
  for (let at = 0; at < data.length; at += 4) if (hex(at) === COLOUR) found.add((at / 4) % image.width);
  window.n = found.size;
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert uplot.is_there(), uplot.MISSING
    with page_of(make_runs(tmp_path_factory.mktemp("runs"))) as page:
        yield page


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as window:
        yield window


@pytest.fixture
def downloads(window: Browser, tmp_path: Path) -> Path:
    window.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    return tmp_path


def open_chart(window: Browser, page: Page, path: str) -> None:
    window.open(page.root + path)
    window.wait_for(f"document.querySelector('{CARD} .plot canvas')", "the curve")
    window.run(f"document.querySelector('{CARD}').scrollIntoView({{ block: 'center' }})")


def saved(window: Browser, downloads: Path, kind: str, name: str) -> bytes:
    """What a person gets who opens the menu and clicks."""
    window.click(f"{CARD} summary")
    buttons = f"[...document.querySelectorAll('{CARD} .tools a, {CARD} .tools button')]"
    button = f"{buttons}.find((one) => one.textContent.startsWith('{kind}'))"
    window.wait_for(button, f"the button {kind}")  # the link gets its text when the menu opens
    window.run(f"{button}.click()")
    wait_until(lambda: (downloads / name).is_file(), 30.0, f"the download of {name}")
    return (downloads / name).read_bytes()


@pytest.mark.parametrize("axis", ["step", "epoch", "relative", "time"])
def test_each_axis_shows_the_points_at_their_places(page: Page, window: Browser, axis: str) -> None:
    open_chart(window, page, f"/run?id=amber{ONE}")
    window.run(f"const x = document.forms.view.x; x.value = '{axis}'; x.dispatchEvent(new Event('change', {{ bubbles: true }}))")
    window.wait_for(f"(new URLSearchParams(location.search).get('x') ?? 'step') === '{axis}'", "the address")
    open_chart(window, page, f"/run?id=amber{ONE}&x={axis}")  # that of before may still be there, and take the key
    points = page.points("amber", "train/loss", x=axis)["lines"][0]
    rows = list(csv.DictReader(page.get("/data/csv?id=amber&key=train/loss").text.splitlines()))
    t = [float(row["t"]) for row in rows]
    expected = {
        "step": [float(row["step"]) for row in rows],
        "epoch": [int(row["step"]) / 100 for row in rows],
        "relative": [one - t[0] for one in t],
        "time": t,
    }[axis]
    assert expected == pytest.approx(points["x"])
    window.run(f"document.querySelector('{CARD}').focus()")
    window.press("\ue014")  # to the right: the first point
    window.wait_for(f"{READOUT}.startsWith('{axis} ')", "the readout")
    y = f"{points['y'][0]:.6g}"
    window.wait_for(f"{READOUT}.includes('{y}')", "the first value")
    assert [] == window.console()


def test_a_zoom_by_the_mouse_shows_a_part_in_all_charts_and_asks_again(page: Page, window: Browser) -> None:
    open_chart(window, page, "/run?id=amber&keys=loss")
    window.wait_for("document.querySelectorAll('.plot canvas').length === 2", "both curves")
    window.drag(f"{CARD} .u-over", 0.25, 0.5)
    said = "[...document.querySelectorAll('.said')].filter((one) => /of this part; 300 in all/.test(one.textContent))"
    window.wait_for(f"{said}.length === 2", "the part")
    low, high = (float(str(window.run(f"return new URLSearchParams(location.search).get('{end}')"))) for end in ("low", "high"))
    assert (0.25 * (N_STEPS - 1), 0.5 * (N_STEPS - 1)) == pytest.approx((low, high), abs=4)
    window.run(f"document.querySelector('{CARD} .u-over').dispatchEvent(new MouseEvent('dblclick', {{ bubbles: true }}))")
    window.wait_for("!/low/.test(location.search)", "all of x")


def test_the_csv_has_all_points_of_the_part_and_says_so(page: Page, window: Browser, downloads: Path) -> None:
    open_chart(window, page, f"/compare?id=amber&id=birch&id=cedar{ONE}&low=50&high=150&hide={json.dumps(['cedar'])}")
    text = saved(window, downloads, "CSV", "train_loss_from_50_to_150.csv").decode()
    assert "CSV, all points from 50 to 150" == window.run(f"return document.querySelector('{CARD} .csv').textContent")
    rows = list(csv.DictReader(text.splitlines()))
    for run, n_older in (("amber", 0), ("birch", 51)):
        own = [row for row in rows if row["run"] == run]
        assert n_older == sum(row["overwritten"] == "1" for row in own)
        kept = {int(row["step"]): float(row["value"]) for row in own if row["overwritten"] == "0"}
        points = page.points(run, "train/loss")["lines"][0]
        assert {int(x): y for x, y in zip(points["x"], points["y"], strict=True) if 50 <= x <= 150} == kept
    assert {"amber", "birch"} == {row["run"] for row in rows}


def test_the_svg_has_the_curves(page: Page, window: Browser, downloads: Path) -> None:
    open_chart(window, page, f"/compare?id=amber&id=cedar{ONE}")
    root = ET.fromstring(saved(window, downloads, "SVG", "train_loss.svg"))  # noqa: S314  it is our own
    lines = {str(line[0].text): line for line in root.iter(f"{SVG}polyline")}
    assert {"amber", "cedar"} == set(lines)
    for run, line in lines.items():
        places = [tuple(map(float, one.split(","))) for one in line.attrib["points"].split()]
        points = page.points(run, "train/loss")["lines"][0]
        assert len(points["x"]) == len(places)
        (x0, y0), (x1, y1) = places[0], places[-1]
        for (x, y), step, value in zip(places, points["x"], points["y"], strict=True):
            part = (value - points["y"][0]) / (points["y"][-1] - points["y"][0])
            assert (x0 + (x1 - x0) * step / (N_STEPS - 1), y0 + (y1 - y0) * part) == pytest.approx((x, y), abs=0.3)
    assert "train/loss" in [text.text for text in root.iter(f"{SVG}text")]


def test_the_svg_of_a_group_has_its_band(page: Page, window: Browser, downloads: Path) -> None:
    open_chart(window, page, f"/compare?id=amber&id=birch&id=cedar{ONE}&group=optimizer")
    root = ET.fromstring(saved(window, downloads, "SVG", "train_loss.svg"))  # noqa: S314  it is our own
    assert (1, 1) == (len(list(root.iter(f"{SVG}polygon"))), len(list(root.iter(f"{SVG}polyline"))))


def test_a_group_has_a_legend_and_its_chart_says_what_is_drawn(page: Page, window: Browser) -> None:
    open_chart(window, page, f"/compare?id=amber&id=birch&id=cedar{ONE}&group=optimizer")
    texts = "return ['.legend', '.said'].map((one) => document.querySelector(`CARD ${one}`).innerText)".replace("CARD", CARD)
    legend, said = cast("list[str]", window.run(texts))
    assert "optimizer adamw: 3 of 3 runs" == legend
    assert "mean, least and greatest of 897 points · 3 NaN or infinite, not in it" == said
    window.run(f"document.querySelector('{CARD}').focus()")
    window.press(RIGHT)
    window.wait_for(f"{READOUT}.includes('3 runs')", "how many runs the mean is of")
    window.run("document.querySelector('#rail li[data-id=amber] .eye').click()")
    window.wait_for(f"document.querySelector('{CARD} .legend').innerText === 'optimizer adamw: 2 of 2 runs'", "the other two")


def test_the_labels_of_an_axis_are_whole_and_differ(window: Browser, tmp_path: Path) -> None:
    keys = {"large": 250_000.0, "huge": 123_456_789.0, "tiny": 1.2345e-7, "narrow": 1.0}
    with log_of(tmp_path / "run") as log:
        for step in range(20):
            log.log_metrics({key: -scale * (1 + step * 1e-5) for key, scale in keys.items()}, step)
    with page_of(tmp_path) as page:
        for key in keys:
            open_chart(window, page, f"/run?id=run&keys={key}")
            window.run(LABELS)
            window.wait_for("window.labels.length > 2", "the labels")
            labels = cast("list[tuple[float, str]]", window.run("return window.labels"))
            texts = [text for _, text in labels]
            assert (sorted(set(texts)), []) == (sorted(texts), [text for left, text in labels if left < 0])


def test_sizes_and_rates_have_units(window: Browser, tmp_path: Path) -> None:
    """By the names of SystemMetrics, on the axis, at the cursor and above the chart."""
    with log_of(tmp_path / "run") as log:
        for step in range(9):
            log.log_metrics({"system/memory_bytes": 2.0**30 * (1 + step), "disk_read_bytes_per_s": 2.0**20 * step}, step)
    shown = {
        "memory_bytes": (["2 GiB", "4 GiB", "6 GiB", "8 GiB"], "last 9.0 GiB at 8; min 1.0 GiB at 0; max 9.0 GiB at 8", "1 GiB"),
        "memory_bytes&log=1": (["1 GiB", "2 GiB", "4 GiB", "8 GiB", "16 GiB"], "last 9.0 GiB at 8;", "1 GiB"),
        "per_s": (["0 MiB/s", "2 MiB/s", "4 MiB/s", "6 MiB/s", "8 MiB/s"], "last 8.0 MiB/s at 8; min 0 B/s at 0;", "0 B/s"),
    }
    with page_of(tmp_path) as page:
        for query, (labels, numbers, first) in shown.items():
            tab = "&tab=system" if "memory" in query else ""
            open_chart(window, page, f"/run?id=run{tab}&keys={query}")
            window.run(LABELS)
            window.wait_for("window.labels.length > 2", "the labels")
            found = cast("list[tuple[float, str]]", window.run("return window.labels"))
            assert labels == list(dict.fromkeys(text for _, text in found)), query
            assert numbers in str(window.run(f"return document.querySelector('{CARD} .numbers').innerText"))
            window.run(f"document.querySelector('{CARD}').focus()")
            window.press(RIGHT)
            window.wait_for(f"{READOUT}.includes('{first}')", "the number at the cursor")
        assert [] == window.console()


def test_the_moment_of_a_point_is_in_the_address(page: Page, window: Browser) -> None:
    open_chart(window, page, f"/run?id=amber{ONE}")
    title = "document.querySelector('#moment:not([hidden]) h2')?.innerText"
    for step in ("0", "1"):
        window.run(f"document.querySelector('{CARD}').focus()")
        window.press(RIGHT, ENTER)
        window.wait_for(f"{title} === 'amber at step {step}'", "the moment")
    link = str(window.run("return location.href"))
    window.run("history.back()")
    window.wait_for(f"{title} === 'amber at step 0'", "the moment before")
    window.run("history.back()")
    window.wait_for("document.querySelector('#moment').hidden", "no moment")
    window.open("about:blank")
    window.open(link)
    window.wait_for(f"{title} === 'amber at step 1'", "the moment of the link")
    window.press(ESCAPE)
    window.wait_for("document.querySelector('#moment').hidden && !location.search.includes('moment')", "no moment")


def test_the_png_shows_the_curve(page: Page, window: Browser, downloads: Path) -> None:
    open_chart(window, page, f"/run?id=amber{ONE}")
    png = saved(window, downloads, "PNG", "train_loss.png")
    size = window.run(f"const c = document.querySelector('{CARD} canvas'); return [c.width, c.height + 24 * devicePixelRatio]")
    assert size == [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)]
    bits = base64.b64encode(png).decode()
    colour = (
        f"getComputedStyle(document.documentElement).getPropertyValue('--c{page.points('amber', 'train/loss')['colour']}').trim()"
    )
    window.run(COLUMNS.replace("BITS", bits).replace("COLOUR", colour))
    window.wait_for("window.n !== null", "the picture's points")
    assert int(str(window.run("return window.n"))) > 100  # columns of the picture that the curve is in
