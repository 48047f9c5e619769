"""put and get through pipes, and pipes that close early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from checkpoint_sets import save_set
from command_line import WARM_COMMANDS, CommandLine
from servers.features import tell_spool
from servers.real import S3Server
from servers.web_page import make_runs
from support import file_of
from wherry.backends.local.store import LocalStore
from wherry.checkpoints.protocol.names import RunKeys
from wherry.uri import StoreURI

VERBS = (
    "--help",
    "--version",
    "put -h",
    "put a objects/",
    "put a objects/ --json --overwrite",
    "ls objects/",
    "ls objects/ --json",
    "cat objects/big",
    "status",
    "status --json",
    "status big",
    "drain",
    "retry --all",
    "discard --all --yes",
    "get objects/big back",
    "get objects/big back --dry-run --json --overwrite",
    "mirror resume run bucket --no-seal",
    "mirror status bucket",
    "mirror verify bucket --json",
    "mirror seal bucket --yes",
    "pull bucket copy",
    "checkpoints project/run1",
    "checkpoints latest project/run1",
    "checkpoints verify project/run1",
    "checkpoints pin project/run1 --step 10",
    "runs runs",
    "runs runs --json",
    "plot runs train/loss",
    "doctor",
    "doctor --json",
    "du stored",
    "du stored --json",
    "mirror run bucket --dry-run",
    "mirror status bucket --json",
    "pull bucket copy2 --dry-run --json",
    "checkpoints project/run1 --json",
    "checkpoints prune project/run1 --keep-last 1 --dry-run --json",
    "plot runs train/loss --json",
    "report runs -o report.html --json",
    "doctor --clean --dry-run",
    "cp stored/big copied --json",
    "mv copied moved --json",
    "sync stored synced --json",
    "get -r stored/ - --max-bytes-per-s 1GiB",
    "put a ./paced/ --max-bytes-per-s 1GiB --json",
    "rm objects/big --json",
)


def shell(line: CommandLine, command: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command of bash, in which W is wherry, and which fails if any part of a pipe does."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace("W ", f"{sys.executable} -m wherry.cli ")],
        cwd=line.folder,
        env={**os.environ, **line.environment},
        capture_output=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize("size_bytes", [0, 1, 20_000_000])
def test_put_takes_stdin_to_its_end_and_get_gives_it_back(line: CommandLine, seaweedfs_server: S3Server, size_bytes: int) -> None:
    file_of(line.folder / "big", size_bytes)
    (line.folder / "options.json").write_text(json.dumps(seaweedfs_server.options))
    tell_spool(line.spool, seaweedfs_server)
    uri = f"s3://{seaweedfs_server.bucket}/{line.folder.name}/piped-{size_bytes}"
    done = shell(line, f"cat big | W put - {uri} --options-file options.json --json")
    assert 0 == done.returncode, done.stderr
    assert ("done", size_bytes) == tuple(json.loads(done.stdout)[name] for name in ("state", "size_bytes"))
    done = shell(line, f"W get {uri} - --options-file options.json | cmp - big")
    assert (0, b"", b"") == (done.returncode, done.stdout, done.stderr)


def test_what_is_not_read_has_no_size(line: CommandLine) -> None:
    assert "would be uploaded: 1 file, size unknown in" in line.run("put", "-", "./dest/a", "-n", stdin="one")[0]
    *_, summary = line.run("put", "-", "./dest/a", "-n", "--json", stdin="one")[0].splitlines()
    assert None is json.loads(summary)["summary"]["bytes"]


def test_put_of_stdin_keeps_what_is_there_unless_told_to_overwrite(line: CommandLine) -> None:
    line.run("put", "-", "./dest/a", stdin="one")
    assert "an object of this name already" in line.refuse("put", "-", "./dest/a", stdin="two", expected=4)
    assert "one" == (line.folder / "dest/a").read_text()
    line.run("put", "-", "./dest/a", "--overwrite", stdin="two")
    assert "two" == line.run("get", "dest/a", "-")[0]


@pytest.mark.parametrize(
    "arguments",
    [("-", "dest/"), ("-", "a", "dest/"), ("-", "--move", "dest/a"), ("-", "dest/a", "--options-file", "-")],
)
def test_put_of_stdin_goes_alone_to_a_name(line: CommandLine, arguments: Sequence[str]) -> None:
    line.refuse("put", *arguments, stdin="text", expected=2)
    assert [] == list(line.folder.iterdir())


def test_get_writes_several_objects_to_stdout(line: CommandLine) -> None:
    for name in ("run/a", "run/b", "c"):
        (line.folder / "dest/run").mkdir(parents=True, exist_ok=True)
        (line.folder / "dest" / name).write_text(f"{name}\n")
    assert "c\nrun/a\nrun/b\n" == line.run("get", "-r", "dest/c", "dest/run/", "-")[0]
    assert "run/b\n" == line.run("get", "-r", "dest/", "-", "--include", "b")[0]


@pytest.mark.parametrize(
    "verb",
    [
        *("ls dest/", "ls -r dest/ --json", "cat dest/000", "get dest/000 -", "--help", "du --depth 1 dest/ --json"),
        *("get -r dest/ copies/ --json", "cp -r dest/ ./copies/ --dry-run", "sync dest/ ./copies/ --dry-run --json"),
        *("mirror dest bucket --dry-run", "pull dest copies --dry-run --json", "rm -r dest/ --dry-run"),
    ],
)
def test_a_reader_that_ends_early_is_no_failure(line: CommandLine, verb: str) -> None:
    for n in range(300):
        file_of(line.folder / "dest" / f"{n:03}", 200_000 if n == 0 else 1)
    done = shell(line, f"W {verb} | head -c 1")
    assert (0, 1, b"") == (done.returncode, len(done.stdout), done.stderr)


def test_a_reader_that_ends_early_does_not_end_the_work(line: CommandLine) -> None:
    for n in range(100):
        file_of(line.folder / "dest" / f"{n:03}", 1)
    done = shell(line, "W rm --yes --json 'dest/*' | true")
    assert (0, b"") == (done.returncode, done.stderr)
    assert [] == list((line.folder / "dest").iterdir())


@pytest.fixture
def filled(line: CommandLine) -> CommandLine:
    """Something for each verb to print."""
    file_of(line.folder / "a", 1000)
    file_of(line.folder / "objects/big", 3_000_000)
    file_of(line.folder / "run/a.log", 1000)
    run = line.folder / "project/run1"
    run.parent.mkdir()
    keys = RunKeys(f"{str(run).strip('/')}/checkpoints")
    save_set(LocalStore(StoreURI("file", "", str(run.parent).strip("/")), {}), keys, 10, world=1, metrics={"loss": 1.0})
    make_runs(line.folder / "runs")
    line.run("put", "objects/big", "./stored/big")
    return line


def test_every_verb_that_prints_ends_well_when_nobody_reads(filled: CommandLine) -> None:
    said: dict[str, tuple[int, str]] = {}
    for verb in VERBS:
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as nobody, open(os.devnull) as nothing, (filled.folder / "stderr").open("w+") as stderr:
            streams = (nothing.fileno(), nobody.fileno(), stderr.fileno())
            code = WARM_COMMANDS.start(verb.split(), filled.folder, filled.environment, streams).wait(60)
            stderr.seek(0)
            told = stderr.read()
        if code or "Traceback" in told or "Error" in told:
            said[verb] = (code, told)
    assert {} == said
    assert not (filled.folder / "objects/big").exists()  # the last of them was carried out


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_standard_files_are_nowhere(line: CommandLine, closed: str) -> None:
    """The next file that is opened, such as the journal, must not get their numbers, and with them our output."""
    data = file_of(line.folder / "objects/a", 10).read_bytes()
    for verb in ("ls objects/", "cp objects/a b", "put objects/a ./stored/"):
        command = f"{sys.executable} -m wherry.cli {verb} {closed}"
        done = subprocess.run(["sh", "-c", command], cwd=line.folder, env=line.environment, capture_output=True, check=False)
        assert (0, b"") == (done.returncode, done.stderr)
    assert data == (line.folder / "b").read_bytes() == (line.folder / "stored/a").read_bytes()
