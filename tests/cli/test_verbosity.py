"""--quiet leaves errors and what was asked for; --verbose names objects and retries."""

from __future__ import annotations

import json
import logging

import pytest

from command_line import CommandLine
from support import file_of
from wherry.config import RetryConfig
from wherry.errors import TransientError
from wherry.store.retry import call_with_retry


@pytest.fixture
def stored(line: CommandLine) -> CommandLine:
    for name in ("a", "b", "run/c"):
        file_of(line.folder / "dest" / name, 100)
    return line


@pytest.mark.parametrize(
    "arguments",
    [
        ("put", "dest/a", "./other/", "-q"),
        ("-q", "put", "dest/a", "./other/"),
        ("get", "--quiet", "dest/a", "copy"),
        ("rm", "-rqy", "dest/run/"),
        ("drain", "-q"),
        ("mirror", "-q", "resume", "dest", "mirrored"),
        ("mirror", "resume", "dest", "mirrored", "-q"),
    ],
)
def test_quiet_says_nothing_of_what_was_done(stored: CommandLine, arguments: tuple[str, ...]) -> None:
    assert ("", "") == stored.run(*arguments)


@pytest.mark.parametrize("arguments", [("ls", "dest"), ("cat", "dest/a"), ("get", "dest/a", "b", "--dry-run"), ("status",)])
def test_quiet_leaves_what_was_asked_for(stored: CommandLine, arguments: tuple[str, ...]) -> None:
    file_of(stored.folder / "dest/a", 0)
    (stored.folder / "dest/a").write_text("text\n")
    usual, _ = stored.run(*arguments)
    assert usual
    assert usual.split(" in ")[0] == stored.run("-q", *arguments)[0].split(" in ")[0]  # less the seconds


def test_quiet_leaves_json_and_errors(stored: CommandLine) -> None:
    out, _ = stored.run("rm", "-q", "--json", "dest/a")
    assert ["deleted", 1] == [json.loads(out.splitlines()[0])["state"], json.loads(out.splitlines()[1])["summary"]["files"]]
    assert "dest/absent" in stored.refuse("get", "-q", "dest/absent", "copy", expected=3)


def test_verbose_names_each_object(stored: CommandLine) -> None:
    out, _ = stored.run("get", "-rv", "dest/", "copy/")
    assert 3 == out.count(" -> copy/")
    _, err = stored.run("put", "-v", "dest", "./other/")
    assert 3 == err.count(": done, 100 B, ")
    for name in ("a", "b"):
        (stored.folder / "dest" / name).write_text("text")
    _, err = stored.run("cat", "dest/a", "dest/b", "-v")
    assert 2 == err.count("wherry: written ")


def test_quiet_and_verbose_contradict_each_other(stored: CommandLine) -> None:
    _, err = stored.run("-q", "ls", "dest", "-v", expected=2)
    assert "give one of them" in err


def test_the_library_logs_each_retry(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "wherry")
    failures = [TransientError("busy", operation="get", uri="s3://bucket/a")] * 2

    def get() -> str:
        if failures:
            raise failures.pop()
        return "text"

    assert "text" == call_with_retry(get, config=RetryConfig(), sleep=lambda _: None)
    assert [1, 2] == [int(text.partition("after attempt ")[2][0]) for text in caplog.messages]
    assert "s3://bucket/a" in caplog.messages[0]
