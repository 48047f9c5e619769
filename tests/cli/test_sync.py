"""``wherry sync`` between folders and real servers: what it copies, what it leaves, what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import CommandLine, Terminal
from servers.buckets import bucket_of, names_at
from servers.gcs_server import GCSServer, strict_gcs
from servers.proxy import fault_proxy
from servers.real import S3Server, fast_folder
from support import file_of
from wherry.cli.copy_verbs.two_listings import Entry, UnorderedError, pairs

#: A server that keeps its objects in folders lists a/b before a-b.
NAMES = ("a/b", "a-b", "a.b", "deep/er/c d%+é", "z")


@pytest.fixture(scope="module")
def gcs() -> Iterator[GCSServer]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        yield server


def fill(folder: Path) -> None:
    for n, name in enumerate(NAMES):
        age(file_of(folder / name, 1000 + n, seed=n))


def age(path: Path, by_s: float = 100.0) -> None:
    """Make a file older than anything that is copied from now on."""
    status = path.stat()
    os.utime(path, (status.st_atime - by_s, status.st_mtime - by_s))


def planned(out: str) -> dict[str, int]:
    """What a plan says in JSON: how many files each."""
    plan = json.loads(out.splitlines()[0])["plan"]
    return {what: plan[what]["files"] for what in ("new", "replace", "delete", "unchanged")}


def counts(new: int = 0, replace: int = 0, delete: int = 0, unchanged: int = 0) -> dict[str, int]:
    return {"new": new, "replace": replace, "delete": delete, "unchanged": unchanged}


def synced(line: CommandLine, *arguments: str, expected: int = 0) -> dict[str, int]:
    return planned(line.run("sync", *arguments, "--json", expected=expected)[0])


def test_sync_goes_both_ways_and_does_nothing_the_second_time(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    fill(line.folder / "here")
    everything = {name: 1000 + n for n, name in enumerate(NAMES)}
    for source, dest in (("here", f"{uri}/one"), (f"{uri}/one", f"{uri}/two/"), (f"{uri}/two", "back")):
        assert counts(new=5) == synced(line, source, dest, *options)
        assert counts(unchanged=5) == synced(line, source, dest, *options)
        if not dest.startswith("s3:"):  # a service says itself when an object was written
            assert counts(unchanged=5) == synced(line, dest, source, *options), "a file has the time of its source"
    assert everything == names_at(line, f"{uri}/two", *options)
    for dest, found in (("there", counts(new=5)), ("there", counts(unchanged=5))):
        assert found == synced(line, "back", dest)
    assert counts(unchanged=5) == synced(line, "there", "back")
    for name in NAMES:
        assert (line.folder / "here" / name).read_bytes() == (line.folder / "there" / name).read_bytes()


def test_what_changed_is_copied_and_what_is_extra_is_kept_until_it_is_to_be_deleted(
    line: CommandLine, seaweedfs_server: S3Server
) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    fill(line.folder / "here")
    synced(line, "here", uri, *options)
    file_of(line.folder / "here/a/b", 999, seed=7)  # another size
    newer = file_of(line.folder / "here/a-b", 1001, seed=8)
    age(newer, by_s=-100)
    (line.folder / "here/z").unlink()
    file_of(line.folder / "here/new", 3, seed=9)
    assert counts(new=1, replace=2, unchanged=2) == synced(line, "here", uri, *options)
    assert "z" in names_at(line, uri, *options)
    assert "Give --yes" in line.run("sync", "here", uri, "--delete", *options, expected=2)[1]
    out, _ = line.run("sync", "here", uri, "--delete", "--dry-run", *options)
    assert "1 file (1004 B) to delete" in out
    assert "would be deleted" in out and "z" in names_at(line, uri, *options)
    age(newer, by_s=200)
    out, _ = line.run("sync", "here", uri, "--delete", "--yes", *options)
    assert out.splitlines()[-1].startswith("copied: 0 files, 0 B, 1 deleted in ")
    expected = {"a/b": 999, "a-b": 1001, "a.b": 1002, "deep/er/c d%+é": 1003, "new": 3}
    assert expected == names_at(line, uri, *options)
    line.run("sync", uri, "back", *options)
    assert newer.read_bytes() == (line.folder / "back/a-b").read_bytes()


def test_rules_hold_for_both_sides(line: CommandLine) -> None:
    """What --exclude leaves out is neither copied nor deleted."""
    fill(line.folder / "here")
    file_of(line.folder / "there/old.tmp", 3, seed=1)
    file_of(line.folder / "there/old", 3, seed=1)
    file_of(line.folder / "here/new.tmp", 3, seed=1)
    assert counts(new=5, delete=1) == synced(line, "here", "there", "--exclude", "*.tmp", "--delete", "--yes")
    assert {*NAMES, "old.tmp"} == set(names_at(line, "there"))


def test_between_two_servers_equal_checksums_make_it_unchanged(
    line: CommandLine, seaweedfs_server: S3Server, gcs: GCSServer
) -> None:
    s3, s3_options = bucket_of(line, seaweedfs_server)
    gs, gs_options = bucket_of(line, gcs)
    there = (*gs_options, "--source-options-file", s3_options[1])
    fill(line.folder / "here")
    synced(line, "here", s3, *s3_options)
    assert counts(new=5) == synced(line, s3, f"{gs}/one", *there)
    assert counts(unchanged=5) == synced(line, s3, f"{gs}/one", *there)
    assert counts(new=5) == synced(line, f"{gs}/one", f"{gs}/two", *gs_options)
    line.run("cp", "-r", f"{gs}/two/", f"{gs}/one/", "--overwrite", *gs_options)  # later, and the same bytes
    assert counts(unchanged=5) == synced(line, f"{gs}/one", f"{gs}/two", *gs_options)


def test_checksums_find_what_times_hide_and_say_what_they_read(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    fill(line.folder / "here")
    synced(line, "here", uri, *options)
    path = line.folder / "here/z"
    before = path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert counts(unchanged=5) == synced(line, "here", uri, *options)
    out, _ = line.run("sync", "here", uri, "--checksum", "--dry-run", "--json", *options)
    assert counts(replace=1, unchanged=4) == planned(out)
    assert sum(1000 + n for n in range(5)) == json.loads(out.splitlines()[0])["plan"]["read_bytes"], "the local files only"
    assert counts(replace=1, unchanged=4) == synced(line, "here", uri, "--checksum", *options)
    age(path, by_s=-1000)  # newer, and yet the same
    assert counts(unchanged=5) == synced(line, "here", uri, "--checksum", *options)
    assert counts(replace=1, unchanged=4) == synced(line, "here", uri, *options)


def test_a_file_of_the_same_second_as_its_copy_is_not_copied_again(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """The server says whole seconds or less; where that leaves it open, the bytes are compared."""
    uri, options = bucket_of(line, seaweedfs_server)
    path = file_of(line.folder / "here/a", 10, seed=1)
    synced(line, "here", uri, *options)
    stored_s = json.loads(line.run("ls", f"{uri}/", "--json", *options)[0].splitlines()[0])["modified_s"]
    os.utime(path, (stored_s + 0.4, int(stored_s) + 0.999))
    assert counts(unchanged=1) == synced(line, "here", uri, *options)


def test_a_first_sync_of_a_folder_that_has_them_all_costs_one_listing(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    for n in range(4):
        age(file_of(line.folder / f"here/f{n}", 10, seed=n))
    synced(line, "here", uri, *options)
    with fault_proxy("127.0.0.1", seaweedfs_server.port) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        assert counts(unchanged=4) == synced(line, "here", uri, *options)
        assert ["GET"] == [one.method for one in proxy.log]


def test_it_asks_before_it_deletes(line: CommandLine) -> None:
    fill(line.folder / "here")
    file_of(line.folder / "there/extra", 5, seed=1)
    for answer, is_there in (("n\r", True), ("y\r", False)):
        terminal = Terminal(line, "sync", "here", "there", "--delete")
        terminal.read_until(r"plan: .*1 file \(5 B\) to delete")
        terminal.read_until(r"Delete 1 file \(5 B\) that only there has\?")
        assert is_there or (line.folder / "there/extra").exists()
        terminal.type(answer)
        assert (1 if is_there else 0) == terminal.end(), terminal.seen
        assert is_there == (line.folder / "there/extra").exists()
        assert is_there != (line.folder / "there/z").exists(), "nothing was copied before the answer"


def test_quiet_says_nothing_and_verbose_names_each(line: CommandLine) -> None:
    fill(line.folder / "here")
    assert ("", "") == line.run("sync", "here", "one", "-q")
    out, _ = line.run("sync", "here", "two", "-v")
    assert 5 == len([text for text in out.splitlines() if text.startswith("copied  ")])


def test_listings_are_merged_by_name_and_disorder_is_found() -> None:
    def entries(*names: str) -> list[Entry]:
        return [Entry(name, 1, 1.0) for name in names]

    found = [
        (one.name if one else None, other.name if other else None)
        for one, other in pairs(entries("a", "a-b", "a/b", "é"), entries("a-b", "b", "é", "\U0001f600"))
    ]
    expected = [("a", None), ("a-b", "a-b"), ("a/b", None), (None, "b"), ("é", "é"), (None, "\U0001f600")]
    assert expected == found
    for names in (("b", "a"), ("a", "a")):
        with pytest.raises(UnorderedError):
            list(pairs(entries("a"), entries(*names)))
