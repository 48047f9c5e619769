"""One file for several stores is staged once, and arrives in each of them, whatever is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gate import Gate
from support import file_of, wait_until
from wherry import Uploader
from wherry.config import AgentConfig, Config
from wherry.loggers import Logger, ObjectStoreLogger, State
from wherry.spool.shared_snapshots import shared_snapshots

TWO_DESTINATIONS = """
import os, signal, sys
from pathlib import Path
from wherry.loggers import Logger, ObjectStoreLogger, State

source, spool = Path(sys.argv[1]), Path(os.environ["WHERRY_SPOOL"])
logger = Logger(State(), [ObjectStoreLogger(f"gated://x/{name}", check=False) for name in "abc"])
logger.upload_file("model.pt", source)
source.write_bytes(b"rewritten")
print(len(list((spool / "objects").iterdir())), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_one_file_for_three_stores_is_staged_once_and_arrives_in_each(gate: Gate) -> None:
    source = file_of(gate.folder / "model.pt", 100_000)
    data = source.read_bytes()
    code, output = gate.run(TWO_DESTINATIONS, str(source))
    assert (-signal.SIGKILL, "1") == (code, output.strip())
    gate.open()
    gate.drain()
    assert [data] * 3 == [(gate.dest / name / "model.pt").read_bytes() for name in "abc"]
    wait_until(lambda: not list((gate.spool / "objects").iterdir()), what="the end of the last staged file")
    inodes = {os.stat(gate.dest / name / "model.pt").st_ino for name in "ab"}
    assert 2 == len(inodes)  # who writes to the one does not change the other


def test_a_snapshot_that_was_uploaded_and_freed_meanwhile_is_made_again(tmp_path: Path) -> None:
    source = file_of(tmp_path / "file", 1000)
    config = Config(agent=AgentConfig(run_in="caller"))
    with (
        Uploader(tmp_path / "a", spool=tmp_path / "spool", config=config) as first,
        Uploader(tmp_path / "b", spool=tmp_path / "spool", config=config) as second,
        shared_snapshots(),
    ):
        first.put(source, "file").result()
        second.put(source, "file").result()
    assert source.read_bytes() == (tmp_path / "a" / "file").read_bytes() == (tmp_path / "b" / "file").read_bytes()


def test_calls_one_after_another_share_nothing(tmp_path: Path) -> None:
    source = file_of(tmp_path / "file", 1000)
    config = Config(agent=AgentConfig(run_in="caller"))
    logger = Logger(State(), [ObjectStoreLogger(tmp_path / "a", spool=tmp_path / "spool", config=config, check=False)])
    logger.upload_file("one", source)
    source.write_bytes(b"another")
    logger.upload_file("two", source)
    logger.close()
    assert b"another" == (tmp_path / "a" / "two").read_bytes()
    assert 1000 == (tmp_path / "a" / "one").stat().st_size
