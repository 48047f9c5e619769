"""``wherry mv``: what is deleted, and what never is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from command_line import CommandLine
from servers.buckets import bucket_of, names_at
from servers.proxy import fault_proxy
from servers.proxy_plan import Do, When, s3_error
from servers.real import S3Server
from support import file_of
from wherry.cli.arguments import parse_target
from wherry.cli.copy_verbs.sides import open_sides
from wherry.cli.copy_verbs.transfers import Place, Transfers
from wherry.cli.store_verbs.selection import Source
from wherry.errors import IntegrityError


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_mv_goes_both_ways_and_inside_a_store(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    for n, name in enumerate(("a.pt", "deep/b.pt", "old.tmp")):
        file_of(line.folder / "here" / name, 1000 + n, seed=n)
    data = (line.folder / "here/deep/b.pt").read_bytes()
    assert "would be moved" in line.run("mv", "-r", "here/", f"{uri}/one/", "-n", *options)[0]
    assert 3 == len(names_in(line.folder / "here"))
    line.run("mv", "-r", "here/", f"{uri}/one/", "--exclude", "*.tmp", *options)
    assert {"old.tmp"} == names_in(line.folder / "here")
    out, _ = line.run("mv", "-r", f"{uri}/one/", f"{uri}/two/", "--json", *options)
    assert ["moved", "moved"] == [json.loads(text)["state"] for text in out.splitlines()[:-1]]
    assert {"two/a.pt": 1000, "two/deep/b.pt": 1001} == names_at(line, uri, *options)
    line.run("mv", f"{uri}/two/**/*.pt", "back/", *options)
    line.refuse("ls", "-r", f"{uri}/", *options, expected=3)
    assert {"a.pt", "deep/b.pt"} == names_in(line.folder / "back")
    line.run("mv", "back/deep/b.pt", "new.pt")
    assert data == (line.folder / "new.pt").read_bytes()
    assert {"a.pt"} == names_in(line.folder / "back")


def test_nothing_is_deleted_of_what_was_not_copied(line: CommandLine, seaweedfs_server: S3Server) -> None:
    for n in range(3):
        file_of(line.folder / f"here/f{n}", 10, seed=n)
    plan = [When("PUT", "/f1", s3_error(403, "AccessDenied"), times=99)]
    with fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        line.run("mv", "-r", "here/", f"{uri}/", *options, expected=5)
    uri, options = bucket_of(line, seaweedfs_server)
    assert {"f1"} == names_in(line.folder / "here")
    assert {"f0": 10, "f2": 10} == names_at(line, uri, *options)
    file_of(line.folder / "here/f0", 20, seed=5)
    assert "nothing was copied" in line.refuse("mv", "-r", "here/", f"{uri}/", *options, expected=4)
    assert {"f0", "f1"} == names_in(line.folder / "here")


def test_an_object_that_changed_meanwhile_stays(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """After it was read, and before it is deleted: at the second look at it."""
    uri, options = bucket_of(line, seaweedfs_server)
    file_of(line.folder / "a", 10, seed=1)
    file_of(line.folder / "newer", 10, seed=2)
    line.run("cp", "a", f"{uri}/a", *options)
    (line.folder / "direct.json").write_text(json.dumps(seaweedfs_server.options))

    def change() -> None:
        line.run("cp", "newer", f"{uri}/a", "--overwrite", "--options-file", "direct.json")

    with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("HEAD", "/a$", Do(change), nth=2)]) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        assert "it changed after it was copied: it stays" in line.refuse("mv", f"{uri}/a", "got", *options, expected=7)
        assert [1] == proxy.fired, "the change came at that moment"
    uri, options = bucket_of(line, seaweedfs_server)
    assert {"a": 10} == names_at(line, uri, *options)
    assert (line.folder / "a").read_bytes() == (line.folder / "got").read_bytes()


def test_a_file_that_changed_meanwhile_stays(tmp_path: Path) -> None:
    path = file_of(tmp_path / "here/a", 10, seed=1)
    places = [str(tmp_path / "here"), str(tmp_path / "there")]
    with open_sides(places, None, None, None, None, tmp_path / "spool") as sides, Transfers(sides) as transfers:
        here, there = (sides.sources.open(parse_target(place)) for place in places)
        source = Source(here, "a", "a", 10)
        made = transfers.copy(source, Place(there, "a"), overwrite=False)
        os.replace(file_of(tmp_path / "newer", 10, seed=2), path)
        with pytest.raises(IntegrityError, match="it changed after it was copied"):
            transfers.delete_source(source, made)
        assert path.exists()
        transfers.delete_source(source, transfers.copy(source, Place(there, "a"), overwrite=True))
        assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("here/a", "here/a"), "would become itself"),
        (("here/a", "link/a"), "would become itself"),
        (("-r", "here/", "link/"), "would become itself"),
        (("-r", "here", "here/again/"), "inside of the source"),
        (("-r", "here/", "link/again/"), "inside of the source"),
        (("-r", "here", "here/"), "inside of the source"),
        (("-r", "here", "link"), "inside of the source"),
        (("here", "./there/"), "give -r"),
    ],
)
def test_a_move_onto_itself_is_refused(line: CommandLine, arguments: tuple[str, ...], text: str) -> None:
    path = file_of(line.folder / "here/a", 10, seed=1)
    before = path.read_bytes()
    (line.folder / "link").symlink_to("here")
    assert text in line.refuse("mv", *arguments, "--overwrite", expected=2)
    assert before == path.read_bytes()


def test_a_move_onto_itself_by_another_address_is_refused(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """By what the address leads to; and where that does not show it, as behind a proxy, nothing is deleted."""
    uri, options = bucket_of(line, seaweedfs_server)
    file_of(line.folder / "a", 10, seed=1)
    line.run("cp", "a", f"{uri}/a", *options)
    other = {**seaweedfs_server.options, "endpoint_url": f"http://localhost:{seaweedfs_server.port}"}
    (line.folder / "other.json").write_text(json.dumps(other))
    theirs = (*options, "--source-options-file", "other.json", "--overwrite")
    assert "would become itself" in line.refuse("mv", f"{uri}/a", f"{uri}/a", *theirs, expected=2)
    for into in ("/x/", "/"):
        assert "inside of the source" in line.refuse("mv", "-r", f"{uri}", f"{uri}{into}", *theirs, expected=2)
    with fault_proxy("127.0.0.1", seaweedfs_server.port) as proxy:
        (line.folder / "other.json").write_text(json.dumps({**seaweedfs_server.options, "endpoint_url": proxy.url}))
        assert "it changed after it was copied" in line.refuse("mv", f"{uri}/a", f"{uri}/a", *theirs, expected=7)
    assert {"a": 10} == names_at(line, uri, *options)


def test_what_is_queued_is_not_moved(gated: CommandLine) -> None:
    file_of(gated.folder / "a", 10, seed=1)
    gated.run("put", "--no-wait", "a", "gated://x/a")
    assert "still queued" in gated.refuse("mv", "gated://x/a", "b", expected=4)
    assert not (gated.folder / "b").exists()


def test_an_object_is_not_lost_to_a_file_that_changes(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """What the name had before stays until a whole version of the file is there."""
    uri, options = bucket_of(line, seaweedfs_server)
    path = file_of(line.folder / "here/changing", 300_000, seed=1)
    line.run("sync", "here", uri, *options)
    before = path.read_bytes()

    def change() -> None:
        path.write_bytes(os.urandom(300_000))

    path.write_bytes(os.urandom(300_001))
    with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("PUT", "changing", Do(change), times=9)]) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        assert "changes again" in line.run("sync", "here", uri, *options, expected=7)[1]
        assert not [one for one in proxy.log if one.method == "DELETE"]
    uri, options = bucket_of(line, seaweedfs_server)
    line.run("get", f"{uri}/changing", "got", *options)
    assert (line.folder / "got").stat().st_size in (len(before), 300_000, 300_001)
