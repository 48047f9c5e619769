"""``wherry sync`` of what cannot be meant, and of what changes, is refused or is interrupted meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import CommandLine
from gate import wait_until
from servers.buckets import bucket_of, names_at
from servers.proxy import fault_proxy
from servers.proxy_plan import Answer, Delay, Do, When, s3_error
from servers.real import S3Server
from support import file_of, let_others_in, own_mounts, run_script
from wherry.cli.copy_verbs.in_the_way import refusals
from wherry.uri import TEMPORARY_MARK, StoreURI

MIB = 2**20


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("here", "here"), 2, "the same place"),
        (("here/", "./here"), 2, "the same place"),
        (("here", "link"), 2, "the same place"),
        (("link/run1", "here/run1"), 2, "the same place"),
        (("here", "file://{folder}/here"), 2, "the same place"),
        (("here", "here/again"), 2, "the destination is inside of the source"),
        (("here", "link/again"), 2, "the destination is inside of the source"),
        (("here/run1", "here"), 2, "the source is inside of the destination"),
        (("/", "here"), 2, "the destination is inside of the source"),
        (("none", "there"), 3, "no object or folder is here or below"),
        (("none/run*", "there"), 3, "SRC is no pattern"),
        (("here/run1/a.pt", "there"), 2, "is a file, and sync takes a folder"),
        (("here", "taken/a.pt"), 2, "is a file, and sync fills a folder"),
        (("here", "there", "--include", "*.none"), 3, "nothing is taken by --include and --exclude"),
        (("here", "there", "--exclude-from", "none"), 3, "none: No such file"),
        (("here", "there", "--include-from", "taken/a.pt"), 2, "is no UTF-8"),
        (("here", "there", "--include-from", "taken"), 1, "taken: Is a directory"),
        (("empty", "taken", "--delete", "--yes"), 2, "would delete all that taken has, 1 file"),
        (("none", "taken", "--delete", "--yes"), 3, "no object or folder is here or below"),
        (("here", "ftp2://x/y"), 2, "unknown scheme"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_moves(
    line: CommandLine, arguments: tuple[str, ...], code: int, text: str
) -> None:
    file_of(line.folder / "here/run1/a.pt", 1000, seed=1)
    file_of(line.folder / "taken/a.pt", 10, seed=2).write_bytes(b"\xff\n")
    (line.folder / "empty").mkdir()
    (line.folder / "link").symlink_to("here")
    before = tree(line.folder)
    assert text in line.refuse("sync", *(each.format(folder=line.folder) for each in arguments), expected=code)
    assert before == tree(line.folder)


def test_one_place_of_a_server_is_known_by_any_spelling(line: CommandLine, seaweedfs_server: S3Server) -> None:
    uri, options = bucket_of(line, seaweedfs_server)
    file_of(line.folder / "here/a/b", 10, seed=1)
    line.run("sync", "here", uri, *options)
    assert "the same place" in line.refuse("sync", uri, f"{uri}/", *options, expected=2)
    assert "inside of the source" in line.refuse("sync", uri, f"S3://{uri[5:]}/a", *options, expected=2)
    other = {**seaweedfs_server.options, "endpoint_url": f"http://LOCALHOST:{seaweedfs_server.port}/"}
    (line.folder / "other.json").write_text(json.dumps(other))
    theirs = (*options, "--source-options-file", "other.json")
    assert "the same place" in line.refuse("sync", uri, uri, *theirs, expected=2)
    assert "source is inside" in line.refuse("sync", f"{uri}/a", uri, "--delete", "--yes", *theirs, expected=2)
    assert "is an object" in line.refuse("sync", f"{uri}/a/b", "there", *options, expected=2)
    assert "is an object" in line.refuse("sync", "here", f"{uri}/a/b", *options, expected=2)
    assert "no object or folder" in line.refuse("sync", f"{uri}/none", "there", *options, expected=3)
    assert "would delete" not in line.refuse("sync", f"{uri}/none", "here", "--delete", "--yes", *options, expected=3)
    assert {"a/b": 10} == names_at(line, uri, *options)


def test_names_that_no_file_can_have_are_named_and_the_rest_goes_on(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """Nothing leaves the destination, and nothing is deleted then. The server cannot have such keys: its listing is made up."""
    uri, options = bucket_of(line, seaweedfs_server)
    key = uri.partition("//")[2].partition("/")[2]
    bad = ("a//b", "up/../../x", "/absolute", "./here", "c\x07", "file", "file/below")
    rest = "<Size>3</Size><ETag>&quot;e&quot;</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    keys = [f"{key}/{name}".replace(chr(7), "&#7;") for name in bad]
    rows = "".join(f"<Contents><Key>{each}</Key>{rest}</Contents>" for each in keys)
    page = f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>'
    line.run("put", "--wait", str(file_of(line.folder / "file", 3, seed=1)), f"{uri}/file", *options)
    file_of(line.folder / "there/in/extra", 3, seed=1)
    with fault_proxy(
        "127.0.0.1", seaweedfs_server.port, [When("GET", "list-type", Answer(200, page.encode()), times=9)]
    ) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        out, err = line.run("sync", uri, "there/in", "--delete", "--yes", *options, expected=2)
    assert {"in/extra", "in/file"} == set(tree(line.folder / "there")), (out, err)
    for words in (
        "'a//b' has an empty part",
        "'up/../../x' has the part '..'",
        "starts with '/'",
        "'./here'",
        "control character",
    ):
        assert words in err
    assert "file is a file and a folder in the source" in err
    assert "nothing was deleted" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("sync", "here", "bound"), "the same place"),
        (("sync", "bound/run1", "here", "--delete", "--yes"), "the source is inside of the destination"),
        (("sync", "here", "bound/new"), "the destination is inside of the source"),
        (("cp", "-r", "here", "bound/run1/"), "the destination is inside of the source"),
    ],
)
def test_a_place_that_has_two_paths_is_one(line: CommandLine, arguments: tuple[str, ...], text: str) -> None:
    """By a mount, as by names where their case is ignored: no look at the two paths can tell."""
    path = file_of(line.folder / "here/run1/a.pt", 10, seed=1)
    (line.folder / "bound").mkdir()
    mounted = (*own_mounts(), "sh", "-c", 'mount --bind here bound && exec "$@"', "sh", sys.executable, "-m", "wherry.cli")
    done = subprocess.run(
        [*mounted, *arguments], cwd=line.folder, env=line.environment, capture_output=True, text=True, check=False
    )
    assert (2, "") == (done.returncode, done.stdout)
    assert text in done.stderr
    assert path.exists()


def test_what_is_a_file_here_and_a_folder_there_is_refused_and_the_rest_goes_on(line: CommandLine) -> None:
    for name in ("a", "b/c", "d", "e/f"):
        file_of(line.folder / "here" / name, 10, seed=1)
    for name in ("a/x", "b"):
        file_of(line.folder / "there" / name, 10, seed=2)
    (line.folder / "there/d").symlink_to("nowhere")
    for mode in (["--dry-run"], []):
        _, err = line.run("sync", "here", "there", "--delete", "--yes", *mode, expected=2)
        assert "there/a is a folder, and a file in the source" in err
        assert "there/b/c: a file has the name of one of its folders" in err
        assert "there/d is there, and is no file that sync replaces" in err
    assert {"a/x", "b", "e/f"} == set(tree(line.folder / "there"))


def test_names_that_differ_in_case_only_are_refused_where_the_folder_ignores_case(tmp_path: Path) -> None:
    dest = StoreURI("file", "", str(tmp_path).strip("/"))
    names = [("a/Model.pt", False), ("a/model.pt", False), ("b", False)]
    assert {} == refusals(dest, names, is_blind=lambda folder: False)
    assert {"a/model.pt"} == set(found := refusals(dest, names, is_blind=lambda folder: True))
    assert "differ in case only" in str(found["a/model.pt"])
    folders = [("A/x", False), ("a/y", False)]
    assert {} == refusals(dest, folders, is_blind=lambda folder: False)
    assert "a and A differ in case only" in str(refusals(dest, folders, is_blind=lambda folder: True)["a/y"])
    (tmp_path / "b").touch()  # as a folder that ignores case shows the file "B"
    assert "differs in case only is there" in str(refusals(dest, names, is_blind=lambda folder: False)["b"])


def test_a_file_that_changes_is_named_and_the_rest_is_copied(line: CommandLine, seaweedfs_server: S3Server) -> None:
    path = file_of(line.folder / "here/changing", 300_000, seed=1)
    file_of(line.folder / "here/quiet", 10, seed=2)
    line.run("sync", "here", "there")

    def change() -> None:
        path.write_bytes(os.urandom(300_000))

    with fault_proxy("127.0.0.1", seaweedfs_server.port, [When("PUT", "changing", Do(change), times=9)]) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        _, err = line.run("sync", "here", uri, *options, expected=7)
    assert "changes again and again" in err
    uri, options = bucket_of(line, seaweedfs_server)
    assert {"quiet": 10} == names_at(line, uri, *options)


def test_an_interrupted_sync_goes_on_when_it_is_called_again(line: CommandLine, seaweedfs_server: S3Server) -> None:
    """In both directions, by Ctrl-C and by kill -9."""
    for n in range(5):
        file_of(line.folder / f"here/f{n}", 1000, seed=n)
    for number in (signal.SIGINT, signal.SIGKILL):
        for way in ("up", "down"):
            method = "PUT" if way == "up" else "GET"
            with fault_proxy("127.0.0.1", seaweedfs_server.port, [When(method, "/f4", Delay(600))]) as proxy:
                uri, options = bucket_of(line, seaweedfs_server, proxy.url)
                places = {"up": ("here", f"{uri}/{number}"), "down": (f"{uri}/{number}", f"there{number}")}[way]
                started = line.start("sync", *places, *options)
                wait_until(lambda proxy=proxy: any(proxy.fired))  # type: ignore[misc]  # mypy infers no lambda with a default
                started.send_signal(number)
                _, said = started.communicate(timeout=60)
                assert (130 if number == signal.SIGINT else -number) == started.returncode, said
            uri, options = bucket_of(line, seaweedfs_server)
            line.run("sync", *places, *options)
            plan = json.loads(line.run("sync", *places, "--json", *options)[0].splitlines()[0])["plan"]
            assert 5 == plan["unchanged"]["files"]
        found = {name: data for name, data in tree(line.folder / f"there{number}").items() if TEMPORARY_MARK not in name}
        assert tree(line.folder / "here") == found, "what a killed download has left is removed by wherry doctor --clean"


def test_deletions_that_fail_are_named_one_by_one(line: CommandLine, seaweedfs_server: S3Server) -> None:
    for n in range(3):
        file_of(line.folder / f"here/f{n}", 10, seed=n)
    refused = s3_error(403, "AccessDenied")
    plan = [When("POST", "delete", refused, times=99), When("DELETE", "/f1", refused, times=99)]
    with fault_proxy("127.0.0.1", seaweedfs_server.port, plan) as proxy:
        uri, options = bucket_of(line, seaweedfs_server, proxy.url)
        line.run("sync", "here", uri, *options)
        for n in range(1, 3):
            (line.folder / f"here/f{n}").unlink()
        out, err = line.run("sync", "here", uri, "--delete", "--yes", *options, expected=5)
    assert "f1" in err
    assert "1 deleted, 1 failed" in out
    uri, options = bucket_of(line, seaweedfs_server)
    assert {"f0": 10, "f1": 10} == names_at(line, uri, *options)


SCRIPT = """
import os, subprocess, sys
from wherry.cli.app import main
base, kind = sys.argv[1:3]
os.chdir(base)


def sync(*places):
    sys.argv = ["wherry", "sync", *places, "--delete", "--yes", "--spool", f"spool/{places[0]}"]
    try:
        main()
    except SystemExit as ended:
        return ended.code


sync("there", "warm")  # nobody may read all of the interpreter
if kind == "full":
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "there"], check=True)
elif os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print("code", sync("here", "there"), sorted(os.listdir("there")))
"""


@pytest.mark.parametrize("kind", ["unreadable", "full"])
def test_what_cannot_be_read_or_has_no_room_is_named_and_the_rest_is_copied(tmp_path: Path, kind: str) -> None:
    for name in ("a", "c"):
        file_of(tmp_path / "here" / name, 1000, seed=1)
    bad = file_of(tmp_path / "here/b", 4 * MIB if kind == "full" else 10, seed=2)
    file_of(tmp_path / "there/extra", 10, seed=3)
    (tmp_path / "spool").mkdir()
    let_others_in(tmp_path)
    for folder in (tmp_path / "there", tmp_path / "spool"):
        folder.chmod(0o777)
    if kind == "unreadable":
        bad.chmod(0)
    said = run_script(
        SCRIPT, tmp_path, kind, env={"TMPDIR": str(tmp_path / "spool")}, prefix=own_mounts() if kind == "full" else ()
    )
    if kind == "full":
        assert "code 1 ['a', 'c']" in said, said
        assert "space" in said
    else:
        assert "code 5 ['a', 'c', 'extra']" in said, said


def test_what_is_passed_over_is_named_and_its_copies_are_kept(line: CommandLine) -> None:
    """A link whose disk is not mounted is no reason to delete what it led to."""
    file_of(line.folder / "here/f", 10, seed=1)
    file_of(line.folder / "other/x", 10, seed=1)
    (line.folder / "here/d").mkdir()
    for name, target in (("gone", "nowhere"), ("d/folder", "../../other"), ("out", "../other/x"), ("in", "f")):
        (line.folder / "here" / name).symlink_to(target)
    os.mkfifo(line.folder / "here/pipe")
    for name in ("gone", "d/folder/x", "d/folder/y/z", "out", "pipe", "d/extra", "gone2"):
        file_of(line.folder / "there" / name, 10, seed=2)
    out, err = line.run("sync", "here", "there", "--delete", "--yes")
    assert "2 files (20 B) to delete" in out
    assert {"f", "in", "gone", "d/folder/x", "d/folder/y/z", "out", "pipe"} == set(tree(line.folder / "there"))
    for said in ("gone is passed over: a link to nothing", "d/folder is passed over: a link to a folder"):
        assert said in err
    assert "pipe is passed over: a pipe, a socket or a device" in err
    assert "passed over" not in line.run("sync", "here", "there", "--exclude", "*", "--include", "f", expected=3)[1]


def test_nothing_is_written_through_a_link_to_a_folder(line: CommandLine) -> None:
    file_of(line.folder / "here/sub/p", 10, seed=1)
    file_of(line.folder / "out/p", 10, seed=2)
    before = (line.folder / "out/p").read_bytes()
    (line.folder / "there").mkdir()
    (line.folder / "there/sub").symlink_to("../out")
    assert (
        "there/sub is a link to a folder, which sync does not write through" in line.run("sync", "here", "there", expected=2)[1]
    )
    assert before == (line.folder / "out/p").read_bytes()
