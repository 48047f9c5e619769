"""get, cat and rm of several objects: patterns, prefixes, rules; in a folder and in a real S3 server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from command_line import CommandLine
from servers.filled import filled
from servers.real import S3Server
from support import file_of
from wherry.backends.s3.store import S3Store
from wherry.uri import StoreURI

NAMES = ("run1/a.pt", "run1/b.pt", "run1/deep/c.pt", "run1/log.txt", "run10/d.pt")


@pytest.fixture(params=["folder", "s3"])
def runs(request: pytest.FixtureRequest, line: CommandLine) -> tuple[str, tuple[str, ...]]:
    """The URI of a store with NAMES, and the options that open it."""
    return filled(line, NAMES, request.getfixturevalue("seaweedfs_server") if request.param == "s3" else None)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def summary(out: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(out.splitlines()[-1])["summary"]
    return {name: value for name, value in found.items() if name not in ("seconds", "retries")}


def test_get_takes_patterns_prefixes_rules_and_several_uris(line: CommandLine, runs: tuple[str, tuple[str, ...]]) -> None:
    uri, options = runs
    cases: list[tuple[tuple[str, ...], str, set[str]]] = [
        ((f"{uri}/run1/*.pt",), "one/", {"a.pt", "b.pt"}),
        ((f"{uri}/run*/[ad].pt",), "two/", {"run1/a.pt", "run10/d.pt"}),
        ((f"{uri}/**/*.pt",), "three/", {name for name in NAMES if name.endswith(".pt")}),
        (("-r", f"{uri}/run1/"), "four/", {"a.pt", "b.pt", "deep/c.pt", "log.txt"}),
        (("-r", f"{uri}/run1"), "five/", {name for name in NAMES if name.startswith("run1/")}),
        (("-r", f"{uri}/run1"), "six", {"a.pt", "b.pt", "deep/c.pt", "log.txt"}),
        (("-r", f"{uri}/run1/", "--include", "*.pt", "--exclude", "/deep/"), "seven", {"a.pt", "b.pt"}),
        ((f"{uri}/run1/a.pt", f"{uri}/run10/d.pt"), "eight/", {"a.pt", "d.pt"}),
        (("-r", f"{uri}/run1*"), "nine/", set(NAMES)),
    ]
    for arguments, dest, expected in cases:
        line.run("get", *arguments, dest, *options)
        assert expected == files(line.folder / dest), arguments
    assert (line.folder / "dest/run1/deep/c.pt").read_bytes() == (line.folder / "five/run1/deep/c.pt").read_bytes()


def test_json_has_a_line_for_each_object_and_a_summary(line: CommandLine, runs: tuple[str, tuple[str, ...]]) -> None:
    uri, options = runs
    out, _ = line.run("get", f"{uri}/run1/*.pt", "there/", "--json", *options)
    assert [
        {"uri": f"{uri_of(uri)}/run1/a.pt", "to": "there/a.pt", "size_bytes": 1000, "state": "got"},
        {"uri": f"{uri_of(uri)}/run1/b.pt", "to": "there/b.pt", "size_bytes": 1001, "state": "got"},
    ] == [json.loads(text) for text in out.splitlines()[:-1]]
    assert {"files": 2, "bytes": 2001, "failed": 0, "dry_run": False} == summary(out)


def uri_of(uri: str) -> str:
    return f"file://{uri}" if uri.startswith("/") else uri


def test_cat_writes_one_after_another(line: CommandLine) -> None:
    for name in ("b", "a"):
        (line.folder / "dest").mkdir(exist_ok=True)
        (line.folder / "dest" / name).write_text(f"{name}\n")
    assert "b\na\n" == line.run("cat", "dest/b", "dest/a")[0]
    assert "a\nb\n" == line.run("cat", "dest/*")[0]


def test_rm_takes_patterns_and_asks_before(line: CommandLine, runs: tuple[str, tuple[str, ...]]) -> None:
    uri, options = runs
    assert "--yes" in line.refuse("rm", f"{uri}/run1/*.pt", *options, expected=2)
    left = json.loads(line.run("ls", f"{uri}/run1/", "--json", *options)[0].splitlines()[0])["name"]
    assert "a.pt" == left
    out, _ = line.run("rm", "-y", f"{uri}/run1/*.pt", f"{uri}/run10/d.pt", "--exclude", "b.pt", "--json", *options)
    assert {"files": 2, "bytes": 2004, "failed": 0, "dry_run": False} == summary(out)
    names = [json.loads(text)["name"] for text in line.run("ls", "-r", f"{uri}/", "--json", *options)[0].splitlines()[:-1]]
    assert ["run1/b.pt", "run1/deep/c.pt", "run1/log.txt"] == names


@pytest.mark.parametrize("verb", [("get", "--overwrite"), ("rm",)])
def test_dry_run_changes_nothing_and_says_what_would_be(
    line: CommandLine, verb: tuple[str, ...], runs: tuple[str, tuple[str, ...]]
) -> None:
    uri, options = runs
    dest = ("there/",) if verb[0] == "get" else ()
    before = line.run("ls", "-r", f"{uri}/", "--json", *options)[0]
    out, _ = line.run(*verb, "-r", "--dry-run", f"{uri}/run1", *dest, *options)
    assert 5 == len(out.splitlines())
    assert out.startswith("would be ")
    assert "4 files, 3.9 KiB" in out.splitlines()[-1]
    out, _ = line.run(*verb, "--dry-run", f"{uri}/run1/a.pt", *dest, *options)
    assert "1 file, 1000 B" in out.splitlines()[-1]
    line.refuse(*verb, "--dry-run", f"{uri}/run1/none", *dest, *options, expected=3)
    assert before == line.run("ls", "-r", f"{uri}/", "--json", *options)[0]
    assert not (line.folder / "there").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("get", "dest/run1/*.none", "."), 3, "no object is of this pattern"),
        (("get", "dest/none*/a", "."), 3, "written [*]"),
        (("cat", "dest/run1/*.none"), 3, "no object is of this pattern"),
        (("rm", "-y", "dest/run1/*.none"), 3, "no object is of this pattern"),
        (("get", "-r", "dest/none", "."), 3, "no object is here or below"),
        (("get", "-r", "dest/run1", ".", "--include", "*.none"), 3, "--include and --exclude"),
        (("get", "-r", "dest/run1", ".", "--include-from", "none"), 3, "none: No such file"),
        (("get", "-r", "dest/run1", ".", "--include", "!"), 2, "gitignore"),
        (("get", "dest/run1/*/", "."), 2, "give -r"),
        (("get", "dest/run1", "."), 2, "give -r"),
        (("get", "dest/run1/a.pt", "dest/run1/b.pt", "one"), 2, "end it with '/'"),
        (("get", "dest/run1/a.pt", "dest/copy/a.pt", "there/"), 2, "would both become there/a.pt"),
        (("get", "s3://buck*/a", "."), 2, "name one"),
        (("get", "dest/run1/*", "dest/run1"), 4, "exists already"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_moves(
    line: CommandLine, arguments: tuple[str, ...], code: int, text: str
) -> None:
    for n, name in enumerate((*NAMES, "copy/a.pt")):
        file_of(line.folder / "dest" / name, 10, seed=n)
    before = files(line.folder)
    assert text in line.refuse(*arguments, expected=code)
    assert before == files(line.folder)


def test_an_object_that_fails_does_not_keep_the_others(line: CommandLine) -> None:
    for name in ("a", "b", "c"):
        file_of(line.folder / "dest" / name, 10)
    (line.folder / "there/b").mkdir(parents=True)
    out, err = line.run("get", "dest/*", "there/", "--overwrite", "--json", expected=1)
    assert "b: is a folder" in err
    assert {"files": 2, "bytes": 20, "failed": 1, "dry_run": False} == summary(out)
    assert {"a", "c"} == files(line.folder / "there")


def test_names_of_others_that_no_file_may_have_are_refused(line: CommandLine, seaweedfs_server: S3Server) -> None:
    prefix = f"{line.folder.name}-{os.getpid()}-hostile"
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        for name in ("a", "b\x1b[2J"):
            store.put_file(f"{prefix}/{name}", file_of(line.folder / "a", 10))
    (line.folder / "options.json").write_text(json.dumps(seaweedfs_server.options))
    uri = f"s3://{seaweedfs_server.bucket}/{prefix}/"
    assert "a control character" in line.refuse("get", "-r", uri, "there/", "--options-file", "options.json", expected=2)
    assert not (line.folder / "there").exists()
