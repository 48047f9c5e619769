"""Tables: as narrow as the terminal, whole in a pipe, in one unit rule and one form of times, plain where that is asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from checkpoint_sets import save_set
from command_line import CommandLine, Terminal
from servers.web_page import make_runs
from support import file_of
from wherry.backends.local.store import LocalStore
from wherry.checkpoints.protocol.names import RunKeys
from wherry.errors import UploadFailed
from wherry.uploader import Uploader
from wherry.uri import StoreURI

LONG = "a-folder-of-some-length/and-another-one-below-it/with-a-name-that-no-narrow-terminal-can-hold-in-one-line.pt"
#: The verbs that show tables, and what must be whole in a pipe.
TABLES = {
    "ls objects/": "a-folder-of-some-length/",
    "ls -r objects/": LONG,
    "du --depth 2 objects/": LONG.rpartition("/")[0],
    "mirror status bucket": "a-writer-whose-name-is-long-as-well",
    "checkpoints project/run1": "PROOF",
    "runs runs": "birch",
}
#: Others that people read: sentences, which a terminal folds.
TEXTS = ("status", "status taken/a", "doctor", "mirror verify bucket", "pull bucket copy", "checkpoints verify project/run1")
PLAIN = [{"NO_COLOR": "1"}, {"TERM": "dumb"}]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """Something for each verb to show."""
    line = CommandLine(tmp_path_factory.mktemp("tables"))
    file_of(line.folder / "objects" / LONG, 3_000_000)
    file_of(line.folder / "objects/small", 12)
    file_of(line.folder / "run/a.log", 1000)
    run = line.folder / "project/run1"
    run.parent.mkdir()
    keys = RunKeys(f"{str(run).strip('/')}/checkpoints")
    save_set(LocalStore(StoreURI("file", "", str(run.parent).strip("/")), {}), keys, 10, world=1, metrics={"loss": 1.0})
    make_runs(line.folder / "runs")
    line.run("mirror", "resume", "run", "bucket", "--no-seal", "--writer", "a-writer-whose-name-is-long-as-well")
    with suppress(UploadFailed), Uploader(line.folder / "taken", spool=line.spool) as uploader:
        file_of(line.folder / "taken/a", 10)
        uploader.put(file_of(line.folder / "new", 20), "a")
    return line


def on_terminal(line: CommandLine, verb: str, columns: int, **env: str) -> str:
    terminal = Terminal(line, *verb.split(), columns=columns, env=env)
    assert 0 == terminal.end(), terminal.seen
    return terminal.seen.replace("\r\n", "\n")


def in_pipe(line: CommandLine, verb: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "wherry.cli", *verb.split()],
        cwd=line.folder,
        env={**line.environment, "COLUMNS": "40", "TERM": "xterm-256color", **env},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("verb", TABLES)
def test_a_table_is_as_narrow_as_its_terminal(filled: CommandLine, verb: str, columns: int) -> None:
    rows = [one for one in on_terminal(filled, verb, columns).splitlines() if not one.startswith(("wherry: ", "total: "))]
    assert rows
    assert [] == [row for row in rows if len(row) > columns]


@pytest.mark.parametrize("verb", TABLES)
def test_a_table_is_whole_in_a_pipe(filled: CommandLine, verb: str) -> None:
    out = in_pipe(filled, verb)
    assert TABLES[verb] in out
    assert "..." not in out


@pytest.mark.parametrize("verb", [*TABLES, *TEXTS])
def test_what_a_pipe_gets_has_no_escape_sequences_and_one_unit_rule(filled: CommandLine, verb: str) -> None:
    out = in_pipe(filled, verb)
    assert "\x1b" not in out
    assert "\r" not in out
    assert [] == re.findall(r"\d ?[kKMGT]B\b", out)
    times, zoned = (re.findall(rf"\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d:\d\d{zone}", out) for zone in ("", r"[+-]\d\d:\d\d"))
    assert len(times) == len(zoned)
    assert [] == [one for one in re.findall(r"(\d+) s\b", out) if int(one) >= 120]  # those are minutes


@pytest.mark.parametrize("env", PLAIN, ids=str)
@pytest.mark.parametrize("verb", [*TABLES, *TEXTS, "plot runs train/loss"])
def test_nothing_is_coloured_or_rewritten_where_that_is_not_wanted(filled: CommandLine, verb: str, env: dict[str, str]) -> None:
    assert "\x1b[" not in re.sub(r"\x1b\[\?25[hl]", "", on_terminal(filled, verb, 80, **env))


def test_a_writer_that_is_late_is_told_so_by_the_unit_rule(filled: CommandLine) -> None:
    head, row = in_pipe(filled, "mirror status bucket").splitlines()
    assert ["STATE", "HEARD", "LATE", "SEGMENTS", "SIZE", "WRITER"] == head.split()
    assert re.fullmatch(r"incomplete|open|lost|sealed", row.split()[0])
    assert json.loads(in_pipe(filled, "mirror status bucket --json"))["writer"] == row.split()[-1]
