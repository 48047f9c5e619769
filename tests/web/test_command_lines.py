"""A view of the page as a command line: what is copied there is what `wherry plot` and `wherry report` understand."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings, strategies as st
from starlette.datastructures import QueryParams

from command_line import CommandLine
from servers.web_page import log_of, make_runs, page_of
from wherry.cli.arguments import storage_options
from wherry.errors import ConfigError
from wherry.runs import Runs
from wherry.web.drawing.chosen_runs import choose, matching
from wherry.web.drawing.command_lines import command_of


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("commands") / "runs")


@pytest.mark.parametrize(
    ("query", "plot", "report"),
    [
        ("id=amber", "--runs=amber {} '*'", "--runs=amber {}"),
        (
            "id=amber&id=cedar&id=birch&hide=[%22cedar%22]&keys=loss&x=time&log=1&clip=1",
            "--runs=amber --runs=birch --x=wall --log --clip {} '*loss*'",
            "--runs=amber --runs=birch '--keys=*loss*' --x=wall --log --clip {}",
        ),
        (
            "id=birch&pin=[%22val/loss%22]&keys=epoch&smooth=25&low=50&high=150.5&logx=1&base=birch",
            "--runs=birch --smooth=25 --log-x --from=50 --to=150.5 {} val/loss '*epoch*'",
            "--runs=birch --keys=val/loss '--keys=*epoch*' --baseline=birch --smooth=25 --log-x --from=50 --to=150.5 {}",
        ),
        (
            "id=amber&id=birch&group=optimizer&x=relative",
            "--runs=amber --runs=birch --x=relative --group=optimizer {} '*'",
            "--runs=amber --runs=birch --x=relative --group=optimizer {}",
        ),
        ("id=amber&low=-5", "--runs=amber --from=-5 {} '*'", "--runs=amber --from=-5 {}"),
    ],
)
def test_what_is_copied_is_what_the_commands_understand(
    three: Path, line: CommandLine, query: str, plot: str, report: str
) -> None:
    with page_of(three) as page:
        copied = {verb: page.get(f"/data/command?{query}&verb={verb}").json["command"] for verb in ("plot", "report")}
    assert f"wherry plot {plot.format(three)}" == copied["plot"]
    assert f"wherry report {report.format(three)}" == copied["report"]
    out, err = line.run(*shlex.split(copied["plot"])[1:])
    assert "complete to step 299" in out
    assert "" == err
    out, _ = line.run(*shlex.split(copied["report"])[1:])
    assert "KiB, " in out


def test_the_server_that_the_page_reads_from_is_in_it_and_no_secret() -> None:
    query = QueryParams("id=a")
    text = command_of(
        "plot", ["s3://b/runs", "s3://b/more"], {"endpoint_url": "http://h:1", "verify": False, "region": "7"}, query
    )
    words = shlex.split(text)
    assert ["--also=s3://b/more", "--runs=a"] == words[2:4]
    pairs = [word.partition("=")[2] for word in words if word.startswith("--option=")]
    assert {"endpoint_url": "http://h:1", "verify": False, "region": "7"} == storage_options("s3", pairs, None)


def test_a_secret_option_is_not_copied(tmp_path: Path) -> None:
    options = {"endpoint_url": "http://127.0.0.1:1", "aws_access_key_id": "AKsecret", "aws_secret_access_key": "moresecret"}
    with page_of("s3://bucket/runs", options=options) as page:
        copied = page.get("/data/command?id=run&verb=plot").json["command"]
    assert "--option=endpoint_url=http://127.0.0.1:1" in copied
    assert "secret" not in copied


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=12), st.lists(st.text(max_size=12), max_size=5))
def test_no_name_is_taken_for_more_than_a_name(name: str, others: list[str]) -> None:
    query = QueryParams(urlencode([("id", name)], errors="surrogatepass"))
    text = command_of("plot", ["runs"], {}, query)
    assert text.isprintable()
    verb, *words = shlex.split(text)[1:]
    assert ("plot", ["runs", "*"]) == (verb, words[-2:])
    (option,) = words[:-2]
    assert option.startswith("--runs=")
    assert name in matching([*others, name], [option.removeprefix("--runs=")], "run")


def test_a_filter_of_the_page_passes_the_same_metrics(tmp_path: Path) -> None:
    keys = ["a*b", "aXb", "A*B/c", "[x]", "system/a*b"]
    with log_of(tmp_path / "run") as log:
        log.log_metrics(dict.fromkeys(keys, 1.0), 0)
    with page_of(tmp_path) as page:
        shown = page.get("/run?id=run&keys=a*b").text
        copied = page.get("/data/command?id=run&keys=a*b&verb=plot").json["command"]
    with Runs(tmp_path) as reader:
        chosen = choose(reader, [], [shlex.split(copied)[-1]])
    assert ["A*B/c", "a*b"] == list(chosen.keys)
    assert [key for key in keys if f'data-key="{key}"' in shown] == ["a*b", "A*B/c"]


@pytest.mark.parametrize(
    ("query", "said"), [("id=a&verb=rm", "verb='rm'"), ("verb=plot", "names no run"), ("id=a&verb=plot&hide=x", "no list")]
)
def test_a_view_that_is_none_is_refused(query: str, said: str) -> None:
    items = QueryParams(query)
    with pytest.raises(ConfigError, match=said):
        command_of(items.get("verb", ""), ["runs"], {}, items)
