"""ls: one level or all below, patterns, totals and buckets; in a folder, and in real S3 and GCS servers."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest

from command_line import CommandLine
from servers.features import tell_spool
from servers.filled import filled
from servers.gcs_server import strict_gcs
from servers.real import S3Server, Server
from support import file_of
from wherry.backends.gcs.store import GCSStore
from wherry.cli.store_verbs.selection import Stores
from wherry.config import TERMINAL_RETRY, RetryConfig
from wherry.spool.spool import Spool
from wherry.uri import StoreURI

#: Where a byte order and an order of folders differ: "a-b" comes before "a/".
NAMES = ("run1/a-b", "run1/a/c.pt", "run1/a/deep/d.pt", "run1/b.pt", "run1/log.txt", "run10/e.pt", "top.pt")

Place = tuple[str, tuple[str, ...]]


def options_of(server: Server) -> dict[str, object]:
    return server.options if isinstance(server, S3Server) else {"endpoint_url": server.url, "anonymous": True}


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, line: CommandLine) -> Place:
    """The URI of a store with NAMES, and the options that open it."""
    return filled(line, NAMES, request.getfixturevalue("seaweedfs_server") if request.param == "s3" else None)


def listed(line: CommandLine, *arguments: str) -> tuple[set[str], dict[str, int]]:
    """The names, and the summary."""
    *lines, last = line.run("ls", *arguments, "--json")[0].splitlines()
    summary: dict[str, int] = json.loads(last)["summary"]
    names = [json.loads(text)["name"] for text in lines]
    assert len(names) == len(set(names))
    return set(names), {name: count for name, count in summary.items() if count}


def test_one_level_or_all_below_by_uri_and_pattern(line: CommandLine, place: Place) -> None:
    uri, options = place
    below = {name.removeprefix("run1/") for name in NAMES if name.startswith("run1/")}
    cases: list[tuple[tuple[str, ...], set[str]]] = [
        ((f"{uri}/",), {"run1/", "run10/", "top.pt"}),
        ((f"{uri}/run1/",), {"a-b", "a/", "b.pt", "log.txt"}),
        ((f"{uri}/run1",), {"a-b", "a/", "b.pt", "log.txt"}),
        ((f"{uri}/run1/b.pt",), {"b.pt"}),
        (("-r", f"{uri}/run1"), below),
        (("-r", f"{uri}/"), set(NAMES)),
        ((f"{uri}/run*",), {"run1/", "run10/"}),
        ((f"{uri}/*.pt",), {"top.pt"}),
        ((f"{uri}/*/",), {"run1/", "run10/"}),
        ((f"{uri}/run*/*.pt",), {"run1/b.pt", "run10/e.pt"}),
        ((f"{uri}/*/a/*",), {"run1/a/c.pt", "run1/a/deep/"}),
        ((f"{uri}/**/[de].pt",), {"run1/a/deep/d.pt", "run10/e.pt"}),
        (("-r", f"{uri}/run1*"), {name for name in NAMES if name.startswith("run1")}),
        (("-r", f"{uri}/run1/", "--include", "*.pt", "--exclude", "/a/"), {"b.pt"}),
        ((f"{uri}/run1/", "--exclude", "a/"), {"a-b", "b.pt", "log.txt"}),
    ]
    for arguments, expected in cases:
        assert expected == listed(line, *arguments, *options)[0], arguments
    assert {"objects": 3, "folders": 1, "bytes": 1000 + 1003 + 1004} == listed(line, f"{uri}/run1", *options)[1]
    for missing in (f"{uri}/none/", f"{uri}/run", f"{uri}/*/none"):
        assert "there is n" in line.refuse("ls", missing, *options, expected=3)
    assert "--exclude" in line.refuse("ls", f"{uri}/run1", "--exclude", "*", *options, expected=3)


def test_rows_have_sizes_times_with_their_zone_and_names(line: CommandLine, place: Place) -> None:
    uri, options = place
    *rows, total = line.run("ls", f"{uri}/run1/", *options)[0].splitlines()
    assert "total: 3 objects, 2.9 KiB, 1 folder" == total
    assert ["a-b", "a/", "b.pt", "log.txt"] == [row.split()[-1] for row in rows]
    sizes = [re.split(r"\s{2,}", row.strip())[0] for row in rows]
    assert ["1000 B", "folder", "1003 B", "1004 B"] == sizes
    when = datetime.fromisoformat(re.split(r"\s{2,}", rows[0].strip())[1])
    assert when.tzinfo is not None
    plain = line.run("ls", "-b", f"{uri}/run1/b.pt", *options)[0].splitlines()
    assert ("1003", "total: 1 object, 1003 bytes") == (plain[0].split()[0], plain[1])


def test_several_uris_show_whole_names_and_one_total(line: CommandLine, place: Place) -> None:
    uri, options = place
    *rows, total = line.run("ls", f"{uri}/run1/b.pt", f"{uri}/run10/", *options)[0].splitlines()
    assert [True, True] == [row.split()[-1].endswith(end) for row, end in zip(rows, ("/run1/b.pt", "/run10/e.pt"), strict=True)]
    assert all("://" in row for row in rows)
    assert "total: 2 objects, 2.0 KiB" == total


def test_an_object_that_is_a_folder_too_is_shown_with_what_is_below(line: CommandLine) -> None:
    with strict_gcs(line.folder) as server, GCSStore(StoreURI("gs", server.bucket), server.options) as store:
        for name in ("exp/run", "exp/run/a", "exp/run/b/c", "exp/run-b"):
            store.put_file(name, file_of(line.folder / "a", 10))
        (line.folder / "options.json").write_text(json.dumps(server.options))
        uri, options = f"gs://{server.bucket}/exp/run", ("--options-file", "options.json")
        assert {"run", "a", "b/"} == listed(line, uri, *options)[0]
        assert {"a", "b/"} == listed(line, f"{uri}/", *options)[0]


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_buckets_are_listed(line: CommandLine, scheme: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue("seaweedfs_server" if scheme == "s3" else "fake_gcs_server")
    options = options_of(server) | ({"project": "some-project"} if scheme == "gs" else {})
    (line.folder / "options.json").write_text(json.dumps(options))
    out, _ = line.run("ls", f"{scheme}://", "--options-file", "options.json")
    assert f"{scheme}://{server.bucket}" in [row.split()[-1] for row in out.splitlines()]
    assert re.search(r"^total: \d+ buckets?$", out, re.MULTILINE)
    (line.folder / "wrong.json").write_text(json.dumps(options | {"aws_secret_access_key": "not-the-right-one"}))
    if scheme == "s3":
        assert "SignatureDoesNotMatch" in line.refuse("ls", "s3://", "--options-file", "wrong.json", expected=5)
    else:
        (line.folder / "wrong.json").write_text(json.dumps(options_of(server)))
        hidden = {"GOOGLE_CLOUD_PROJECT": ""}
        assert "project=" in line.refuse("ls", "gs://", "--options-file", "wrong.json", expected=2, env=hidden)


def test_what_has_no_buckets_says_so(line: CommandLine) -> None:
    assert "no buckets" in line.refuse("ls", "sftp://", expected=2)
    assert "unknown scheme" in line.refuse("ls", "nonsense://", expected=2)


def test_a_level_of_many_objects_comes_by_pages(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """More than a page of S3 has, objects and folders."""
    for n in range(1100):
        path = line.folder / "dest" / (f"{n:04}" if n % 2 else f"{n:04}/x")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    (line.folder / "options.json").write_text(json.dumps(seaweedfs_server.options))
    tell_spool(line.spool, seaweedfs_server)
    uri, options = f"s3://{seaweedfs_server.bucket}/{line.folder.name}-many", ("--options-file", "options.json")
    line.run("put", "dest", f"{uri}/", *options)
    names, summary = listed(line, f"{uri}/dest/", *options)
    assert {f"{n:04}" if n % 2 else f"{n:04}/" for n in range(1100)} == names
    assert {"objects": 550, "folders": 550} == summary
    assert {"objects": 1100} == listed(line, "-r", f"{uri}/dest", *options)[1]


def test_a_short_patience_is_not_that_of_the_uploads_of_a_store(tmp_path: Path) -> None:
    """The agent goes by the settings that are registered last, and `wherry ls` registers some."""
    spool = Spool(tmp_path / "spool").folder
    with Stores(None, None, spool, retry=TERMINAL_RETRY) as stores:
        reader = stores.open(StoreURI("file", "", str(tmp_path).strip("/")))
        (record,) = reader.journal.queries.stores().values()
        assert (TERMINAL_RETRY, asdict(RetryConfig())) == (reader.config.retry, record.settings["retry"])
