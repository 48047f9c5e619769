"""put, get, ls, cat, rm, as a script uses them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import CommandLine
from gate import Gate
from servers.buckets import bucket_of
from servers.features import tell_spool
from servers.real import S3Server
from support import file_of, spool_texts, without_waits
from wherry.backends.s3.store import S3Store
from wherry.checksum import crc32c, format_crc32c
from wherry.cli.arguments import refuse_new_folder
from wherry.uri import StoreURI


@pytest.mark.parametrize("target", ["./dest/model.pt", "file://{folder}/dest/model.pt", "./dest/"])
def test_put_uploads_a_file_and_names_it(line: CommandLine, target: str) -> None:
    source = file_of(line.folder / "model.pt", 100_000)
    out, err = line.run("put", "model.pt", target.format(folder=line.folder))
    done, summary = out.splitlines()
    assert f"done         97.7 KiB  file://{line.folder}/dest/model.pt" == done
    assert re.fullmatch(r"uploaded: 1 file, 97\.7 KiB in \d+\.\d s, \d+ retr(y|ies)", summary)
    assert "" == without_waits(err)
    assert source.read_bytes() == (line.folder / "dest/model.pt").read_bytes()


def test_put_appends_names_below_a_local_folder_that_exists(line: CommandLine) -> None:
    file_of(line.folder / "a", 10)
    file_of(line.folder / "logs/deep/b", 20)
    (line.folder / "dest").mkdir()
    line.run("put", "a", "logs/", "dest")
    assert {"a", "logs/deep/b"} == {
        str(path.relative_to(line.folder / "dest")) for path in (line.folder / "dest").rglob("*") if path.is_file()
    }


def test_put_says_in_json_what_was_uploaded(line: CommandLine) -> None:
    data = file_of(line.folder / "a", 1000).read_bytes()
    out, _ = line.run("put", "a", "./dest/a", "--json")
    expected = {
        "uri": f"file://{line.folder}/dest/a",
        "state": "done",
        "size_bytes": 1000,
        "crc32c": format_crc32c(crc32c(data)),
        "jobs": [1],
    }
    assert expected == json.loads(out)


def test_put_keeps_what_is_there_unless_told_to_overwrite(line: CommandLine) -> None:
    file_of(line.folder / "a", 10, seed=1)
    there = file_of(line.folder / "dest/a", 10, seed=2)
    before = there.read_bytes()
    assert "an object of this name already" in line.refuse("put", "a", "./dest/", expected=4)
    assert before == there.read_bytes()
    line.run("put", "a", "./dest/", "--overwrite")
    assert (line.folder / "a").read_bytes() == there.read_bytes()


def test_put_move_gives_the_file_away(line: CommandLine) -> None:
    file_of(line.folder / "a", 10)
    line.run("put", "--move", "a", "./dest/")
    assert not (line.folder / "a").exists()
    assert (line.folder / "dest/a").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("put", "a", "nowhere", "./dest/"), 3, "nowhere: No such file"),
        (("put", "a", "b", "./dest/c"), 2, "end it with '/'"),
        (("put", "a", "sub/a", "./dest/"), 2, "several sources are called a"),
        (("put", "a", "s3:/bucket/a"), 2, "write s3://bucket/a"),
        (("put", "a", "s3://"), 2, "names no bucket"),
        (("put", "a", "nonsense://x/a"), 2, "unknown scheme 'nonsense'"),
        (("put", "a", "s3://bucket/a", "-o", "zone=3"), 2, "unknown storage option zone"),
        (("put", "a", "s3://bucket/a", "-o", "region"), 2, "KEY=VALUE"),
        (("put", "a", "s3://bucket/a", "--options-file", "a"), 2, "no JSON"),
        (("put", "a", "s3://bucket/a", "--options-file", "none"), 3, "none: No such file"),
    ],
)
def test_put_refuses_before_anything_is_accepted(line: CommandLine, arguments: tuple[str, ...], code: int, text: str) -> None:
    for name in ("a", "b", "sub/a"):
        file_of(line.folder / name, 10)
    assert text in line.refuse(*arguments, expected=code)
    assert not (line.folder / "dest").exists()
    assert not line.spool.exists()


@pytest.mark.parametrize(
    "command",
    [
        *("put a my-bucket/run1/", "put here my-bucket/run1", "put - my-bucket/a", "put a my-bucket/ --dry-run"),
        *("put --max-bytes-per-s 1MiB a my-bucket/run1/", "cp a my-bucket/run1/", "cp -r here my-bucket/run1", "mv a my-bucket/"),
        *("sync here my-bucket/run1", "mirror here my-bucket/run1 -- true"),
    ],
)
def test_a_forgotten_scheme_makes_no_folder(line: CommandLine, command: str) -> None:
    for name in ("a", "here/b"):
        file_of(line.folder / name, 10)
    dest = next(word for word in command.split() if word.startswith("my-bucket"))
    message = line.refuse(*command.split(), expected=2)
    assert f"write s3://{dest} for a bucket, ./{dest} for a new folder" in message
    assert {"a", "here"} == {path.name for path in line.folder.iterdir()}


def test_a_local_destination_that_is_meant_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for dest in ("here/x/y", "here/", "./x/y", "../x/y", "x", f"{tmp_path}/x/y", "~/x", "file:///x/y", "s3://x/y"):
        refuse_new_folder(dest)


@pytest.mark.parametrize("command", ["cp - a", "cp a -", "mv a -", "sync - here", "put a -", "ls -", "rm -"])
def test_a_dash_is_no_file_where_nothing_is_piped(line: CommandLine, command: str) -> None:
    file_of(line.folder / "a", 10)
    assert "'-' is no place here: wherry put - URI reads standard input" in line.refuse(*command.split(), expected=2)
    assert ["a"] == [path.name for path in line.folder.iterdir()]


@pytest.mark.parametrize("verb", ["put {} ./new/", "put a {}/", "cp a {}/", "ls {}", "mirror here {} -- true", "rm {}/a"])
def test_a_path_that_is_no_utf_8_is_refused_by_name(line: CommandLine, verb: str) -> None:
    file_of(line.folder / "a", 10)
    folder = os.fsdecode(b"caf\xe9")
    (line.folder / folder).mkdir()
    file_of(line.folder / folder / "a", 10)
    assert "caf\\udce9" in line.refuse(*(word.replace("{}", folder) for word in verb.split()), expected=2)


@pytest.mark.parametrize("uri", ["s3://bucket/a", "gs://bucket/a", "sftp://host/a"])
@pytest.mark.parametrize("verb", [("put", "a"), ("ls",), ("doctor",)])
def test_secret_option_on_the_command_line_is_refused(line: CommandLine, verb: tuple[str, ...], uri: str) -> None:
    file_of(line.folder / "a", 10)
    name = {"s3": "aws_secret_access_key", "gs": "token", "sf": "password"}[uri[:2]]
    message = line.refuse(*verb, uri, "-o", f"{name}=hunter2hunter2", expected=2)
    assert name in message
    assert "--options-file" in message
    assert "hunter2" not in message


def test_secrets_come_from_a_file_or_stdin_and_are_written_nowhere(line: CommandLine, seaweedfs_server: S3Server) -> None:
    (line.folder / "a").write_text("text")
    options = json.dumps(seaweedfs_server.options)
    (line.folder / "options.json").write_text(options)
    tell_spool(line.spool, seaweedfs_server)
    uri = f"s3://{seaweedfs_server.bucket}/{line.folder.name}"
    line.run("put", "a", f"{uri}/", "--options-file", "options.json")
    out, _ = line.run("cat", f"{uri}/a", "--options-file", "-", stdin=options)
    assert "text" == out
    secret = seaweedfs_server.secret_key.encode()
    assert [] == [name for name, text in spool_texts(line.spool).items() if secret in text]


def test_no_wait_returns_while_the_upload_goes_on(gate: Gate, gated: CommandLine) -> None:
    file_of(gated.folder / "a", 10)
    out, _ = gated.run("put", "--no-wait", "a", "gated://x/a")
    assert out.endswith("gated://x/a\n")
    assert not (gate.dest / "a").exists()
    gate.open()
    gated.run("drain")
    assert (gate.dest / "a").exists()


def test_time_out_leaves_the_upload_to_the_background_and_says_so(gate: Gate, gated: CommandLine) -> None:
    file_of(gated.folder / "a", 10)
    message = gated.refuse("put", "--timeout", "0.1", "a", "gated://x/a", expected=6)
    assert f"wherry drain --spool {gated.spool}" in message
    assert "1 left" in gated.run("drain", "--timeout", "0.1", expected=6)[0]
    gate.open()
    gated.run("drain")
    assert (gate.dest / "a").exists()


def test_what_is_queued_is_read_and_listed_and_taken_back(gate: Gate, gated: CommandLine) -> None:
    data = "what is on its way\n"
    (gated.folder / "a").write_text(data)
    gated.run("put", "--no-wait", "a", "gated://x/wherry-test-a")
    assert data == gated.run("cat", "gated://x/wherry-test-a")[0]
    gated.run("get", "gated://x/wherry-test-a", "b")
    assert data == (gated.folder / "b").read_text()
    row, _ = gated.run("ls", "gated://x/wherry-test-a", "--json")[0].splitlines()
    assert json.loads(row)["state"] in ("queued", "uploading")
    assert gated.run("ls", "gated://x/wherry-test-a")[0].splitlines()[0].endswith(")")
    gate.open()


def test_get_writes_a_file_or_into_a_folder(line: CommandLine) -> None:
    data = file_of(line.folder / "dest/a", 1000).read_bytes()
    (line.folder / "there").mkdir()
    for target, path in (("b", "b"), ("there", "there/a"), ("new/", "new/a")):
        out, err = line.run("get", "dest/a", target)
        assert out.startswith("got: 1 file, 1000 B in ")
        assert "" == err
        assert data == (line.folder / path).read_bytes()


def test_get_keeps_what_is_there_unless_told_to_overwrite(line: CommandLine) -> None:
    file_of(line.folder / "dest/a", 10)
    (line.folder / "b").write_text("mine")
    assert "--overwrite" in line.refuse("get", "dest/a", "b", expected=4)
    assert "mine" == (line.folder / "b").read_text()
    line.run("get", "dest/a", "b", "--overwrite")
    assert (line.folder / "dest/a").read_bytes() == (line.folder / "b").read_bytes()


def test_reading_makes_no_spool_and_starts_no_agent(line: CommandLine) -> None:
    (line.folder / "dest").mkdir()
    (line.folder / "dest/a").write_text("text")
    line.run("ls", "dest/")
    line.run("get", "dest/a", "b")
    assert "text" == line.run("cat", "dest/a")[0]
    assert not line.spool.exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("get", "dest/a", "b"), 3),
        (("get", "dest/", "b"), 2),
        (("get", "dest/a", "-"), 3),
        (("get", "dest/a", "-", "--json"), 2),
        (("get", "dest/a", "-", "--dry-run"), 2),
        (("cat", "dest/a"), 3),
        (("ls", "dest/a"), 3),
    ],
)
def test_missing_objects_and_wrong_uris_are_told_apart(line: CommandLine, arguments: tuple[str, ...], code: int) -> None:
    line.refuse(*arguments, expected=code)
    assert [] == [path for path in line.folder.iterdir() if path != line.spool]


def test_cat_writes_the_very_bytes(line: CommandLine) -> None:
    (line.folder / "dest").mkdir()
    (line.folder / "dest/a").write_bytes(b"caf\xc3\xa9\r\nline\n")
    out, _ = line.run("cat", "dest/a")
    assert "café\nline\n" == out.replace("\r\n", "\n")


def test_names_of_others_do_not_command_the_terminal(line: CommandLine) -> None:
    """``\\x9b`` and ``\\x1b[`` begin commands of a terminal, and a line feed would feign an object."""
    file_of(line.folder / "dest" / "a\x1b[2J\x9bb\nc", 1)
    out, _ = line.run("ls", "dest/")
    row, total = out.split("\n")[:2]
    assert row.endswith("  'a\\x1b[2J\\x9bb\\nc'")
    assert "total: 1 object, 1 B" == total
    assert 2 == len(out.splitlines())
    assert "a\x1b[2J\x9bb\nc" == json.loads(line.run("ls", "dest/", "--json")[0].splitlines()[0])["name"]


@pytest.mark.parametrize("name", ["u\u0308", "a\n"])
def test_objects_of_others_are_read_and_deleted_by_their_very_names(line: CommandLine, name: str) -> None:
    """A name in another Unicode form than ours is another name: the object of the composed one, if there is one, stays."""
    file_of(line.folder / "dest/\u00fc", 10)
    for pattern in (name, f"{name[:1]}?"):
        (line.folder / "dest" / name).write_text("theirs")
        assert "theirs" == line.run("cat", f"dest/{pattern}")[0]
        line.run("get", f"dest/{name}", "got", "--overwrite")
        assert "theirs" == (line.folder / "got").read_text()
        assert line.run("rm", f"dest/{pattern}", "--yes")[0].startswith("deleted: 1 file, 6 B in ")
        assert {"\u00fc"} == {path.name for path in (line.folder / "dest").iterdir()}


@pytest.mark.parametrize("verb", [["rm"], ["rm", "--dry-run"], ["mv"]])
def test_no_verb_takes_away_an_object_whose_name_only_looks_like_the_one_that_was_typed(
    line: CommandLine, verb: list[str]
) -> None:
    file_of(line.folder / "dest/\u00fc", 10)
    rest = ["there"] if verb == ["mv"] else []
    said = line.refuse(*verb, "dest/u\u0308", *rest, expected=3)
    assert f"$'file://{line.folder}/dest/\\U000000fc'" in said
    assert (line.folder / "dest/\u00fc").exists()
    line.run("get", "dest/u\u0308", "got")
    line.run(*verb, "dest/\u00fc", *rest)
    assert "--dry-run" in verb or not (line.folder / "dest/\u00fc").exists()


@pytest.mark.parametrize("verb", [["ls"], ["du"], ["get", "-r"], ["cp", "-r"], ["sync"]])
def test_the_plain_name_of_a_bucket_gets_its_scheme(line: CommandLine, verb: list[str]) -> None:
    rest = [] if verb[0] in ("ls", "du") else ["there/"]
    assert "of a bucket it is s3://my-bucket/run1)" in line.refuse(*verb, "my-bucket/run1", *rest, expected=3)
    for name in ("./my-bucket", "s3", "/my-bucket/run1"):
        assert "of a bucket" not in line.refuse(*verb, name, *rest, expected=3)


def test_rm_deletes_one_object_and_refuses_prefixes(line: CommandLine) -> None:
    for name in ("run1/a", "run1/b", "run10/c"):
        file_of(line.folder / "dest" / name, 10)
    for prefix in ("dest/run1", "dest/run1/"):
        assert "-r" in line.refuse("rm", prefix, expected=2)
    assert line.run("rm", "dest/run1/a")[0].startswith("deleted: 1 file, 10 B in ")
    line.refuse("rm", "dest/run1/a", expected=3)
    assert {"b"} == {path.name for path in (line.folder / "dest/run1").iterdir()}


def test_rm_recursive_wants_a_yes_and_keeps_neighbours(line: CommandLine) -> None:
    for name in ("run1/a", "run1/deep/b", "run10/c"):
        file_of(line.folder / "dest" / name, 10)
    assert "--yes" in line.refuse("rm", "-r", "dest/run1", expected=2)
    assert line.run("rm", "-r", "--yes", "dest/run1")[0].startswith("deleted: 2 files, 20 B in ")
    assert {"c"} == {path.name for path in (line.folder / "dest").rglob("*") if path.is_file()}


@pytest.mark.parametrize("pattern", ["run1", "run1/", "run?", "run1/**"])
def test_rm_takes_the_markers_of_folders_too(line: CommandLine, seaweedfs_server: S3Server, pattern: str) -> None:
    """Consoles make empty objects whose name ends in a slash; nothing but one may be there."""
    uri, options = bucket_of(line, seaweedfs_server)
    folder = uri.removeprefix(f"s3://{seaweedfs_server.bucket}/")
    empty = file_of(line.folder / "empty", 0)
    with S3Store(StoreURI("s3", seaweedfs_server.bucket), seaweedfs_server.options) as store:
        for name in ("run1/", "run1/deep/", "run2.log"):
            store.put_file(f"{folder}/{name}", empty)
        line.run("rm", "-r", "--yes", f"s3://{seaweedfs_server.bucket}/{folder}/{pattern}", *options)
        assert [f"{folder}/run2.log"] == [meta.key for meta in store.list(f"{folder}/")]


@pytest.mark.parametrize("uri", ["/", "file:///", "s3://bucket", "s3://bucket/"])
def test_rm_never_deletes_a_whole_store(line: CommandLine, uri: str) -> None:
    assert "whole store" in line.refuse("rm", "-r", "--yes", uri, expected=2)


def test_exit_codes_tell_why_a_put_failed(line: CommandLine, seaweedfs_server: S3Server) -> None:
    file_of(line.folder / "a", 10)
    options = dict(seaweedfs_server.options)
    (line.folder / "good.json").write_text(json.dumps(options))
    (line.folder / "bad.json").write_text(json.dumps(options | {"aws_secret_access_key": "not-the-right-one"}))
    uri = f"s3://{seaweedfs_server.bucket}/{line.folder.name}/"
    assert "SignatureDoesNotMatch" in line.refuse("put", "a", uri, "--options-file", "bad.json", expected=5)
    assert "NoSuchBucket" in line.refuse("put", "a", "s3://no-such-bucket/", "--options-file", "good.json", expected=3)
    line.run("put", "a", uri, "--options-file", "good.json")
    assert "of this name already" in line.refuse("put", "a", uri, "--options-file", "good.json", expected=4)
    assert "SignatureDoesNotMatch" in line.refuse("ls", uri, "--options-file", "bad.json", expected=5)
    assert [] == [path.name for path in (line.spool / "objects").iterdir()], "the file is where it was"
    line.run("status", "--check")
    line.run("put", "--no-wait", "a", "s3://no-such-bucket/", "--options-file", "good.json")
    assert "NoSuchBucket" in line.run("drain", "--options-file", "good.json", expected=1)[1]
    line.run("status", "--check", expected=9)


#: A command with a mistake of ours in it.
MISTAKEN = r"""
from wherry.cli import app as cli, arguments
arguments.register_secret({"secret": "hunter2hunter2"})
@cli.app.command()
def mistaken():
    raise RuntimeError("hunter2hunter2 in \x1b[31m")
cli.main()
"""


def test_the_traceback_of_a_mistake_shows_no_secret_and_commands_no_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", MISTAKEN, "mistaken"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.endswith("RuntimeError: *** in \\x1b[31m\n")
    assert "Traceback" in done.stderr
    assert "hunter2hunter2 in" not in done.stderr
    assert 1 == done.returncode


def test_debug_shows_the_traceback_and_keeps_the_exit_code(line: CommandLine) -> None:
    out, err = line.run("--debug", "get", "dest/a", "b", expected=3)
    assert "" == out
    assert "Traceback (most recent call last)" in err
    assert "NotFoundError" in err
