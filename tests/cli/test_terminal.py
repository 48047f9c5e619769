"""What a person sees on a terminal, and what Ctrl-C does there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from command_line import CommandLine, Terminal
from gate import Gate, wait_until
from support import end_agent, file_of


@pytest.fixture
def line(gate: Gate) -> Iterator[CommandLine]:
    line = CommandLine(gate.folder, gate.environment)
    with end_agent(line.spool):
        yield line


def test_ctrl_c_while_waiting_leaves_the_uploads_to_the_background(gate: Gate, line: CommandLine) -> None:
    for name in ("a", "b"):
        file_of(line.folder / name, 1000)
    terminal = Terminal(line, "put", "a", "b", "gated://x/")
    terminal.read_until(r"uploading.*2 files left")
    terminal.type("\x03")
    assert 130 == terminal.end()
    assert f"wherry drain --spool {line.spool}" in terminal.seen.replace("\r\n", "")
    assert "Traceback" not in terminal.seen
    gate.open()
    wait_until(lambda: {"a", "b"} == {path.name for path in gate.dest.iterdir()}, what="the background to finish")


def test_ctrl_c_ends_drain_and_not_the_uploads(gate: Gate, line: CommandLine) -> None:
    file_of(line.folder / "a", 1000)
    line.run("put", "--no-wait", "a", "gated://x/")
    terminal = Terminal(line, "drain")
    terminal.read_until("uploading")
    terminal.type("\x03")
    assert 130 == terminal.end()
    assert "going on in the background: 1 upload, 1000 B" in terminal.seen
    gate.open()
    wait_until((gate.dest / "a").exists, what="the background to finish")


def test_watch_shows_transfers_as_they_go_until_ctrl_c(gate: Gate, line: CommandLine) -> None:
    file_of(line.folder / "a", 1000)
    terminal = Terminal(line, "status", "--watch")
    terminal.read_until("nothing was ever uploaded from here")
    line.run("put", "--no-wait", "a", "gated://x/")
    terminal.read_until(r"gated://x/a .*0 B of 1000 B")
    gate.open()
    terminal.read_until("0 queued  0 uploading  1 done")
    terminal.type("\x03")
    assert 0 == terminal.end()
    assert "Traceback" not in terminal.seen


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, {"a", "b"}), ("y", 0, set())])
def test_rm_recursive_asks_first(line: CommandLine, answer: str, code: int, left: set[str]) -> None:
    for name in ("a", "b"):
        file_of(line.folder / "objects" / name, 1000)
    terminal = Terminal(line, "rm", "-r", "objects/")
    terminal.read_until(r"Delete 2 objects, 2\.0 KiB")
    terminal.type(f"{answer}\n")
    assert code == terminal.end()
    assert left == {path.name for path in (line.folder / "objects").iterdir()}


def test_all_bars_have_one_unit_binary_as_in_tables(line: CommandLine) -> None:
    file_of(line.folder / "objects/a", 3_000_000)
    terminal = Terminal(line, "get", "objects/a", "b")
    assert 0 == terminal.end()
    assert "2.86M/2.86M" in terminal.seen


def test_get_shows_a_bar_and_cat_keeps_the_output_clean(line: CommandLine) -> None:
    (line.folder / "objects").mkdir()
    (line.folder / "objects/a").write_text("the content")
    terminal = Terminal(line, "get", "objects/a", "b")
    assert 0 == terminal.end()
    assert "b: 100%" in terminal.seen
    terminal = Terminal(line, "cat", "objects/a")
    assert 0 == terminal.end()
    assert "the content" == terminal.seen
