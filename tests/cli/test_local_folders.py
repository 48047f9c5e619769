"""Folders of this machine that may not be read, and links: what leaves them out, and what an error about them says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import CommandLine
from support import file_of

#: Root reads everything, unless it gives that up.
_AS_OTHERS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []


def run_beside_closed_folder(line: CommandLine, *commands: list[str], mode: int = 0) -> list[tuple[int, str, str]]:
    """Run commands in a folder where `here/locked` is closed: (exit code, stdout, stderr) of each."""
    for name in ("a", "locked/secret", "deep/b", "deep/locked/c"):
        file_of(line.folder / "here" / name, 10, seed=1)
    (line.folder / "there").mkdir()
    locked = line.folder / "here/locked"
    locked.chmod(mode)
    try:
        ran = [
            subprocess.run(
                [*_AS_OTHERS, sys.executable, "-m", "wherry.cli", *command],
                cwd=line.folder,
                env=line.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            for command in commands
        ]
    finally:
        locked.chmod(0o755)
    return [(one.returncode, one.stdout, one.stderr) for one in ran]


def test_a_closed_folder_that_is_excluded_is_in_the_way_of_nothing(line: CommandLine) -> None:
    without = ["--exclude", "/locked/"]
    ran = run_beside_closed_folder(
        line,
        ["sync", "here", "./there/1", *without],
        ["cp", "-r", "here", "./there/2/", *without],
        ["cp", "-r", "here/", "./there/3/", "--exclude", "!*.pt", *without],
        ["cp", "-r", "here/**", "./there/4/", *without],
        ["get", "-r", "here/deep", "there/"],
        ["ls", "-r", "here", *without],
        ["du", "here/", *without],
    )
    assert [0] * len(ran) == [code for code, _, _ in ran], ran
    there = line.folder / "there"
    names = {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()}
    assert {"1/a", "1/deep/b", "1/deep/locked/c", "2/here/a", "3/deep/locked/c", "4/a", "deep/b"} <= names
    assert [] == [name for name in names if "secret" in name]


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_closed_folder_is_named_with_the_rule_that_leaves_it_out(line: CommandLine, mode: int) -> None:
    all_of_it = [["sync", "here", "there"], ["cp", "-r", "here", "there/"], ["ls", "-r", "here"]]
    *ran, itself = run_beside_closed_folder(line, *all_of_it, ["sync", "here/locked", "there"], mode=mode)
    for code, _, err in ran:
        assert 5 == code
        assert f"list file://{line.folder}/here/locked/: Permission denied" in err
        assert "leave it out: --exclude '/locked/'" in err
    assert (5, True, False) == (itself[0], "let this user read it" in itself[2], "--exclude" in itself[2]), itself
    assert [] == os.listdir(line.folder / "there")


def test_excluding_all_folders_says_that_nothing_is_taken(line: CommandLine) -> None:
    file_of(line.folder / "here/deep/a", 10, seed=1)
    for verb in (["sync", "here", "there"], ["cp", "-r", "here", "there/"], ["ls", "-r", "here"]):
        assert "taken by --include and --exclude" in line.refuse(*verb, "--exclude", "deep/", expected=3)


@pytest.fixture
def snapshot(line: CommandLine) -> Path:
    """A folder of links to files elsewhere, as the cache of Hugging Face's hub keeps a snapshot of a model."""
    folder = line.folder / "hub/snapshots/abc"
    (folder / "deep").mkdir(parents=True)
    for n, (name, up) in enumerate((("a", "../.."), ("deep/b", "../../.."))):
        file_of(line.folder / "hub/blobs" / str(n), 10 + n, seed=n)
        (folder / name).symlink_to(f"{up}/blobs/{n}")
    return folder


@pytest.mark.parametrize(
    "command",
    ["sync -q hub/snapshots/abc there", "cp -r hub/snapshots/abc there", "cp -r hub/snapshots/abc/* ./there/", "put {} ./there"],
)
def test_links_to_files_are_followed_wherever_they_lead(line: CommandLine, snapshot: Path, command: str) -> None:
    line.run(*command.format("hub/snapshots/abc").split())
    blobs = [path.read_bytes() for path in sorted((line.folder / "hub/blobs").iterdir())]
    assert blobs == [(line.folder / "there" / name).read_bytes() for name in ("a", "deep/b")]


def test_a_move_takes_the_links_and_leaves_what_they_lead_to(line: CommandLine, snapshot: Path) -> None:
    line.run("mv", "-r", "hub/snapshots/abc/", "there")
    assert ["0", "1"] == sorted(os.listdir(line.folder / "hub/blobs"))
    assert [["deep"], []] == [os.listdir(snapshot), os.listdir(snapshot / "deep")]
    assert 11 == (line.folder / "there/deep/b").stat().st_size


def test_nothing_is_written_through_a_link_that_leads_out(line: CommandLine, snapshot: Path) -> None:
    file_of(line.folder / "here/new/x", 10, seed=3)
    (snapshot / "new").symlink_to("../../blobs")
    assert "outside of the store's folder" in line.refuse("cp", "-r", "here/new", "hub/snapshots/abc/", expected=1)
    assert "does not write through" in line.run("sync", "here", "hub/snapshots/abc", expected=2)[1]
    assert ["0", "1"] == sorted(os.listdir(line.folder / "hub/blobs"))


@pytest.mark.parametrize(("target", "what"), [("../hub", "a link to a folder"), ("nowhere", "a link to nothing")])
def test_a_sync_that_can_take_nothing_fails(line: CommandLine, snapshot: Path, target: str, what: str) -> None:
    (line.folder / "here").mkdir()
    (line.folder / "here/a").symlink_to(target)
    assert f"nothing here is copied: a is {what}" in line.refuse("sync", "-q", "here", "there", expected=3)
    assert "no object is here or below" in line.refuse("cp", "-r", "here", "there", expected=3)
