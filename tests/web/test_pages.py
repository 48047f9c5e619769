"""The pages, as they are without a script: what the runs hold is in them, and nothing that runs wrote is more than text."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from servers.web_page import RATES, Page, log_of, make_runs, page_of
from wherry.loggers import RunFolderConfig, RunFolderLogger, State
from wherry.runs import Runs
from wherry.web.drawing.colours import Mark, colour_of, marks_of
from wherry.web.drawing.figures import parallel
from wherry.web.words import dollars, measure

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{1234*4321}}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with page_of(make_runs(tmp_path_factory.mktemp("runs"))) as page:
        yield page


def words(text: str) -> str:
    """What is read on a page."""
    inside = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", inside.replace("<wbr>", ""))))


def order(page: Page, query: str) -> list[str]:
    """The runs of the table, in their order."""
    return re.findall(r'<tr data-id="(\w+)"', page.get(f"/{query}").text)


def test_the_table_has_each_run_with_what_differs_and_its_metrics(page: Page) -> None:
    text = words(page.get("/").text)
    for expected in ("3 runs", "amber", "birch", "cedar", "finished", "model.depth", "0.0003", "val/loss.min", "at 299", "2 NaN"):
        assert expected in text
    assert "adamw" not in text  # all runs have the same


def test_characters_that_are_not_seen_are_escaped_and_lose_nothing(tmp_path: Path) -> None:
    """A browser turns text around where a name says so, and drops or replaces others: U+0000, half of a surrogate pair."""
    name, keys = "r\u202efdp", ("lo\u202ess", "a\u0000b\rc%20", "half\ud800", "\u2067x\u2069")
    (tmp_path / name).mkdir()
    line = json.dumps({"step": 1, "t": 1.0, **dict.fromkeys(keys, 1.5)})
    (tmp_path / name / "metrics.jsonl").write_text(f"{line}\n")
    (tmp_path / name / "hparams.json").write_text(json.dumps({"who\u202e": "\u202ex"}))
    escaped = ("r\\u202efdp", "lo\\u202ess", "a\\x00b", "half\\ud800", "\\u2067x\\u2069", "who\\u202e", "\\u202ex")
    with page_of(tmp_path) as page:
        run, compared, table = (page.get(f"/{path}").text for path in (f"run?id={quote(name)}", f"compare?id={quote(name)}", ""))
        named = [unquote(html.unescape(one)) for one in re.findall('data-key="([^"]*)"', run)]
        assert {*keys[:2], "half\\ud800", keys[3]} == set(named)
        assert [] == [one for one in escaped if one not in words(run)]
        for text in (run, compared, table):
            assert not re.search("[\u202a-\u202e\u2066-\u2069]", words(text))
        for key in keys[:2]:
            assert [1.5] == page.points(name, key)["lines"][0]["y"]
        assert f'<tr data-id="{name}"' in table  # what is sent back is the name itself


def test_a_folder_has_one_name_on_all_pages(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs")
    with page_of(tmp_path / "runs") as page:
        assert f"runs in {tmp_path}/runs" in words(page.get("/").text)
        assert f"{tmp_path}/runs/amber" in words(page.get("/run?id=amber").text)
        assert page.get("/data/command?id=amber&verb=report").json["command"].endswith(f" {tmp_path}/runs")
        assert not [path for path in ("/", "/run?id=amber") if "file://" in page.get(path).text]


def test_the_best_run_is_found_by_sorting(page: Page) -> None:
    assert ["birch", "cedar", "amber"] == order(page, "?sort=val/loss.min")
    assert ["amber", "cedar", "birch"] == order(page, "?sort=-val/loss.min")


def test_the_table_is_filtered_and_grouped_by_its_address(page: Page) -> None:
    assert ["birch", "cedar"] == order(page, "?where=lr%3E1e-3&sort=id")
    text = words(page.get("/?group=lr").text)
    for rate in RATES.values():
        assert f"lr = {rate:g} 1 runs" in text


def test_a_filter_that_cannot_be_read_is_named(page: Page) -> None:
    answer = page.get("/?where=__import__('os')")
    text = words(answer.text)
    assert (200, True, True) == (answer.status, "has the part \"__import__('os')\"" in text, "all runs are shown" in text)
    assert ["amber", "birch", "cedar"] == order(page, "?where=__import__('os')")


def test_a_filter_that_none_passes_leaves_the_names_to_type(page: Page) -> None:
    text = words(page.get("/?where=loss<1").text)
    assert "no run has 'loss': the nearest names are train/loss, val/loss" in text
    assert ("0 of 3 runs" in text, "val/loss.min" in text) == (True, True)
    assert 'placeholder="lr&lt;=0.003 and val/loss.min&lt;=' in page.get("/").text


def test_a_group_says_its_mean_and_its_range_apart(page: Page) -> None:
    text = words(page.get("/?group=optimizer").text)
    assert "mean 0.00443333 0.0003 to 0.01" in text


@pytest.mark.parametrize("path", ["/run?id=nothing", "/run?id=../etc", "/compare?id=nothing", "/nothing"])
def test_what_is_not_there_is_said(page: Page, path: str) -> None:
    answer = page.get(path)
    assert (404, True) == (answer.status, "This cannot be shown" in answer.text)


@pytest.mark.parametrize(
    "path", ["/run", "/run?id=amber&tab=x", "/compare", "/data/points?id=amber&key=a&x=y", "/data/log?id=amber&after=x"]
)
def test_an_address_that_makes_no_sense_is_refused(page: Page, path: str) -> None:
    assert 400 == page.get(path).status


@pytest.mark.parametrize(
    ("tab", "expected"),
    [
        ("charts", ["train/loss", "last 1.02", "complete to step 299", "writer finished", "optimizer adamw"]),
        (
            "media",
            ["samples", "step 100", "histogram over 2 steps", "predictions", "<i>x</i>", "a <script>alert(1)</script> fox"],
        ),
        ("log", ["logs-rank0.txt", "step <b>290</b>", "[metric][step=290]"]),
        ("system", ["This run has no metrics below system/"]),
        ("checkpoints", ["This run has no checkpoint sets"]),
        ("uploads", ["This machine", "Writers of the run"]),
    ],
)
def test_each_tab_says_what_the_run_holds(page: Page, tab: str, expected: list[str]) -> None:
    answer = page.get(f"/run?id=birch&tab={tab}")
    text = words(answer.text)
    assert 200 == answer.status
    assert [] == [one for one in expected if one not in text]


def test_the_colours_of_a_log_are_shown_and_its_markup_is_text(page: Page) -> None:
    text = page.get("/run?id=amber&tab=log").text
    assert '<span class="a-green">step</span> &lt;b&gt;0&lt;/b&gt;' in text
    assert "\x1b" not in text


def test_runs_are_compared_in_a_table_with_differences_to_a_baseline(page: Page) -> None:
    text = page.get("/compare?id=amber&id=birch&base=amber").text
    assert '<polyline class="c' in text
    for expected in ("2 runs compared", "lr", "0.003", "-1 "):
        assert expected in words(text)


def test_an_axis_of_numbers_keeps_its_order_beside_infinities_and_gaps(tmp_path: Path) -> None:
    for name, loss in {"a": 9.0, "b": 10.0, "c": 100.0, "high": math.inf, "low": -math.inf, "none": None}.items():
        with log_of(tmp_path / name) as log:
            log.log_hyperparameters({"lr": ord(name[0]), "seed": len(name), **({} if loss is None else {"loss": loss})})
    with Runs(str(tmp_path)) as runs:
        rows = list(runs.rows())
    figure = parallel(rows, ["lr", "loss", "seed"])
    assert figure is not None
    assert ("inf, 100", "-inf, 9") == (figure.axes[1].top, figure.axes[1].bottom)
    heights = {name: float(pieces[0].split()[1].split(",")[1]) for name, pieces in figure.lines.items() if name != "none"}
    assert ["high", "c", "b", "a", "low"] == sorted(heights, key=heights.__getitem__)
    assert heights["a"] - heights["b"] < heights["b"] - heights["c"]
    assert [1, 2] == [len(figure.lines[name]) for name in ("a", "none")]


def test_learning_rates_of_two_decades_stand_apart(tmp_path: Path) -> None:
    """On a linear axis 1e-4 and 3e-4 could not be told apart beside 1e-2."""
    for name, rate in {"a": 1e-4, "b": 1e-3, "c": 1e-2}.items():
        with log_of(tmp_path / name) as log:
            log.log_hyperparameters({"lr": rate, "seed": ord(name)})
    with Runs(str(tmp_path)) as runs:
        figure = parallel(list(runs.rows()), ["lr", "seed"])
    assert figure is not None
    assert ["lr, log", "seed"] == [axis.name for axis in figure.axes]
    low, middle, high = (float(figure.lines[name][0].split()[0].split(",")[1]) for name in "abc")
    assert (low + high) / 2 == pytest.approx(middle, abs=0.1)


def test_what_costs_next_to_nothing_is_said_so() -> None:
    assert ["-", "$0", "<$0.00001", "$0.000026", "$0.15"] == [dollars(usd) for usd in (None, 0.0, 5.7e-7, 2.6e-5, 0.15)]


def test_what_is_no_size_is_a_number_though_its_name_says_bytes() -> None:
    given = (2.5 * 2**20, 10**400, -1.0, math.nan, math.inf, "x", None, True)
    assert ["2.5 MiB", "1e+400", "-1", "nan", "inf", "x", "-", "true"] == [measure("a/bytes", value) for value in given]
    assert ["2.5 MiB/s", "5"] == [measure("read_bytes_per_s", given[0]), measure("megabytes", 5.0)]


def test_a_runs_colour_is_the_same_on_every_page(page: Page) -> None:
    found = {
        re.search(r'data-id="amber".*?class="(?:dot|line) (c\d)', page.get(path).text, re.DOTALL)[1]  # type: ignore[index]
        for path in ("/?where=name!=''+and+lr==3e-4", "/run?id=amber", "/compare?id=amber")
    }
    assert 1 == len(found)


def test_runs_of_one_colour_differ_by_their_dashes_and_keep_them() -> None:
    of_one_colour = [name for name in map(str, range(200)) if colour_of(name) == 3][:4]
    marks = marks_of([*of_one_colour, "other"])
    assert {0, 1, 2, 3} == {marks[name].dash for name in of_one_colour}
    assert Mark(3, 0) == marks_of(of_one_colour[:1])[of_one_colour[0]]
    for one in of_one_colour:
        for other in set(of_one_colour) - {one}:
            assert 2 == len({mark.dash for mark in marks_of([one, other]).values()})


def test_a_row_of_the_table_has_the_line_of_its_charts(page: Page) -> None:
    pattern = r'data-id="(\w+)".*?<svg class="line (c\d d\d)"'
    table, compared = (
        dict(re.findall(pattern, page.get(path).text, re.DOTALL)) for path in ("/", "/compare?id=amber&id=birch&id=cedar")
    )
    assert {"amber", "birch", "cedar"} == table.keys()
    assert compared.items() >= table.items()


def test_a_name_that_no_run_has_is_said(page: Page) -> None:
    text = words(page.get("/?where=optimizer==adam&sort=val/los").text)
    assert "no run has 'adam'" in text
    assert "no run has 'val/los': the nearest name is val/loss" in text


def test_a_run_is_called_by_its_id_and_its_own_name_stands_below(tmp_path: Path) -> None:
    config = RunFolderConfig(parquet=False, upload=False)
    with RunFolderLogger(tmp_path / "folder", config=config, state=State(run_name="merry-otter")) as log:
        log.log_metrics({"loss": 1.0}, 0)
    with page_of(tmp_path) as page:
        for path in ("/", "/run?id=folder", "/compare?id=folder"):
            assert re.search(r">folder</(a|h1)>.*>merry-otter</span>", page.get(path).text, re.DOTALL)


def test_what_a_run_wrote_is_never_markup(tmp_path: Path) -> None:
    with log_of(tmp_path / "<b>run") as log:
        log.log_hyperparameters({HOSTILE: HOSTILE})
        log.log_metrics({f"loss/{HOSTILE}": 1.0}, 0)
        log.log_text(HOSTILE, HOSTILE, 0)
        log.log_table([HOSTILE], [[HOSTILE]], "t", 0)
    (tmp_path / "<b>run" / "logs-rank0.txt").write_text(f"\x1b]0;{HOSTILE}\x07{HOSTILE}\n")
    with page_of(tmp_path) as page:
        assert 200 == page.get("/").status
        for path in ("/", *(f"/run?id=%3Cb%3Erun&tab={tab}" for tab in ("charts", "media", "log")), f"/run?id={'%3Cb%3E'}no"):
            text = page.get(path).text
            assert ("<img src=x" in text, "<b>" in text, "5332114" in text) == (False, False, False)


def test_an_empty_folder_says_what_a_run_is(tmp_path: Path) -> None:
    with page_of(tmp_path) as page:
        assert "No run was found" in words(page.get("/").text)


def test_one_run_by_itself_is_a_table_of_one(tmp_path: Path) -> None:
    with page_of(make_runs(tmp_path) / "amber") as page:
        assert 1 == len(re.findall(r"<tr data-id=", page.get("/").text))


def test_the_charts_of_a_machine_are_behind_those_of_the_training(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"system/cpu/percent": 1.0, "loss": 1.0, "eval/loss": 1.0, "val/loss": 1.0, "train/loss": 1.0}, 0)
    with page_of(tmp_path) as page:
        keys = re.findall(r'data-key="([^"]+)"', page.get("/compare?id=run").text)
    assert ["train/loss", "val/loss", "eval/loss", "loss", "system/cpu/percent"] == keys


def test_hyperparameters_that_no_float_holds_and_odd_names_are_shown(tmp_path: Path) -> None:
    for name, value in (("a", 10**400), ("b", -(10**400)), ("c", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hparams.json").write_text(json.dumps({"n": value, "my rate": 1.0 if name == "c" else 2.0}))
    with page_of(tmp_path) as page:
        assert 'placeholder="key(&#39;my rate&#39;)&lt;=2"' in page.get("/").text
        for path in ("/?group=n", "/?columns=n&group=my+rate", "/compare?id=a&id=b&id=c"):
            assert 200 == page.get(path).status
