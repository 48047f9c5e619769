"""Names in a bucket for the shell's completion: with a real bash, and as zsh and fish ask."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import CommandLine, Terminal
from servers.real import S3Server
from support import file_of
from wherry.backends.s3.store import S3Store
from wherry.uri import StoreURI

PLAIN = (
    "run1/a.pt",
    "run1/b.pt",
    "run1/deep/c.pt",
    "runner.log",
    "only/inner/x",
    "lr=3/loss",
    "at@home/y",
    "t:0/z",
    "caf\u00e9.txt",
)
HOSTILE = (
    "$(touch hit)",
    "`touch hit`",
    "a;touch hit",
    "a\ntouch hit",
    "it's",
    'say"',
    "a b",
    "a'$(touch hit)'",
    "a|b",
    "a&b",
    "*",
    "~",
)


class Asking:
    """A bucket with names, and shells that ask for them."""

    def __init__(self, line: CommandLine, server: S3Server) -> None:
        self.line = line
        self.above = f"complete-{line.folder.name}-{os.getpid()}"
        self.uri = f"s3://{server.bucket}/{self.above}"
        self.options = "--options-file options.json"
        (line.folder / "options.json").write_text(json.dumps(server.options))
        store = S3Store(StoreURI("s3", server.bucket), server.options)
        for name in (*PLAIN, *HOSTILE):
            store.put_file(f"{self.above}/names/{name}", file_of(line.folder / "one", 1))
        self.environment = {
            **line.environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(line.folder),
            "WHERRY_COMPLETE_WAIT_S": "60",  # beside other tests
        }

    def run(self, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.line.folder,
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def bash(self, words: list[str], breaks: str = ":=@") -> list[str]:
        """What bash is given for the last of the words, as it splits them."""
        split = [piece for word in words for piece in _split(word, breaks)]
        script = (
            f'eval "$(_WHERRY_COMPLETE=source_bash wherry)"; COMP_WORDS=({" ".join(map(shlex.quote, split))}); '
            'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _wherry_completion wherry; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = self.run("bash", "--norc", "-c", script)
        assert (0, "") == (done.returncode, done.stderr)
        return [one for one in done.stdout.splitlines() if one]

    def other(self, shell: str, line: str, action: str = "get-args", **more: str) -> subprocess.CompletedProcess[str]:
        env = {
            **more,
            "_WHERRY_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": action,
        }
        done = self.run("wherry", env=env)
        assert "" == done.stderr
        return done


def _split(word: str, breaks: str) -> list[str]:
    pieces = [""]
    for c in word:
        if c in breaks:
            pieces += [c, ""]
        else:
            pieces[-1] += c
    return [piece for piece in pieces if piece]


@pytest.fixture
def asking(line: CommandLine, seaweedfs_server: S3Server) -> Asking:
    return Asking(line, seaweedfs_server)


def test_bash_gets_one_level_without_what_stands_before_the_last_colon(asking: Asking) -> None:
    words = ["wherry", "get", *asking.options.split(), f"{asking.uri}/names/ru"]
    tail = asking.uri.removeprefix("s3:")
    assert [f"{tail}/names/run1/", f"{tail}/names/runner.log"] == asking.bash(words)
    assert [f"{asking.uri}/names/run1/", f"{asking.uri}/names/runner.log"] == asking.bash(words, breaks="")
    words[-1] = f"{asking.uri}/names/lr=3/"
    assert ["3/loss"] == asking.bash(words)
    words[-1] = f"{asking.uri}/names/t:0/"
    assert ["0/z"] == asking.bash(words)


def test_a_folder_is_never_alone_so_that_no_space_follows_it(asking: Asking) -> None:
    tail = asking.uri.removeprefix("s3:")
    words = ["wherry", "cp", "-r", *asking.options.split(), "here", f"{asking.uri}/names/on"]
    assert [f"{tail}/names/only/", f"{tail}/names/only/inner/"] == asking.bash(words)


def test_a_name_that_a_shell_might_run_is_not_offered(asking: Asking) -> None:
    everything = f"wherry rm {asking.options} {asking.uri}/names/"
    expected = sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in PLAIN})
    found = asking.other("fish", everything).stdout.splitlines()
    assert expected == sorted(name.removeprefix(f"{asking.uri}/names/") for name in found)
    assert asking.bash(everything.split())
    zsh = asking.other("zsh", everything).stdout
    assert not set("$`;&|*~\n") & set(zsh.removeprefix("_arguments '*: :(("))
    assert not (asking.line.folder / "hit").exists()


def test_bash_on_a_terminal_completes_a_name_and_a_local_file(asking: Asking) -> None:
    rc = asking.line.folder / "rc"
    rc.write_text('PS1="ready> "; bind "set bell-style none"; eval "$(_WHERRY_COMPLETE=source_bash wherry)"\n')
    terminal = Terminal(asking.line, "--rcfile", rc, "-i", program=["/bin/bash"], env=asking.environment, columns=300)
    terminal.read_until("ready> ")
    terminal.type(f"wherry ls {asking.options} {asking.uri}/names/run1/dee\t")
    terminal.read_until(f"{asking.uri}/names/run1/deep/")
    terminal.type("\t")
    terminal.read_until(f"{asking.uri}/names/run1/deep/c.pt ")
    terminal.type("\rwherry put opti\t")
    terminal.read_until("wherry put options.json ")
    terminal.type("\x15exit\r")
    terminal.end()
    assert "Traceback" not in terminal.seen


def test_nobody_is_asked_for_a_password(asking: Asking) -> None:
    asks = asking.line.folder / "asks.sh"
    asks.write_text("echo started > started; echo password: > /dev/tty; read answer < /dev/tty\n")
    config = asking.line.folder / "config"
    config.write_text(f"[default]\nregion = us-east-1\ncredential_process = sh {asks}\n")
    env = {**asking.environment, "AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    env |= {"_WHERRY_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    env |= {"_TYPER_COMPLETE_ARGS": "wherry ls s3://some-bucket/x"}
    terminal = Terminal(asking.line, "-c", "wherry; exit $?", program=["/bin/bash"], env=env)
    assert 0 == terminal.end()
    assert (asking.line.folder / "started").exists()
    assert "" == terminal.seen.strip()


def test_zsh_and_fish_get_whole_words(asking: Asking) -> None:
    line, found = f"wherry get {asking.options} {asking.uri}/names/ru", f"{asking.uri}/names/run1/"
    assert [found, f"{asking.uri}/names/runner.log"] == asking.other("fish", line).stdout.splitlines()
    assert 0 == asking.other("fish", line, "is-args").returncode
    assert 1 == asking.other("fish", f"{line}-no-such", "is-args").returncode
    escaped = [f'"{one}"'.replace(":", r"\\:") for one in (found, f"{asking.uri}/names/runner.log")]
    assert f"_arguments '*: :(({' '.join(escaped)}))'" == asking.other("zsh", line).stdout


def test_buckets_and_an_open_quote(asking: Asking, seaweedfs_server: S3Server) -> None:
    offered = asking.other("fish", f"wherry ls {asking.options} s3://{seaweedfs_server.bucket[:3]}").stdout.splitlines()
    assert f"s3://{seaweedfs_server.bucket}/" in offered
    assert [f"{asking.uri}/names/runner.log"] == asking.bash(
        ["wherry", "ls", *asking.options.split(), f'"{asking.uri}/names/runn'], ""
    )


def test_words_that_are_no_uris_are_completed_as_before(asking: Asking) -> None:
    assert {"put", "pull", "plot"} <= set(asking.bash(["wherry", "p"]))
    assert "--recursive" in asking.bash(["wherry", "get", "--rec"])
    assert [] == asking.bash(["wherry", "put", "s3://b/c", "opti"])  # bash looks for files itself then
    assert "put" in asking.other("fish", "wherry pu").stdout


@pytest.mark.parametrize(
    "wrong", ["s3://no-such-bucket-here/x", "s3://UP per/x", "gs://bucket/x", "s3:///x", "s3://b/\\", "s3://"]
)
def test_what_cannot_be_listed_is_silent(asking: Asking, wrong: str, seaweedfs_server: S3Server) -> None:
    endpoint = seaweedfs_server.url if wrong == "s3://" else "http://127.0.0.1:9"  # where buckets are asked for again and again
    _is_silent(asking, wrong, endpoint)


@pytest.mark.slow
def test_buckets_of_no_server_are_silent(asking: Asking) -> None:
    _is_silent(asking, "s3://", "http://127.0.0.1:9")


def _is_silent(asking: Asking, wrong: str, endpoint: str) -> None:
    refused = {"AWS_ACCESS_KEY_ID": "wrong", "AWS_SECRET_ACCESS_KEY": "wrong", "AWS_ENDPOINT_URL": endpoint}
    env = {"_WHERRY_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": f"wherry get {wrong}", **refused}
    env |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"}
    done = asking.run("wherry", env=env)
    assert ("", "") == (done.stdout.strip(), done.stderr)


def test_a_server_that_says_nothing_is_not_waited_for(asking: Asking) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}", "access_key_id": "a", "secret_access_key": "b"}
        (asking.line.folder / "options.json").write_text(json.dumps(options))
        begun_s = time.monotonic()
        done = asking.other("fish", f"wherry get {asking.options} s3://bucket/x", WHERRY_COMPLETE_WAIT_S="")
        took_s = time.monotonic() - begun_s
    assert "" == done.stdout
    assert took_s < 30  # the read timeout of a store is 60 s
