"""``wherry report``: one file that loads nothing, holds what was asked for, and cannot be broken out of."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from servers.real import S3Server
from servers.web_page import log_of, make_runs, page_of
from wherry.web import uplot
from wherry.web.report.scripts import allowed

HOSTILE = "</script><script>alert(1)</script><!--\"'&\u2028\x1b"


class Read(HTMLParser):
    """The elements of a file, the texts of scripts and styles, and all other text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._inside = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.text += " " * (tag in ("td", "th", "span", "p"))
        self._inside = tag if tag in self.raw else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside].append(data)
        else:
            self.text += data

    @property
    def data(self) -> Any:
        return json.loads(self.raw["script"][0])

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_runs(tmp_path_factory.mktemp("reported") / "runs")
    with open(folder / "amber/logs-rank0.txt", "a") as log:
        log.write("[alert][ERROR]: loss <b>explodes</b>\n")
    return folder


def test_the_numbers_are_there_without_scripts(three: Path, line: CommandLine) -> None:
    out, _ = line.run("report", three, "--log", "--smooth", "20")
    read = Read(line.folder / "report.html")
    assert "report.html: " in out
    assert "KiB, 3 runs, 3 metrics" in out
    for words in (
        "3 metrics over step, at most 1,000 points a curve, the least and the greatest of each part among them",
        "smoothed with a half-life of 20 steps",
        "all 897 points · 2 NaN · 1 +inf · 1 restart · 100 overwritten by a restart, pale",
        "ERROR amber, rank 0: loss <b>explodes</b>",
        "model.depth",
        "complete to step 299",
    ):
        assert words in read.words
    assert re.search(r"train/loss birch 1\.02541 at 299 1\.02541 at 299 2\.02288 at 0 300 ", read.words)


def test_the_charts_have_the_points_that_were_logged(three: Path, line: CommandLine) -> None:
    line.run(
        "report",
        three,
        "--keys",
        "*/loss",
        "--runs",
        "amber",
        "--runs",
        "cedar",
        "--x",
        "wall",
        "-o",
        "two.html",
        "--baseline",
        "amber",
    )
    data = Read(line.folder / "two.html").data
    assert ({"x": "time", "low": None, "high": None, "base": "amber"}, 2) == (data["view"], len(data["charts"]))
    amber, cedar = data["charts"][0]["runs"]
    assert ("train/loss", "amber", 300, 297) == (
        data["charts"][0]["key"],
        amber["id"],
        len(amber["lines"][0]["y"]),
        len(cedar["lines"][0]["y"]),
    )
    lines = [json.loads(one) for one in (three / "amber/metrics.jsonl").read_text().splitlines()]
    assert [pytest.approx(one["train/loss"], rel=1e-6) for one in lines] == amber["lines"][0]["y"]
    assert [pytest.approx(one["t"], abs=1e-3) for one in lines] == amber["lines"][0]["x"]


def test_a_dash_is_standard_output(three: Path, line: CommandLine) -> None:
    out, err = line.run("report", three, "-o", "-")
    assert (True, True, "") == (out.startswith("<!doctype html>"), out.rstrip().endswith("</html>"), err)
    assert "leave them out" in line.refuse("report", three, "-o", "-", "--json", expected=2)
    assert "s3://my-bucket/x/" in line.refuse("report", three, "-o", "my-bucket/x/", expected=2)
    assert [] == list(line.folder.iterdir())


def test_it_may_run_its_own_script_and_ask_nobody(three: Path, line: CommandLine) -> None:
    line.run("report", three)
    read = Read(line.folder / "report.html")
    policy = next(attributes["content"] for tag, attributes in read.elements if tag == "meta" and "http-equiv" in attributes)
    assert policy is not None
    (style,) = read.raw["style"]
    code = read.raw["script"][1:]
    assert [allowed(one) in policy for one in (*code, style)] == [True] * (len(code) + 1)
    assert policy.startswith("default-src 'none'; script-src ")
    assert uplot.is_there() == bool(code)
    assert uplot.is_there() == ("make ui-assets" not in read.text)
    if code:
        assert "Permission is hereby granted, free of charge" in code[0]
        assert not re.search(r"^\s*(import|export)\b", code[0], re.MULTILINE)
    links = [value for _, attributes in read.elements for name, value in attributes.items() if name in ("src", "href", "action")]
    assert {"#main", "data:,"} == set(links)
    assert not [attributes for _, attributes in read.elements if any(name.startswith(("on", "style")) for name in attributes)]


def test_nothing_breaks_out_of_it(tmp_path: Path, line: CommandLine) -> None:
    name = "r" + HOSTILE.replace("/", "")
    with log_of(tmp_path / "runs" / name) as log:
        log.log_hyperparameters({HOSTILE: HOSTILE})
        for step in range(3):
            log.log_metrics({HOSTILE: float(step), "\ud800": 1.0}, step)
    with log_of(tmp_path / "runs/other") as log:
        log.log_hyperparameters({HOSTILE: 2})
        log.log_metrics({HOSTILE: math.nan}, 0)
    (tmp_path / "runs/other/logs-rank0.txt").write_text(f"[alert][WARN]: {HOSTILE}\n")
    line.run("report", tmp_path / "runs")
    read = Read(tmp_path / "report.html")
    assert HOSTILE.replace("\x1b", "\\x1b") in read.text
    assert len(read.raw["script"]) == (2 if uplot.is_there() else 1)
    assert HOSTILE in [chart["key"] for chart in read.data["charts"]]
    assert "alert(1)" not in "".join(read.raw["script"][1:])


def test_the_environment_is_there_and_changes_of_code_on_request(tmp_path: Path, line: CommandLine) -> None:
    with log_of(tmp_path / "run") as log:
        log.log_metrics({"loss": 1.0}, 0)
    git = {"commit": "abc123", "branch": "work", "is_dirty": True, "diff": "+secret <b>idea</b>", "diff_is_cut": False}
    document = {
        "t": 5.0,
        "command": "python train.py",
        "git": git,
        "packages": {"torch": "2.2", "x": ["y"]},
        "host": {"n_cpus": 8},
    }
    (tmp_path / "run/environment.json").write_text(json.dumps(document))
    line.run("report", tmp_path / "run")
    words = Read(tmp_path / "report.html").words
    for said in (
        "python train.py",
        "abc123 work with changes",
        "processors 8",
        "2 packages",
        "19 characters of changes are not in here",
    ):
        assert said in words
    assert "idea" not in words
    line.run("report", tmp_path / "run", "--diff", "--overwrite")
    assert "+secret <b>idea</b>" in Read(tmp_path / "report.html").words
    with page_of(tmp_path) as page:
        assert "abc123 work with changes" in page.get("/run?id=run").text
    out, _ = line.run("runs", tmp_path / "run", "--json", "--environment")
    assert ("abc123", True) == (json.loads(out)["environment"]["commit"], json.loads(out)["environment"]["is_dirty"])
    (tmp_path / "run/environment.json").write_text(
        '{"git": [], "host": 7, "packages": "no", "scheduler": {"<b>": {}}, "command": {}}'
    )
    line.run("report", tmp_path / "run", "--overwrite")
    assert "--environment is for --json" in line.refuse("runs", tmp_path, "--environment", expected=2)


def test_a_long_history_makes_a_small_file_that_says_so(tmp_path: Path, line: CommandLine) -> None:
    with log_of(tmp_path / "run") as log:
        for step in range(20_000):
            log.log_metrics({"loss": 50.0 if step == 12_345 else 1 / (step + 1)}, step)
    line.run("report", tmp_path / "run")
    assert (tmp_path / "report.html").stat().st_size < 400_000
    read = Read(tmp_path / "report.html")
    assert "1,000 of 20,000, spikes kept" in read.words
    assert 50.0 in read.data["charts"][0]["runs"][0]["lines"][0]["y"]


def test_a_name_that_is_taken_is_refused(three: Path, line: CommandLine) -> None:
    (line.folder / "report.html").write_text("mine")
    assert "exists already: give --overwrite" in line.refuse("report", three, expected=4)
    assert "mine" == (line.folder / "report.html").read_text()
    line.run("report", three, "--overwrite", "--runs", "amber")
    assert "<!doctype html>" in (line.folder / "report.html").read_text()
    assert "no run is called 'x'" in line.refuse("report", three, "--runs", "x", "-o", "x.html", expected=3)
    assert "no metric is called 'x'" in line.refuse("report", three, "--keys", "x", "-o", "x.html", expected=3)
    assert not (line.folder / "x.html").exists()


def test_it_is_put_into_the_bucket_beside_the_run(three: Path, line: CommandLine, seaweedfs_server: S3Server) -> None:
    options = line.folder / "options.json"
    options.write_text(json.dumps(seaweedfs_server.options))
    uri = f"s3://{seaweedfs_server.bucket}/{line.folder.name}"
    line.run("put", three / "amber", f"{uri}/runs/", "--options-file", options)
    out, _ = line.run("report", f"{uri}/runs/amber", "-o", f"{uri}/runs/amber/", "--options-file", options)
    assert f"{uri}/runs/amber/report.html" in out
    line.run("get", f"{uri}/runs/amber/report.html", "back.html", "--options-file", options)
    assert "1 run" in out or "train/loss" in Read(line.folder / "back.html").text
    again = line.refuse("report", f"{uri}/runs/amber", "-o", f"{uri}/runs/amber/", "--options-file", options, expected=4)
    assert "give --overwrite" in again
    line.run("report", f"{uri}/runs/amber", "-o", f"{uri}/runs/amber/", "--overwrite", "--options-file", options)
