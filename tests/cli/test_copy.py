"""``wherry cp`` between folders and real servers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import CommandLine
from gate import wait_until
from servers.buckets import bucket_of, names_at
from servers.gcs_server import GCSServer, strict_gcs
from servers.proxy import fault_proxy
from servers.proxy_plan import Delay, Do, When
from servers.real import S3Server, fast_folder
from support import file_of
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c
from wherry.store import ObjectMeta, PutOptions
from wherry.uri import StoreURI

NAMES = ("run1/a.pt", "run1/b.pt", "run1/deep/c.pt", "run10/d.pt")
MIB = 2**20


@pytest.fixture(scope="module")
def gcs() -> Iterator[GCSServer]:
    with fast_folder() as folder, strict_gcs(folder) as server:
        yield server


def fill(folder: Path) -> None:
    for n, name in enumerate(NAMES):
        file_of(folder / name, 1000 + n, seed=n)


def test_cp_goes_both_ways_and_between_prefixes(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    fill(line.folder / "here")
    line.run("cp", "-r", "here/", f"{uri}/one/", *options)
    assert {name: 1000 + n for n, name in enumerate(NAMES)} == names_at(line, f"{uri}/one", *options)
    line.run("cp", "-r", f"{uri}/one/run1", f"{uri}/two", *options)
    assert {"a.pt", "b.pt", "deep/c.pt"} == set(names_at(line, f"{uri}/two", *options))
    line.run("cp", f"{uri}/one/**/*.pt", f"{uri}/three/", "--exclude", "b.pt", *options)
    assert {"run1/a.pt", "run1/deep/c.pt", "run10/d.pt"} == set(names_at(line, f"{uri}/three", *options))
    out, _ = line.run("cp", "-r", f"{uri}/three/", "back", "--json", *options)
    assert {"files": 3, "bytes": 3005, "failed": 0} == {
        name: json.loads(out.splitlines()[-1])["summary"][name] for name in ("files", "bytes", "failed")
    }
    for name in ("run1/a.pt", "run1/deep/c.pt", "run10/d.pt"):
        assert (line.folder / "here" / name).read_bytes() == (line.folder / "back" / name).read_bytes()
    line.run("cp", "-r", "here/run1", "here/run10", "./copied/")
    assert (line.folder / "copied/run1/deep/c.pt").read_bytes() == (line.folder / "here/run1/deep/c.pt").read_bytes()


def test_no_bytes_move_inside_one_server(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """Small and large; every request and answer goes through a proxy, which counts."""
    size = 24 * MIB
    with fault_proxy("127.0.0.1", seaweedfs_server.port) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        file_of(line.folder / "here/large", size, seed=1)
        file_of(line.folder / "here/small", 1000, seed=2)
        line.run("cp", "-r", "here/", f"{uri}/from/", *options)
        before, sent = len(proxy.log), proxy.request_bytes()
        assert sent > size
        line.run("cp", "-r", f"{uri}/from/", f"{uri}/to/", *options)
        assert {"large": size, "small": 1000} == names_at(line, f"{uri}/to", *options)
        moved = sum(one.request_bytes + one.answer_bytes for one in proxy.log[before:])
        assert moved < 40_000
        assert not [one for one in proxy.log[before:] if one.method == "GET" and "/from/" in one.target]
        line.run("get", f"{uri}/to/large", "back", *options)
    assert (line.folder / "back").read_bytes() == (line.folder / "here/large").read_bytes()


def test_what_is_too_large_for_one_copy_goes_in_parts(seaweedfs_server: S3Server, tmp_path: Path) -> None:
    """As beyond 5 GiB, with other sizes; to another bucket, with metadata and media type."""
    seaweedfs_server.make_bucket("another")
    data = os.urandom(11 * MIB + 7)
    path = tmp_path / "source"
    path.write_bytes(data)
    prefix = f"parts-{os.getpid()}"
    with (
        S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store,
        S3Store(StoreURI("s3", "another"), seaweedfs_server.options) as other,
    ):
        store.put_file(f"{prefix}/a b%", path, PutOptions(crc32c=crc32c(data), metadata={"kept": "yes"}, content_type="text/x-y"))
        source = store.head(f"{prefix}/a b%")
        other._copier.at_once_bytes, other._copier.part_bytes = 6 * MIB, 5 * MIB
        for _ in range(2):
            made = other.copy(f"{prefix}/copied", source, store._bucket)
            found = other.head(f"{prefix}/copied")
            assert (len(data), len(data), made.etag) == (made.size_bytes, found.size_bytes, found.etag)
            assert ("yes", "text/x-y") == (found.metadata["kept"], found.content_type)
        (tmp_path / "got").touch()
        other.get_file(f"{prefix}/copied", tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == data
        assert [] == list(other.list_uploads(prefix))


def test_between_two_servers_the_bytes_are_verified_and_what_belongs_to_them_goes_along(
    line: CommandLine, seaweedfs_server: S3Server, gcs: GCSServer
) -> None:
    s3, s3_options = bucket_of(line, seaweedfs_server)
    gs, gs_options = bucket_of(line, gcs)
    there = (*gs_options, "--source-options-file", s3_options[1])
    back = (*s3_options, "--source-options-file", gs_options[1])
    files = {"large": file_of(line.folder / "large", 20 * MIB + 3, seed=3), "small": file_of(line.folder / "small", 10, seed=4)}
    key = s3.partition("//")[2].partition("/")[2]
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        for name, path in files.items():
            put = PutOptions(crc32c=crc32c(path.read_bytes()), metadata={"kept": "yes"}, content_type="text/x-y")
            store.put_file(f"{key}/{name}", path, put)
    line.run("cp", "-r", f"{s3}/", f"{gs}/there/", *there)
    line.run("cp", "-r", f"{gs}/there/", f"{s3}/again/", *back)
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        for name, path in files.items():
            found: ObjectMeta = store.head(f"{key}/again/{name}")
            assert (path.stat().st_size, "yes", "text/x-y") == (found.size_bytes, found.metadata["kept"], found.content_type)
            assert crc32c(path.read_bytes()) == found.crc32c


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("here/run1/a.pt", "here/run1/a.pt", "--overwrite"), 2, "would become itself"),
        (("-r", "here/", "here", "--overwrite"), 2, "would become itself"),
        (("-r", "here", "here/run1/again"), 2, "inside of the source"),
        (("-r", "here/run1", "here/run1"), 2, "inside of the source"),  # which becomes here/run1/run1
        (("-r", "here/run1", "here/again", "here/run1/"), 2, "inside of the source"),
        (("here/run1/a.pt", "here/run1/b.pt", "one"), 2, "end it with '/'"),
        (("here/run1/a.pt", "here/again/a.pt", "./there/"), 2, "would both become"),
        (("here/run1", "./there/"), 2, "give -r"),
        (("here/*.none", "./there/"), 3, "no object is of this pattern"),
        (("here/none", "./there/"), 3, "none"),
        (("here/run1/a.pt", "here/run1/b.pt"), 4, "exists"),
        (("-r", "here/run1/", "here/taken/"), 4, "exists already"),
        (("here/run1/a.pt", "ftp2://x/y"), 2, "unknown scheme"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_moves(
    line: CommandLine, arguments: tuple[str, ...], code: int, text: str
) -> None:
    fill(line.folder / "here")
    for name in ("again/a.pt", "taken/b.pt"):
        file_of(line.folder / "here" / name, 10, seed=9)
    before = {path: path.read_bytes() for path in line.folder.rglob("*") if path.is_file()}
    assert text in line.refuse("cp", *arguments, expected=code)
    assert before == {path: path.read_bytes() for path in line.folder.rglob("*") if path.is_file()}


def test_an_object_that_is_named_twice_is_copied_once(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    file_of(line.folder / "here/a.pt", 10, seed=1)
    line.run("cp", "here/*.pt", "here/a.pt", f"{uri}/", *options)
    for verb in ("get", "cp", "mv"):
        out, _ = line.run(verb, f"{uri}/*.pt", f"{uri}/a.pt", f"{verb}/", *options)
        assert ": 1 file, 10 B " in out


def test_a_name_that_is_taken_in_a_store_is_kept(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    fill(line.folder / "here")
    line.run("cp", "here/run1/a.pt", f"{uri}/a.pt", *options)
    line.run("cp", "here/run1/b.pt", f"{uri}/c.pt", *options)
    line.run("cp", f"{uri}/c.pt", f"{uri}/b.pt", *options)
    line.run("cp", "here/run1/a.pt", f"{uri}/in/a.pt", *options)
    for source in ("here/run10/d.pt", f"{uri}/c.pt"):
        assert "already" in line.refuse("cp", source, f"{uri}/a.pt", *options, expected=4)
        assert "nothing was copied" in line.refuse("cp", source, "here/run1/a.pt", f"{uri}/in/", *options, expected=4)
    assert {"a.pt": 1000, "b.pt": 1001, "c.pt": 1001, "in/a.pt": 1000} == names_at(line, uri, *options)
    out, _ = line.run("cp", "--dry-run", f"{uri}/b.pt", f"{uri}/a.pt", "--overwrite", *options)
    assert out.startswith("would be copied")
    line.run("cp", f"{uri}/b.pt", f"{uri}/a.pt", "--overwrite", *options)
    assert {"a.pt": 1001, "b.pt": 1001, "c.pt": 1001, "in/a.pt": 1000} == names_at(line, uri, *options)


def test_a_killed_or_interrupted_copy_shows_nothing_that_is_not_whole(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """The server's answers to the parts do not come; then the same command does it all."""
    size = 20 * MIB
    file_of(line.folder / "large", size, seed=7)
    uri, options = bucket_of(line, seaweedfs_server)
    line.run("cp", "large", f"{uri}/large", *options)
    (line.folder / "quick.json").write_text(json.dumps(seaweedfs_server.options))
    for number in (signal.SIGINT, signal.SIGKILL):
        dest = f"{uri}/{number.name}"
        with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("PUT", "partNumber=2", Delay(600))]) as proxy:
            bucket_of(line, seaweedfs_server, proxy.url)
            started = line.start("cp", f"{uri}/large", dest, *options, "--source-options-file", "quick.json")
            wait_until(lambda proxy=proxy: any(proxy.fired))  # type: ignore[misc]  # mypy infers no lambda with a default
            started.send_signal(number)
            _, said = started.communicate(timeout=60)
            assert (130 if number == signal.SIGINT else -number) == started.returncode, said
        bucket_of(line, seaweedfs_server)
        assert {"large": size} == names_at(line, uri, *options)
        line.run("cp", f"{uri}/large", dest, *options)
        line.run("rm", dest, *options)


def test_a_file_that_changes_while_it_is_copied_is_copied_again_or_named(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """Once: the newer bytes are there. Always: an error, and nothing of it under the name."""
    path = file_of(line.folder / "changing", 300_000, seed=1)
    for times, code in ((1, 0), (9, 7)):

        def change() -> None:
            path.write_bytes(os.urandom(300_000))

        with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("PUT", "changing", Do(change), times=times)]) as proxy:
            uri, options = bucket_of(line, seaweedfs_server, proxy.url)
            _, err = line.run("cp", "changing", f"{uri}/{times}/changing", *options, expected=code)
        uri, options = bucket_of(line, seaweedfs_server)
        if code:
            assert "changes again and again" in err
            line.refuse("get", f"{uri}/{times}/changing", "got", *options, expected=3)
        else:
            line.run("get", f"{uri}/{times}/changing", "got", *options)
            assert (line.folder / "got").read_bytes() == path.read_bytes()
            (line.folder / "got").unlink()
