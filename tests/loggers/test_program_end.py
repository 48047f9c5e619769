"""A program that ends without close() loses nothing: its loggers close themselves."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import end_agent, run_script

#: What a program does; sys.argv: the bucket.
TRAIN = """
import os, sys, multiprocessing
from wherry.loggers import Event, Logger, LoggerDestination, ObjectStoreLogger, RunFolderLogger, State, TensorBoardLogger

class Told(LoggerDestination):
    def close(self, state, logger):
        print(f"closed {state.run_name}: {logger.error!r}", flush=True)

def train(name="r"):
    folders = [RunFolderLogger("runs/{run_name}"), TensorBoardLogger("boards/{run_name}")]
    logger = Logger(State(name), [*folders, ObjectStoreLogger(sys.argv[1]), Told()])
    logger.run_event(Event.INIT)
    for step in range(3):
        logger.log_metrics({"loss": 1.0}, step)
        logger.run_event(Event.BATCH_END)
    return logger
"""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERRY_SPOOL", str(tmp_path / "spool"))
    with end_agent(tmp_path / "spool"):
        yield tmp_path / "bucket"


def closed(said: str) -> list[str]:
    return [line.removeprefix("closed ") for line in said.splitlines() if line.startswith("closed ")]


def assert_all_is_in(bucket: Path, name: str = "r") -> None:
    lines = (bucket / name / "metrics.jsonl").read_text().splitlines()
    assert [0, 1, 2] == [json.loads(line)["step"] for line in lines]
    assert list(bucket.rglob("*tfevents*"))


def test_a_logger_that_the_program_dropped_is_closed_at_its_end(bucket: Path) -> None:
    assert ["r: None"] == closed(run_script(TRAIN + "train()", bucket))
    assert_all_is_in(bucket)


def test_an_exception_that_nobody_caught_is_the_error_of_the_run(bucket: Path) -> None:
    said = run_script(TRAIN + "kept = train(); raise RuntimeError('boom')", bucket, expected=1)
    assert ["r: RuntimeError('boom')"] == closed(said)
    assert_all_is_in(bucket)


def test_one_that_was_closed_is_not_closed_again(bucket: Path) -> None:
    assert ["r: None"] == closed(run_script(TRAIN + "train().close()", bucket))
    said = run_script(TRAIN + "with train('s'): pass\nraise RuntimeError", bucket, expected=1)
    assert ["s: None"] == closed(said)


def test_the_child_of_a_fork_leaves_the_logger_to_its_parent(bucket: Path) -> None:
    script = "logger = train()\nif pid := os.fork(): os.waitpid(pid, 0); print('waited', flush=True)\nelse: sys.exit()"
    said = run_script(TRAIN + script, bucket)
    said_by_it = [line for line in said.splitlines() if not line.startswith("wherry: ")]  # of a wait that takes long
    assert ["waited", "closed r: None"] == said_by_it[-2:]
    assert_all_is_in(bucket)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_closes_its_own(bucket: Path, method: str) -> None:
    program = """
def work(bucket, name):
    sys.argv[1:] = [bucket]
    train(name)
    if name == "fails":
        raise RuntimeError("boom")

def main():
    for name in ("child", "fails"):
        child = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=(sys.argv[1], name))
        child.start()
        child.join()
"""
    (bucket.parent / "program.py").write_text(TRAIN + program)
    said = run_script("import program; program.main()", bucket, method, env={"PYTHONPATH": str(bucket.parent)})
    # From Python 3.13 on multiprocessing tells nobody what has ended its child.
    error = "RuntimeError('boom')" if sys.version_info < (3, 13) else "None"
    assert ["child: None", f"fails: {error}"] == closed(said)
    for name in ("child", "fails"):
        assert_all_is_in(bucket, name)


def test_uploads_that_failed_are_said(bucket: Path) -> None:
    bucket.mkdir()
    (bucket / "taken").write_text("of somebody else")
    (bucket.parent / "source").write_text("ours")
    said = run_script(TRAIN + "train().upload_file('taken', 'source')", bucket)
    assert "wherry: " in said and "taken" in said
    assert "Traceback" not in said
    assert_all_is_in(bucket)


def test_one_that_has_not_begun_is_closed_as_long_as_somebody_has_it() -> None:
    script = """
    from wherry.loggers import Logger, LoggerDestination, State

    class Told(LoggerDestination):
        def close(self, state, logger):
            print("closed", state.run_name, flush=True)

    kept = Logger(State("kept"), Told())
    Logger(State("dropped"), Told())
    """
    assert "closed kept\n" == run_script(script)
