"""What every verb takes: --dry-run where something changes, --json; the exceptions, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

from command_line import CommandLine
from servers.web_page import make_runs
from support import file_of
from wherry.cli.app import app

#: These change nothing, neither in a store nor in a folder of the user's.
LOOKING = {
    *("ls", "du", "cat", "status", "runs", "plot", "ui"),
    *("mirror status", "mirror verify", "checkpoints list", "checkpoints latest"),
}
WITHOUT_DRY_RUN = {
    "agent": "a service: it does what others have queued, and `wherry drain --dry-run` says what that is",
    "demo": "it removes what it makes; showing it is all that it does",
    "checkpoints verify": "it notes when bytes were verified, and to verify them is the whole of its work",
}
WITHOUT_JSON = {
    "cat": "it writes the bytes of objects and nothing else",
    "agent": "it writes nothing to standard output; what it does is in `wherry status --json`",
    "demo": "a story for people; its exit code says whether every byte was right",
}


def _verbs(group: Any, above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in group.commands:
        one = group.get_command(None, name)
        found |= _verbs(one, f"{above}{name} ") if hasattr(one, "commands") else {f"{above}{name}": one}
    return found


VERBS = _verbs(typer.main.get_command(app))


def has(name: str, option: str) -> bool:
    return any(option in one.opts for one in VERBS[name].params)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", sorted(VERBS))
def test_what_changes_something_has_a_dry_run(name: str) -> None:
    assert has(name, "--dry-run") != (name in LOOKING or name in WITHOUT_DRY_RUN)


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_verb_has_json(name: str) -> None:
    assert has(name, "--json") != (name in WITHOUT_JSON)


def test_exceptions_are_of_verbs_that_there_are() -> None:
    assert set() == {*LOOKING, *WITHOUT_DRY_RUN, *WITHOUT_JSON} - set(VERBS)


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        ("mirror run bucket", {"mirrored"}),
        ("mirror run bucket -- touch started", {"mirrored"}),
        ("mirror resume run bucket", {"mirrored"}),
        ("pull stored copy", {"pulled"}),
        ("report runs --out report.html", {"written"}),
    ],
)
def test_a_dry_run_names_what_it_would_do_and_does_nothing(line: CommandLine, verb: str, expected: set[str]) -> None:
    file_of(line.folder / "run/a.log", 1000)
    file_of(line.folder / "run/b.pt", 2000)
    line.run("mirror", "resume", "run", "stored", "--writer", "w")
    make_runs(line.folder / "runs")
    given = verb.split()
    at = given.index("--") if "--" in given else len(given)
    before = {path: data for path, data in tree(line.folder).items() if not path.startswith("spool/")}
    dry = [*given[:at], "--dry-run", *given[at:]]
    text, _ = line.run(*dry)
    out, _ = line.run(*dry[:at], "--json", *dry[at:])
    plans = {one["plan"] for one in map(json.loads, out.splitlines())}
    assert before == {path: data for path, data in tree(line.folder).items() if not path.startswith("spool/")}
    assert expected == plans
    assert all(row.startswith("would be ") for row in text.splitlines())


def test_drain_says_what_is_still_to_be_uploaded(gated: CommandLine) -> None:
    file_of(gated.folder / "a", 1000)
    gated.run("put", "--no-wait", "a", "gated://x/a")
    assert "would be uploaded      1000 B  job 1  gated://x/a\n" == gated.run("drain", "--dry-run")[0]
    status = json.loads(gated.run("status", "--json")[0])
    assert 1 == status["queued"] + status["uploading"]


def test_a_dry_run_of_the_spring_cleaning_removes_nothing(line: CommandLine) -> None:
    assert "--dry-run goes with --clean" in line.refuse("doctor", "--dry-run", expected=2)
    file_of(line.folder / "objects/a", 1000)
    line.run("get", "objects/a", "back")  # the spool is not made by reading
    line.run("put", "objects/a", "./stored/")
    out, _ = line.run("doctor", "--clean", "--dry-run", "--json")
    assert json.loads(out)["healthy"]


def test_plot_gives_programs_its_points(line: CommandLine) -> None:
    make_runs(line.folder / "runs")
    (data,) = map(json.loads, line.run("plot", "runs", "train/loss", "--json", "--width", 50)[0].splitlines())
    assert "train/loss" == data["key"]
    assert ["amber", "birch", "cedar"] == [run["id"] for run in data["runs"]]
    assert len(data["runs"][0]["lines"][0]["x"]) == len(data["runs"][0]["lines"][0]["y"])
    assert "leave --follow out" in line.refuse("plot", "runs", "train/loss", "--json", "--follow", expected=2)
