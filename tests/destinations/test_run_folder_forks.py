"""Who owns a run's folder: the process in which the run begins, whichever of its children logs first."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

START = """
import os, signal, sys, warnings
from pathlib import Path
import numpy as np
from wherry.loggers import Event, Logger, ObjectStoreLogger, RunFolderLogger, State

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: that it works is the point

def in_child(work):
    done, told = os.pipe()
    if not (pid := os.fork()):
        work()
        os.write(told, b".")
        signal.pause()  # a loader's worker lives on
    os.read(done, 1)
    return pid
"""


def run_script(text: str, *arguments: object) -> str:
    script = START + textwrap.dedent(text)
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_child_that_logs_first_does_not_shut_the_training_out(tmp_path: Path) -> None:
    pid = run_script(
        """
        with Logger(State("r"), RunFolderLogger(sys.argv[1])) as logger:
            child = in_child(lambda: logger.log_metrics({"worker": 1}, 100))
            for step in range(24):
                logger.log_metrics({"loss": 1}, step)
            os.kill(child, signal.SIGKILL)
        print(child)
        """,
        tmp_path / "run",
    )
    assert steps_of(tmp_path / "run") == list(range(24))
    assert steps_of(tmp_path / "run/children" / pid) == [100]


def test_without_a_router_too_the_folder_is_its_makers(tmp_path: Path) -> None:
    pid = run_script(
        """
        run = RunFolderLogger(sys.argv[1])
        child = in_child(lambda: run.log_metrics({"worker": 1}, 100))
        run.log_metrics({"loss": 1}, 0)
        run.close()
        os.kill(child, signal.SIGKILL)
        print(child)
        """,
        tmp_path / "run",
    )
    assert steps_of(tmp_path / "run") == [0]
    assert steps_of(tmp_path / "run/children" / pid) == [100]


def test_two_runs_that_begin_at_once_are_told_apart_before_anything_is_logged(tmp_path: Path) -> None:
    out = run_script(
        """
        logger = Logger(State("r"), RunFolderLogger(sys.argv[1]))
        logger.run_event(Event.INIT)
        try:
            RunFolderLogger(sys.argv[1]).log_metrics({"a": 1})
        except RuntimeError as error:
            print(error)
        logger.close()
        """,
        tmp_path / "run",
    )
    assert "is being written by process" in out
    assert not (tmp_path / "run").exists()  # nothing was logged


def test_the_files_of_children_are_uploaded_with_the_run(tmp_path: Path) -> None:
    pid = run_script(
        """
        store = ObjectStoreLogger(sys.argv[2], spool=sys.argv[3])
        with Logger(State("r"), [RunFolderLogger(sys.argv[1]), store]) as logger:
            logger.log_metrics({"loss": 1}, 0)
            def work():
                logger.log_metrics({"worker": 1}, 100)
                logger.log_images(np.zeros((4, 4)), "i", step=5)
                logger.destinations[0].flush()
            child = in_child(work)
            os.kill(child, signal.SIGKILL)
        print(child)
        """,
        tmp_path / "run",
        tmp_path / "store",
        tmp_path / "spool",
    )
    stored = tmp_path / "store/r"
    names = {path.relative_to(stored).as_posix() for path in stored.rglob("*") if path.is_file()}
    files = ("metrics.jsonl", "media/index.jsonl", "media/images/i/5.png")
    own = (".wherry-run.json", "environment.json", "wherry-summary.json", "metrics.jsonl", "metrics.parquet")
    assert names == {*own, *(f"children/{pid}/{file}" for file in files)}
    assert steps_of(stored / "children" / pid) == [100]


def test_a_child_of_a_child_and_a_process_of_the_same_number_have_files_of_their_own(tmp_path: Path) -> None:
    out = run_script(
        """
        folder = Path(sys.argv[1])
        logger = Logger(State("r"), RunFolderLogger(folder))
        logger.run_event(Event.INIT)
        def work():
            (folder / f"children/{os.getpid()}").mkdir(parents=True)  # of an earlier run, in a container
            logger.log_metrics({"a": 1}, 1)
            os.kill(in_child(lambda: logger.log_metrics({"a": 1}, 2)), signal.SIGKILL)
        os.kill(in_child(work), signal.SIGKILL)
        logger.close()
        print(" ".join(sorted(path.parent.name for path in folder.glob("children/*/metrics.jsonl"))))
        """,
        tmp_path / "run",
    )
    first, second = sorted(out.split(), key=lambda name: "-" not in name)
    assert first.endswith("-2")
    assert [steps_of(tmp_path / "run/children" / name) for name in (first, second)] == [[1], [2]]
