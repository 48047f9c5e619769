"""The bar of a command that moves objects."""

from __future__ import annotations

import re

import pytest

from command_line import CommandLine, Terminal
from gate import Gate
from servers.features import tell_spool
from servers.real import S3Server
from support import end_agent, file_of
from wherry.cli.store_verbs.bar import Bar, Tracked
from wherry.progress import ByteBar
from wherry.uri import StoreURI

MIB = 2**20


class Steps(ByteBar):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__("", 0, shown=False)
        self.steps: list[int] = []

    def advance(self, n_bytes: int) -> None:
        self.steps.append(n_bytes)


def test_an_object_counts_once_however_often_its_bytes_move() -> None:
    steps = Steps()
    bar, folder, one = Bar(steps), StoreURI("s3", "bucket", "run"), Tracked("s3://bucket/run/a", 10)
    bar.expect(one)
    bar.moved(folder, "run/a", 4)
    bar.moved(folder, "run/a", 9)  # more than is left: a part was sent again
    bar.moved(folder, "run/a", 10)  # read back to be verified
    bar.moved(folder, "run/other", 10)
    bar.settle(one)
    other = Tracked("s3://bucket/run/b", 5)
    bar.expect(other)
    bar.settle(other)  # copied by the server
    bar.end()
    assert [4, 6, 5] == steps.steps


def test_many_objects_have_one_bar(line: CommandLine) -> None:
    for name in ("a", "b"):
        file_of(line.folder / "objects" / name, 3 * MIB)
    terminal = Terminal(line, "get", "-r", "objects", "back/", "--max-bytes-per-s", "2MiB")
    assert 0 == terminal.end()
    assert re.search(r"2 files: +[0-9]+%.*/6\.00M ", terminal.seen)
    terminal = Terminal(line, "get", "-r", "objects", "quiet/", "--max-bytes-per-s", "2MiB", "-q")
    assert 0 == terminal.end()
    assert "" == terminal.seen


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_bar_of_uploads_says_what_is_left_on_any_terminal(gate: Gate, columns: int) -> None:
    line = CommandLine(gate.folder, gate.environment)
    file_of(line.folder / "a", 3 * MIB)
    with end_agent(line.spool):
        terminal = Terminal(line, "put", "a", "gated://x/", columns=columns)
        terminal.read_until(r"uploading, 1 file left: +0%\|.*/3\.00M \[[^\r]*\]")
        gate.open()
        assert 0 == terminal.end()


@pytest.mark.parametrize("verb", [("cp", "large", "{uri}/large"), ("sync", "here", "{uri}/there")])
def test_a_copy_shows_how_far_it_is(line: CommandLine, seaweedfs_server: S3Server, verb: tuple[str, ...]) -> None:
    tell_spool(line.spool, seaweedfs_server)
    keys = {"AWS_ACCESS_KEY_ID": seaweedfs_server.access_key, "AWS_SECRET_ACCESS_KEY": seaweedfs_server.secret_key}
    for name in ("large", "here/large"):
        file_of(line.folder / name, 12 * MIB)
    words = [word.format(uri=f"s3://{seaweedfs_server.bucket}/bar") for word in verb]
    terminal = Terminal(line, *words, "--max-bytes-per-s", "6MiB", env={**keys, "AWS_ENDPOINT_URL": seaweedfs_server.url})
    assert 0 == terminal.end()
    assert re.search(r"1 file: +[0-9]+%.*/12\.0M ", terminal.seen)
