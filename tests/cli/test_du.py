"""du: sums by folders, in a folder and in a real S3 server; uploads in parts that nobody completed."""

from __future__ import annotations

import json
import os

import pytest

from command_line import CommandLine
from servers.features import tell_spool
from servers.real import S3Server
from support import file_of
from wherry.backends.s3.store import S3Store
from wherry.uri import StoreURI

SIZES = {"run1/a": 100, "run1/logs/b": 2000, "run1/logs/deep/c": 30, "run2/d": 4000, "top": 5}


def fill(line: CommandLine) -> str:
    for name, size_bytes in SIZES.items():
        file_of(line.folder / "dest" / name, size_bytes)
    return str(line.folder / "dest")


def rows(line: CommandLine, *arguments: str) -> list[tuple[str, int, int]]:
    *lines, _ = line.run("du", *arguments, "--json")[0].splitlines()
    return [(found["name"], found["size_bytes"], found["objects"]) for found in map(json.loads, lines)]


def test_du_sums_folders_down_to_a_depth_and_sorts_them(line: CommandLine) -> None:
    uri = fill(line)
    assert [("run2/", 4000, 1), ("run1/", 2130, 3)] == rows(line, uri)
    deep = [("run2/", 4000, 1), ("run1/", 2130, 3), ("run1/logs/", 2030, 2)]
    assert deep == rows(line, uri, "--depth", "2")
    assert [(uri, 6135, 5)] == rows(line, uri, "-s")
    both = [(f"{uri}/run2", 4000, 1), (f"{uri}/run1", 2130, 3)]
    assert both == rows(line, f"{uri}/run1", f"{uri}/run2")
    assert [("run2/", 4000, 1), ("run1/", 2130, 3)] == rows(line, f"{uri}/run*")
    assert [("run1/", 100, 1)] == rows(line, uri, "--include", "a")
    line.refuse("du", f"{uri}/none", expected=3)


def test_du_shows_a_table_and_a_total(line: CommandLine) -> None:
    uri = fill(line)
    out, err = line.run("du", uri)
    assert ["3.9 KiB          1  run2/", "2.1 KiB          3  run1/"] == [row.strip() for row in out.splitlines()[:2]]
    assert ("total: 5 objects, 6.0 KiB", "") == (out.splitlines()[-1], err)
    assert "total: 5 objects, 6135 bytes" == line.run("du", "-b", uri)[0].splitlines()[-1]
    file_of(line.folder / "hostile/a\x1b[2J\nb/c", 1)
    assert "'a\\x1b[2J\\nb/'" in line.run("du", "hostile")[0]


@pytest.mark.parametrize("has_one", [False, True])
def test_du_names_uploads_that_nobody_completed(line: CommandLine, seaweedfs_server: S3Server, has_one: bool) -> None:
    (line.folder / "options.json").write_text(json.dumps(seaweedfs_server.options))
    tell_spool(line.spool, seaweedfs_server)
    name = f"{line.folder.name}-{os.getpid()}-{has_one}"
    uri, options = f"s3://{seaweedfs_server.bucket}/{name}", ("--options-file", "options.json")
    line.run("put", fill(line), f"{uri}/", *options)
    if has_one:
        with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
            store.begin(f"{name}/dest/big", 100 * 2**20)
    assert [("run2/", 4000, 1), ("run1/", 2130, 3)] == rows(line, f"{uri}/dest", *options)
    *_, last = line.run("du", f"{uri}/dest", *options)[0].splitlines()
    assert has_one == last.startswith("not counted: 1 incomplete upload in parts, the oldest begun 20")
    summary = json.loads(line.run("du", uri, "--json", *options)[0].splitlines()[-1])["summary"]
    assert {"objects": 5, "bytes": 6135, "incomplete_uploads": int(has_one)} == summary
